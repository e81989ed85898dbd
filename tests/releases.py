"""Other versions of pgbeat: of a commit, and ones whose newest migration is another."""

import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from pgbeat import migrate
from tests.processes import ROOT

NEXT = '''
"""The next release's migration."""

from alembic import op

revision = "{revision}"
down_revision = "{before}"


def upgrade() -> None:
    for statement in {statements!r}:
        op.execute(statement)
'''
_CACHES = shutil.ignore_patterns("__pycache__")


def add_migration(migrations: Path, *statements: str) -> str:
    """Adds a migration to a copy of the migrations; returns its version."""
    before = max(path.name[:4] for path in (migrations / "versions").glob("[0-9]*.py"))
    revision = f"{int(before) + 1:04}"
    source = NEXT.format(revision=revision, before=before, statements=statements)
    (migrations / "versions" / f"{revision}_next.py").write_text(source)
    return revision


def copy_migrations(folder: Path, *, newest: str = "9999") -> Path:
    """Copies this version's migrations up to one of them; returns where they are."""
    copied = Path(shutil.copytree(migrate._FOLDER, folder, ignore=_CACHES))
    for path in (copied / "versions").glob("[0-9]*.py"):
        if path.name[:4] > newest:
            path.unlink()
    return copied


def next_version(folder: Path, *statements: str) -> str:
    """Puts the package as its next version would be into a folder; returns the schema's version."""
    package = shutil.copytree(ROOT / "pgbeat", folder / "pgbeat", ignore=_CACHES)
    return add_migration(Path(package) / "migrations", *statements)


def version_of(commit: str, folder: Path) -> None:
    """Puts the package as it was at a commit into a folder; skips where git doesn't have it."""
    try:
        archive = subprocess.run(
            ["git", "archive", commit, "pgbeat"], cwd=ROOT, capture_output=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a git history with commit {commit}: {error}")
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
