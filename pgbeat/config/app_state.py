"""Keeps a process's state for a Celery app; drops it whole when settings change."""

import os
from collections.abc import Mapping
from copy import deepcopy
from functools import cached_property
from types import ModuleType
from typing import Any, TypeVar

from pgbeat.config.settings import Settings, given_settings

Part = TypeVar("Part")

#: The app's attribute for it.
_STATE = "_pgbeat"
_MUTABLE = (dict, list, set)
#: The settings of an app's broker that pgbeat reads.
_BROKER = (
    "broker_url",
    "broker_read_url",
    "broker_write_url",
    "broker_transport",
    "broker_transport_options",
)


class AppState:
    """What a process keeps for an app, until its settings change.

    Each package keeps its parts here, objects of its classes.
    """

    def __init__(self, app: Any) -> None:
        self.pid = os.getpid()
        self._environ = dict(_environ())
        self._conf = app.conf
        self._conf.get("broker_url")  # an app reads its settings when one is asked for
        self._sources = [dict(source) for source in _sources(self._conf)]
        # Values that can be changed in place.
        self._mutable = [
            (value, deepcopy(value))
            for source in self._sources
            for name, value in source.items()
            if isinstance(value, _MUTABLE) and _is_read(str(name).lower())
        ]
        self._parts: dict[type, Any] = {}

    @cached_property
    def settings(self) -> Settings:
        """The app's settings. Raises `ConfigError`."""
        return Settings.load(self._conf)

    def part(self, kind: type[Part]) -> Part:
        """Returns the part of a class, made at the first call."""
        part: Part | None = self._parts.get(kind)
        return self._parts.setdefault(kind, kind()) if part is None else part

    def is_current(self, conf: Any) -> bool:
        """Returns whether reading the settings again would give the same."""
        return (
            conf is self._conf
            and self._environ == _environ()
            and self._sources == _sources(conf)
            and all(value == before for value, before in self._mutable)
        )


def state_of(app: Any) -> AppState:
    """Returns this process's state for an app, by the settings that `current_state` last saw."""
    state: AppState | None = vars(app).get(_STATE)
    if state is None or state.pid != os.getpid():
        state = vars(app)[_STATE] = AppState(app)
    return state


def current_state(app: Any) -> AppState:
    """Returns the state after a check for changed settings."""
    state = state_of(app)
    if not state.is_current(app.conf):
        state = vars(app)[_STATE] = AppState(app)
    return state


def settings_of(app: Any) -> Settings:
    """Returns the Celery app's settings, read again once its `conf` changes.

    Raises `ConfigError`.
    """
    return current_state(app).settings


def spelling(app: Any, setting: str) -> str:
    """Returns a setting's name among the Celery app's settings; `app` may be `None`."""
    namespace = getattr(app, "namespace", None)
    return f"{namespace}_pgbeat_{setting}".upper() if namespace else f"pgbeat_{setting}"


def _is_read(name: str) -> bool:
    return "pgbeat_" in name or "broker" in name


def _environ() -> Mapping[Any, Any]:
    """Returns the environment: as its own dictionary, which is compared in a microsecond."""
    environ: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
    return environ


def _sources(conf: Any) -> list[Mapping[Any, Any]]:
    """Returns the mappings in which a configuration looks values up.

    An object may look them up anywhere, so for one these are the values themselves.
    """
    sources: list[Mapping[Any, Any]] = []
    for values in getattr(conf, "maps", (conf,)):
        source = getattr(values, "obj", values)
        if isinstance(source, dict):
            sources.append(source)
        elif isinstance(source, ModuleType):
            sources.append(vars(source))
        else:
            sources.append({**given_settings(conf), **{name: conf.get(name) for name in _BROKER}})
    return sources
