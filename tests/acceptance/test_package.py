"""The package as users get it: its contents, its metadata, its types, and that it works alone."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from packaging.metadata import Metadata
from packaging.utils import canonicalize_name

from pgbeat.version import __version__
from tests.support.package import LOCK, Package, install, once, package, run, tracked
from tests.support.processes import ROOT

#: The modules that need an extra, and those in the folders that end with a dot.
NEEDS = {
    "asyncio": ["pgbeat.worker.finishing.async_finish"],
    "django": ["pgbeat.integrations.django."],
    "flower": ["pgbeat.flower", "pgbeat.integrations.flower", "pgbeat.integrations.flower_history"],
    "metrics": [
        "pgbeat.monitoring.metrics.exporter",
        "pgbeat.monitoring.metrics.families",
        "pgbeat.monitoring.metrics.prometheus",
    ],
    "otel": ["pgbeat.tracing", "pgbeat.integrations.opentelemetry"],
    "pytest-celery": ["pgbeat.testing.fixtures", "pgbeat.testing.pytest_celery"],
    "web": ["pgbeat.web", "pgbeat.web."],
    "yaml": ["pgbeat.schedules.files.yaml_documents"],
}
#: Alembic runs the first, the example app is imported as `tasks`, and the last needs Django 6.
NOT_IMPORTED = (
    "pgbeat.database.migrations.env",
    "pgbeat._example.",
    "pgbeat.integrations.django.task_backend",
)
IMPORT = """
import importlib, json, sys
failures = {}
if any(name.startswith("pgbeat.integrations.django.") for name in sys.argv[1:2]):
    import django
    from django.conf import settings

    contrib = ("auth", "contenttypes", "sessions", "messages", "admin")
    apps = [f"django.contrib.{name}" for name in contrib]
    database = {"ENGINE": "django.db.backends.postgresql"}
    settings.configure(
        INSTALLED_APPS=[*apps, "pgbeat.integrations.django"], DATABASES={"default": database}
    )
    django.setup()
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failures[name] = f"{type(error).__name__}: {error}"
print(json.dumps(failures))
"""
USE = """
import importlib.metadata, sys
import pgbeat
from celery import Celery

assert pgbeat.__file__.startswith(sys.prefix), pgbeat.__file__
for group in ("console_scripts", "celery.commands", "celery.beat_schedulers",
              "celery.result_backends", "kombu.serializers"):
    (point,) = importlib.metadata.distribution("pgbeat").entry_points.select(group=group)
    assert point.load() is not None

app = Celery("shop", broker="pgbeat+" + sys.argv[1], backend="pgbeat+" + sys.argv[1])
app.conf.beat_schedule = {"often": {"task": "shop.note", "schedule": 3600}}

@app.task(name="shop.note", pgbeat={"tags": ["a"]})
def note(): ...

job = pgbeat.submit(note, app=app)
scheduler = pgbeat.Scheduler(app=app)
scheduler.run_due()
scheduler.close()
with app.connection_for_read() as connection:
    assert connection.default_channel.basic_get("celery") is not None
print(job.state)
"""

pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists() or not shutil.which("cyclonedx-py"),
    reason="needs a clone of the repository, and pgbeat[test-deploy]",
)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The package, built once in a run."""
    folder = tmp_path_factory.getbasetemp()
    return package((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "package")


@pytest.fixture(scope="module")
def metadata(built: Package) -> bytes:
    with zipfile.ZipFile(built.wheel) as wheel:
        return wheel.read(f"pgbeat-{__version__}.dist-info/METADATA")


def test_two_builds_are_equal(built: Package) -> None:
    first, second = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (built.first, built.second)
    )
    name = f"pgbeat-{__version__}"
    kinds = {f"{name}-py3-none-any.whl", f"{name}.tar.gz", f"{name}.cdx.json", ".gitignore"}
    assert set(first) == set(second) == kinds
    assert [name for name in first if first[name] != second[name]] == []


