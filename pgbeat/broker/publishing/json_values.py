"""Converts values to what kombu's JSON serializer makes of them, and finds what it can't read."""

import json
from collections.abc import Mapping
from typing import Any

from kombu.utils.json import dumps, loads

#: The keys of an object that kombu reads as another value, such as a time.
_MARKED = {"__type__", "__value__"}
_PLAIN = {str, int, float, bool, type(None)}


def as_json(value: Any) -> Any:
    """Returns a value as it arrives in a message, with times and the like as kombu writes them.

    Raises `TypeError` for a value that kombu can't write, and `ValueError` for a circular one.
    """
    return json.loads(dumps(value))


def unreadable(value: Any) -> str | None:
    """Returns why no worker can read a value in a message; `None` if nothing is known against it.

    kombu takes an object with just the keys `__type__` and `__value__` for one that it has written.
    """
    try:
        marked = _unreadable(value)
    except RecursionError:  # circular, or too deep: kombu can't write it
        return None
    return (
        None
        if marked is None
        else (f"{marked!r:.200} can't be read by a worker: kombu takes it for one of its own types")
    )


def _unreadable(value: Any) -> Any:
    """Returns the first object that kombu would fail to read."""
    if type(value) in _PLAIN:
        return None
    if isinstance(value, Mapping):
        if value.keys() == _MARKED and not _is_read(value):
            return value
        value = value.values()
    elif not isinstance(value, list | tuple):
        return None
    if _PLAIN.issuperset(map(type, value)):
        return None
    return next((problem for item in value if (problem := _unreadable(item)) is not None), None)


def _is_read(value: Mapping[str, Any]) -> bool:
    try:
        loads(dumps(value))
    except Exception:  # whatever a decoder raises, an app's own as well
        return False
    return True
