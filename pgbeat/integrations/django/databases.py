"""Turns the entry of `DATABASES` that is pgbeat's into a URL."""

from collections.abc import Mapping
from typing import Any

from celery import Celery, _state, current_app
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from sqlalchemy.engine import URL

from pgbeat.errors import ConfigError

#: Options of Django's own, which are not libpq's. Its pools are not pgbeat's either.
_DJANGOS = {
    "assume_role",
    "client_encoding",
    "context",
    "cursor_factory",
    "isolation_level",
    "pool",
    "prepare_threshold",
    "row_factory",
    "server_side_binding",
}


def alias() -> str:
    """Returns the alias of pgbeat's database: `PGBEAT_DATABASE`, or the default one."""
    return str(getattr(settings, "PGBEAT_DATABASE", DEFAULT_DB_ALIAS))


def celery_app() -> Celery | None:
    """Returns the project's Celery app, by which tasks are sent; `None` if none was made."""
    app = _state._tls.current_app or _state.default_app
    return app if isinstance(app, Celery) else None


def any_app() -> Celery:
    """Returns the project's Celery app, or else Celery's current one."""
    return celery_app() or current_app._get_current_object()


def url() -> URL:
    """Returns the URL of pgbeat's database, as `DATABASES` has it at the moment.

    Django's test runner changes the entry to the test database. Raises `ConfigError`.
    """
    name = alias()
    if name not in connections.settings:
        raise ConfigError(f"PGBEAT_DATABASE: DATABASES has no {name!r}")
    try:
        wrapper = connections[name]
    except ImproperlyConfigured as error:
        raise ConfigError(f"DATABASES[{name!r}] can't be used: {error}") from error
    if wrapper.vendor != "postgresql":
        raise ConfigError(
            f"DATABASES[{name!r}] is {wrapper.vendor}, and pgbeat needs Postgres: name another "
            "entry in PGBEAT_DATABASE, or set CELERY_BROKER_URL"
        )
    return url_of(name, wrapper.settings_dict)


def url_of(name: str, entry: Mapping[str, Any]) -> URL:
    """Returns the URL of an entry of `DATABASES`. Raises `ConfigError` if it has none."""
    query = dict(_query(name, entry.get("OPTIONS") or {}))
    role = (entry.get("OPTIONS") or {}).get("assume_role")
    if role:  # set after connecting, as Django does: poolers refuse other parameters
        query["assume_role"] = str(role)
    host, port = str(entry.get("HOST") or ""), str(entry.get("PORT") or "")
    # A folder of sockets, or several servers: libpq knows them only as parameters.
    if host.startswith(("/", "@")) or "," in host or "," in port:
        query |= {"host": host} if host else {}
        query |= {"port": port} if port else {}
        host = port = ""
    return URL.create(
        "postgresql",
        username=entry.get("USER") or None,
        password=str(entry["PASSWORD"]) if entry.get("PASSWORD") else None,
        host=host or None,
        port=int(port) if port else None,
        database=str(entry["NAME"]) if entry.get("NAME") else None,
        query=query,
    )


def _query(name: str, options: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the options that libpq knows."""
    query = {}
    for option, value in options.items():
        if option in _DJANGOS or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError(
                f"DATABASES[{name!r}]['OPTIONS'][{option!r}] can't be written in a URL; set "
                "CELERY_BROKER_URL to pgbeat+postgresql://user:password@host:5432/name"
            )
        query[option] = str(value)
    return query