def test_the_wheel_has_the_package_and_nothing_else(built: Package) -> None:
    folders = {"pgbeat/": "pgbeat/", "tasks/": "pgbeat/_example/tasks/"}
    expected = {
        to + path.removeprefix(folder): (ROOT / path).read_bytes()
        for path in tracked()
        for folder, to in folders.items()
        if path.startswith(folder)
    }
    with zipfile.ZipFile(built.wheel) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
        modes = {entry.external_attr >> 16 & 0o777 for entry in wheel.infolist()}
    info = f"pgbeat-{__version__}.dist-info/"
    about = {name.removeprefix(info) for name in files if name.startswith(info)}
    assert about == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert {name: text for name, text in files.items() if not name.startswith(info)} == expected
    assert "pgbeat/py.typed" in files and modes == {0o644}


def test_the_sdist_is_the_repository(built: Package) -> None:
    """So who packages it can run all tests and build the site."""
    with tarfile.open(built.sdist) as sdist:
        files = {entry.name.partition("/")[2]: entry for entry in sdist.getmembers()}
        del files["PKG-INFO"]
        assert sorted(files) == tracked()
        for path, entry in files.items():
            file = sdist.extractfile(entry)
            assert file is not None and file.read() == (ROOT / path).read_bytes(), path
            assert bool(entry.mode & stat.S_IXUSR) == bool(
                (ROOT / path).stat().st_mode & stat.S_IXUSR
            )


def test_metadata_are_complete_and_valid(metadata: bytes) -> None:
    found = Metadata.from_email(metadata)  # raises if something is invalid
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (found.name, str(found.version)) == ("pgbeat", __version__)
    assert (found.license_expression, found.license_files) == ("BSD-3-Clause", ["LICENSE"])
    assert found.summary and found.author and found.keywords
    assert str(found.requires_python) == project["requires-python"]
    assert set(found.provides_extra or ()) == set(project["optional-dependencies"])
    assert found.description == (ROOT / "README.md").read_text()
    assert message_from_bytes(metadata)["Description-Content-Type"] == "text/markdown"
    classifiers = set(found.classifiers or ())
    assert {"Framework :: Celery", "Typing :: Typed", "Operating System :: POSIX"} <= classifiers


def test_the_bill_of_materials_lists_what_users_install(built: Package) -> None:
    (file,) = built.first.glob("*.cdx.json")
    bill = json.loads(file.read_text())
    about = bill["metadata"]["component"]
    assert (about["name"], about["version"], about["type"]) == ("pgbeat", __version__, "library")
    assert str(ROOT) not in file.read_text() and str(built.first.parent) not in file.read_text()
    locked = {line.partition(" ;")[0] for line in LOCK.read_text().splitlines()}
    listed = {
        f"{canonicalize_name(part['name'])}=={part['version']}" for part in bill["components"]
    }
    assert listed <= locked
    # Of each extra that users install something, and nothing of the others.
    names = {pin.partition("==")[0] for pin in listed}
    assert {"celery", "django", "ephem", "fastapi", "flower", "holidays", "pyyaml"} <= names
    assert not {"mkdocs", "nox", "playwright", "ruff"} & names


def modules(built: Package) -> list[str]:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = [name[:-3].replace("/", ".") for name in wheel.namelist() if name[-3:] == ".py"]
    names = [name.removesuffix(".__init__") for name in names]
    return [name for name in names if not name.startswith(NOT_IMPORTED)]


def need(extra: str, names: list[str]) -> set[str]:
    exact = {name for name in NEEDS[extra] if not name.endswith(".")}
    folders = tuple(name for name in NEEDS[extra] if name.endswith("."))
    return {name for name in names if name in exact or (folders and name.startswith(folders))}


