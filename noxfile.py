"""The tasks of development: `nox -l` lists them, `nox -s lint` runs one, `nox` the first three.

They run in the active environment, which CONTRIBUTING.md makes, and install nothing.
"""

import sys
import tempfile
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "test"]
nox.options.stop_on_first_error = True

LOCK = ".ci/constraints.txt"
#: The versions of the image.
IMAGE_LOCK = "deploy/constraints.txt"
#: Extras for who develops pgbeat.
OWN_EXTRAS = {"bench", "docs", "test", "test-deploy", "test-web"}


@nox.session
def lint(session: nox.Session) -> None:
    """Checks style, format and the direction of imports."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Checks types."""
    session.run("mypy", *session.posargs)


@nox.session
def test(session: nox.Session) -> None:
    """Runs the default tier of tests, which starts no processes."""
    session.run("pytest", *session.posargs)


@nox.session
def process(session: nox.Session) -> None:
    """Runs the tests that start workers, beats, commands and servers."""
    session.run("pytest", "-m", "process", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """Runs the long tests, and those in a browser."""
    session.run("pytest", "-m", "slow", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Builds the site, and fails on a broken link."""
    env = {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", "build", "--strict", *session.posargs, env=env)


@nox.session
def package(session: nox.Session) -> None:
    """Builds wheel, sdist and their bill of materials, always the same: `-- FOLDER`, or `dist`."""
    folder = Path(*session.posargs or ["dist"]).absolute()
    env = {"SOURCE_DATE_EPOCH": None}  # without it, all files get the same date
    session.run("uv", "build", "-q", "--build-constraints", LOCK, "-o", str(folder), env=env)
    (wheel,) = folder.glob("*.whl")
    version = wheel.name.split("-")[1]
    text = Path("pyproject.toml").read_text()
    extras = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"].keys()
    users = f"pgbeat[{','.join(sorted(extras - OWN_EXTRAS))}]=={version}"
    with tempfile.TemporaryDirectory() as venv:
        python, project = f"{venv}/bin/python", Path(venv, "pyproject.toml")
        session.run("uv", "venv", "-q", "--python", sys.executable, venv)
        options = ("--python", python, "--constraints", LOCK, "--find-links", str(folder))
        session.run("uv", "pip", "install", "-q", *options, users)
        project.write_text(text.replace('dynamic = ["version"]', f'version = "{version}"'))
        session.run(
            *("cyclonedx-py", "environment", "--output-reproducible", "--no-validate"),
            *("--pyproject", str(project), "--mc-type", "library"),
            *("--output-file", str(folder / f"pgbeat-{version}.cdx.json"), python),
            env=env,
        )


@nox.session
def audit(session: nox.Session) -> None:
    """Asks a database in the internet whether the locked versions are vulnerable."""
    reports = []
    for lock in (LOCK, IMAGE_LOCK):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report")
            try:
                session.run(
                    *("pip-audit", "--strict", "--no-deps", "--disable-pip", *session.posargs),
                    *("--progress-spinner=off", f"--requirement={lock}", f"--output={report}"),
                )
            except CommandFailed:
                if not report.exists():
                    session.error(f"nothing is known about {lock}: pip-audit got no answer")
                reports.append(f"{lock} has vulnerable versions:\n{report.read_text()}")
    if reports:
        session.error("\n".join(reports))


@nox.session
def bench(session: nox.Session) -> None:
    """Runs all benchmarks: `nox -s bench -- --quick` small ones, `-- --only beat.launch` some."""
    session.run("python", "benchmarks/all.py", *session.posargs)


@nox.session
def matrix(session: nox.Session) -> None:
    """Runs tests on each supported Celery, Python and Postgres, which takes hours."""
    session.run(".ci/matrix", *session.posargs)


@nox.session
def lock(session: nox.Session) -> None:
    """Renews the versions that development and CI use; `-- --upgrade-package NAME` only one."""
    options = ["--universal", "--python-version", "3.11", "--no-annotate", "--no-emit-index-url"]
    extras = [f"--extra={extra}" for extra in sorted(OWN_EXTRAS)]
    session.run(
        *("uv", "pip", "compile", "--quiet", *options, *extras, "pyproject.toml"),
        *("--custom-compile-command", "nox -s lock", "--output-file", LOCK),
        *(session.posargs or ["--upgrade"]),
    )
