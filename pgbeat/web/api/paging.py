"""Lists by pages: by key, not by number, so that the last page costs what the first does."""

import base64
import json
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query

from pgbeat.errors import InvalidJob

Limit = Annotated[int, Query(ge=1, le=200, description="How many at most.")]
After = Annotated[
    str | None,
    Query(max_length=2000, description="`next` of the page before; nothing for the first one."),
]


def cursor(*key: Any) -> str:
    """The key of a page's last row, as text that means nothing to anybody else."""
    return base64.urlsafe_b64encode(json.dumps(key, default=str).encode()).decode().rstrip("=")


def read(text: str, *kinds: Any) -> tuple[Any, ...]:
    """The key that `cursor` wrote, each part made by one of the `kinds` (`str`, `int`, `UUID`,
    `moment`). Raises `InvalidJob` for another text."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        found = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if not isinstance(found, list) or len(found) != len(kinds):
            raise ValueError
        return tuple(kind(value) for kind, value in zip(kinds, found, strict=True))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InvalidJob.of(
            "after", "malformed", f"after: {text[:80]!r} is not the `next` of a page"
        ) from None


def moment(text: str) -> datetime:
    """A time of a cursor."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError
    return found


def number(value: Any) -> int:
    """A row's number of a cursor, such as the database has."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError
    return value