def test_modules_need_only_what_is_declared(built: Package, tmp_path: Path) -> None:
    names = modules(built)
    done = run(built.venv, "python", "-c", IMPORT, *names, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    failures = json.loads(done.stdout)
    of_extras = set().union(*(need(extra, names) for extra in NEEDS))
    assert {name: why for name, why in failures.items() if name not in of_extras} == {}
    for extra in NEEDS:
        assert need(extra, names) & set(failures), f"no module needs {extra}"


@pytest.mark.parametrize("extra", NEEDS)
def test_modules_of_an_extra_need_no_other(extra: str, built: Package, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    shutil.copytree(built.venv, venv, symlinks=True, copy_function=os.link)
    install(venv, f"{built.wheel}[{extra}]")
    names = sorted(need(extra, modules(built)))
    done = run(venv, "python", "-c", IMPORT, *names, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}


def test_commands_work_without_extras(built: Package, empty_database: str, tmp_path: Path) -> None:
    version = run(built.venv, "pgbeat", "--version", cwd=tmp_path)
    assert (version.stdout.split(), version.stderr) == (["pgbeat", __version__], "")
    assert "migrate" in run(built.venv, "pgbeat", "--help", cwd=tmp_path).stdout
    migrated = run(built.venv, "pgbeat", "migrate", cwd=tmp_path, PGBEAT_URL=empty_database)
    assert (migrated.returncode, migrated.stderr) == (0, ""), migrated.stderr
    used = run(built.venv, "python", "-c", USE, empty_database, cwd=tmp_path)
    assert (used.returncode, used.stdout) == (0, "pending\n"), used.stderr


@pytest.fixture(scope="session")
def typed(built: Package) -> Path:
    """A folder with an app, and an environment that has the wheel and types for Celery."""
    folder = built.first.parent / "typed"
    with once(folder) as is_empty:
        if is_empty:
            install(folder / "venv", built.wheel, "celery-types")
            shutil.copy(ROOT / "tests/support/typed_app.py", folder / "shop.py")
            (folder / "pyrightconfig.json").write_text(
                json.dumps(
                    {
                        "include": ["shop.py"],
                        "typeCheckingMode": "strict",
                        "reportUnnecessaryTypeIgnoreComment": "error",
                        "venvPath": str(folder),
                        "venv": "venv",
                    }
                )
            )
    return folder


CHECKERS: dict[str, list[str]] = {
    "mypy": ["--strict", "--python-executable", "venv/bin/python", "shop.py"],
    "basedpyright": ["--project", "pyrightconfig.json"],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_types_from_outside(checker: str, typed: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    program = Path(sys.executable).with_name(checker)
    done = subprocess.run(
        [program, *CHECKERS[checker]],
        cwd=typed,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


Audit = Callable[[str], "subprocess.CompletedProcess[str]"]


@contextmanager
def advisories(*found: str) -> Iterator[str]:
    """Serves a database of vulnerabilities, in OSV's form, that knows one package's."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = asked["package"]["name"]
            known = [{"id": "X-1", "summary": "", "affected": []}] if name in found else []
            body = json.dumps({"vulns": known} if known else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    """Audits two short locks, which disagree on a version."""
    shutil.copy(ROOT / "noxfile.py", tmp_path)
    for folder, version in ((".ci", "5.7.0"), ("deploy", "5.6.0")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "constraints.txt").write_text(f"celery=={version}\nkombu==5.6.0\n")

    def run_audit(url: str) -> "subprocess.CompletedProcess[str]":
        command = ["nox", "-s", "audit", "--", "--vulnerability-service=osv", f"--osv-url={url}"]
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run_audit


def test_an_audit_succeeds_if_nothing_is_known(audit: Audit) -> None:
    with advisories("sqlalchemy") as url:
        done = audit(url)
    assert done.returncode == 0, done.stderr


def test_an_audit_fails_for_a_vulnerable_version(audit: Audit) -> None:
    with advisories("celery") as url:
        done = audit(url)
    assert done.returncode == 1
    for lock, version in ((".ci/constraints.txt", "5.7.0"), ("deploy/constraints.txt", "5.6.0")):
        report = done.stderr.partition(f"{lock} has vulnerable versions:")[2]
        assert ["celery", version, "X-1"] in [line.split() for line in report.splitlines()]


def test_an_audit_fails_without_an_answer(audit: Audit) -> None:
    done = audit("http://127.0.0.1:9/")
    assert done.returncode == 1
    assert "nothing is known about .ci/constraints.txt" in done.stderr
