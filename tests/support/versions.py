"""Other versions of pgbeat: those whose newest migration is another."""

import shutil
from pathlib import Path

from pgbeat.database.migrations import migrate
from tests.support.processes import ROOT

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


def this_version(folder: Path) -> Path:
    """Puts the package as it is into a folder; returns where it is."""
    return Path(shutil.copytree(ROOT / "pgbeat", folder / "pgbeat", ignore=_CACHES))


def version_before(folder: Path) -> Path:
    """Puts the package without its newest migration into a folder; returns where it is."""
    package = this_version(folder)
    for path in (package / "database/migrations/versions").glob(f"{migrate.newest()}_*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return package


def next_version(folder: Path, *statements: str, needs_it: bool = False) -> str:
    """Puts the package as its next version would be into a folder; returns the schema's version.

    With `needs_it` that version can't use the schema of today.
    """
    package = this_version(folder)
    migrations = package / "database" / "migrations"
    revision = add_migration(migrations, *statements)
    if needs_it:
        module = migrations / "migrate.py"
        module.write_text(f'{module.read_text()}\nOLDEST = "{revision}"\n')
    return revision
