"""Keeps an app's settings as long as nothing that they were read from has changed."""

import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from operator import is_
from types import ModuleType
from typing import Any

from pgbeat.config.settings import Settings

#: The app's attribute for them.
_KEPT = "_pgbeat_settings"
_MUTABLE = (dict, list, set)


def settings_of(app: Any) -> Settings:
    """Returns what `Settings.load` makes of the Celery app's `conf`, read again once that changes.

    Raises `ConfigError`.
    """
    kept: _Kept | None = vars(app).get(_KEPT)
    if kept is None or not kept.is_current(app.conf):
        kept = _Kept(app.conf)
        vars(app)[_KEPT] = kept
    return kept.settings


def spelling(app: Any, setting: str) -> str:
    """Returns what a setting is called where the Celery app's are written; `None` is no app."""
    namespace = getattr(app, "namespace", None)
    return f"{namespace}_pgbeat_{setting}".upper() if namespace else f"pgbeat_{setting}"


class _Kept:
    """Settings, and all that they were read from."""

    def __init__(self, conf: Any) -> None:
        self._conf = conf
        self.settings = Settings.load(conf)
        self._environ = dict(_environ())
        self._sources = _sources(conf)
        # Values that can be changed in place.
        given = [each for source in self._sources or () for each in source.items()]
        self._mutable = [
            (value, deepcopy(value))
            for name, value in given
            if isinstance(value, _MUTABLE) and _is_read(str(name).lower())
        ]

    def is_current(self, conf: Any) -> bool:
        """Returns whether reading the settings again would give the same."""
        if conf is not self._conf or self._sources is None or self._environ != _environ():
            return False
        sources = _sources(conf)
        return (
            sources is not None
            and len(sources) == len(self._sources)
            and all(map(_is_same, sources, self._sources))
            and all(value == before for value, before in self._mutable)
        )


def _is_read(name: str) -> bool:
    return "pgbeat_" in name or "broker" in name


def _environ() -> Mapping[Any, Any]:
    """Returns the environment: as its own dictionary, which is compared in a microsecond."""
    found: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
    return found


def _sources(conf: Any) -> list[dict[Any, Any]] | None:
    """Returns copies of what a configuration looks values up in; `None` if that is not known."""
    found = []
    maps: Iterable[Any] = getattr(conf, "maps", (None,))
    for each in maps:
        source = getattr(each, "obj", each)
        if isinstance(source, dict):
            found.append(dict(source))
        elif isinstance(source, ModuleType):
            found.append(dict(vars(source)))
        else:  # an object may look its values up anywhere
            return None
    return found


def _is_same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return one.keys() == other.keys() and all(map(is_, one.values(), other.values()))
