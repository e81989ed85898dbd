"""Finds what Postgres can't keep in a text or in JSON: NUL, and half a surrogate pair.

And what Python can't read of what Postgres keeps: JSON that is nested too deeply.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

#: The first and the last time that are kept: programs in all time zones can read them.
EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)

#: What a value holds that is not storable, in words that go after `holds`.
UNSTORABLE = "a character that Postgres can't keep (NUL or half a pair)"


def is_storable(value: Any) -> bool:
    """Returns whether a text, or a value as JSON, can stand in a column as it is."""
    if isinstance(value, str):
        return "\0" not in value and _has_encoding(value)
    if type(value) in _SEQUENCES and len(value) <= _FEW:
        of_names = type(value) is not dict or all(type(name) is str for name in value)
        values = value if type(value) is not dict else (*value, *value.values())
        if of_names and all(map(_is_plain, values)):
            return True
    try:
        storable_json(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


#: Lists and objects of up to so many plain values are not encoded to see whether they can be.
_FEW, _SEQUENCES = 8, (list, dict)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return value.isascii() and "\0" not in value
    return (kind is int and -(10**18) < value < 10**18) or kind is bool or value is None


def storable_json(value: Any) -> str:
    """Returns the value as JSON that Postgres can keep.

    Raises `TypeError`, `ValueError` or `RecursionError` if there is no such JSON.
    """
    written = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if "\\u0000" in written.replace("\\\\", "") or not _has_encoding(written):
        raise ValueError(f"it holds {UNSTORABLE}")
    return written


def shown(written: str | bytes) -> Any:
    """Returns the value of JSON as it can be sent.

    Halves of surrogate pairs are replaced, as are NaN and infinities, which Python writes, by their
    names. Raises `ValueError` if it is no JSON, or nested too deeply.
    """
    try:
        value = json.loads(written)
    except RecursionError:
        value = TooDeep()
    if is_deep(value):
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if is_storable(value):
        return value
    written = json.dumps(value, ensure_ascii=False).encode(errors="replace")
    return json.loads(written, parse_constant=str)


def later(moment: datetime, span: timedelta) -> datetime:
    """Returns the time so much later, or the last one that can be kept."""
    return moment + min(span, LATEST - moment)


def escaped(text: str) -> str:
    """Returns a text with NUL and lone surrogates escaped, so that it can stand in a column."""
    if "\0" in text:
        text = text.replace("\0", "\\0")
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _has_encoding(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class TooDeep:
    """Stands for JSON of a row that is nested too deeply to be read. Raises if its parts are used.

    So what needs it fails by itself, and the row can be read.
    """

    def __repr__(self) -> str:
        return "JSON that is nested too deeply"

    def __iter__(self) -> Iterator[Any]:
        raise ValueError("its row has JSON that is nested too deeply")

    keys = items = values = __iter__


#: How deep the JSON of requests and responses may be nested.
DEEPEST = 100


def is_deep(value: Any) -> bool:
    """Returns whether JSON is nested too deeply to be shown."""
    if isinstance(value, TooDeep):
        return True
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
