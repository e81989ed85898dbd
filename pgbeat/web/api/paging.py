"""Pages of lists, by the key of the last row, so that the last page costs as much as the first."""

import base64
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

from fastapi import Query

from pgbeat.errors import InvalidJob

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=200, description="The largest number of items.")]
After = Annotated[
    str | None, Query(max_length=2000, description="`next` of the page before this one.")
]


def split(rows: Sequence[T], limit: int, *key: str) -> tuple[list[T], str | None]:
    """Returns the rows of a page, and the cursor of the next one if there is one.

    `rows` has one more than the `limit` if there is; `key` names the columns that order them.
    """
    page = list(rows[:limit])
    if len(rows) <= limit:
        return page, None
    return page, cursor(*(getattr(page[-1], name) for name in key))


def cursor(*key: Any) -> str:
    """Returns the key of a page's last row as opaque text."""
    return base64.urlsafe_b64encode(json.dumps(key, default=str).encode()).decode().rstrip("=")


def read(text: str | None, *kinds: Any) -> tuple[Any, ...] | None:
    """Returns the key in a cursor; `None` for the first page.

    `kinds` (`str`, `number`, `moment`, `UUID`) make its parts. Raises `InvalidJob`.
    """
    if text is None:
        return None
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if not isinstance(key, list) or len(key) != len(kinds):
            raise ValueError
        return tuple(kind(value) for kind, value in zip(kinds, key, strict=True))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InvalidJob.of(
            "after", "malformed", f"after: {text[:80]!r} is not the `next` of a page"
        ) from None


def read_one(text: str | None, kind: Any) -> Any:
    """Returns the only part of a cursor's key, as `read` does."""
    (part,) = read(text, kind) or (None,)
    return part


def moment(text: str) -> datetime:
    """Parses a time with its offset."""
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise ValueError
    return value


def number(value: Any) -> int:
    """Checks a row's number."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError
    return value
