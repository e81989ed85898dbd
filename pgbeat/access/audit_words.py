"""Says in words what a record of the audit log changed: `paused: no → yes`, `every: 1 h → 2 h`."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Interval

from pgbeat.database.tables import metadata
from pgbeat.timetables import span

#: Durations, which are recorded in seconds.
_LENGTHS = {
    "must_start_within",
    "must_end_within",
    *(c.name for t in metadata.tables.values() for c in t.c if isinstance(c.type, Interval)),
}
#: Times whose presence is all that matters, and what it means.
_SWITCHES = {"paused_at": "paused"}
_NONE = "none"


class Change(NamedTuple):
    """A changed column, with both values in words; `None` of a thing that did not exist."""

    column: str
    before: str | None
    after: str | None


def changes(before: Any, after: Any) -> list[Change]:
    """Returns the changes of a record's `before` and `after`.

    For a thing that was made or deleted, they are its values except empty ones.
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return [
            Change(_name(key), _in_words(key, before.get(key)), _in_words(key, after.get(key)))
            for key in {**before, **after}
        ]
    known = after if before is None else before
    if not isinstance(known, Mapping):
        return [] if known is None else [Change("value", None, _in_words("", known))]
    changed = [
        (_name(key), _in_words(key, value))
        for key, value in known.items()
        if value not in (None, {}, [], "")
    ]
    is_new = before is None
    return [
        Change(key, None if is_new else value, value if is_new else None) for key, value in changed
    ]


def _name(key: str) -> str:
    return _SWITCHES.get(key, key)


def _in_words(key: str, value: Any) -> str:
    """Returns a value of a column in words."""
    if key in _SWITCHES:
        return "no" if value is None else "yes"
    if value is None or value in ({}, [], ""):
        return _NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key in _LENGTHS and isinstance(value, int | float):
        return span(timedelta(seconds=value), units=4)
    if isinstance(value, str):
        return _moment(value) if key.endswith(("_at", "_run")) else value
    return json.dumps(value, ensure_ascii=False)


def _moment(value: str) -> str:
    try:
        moment = datetime.fromisoformat(value)
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if moment.tzinfo else value
    except (ValueError, OverflowError):
        return value
