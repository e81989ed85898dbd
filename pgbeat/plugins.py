"""Registers the classes of apps by name: launchers and concurrency policies."""

from collections.abc import Mapping
from typing import Any

from pgbeat.suggest import did_you_mean


def register(registry: dict[str, Any], base: type, decorator: str, cls_or_name: Any) -> Any:
    """Registers a subclass of `base` under its own name; returns a decorator if given a name.

    A class of a module that is imported again replaces the one from before. Raises `TypeError` for
    any other class, and `ValueError` if another class has the name.
    """

    def add(cls: Any, name: str) -> Any:
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise TypeError(f"@{decorator} needs a subclass of pgbeat.{base.__name__}, got {cls!r}")
        known, new = _path(registry.get(name, cls)), _path(cls)
        if known != new:
            raise ValueError(
                f"two classes are called {name!r}: {known} and {new}; "
                f"rename one with @{decorator}('name')"
            )
        registry[name] = cls
        return cls

    if isinstance(cls_or_name, str):
        return lambda cls: add(cls, cls_or_name)
    return add(cls_or_name, cls_or_name.__name__)


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def unknown(registry: Mapping[str, Any], noun: str, name: str) -> str:
    """Returns a sentence that the name is not registered, with the names that are."""
    hint = did_you_mean(name, registry)
    known = ", ".join(sorted(registry))
    return f"{noun} {name!r} is not registered; {hint + ' ' if hint else ''}registered: {known}"
