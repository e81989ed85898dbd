"""URLs of Postgres: reads any spelling, compares them, and shows them without passwords."""

from functools import lru_cache
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pgbeat.errors import ConfigError

#: Schemes that mean Postgres, once kombu's `sqla+` (or `sqlalchemy+`) and a driver are taken off.
_POSTGRES = {"postgres", "postgresql"}
_LOOPBACK = ("127.0.0.1", "::1")
#: How the URLs of brokers on Postgres begin, and of Celery's result backend.
BROKER_PREFIXES = ("sqla+", "sqlalchemy+", "pgbeat+")
_RESULT_PREFIX = "db+"


@lru_cache(maxsize=100)
def postgres_url(text: str) -> URL:
    """Returns the SQLAlchemy URL (driver psycopg) of a Postgres DSN.

    Accepts `postgresql://`, `postgres://`, `postgresql+DRIVER://`, and those behind kombu's
    `sqla+` or Celery's `db+`. Raises `ConfigError`, which shows no password, for anything else.
    """
    for prefix in (*BROKER_PREFIXES, _RESULT_PREFIX):
        text = text.removeprefix(prefix)
    try:
        url = make_url(text)
    except ArgumentError:
        raise ConfigError(
            "the database URL can't be parsed; expected postgresql://user:password@host:5432/name"
        ) from None
    except ValueError:  # what stands where the port should be may be a piece of the password
        raise ConfigError(
            "the database URL can't be parsed: its port is not a number; expected "
            "postgresql://user:password@host:5432/name, with %2F for a slash in the password"
        ) from None
    if url.get_backend_name() not in _POSTGRES and url.drivername not in _POSTGRES:
        raise ConfigError(
            f"{url.drivername}:// is not Postgres; expected postgresql://user:password@host:5432/name"
        )
    return url.set(drivername="postgresql+psycopg")


def is_postgres(text: str | None) -> bool:
    """Returns whether a broker's or database's URL means Postgres."""
    try:
        return bool(text) and bool(postgres_url(text or ""))
    except ConfigError:
        return False


def same_database(one: URL, other: URL) -> bool:
    """Returns whether two URLs name the same server and database, whatever the user and options."""

    def place(url: URL) -> tuple[Any, ...]:
        host = url.host or url.query.get("host") or "localhost"
        host = "localhost" if host in _LOOPBACK else host
        port = url.port or url.query.get("port") or 5432
        return str(host), str(port), url.database or url.username

    return place(one) == place(other)


def place(url: URL) -> str:
    """Returns database, server and user for a sentence: `'app' on db.example.com:5432 as beat`."""
    host = url.host or url.query.get("host") or "the default host"
    port = url.port or url.query.get("port") or ""
    where = f"{host}:{port}" if port and not str(host).startswith("/") else str(host)
    user = f" as {url.username}" if url.username else ""
    return f"{url.database or url.username or 'default'!r} on {where}{user}"


def redacted(url: URL | str) -> str:
    """Returns the URL without its password, wherever that was written."""
    url = make_url(url)
    query = {k: ("***" if "pass" in k.lower() else v) for k, v in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)
