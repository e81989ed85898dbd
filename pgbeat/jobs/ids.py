"""Reads ids, and finds rows by the beginning of their id."""

from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import UUID

from pgbeat.errors import NotFound

Row = TypeVar("Row", bound=Any)


def parse(text: str | UUID, noun: str) -> UUID:
    """Returns the id of a job or another `noun`. Raises `NotFound` for an invalid one."""
    try:
        return UUID(str(text))
    except ValueError:
        raise NotFound(f"{text!r} is not the id of a {noun}; ids are UUIDs") from None


def bounds(beginning: str, noun: str) -> tuple[UUID, UUID]:
    """Returns the lowest and the highest id that begin so, with 4 characters or more.

    Raises `NotFound`.
    """
    digits = beginning.replace("-", "").lower()
    if not 4 <= len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        raise NotFound(
            f"{beginning!r} is not the id of a {noun}, nor the beginning of one (4 characters or "
            "more)"
        )
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def require_one(found: Sequence[Row], beginning: str, noun: str) -> Row:
    """Returns the only row. Raises `NotFound` if there are none or several."""
    if not found:
        dots = "" if len(beginning.replace("-", "")) == 32 else "…"
        raise NotFound(f"there is no {noun} {beginning}{dots}")
    if len(found) > 1:
        listed = ", ".join(sorted(str(row.id) for row in found)[:5])
        raise NotFound(
            f"the ids of several {noun}s begin with {beginning!r}: {listed}; write more of it"
        )
    return found[0]
