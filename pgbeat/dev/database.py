"""The database of `pgbeat dev`: the app's own if it answers, or an embedded Postgres."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from shlex import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from pgbeat.config import Settings
from pgbeat.config.urls import place, same_database, servers
from pgbeat.database import connections
from pgbeat.dev.lines import Log
from pgbeat.errors import ConfigError, PgbeatError
from pgbeat.testing import embedded

_NAME, _SETTINGS = "app", {"timezone": "UTC"}
_LOCAL = ("", "localhost", "127.0.0.1", "::1")


def default_folder() -> Path:
    """Returns the folder of this project's embedded server, beside that of the demo."""
    here = Path.cwd()
    name = f"{here.name}-{sha256(os.fsencode(here)).hexdigest()[:8]}"
    return embedded.default_folder().parent / "dev" / name


def configured(conf: object) -> URL | None:
    """Returns the URL of the app's database; `None` if its settings name no Postgres.

    Raises `ConfigError` for other mistakes.
    """
    try:
        return Settings.load(conf).url  # type: ignore[arg-type]
    except ConfigError as error:
        if [(problem.field, problem.code) for problem in error.problems] == [
            ("pgbeat_url", "required")
        ]:
            return None
        raise


def answers(url: URL) -> bool:
    """Returns whether the database can be used.

    Raises `DBAPIError` if it refuses, and if no other can stand in for it, since it is on another
    machine, or is Django's, too.
    """
    try:
        connections.engine(url, "pgbeat dev").connect().close()
    except DBAPIError as error:
        # Without a state nothing answered.
        no_answer = isinstance(error.orig, psycopg.Error) and error.orig.sqlstate is None
        is_here = all(host in _LOCAL or host.startswith("/") for host, _ in servers(url))
        if no_answer and is_here and not _is_djangos(url):
            return False
        raise
    return True


def _is_djangos(url: URL) -> bool:
    if "django.conf" not in sys.modules:
        return False
    from pgbeat.integrations.django import databases

    try:
        return same_database(databases.url(), url)
    except ConfigError:
        return False


@contextmanager
def opened(url: URL | None, folder: Path, log: Log, *, fresh: bool) -> Iterator[dict[str, str]]:
    """Yields the environment that leads an app's processes to its database.

    The app's own is `url`. If it is missing or doesn't answer, an embedded server runs while
    the block runs, with its data in `folder`; `fresh` empties its database first. Raises as
    `answers` and `embedded.server` do.
    """
    if url is not None and answers(url):
        if fresh:
            raise PgbeatError(
                f"--fresh would empty the app's own database, {place(url)}; it is for the "
                "embedded server"
            )
        log("postgres", f"the app's database {place(url)}")
        yield {}
        return
    why = "the app names no Postgres" if url is None else f"{place(url)} doesn't answer"
    log("postgres", f"{why}; starting an embedded server with its data in {folder}")
    with embedded.server(folder, _SETTINGS) as server:
        server.create_database(_NAME, fresh=fresh)
        dsn = server.dsn(_NAME)
        variables = {
            "PGBEAT_URL": dsn,
            "CELERY_BROKER_URL": f"pgbeat+{dsn}",
            "CELERY_RESULT_BACKEND": f"pgbeat+{dsn}",
        }
        file = folder / "env"
        file.write_text(_exports(variables | _for_psql(dsn)))
        log("postgres", f"for psql, celery and pgbeat in other terminals: . {quote(str(file))}")
        yield variables


def _exports(variables: dict[str, str]) -> str:
    """Returns what a shell reads to set the variables."""
    return "".join(f"export {name}={quote(value)}\n" for name, value in variables.items())


def _for_psql(dsn: str) -> dict[str, str]:
    parts = conninfo_to_dict(dsn)
    return {
        "PGHOST": str(parts["host"]),
        "PGUSER": str(parts["user"]),
        "PGDATABASE": str(parts["dbname"]),
    }
