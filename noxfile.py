"""The tasks of development: `nox -l` lists them, `nox -s lint` runs one, `nox` the first three.

They run in the active environment, which CONTRIBUTING.md makes, and install nothing.
"""

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "test"]
nox.options.stop_on_first_error = True

LOCK = ".ci/constraints.txt"


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
    extras = [f"--extra={extra}" for extra in ("bench", "docs", "test", "test-deploy", "test-web")]
    session.run(
        *("uv", "pip", "compile", "--quiet", *options, *extras, "pyproject.toml"),
        *("--custom-compile-command", "nox -s lock", "--output-file", LOCK),
        *(session.posargs or ["--upgrade"]),
    )
