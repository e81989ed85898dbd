"""Gives a project's Celery apps the project's database as their broker."""

from collections.abc import Iterator, Mapping
from typing import Any

from celery import Celery
from django.conf import settings

from pgbeat.config import is_postgres
from pgbeat.config.app_broker import first_broker
from pgbeat.integrations.django import NAME, databases

_BROKER, _DATABASE = "broker_url", "pgbeat_url"


class DatabaseDefaults(Mapping[str, Any]):
    """Defaults of an app's settings that follow `DATABASES`, also into test databases.

    The broker is the project's database. If the app's settings name a broker elsewhere that is not
    Postgres, pgbeat's tables are in the project's database.
    """

    def __init__(self, conf: Any) -> None:
        self._conf = conf

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        text = databases.url().render_as_string(hide_password=False)
        return f"pgbeat+{text}" if key == _BROKER else text

    def __contains__(self, key: object) -> bool:
        if key == _DATABASE:
            return is_installed() and not is_postgres(first_broker(self._conf))
        return key == _BROKER and is_installed()

    def __iter__(self) -> Iterator[str]:
        return (key for key in (_BROKER, _DATABASE) if key in self)

    def __len__(self) -> int:
        return len(tuple(self))


def is_installed() -> bool:
    """Returns whether the project has pgbeat among its `INSTALLED_APPS`."""
    return any(name == NAME or name.startswith(f"{NAME}.") for name in settings.INSTALLED_APPS)


def equip(app: Celery) -> None:
    """Gives an app the defaults, behind all its settings."""
    if app.configured:
        _add(app.conf)
    else:
        app.add_defaults(lambda: _add(app.conf))


def _add(conf: Any) -> Mapping[str, Any]:
    if not any(isinstance(mapping, DatabaseDefaults) for mapping in conf.maps):
        # Last come Celery's own defaults.
        conf.maps.insert(len(conf.maps) - 1, DatabaseDefaults(conf))
    return {}
