"""Reads ids, and finds rows by the beginning of their id."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Table, select

from pgbeat.errors import NotFound

#: Digits of an id that suffice to find it, at least.
_FEWEST = 4
#: Candidates that an error names, at most.
_NAMED = 5


def parse(text: str | UUID, noun: str) -> UUID:
    """Returns the id of a job or another `noun`. Raises `NotFound` for an invalid one."""
    try:
        return UUID(str(text))
    except ValueError:
        raise NotFound(f"{text!r} is not the id of a {noun}; ids are UUIDs") from None


def between(beginning: str) -> tuple[UUID, UUID] | None:
    """Returns the lowest and the highest id that begin so, with 4 digits or more; else `None`."""
    digits = beginning.replace("-", "").lower()
    if not _FEWEST <= len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def find(
    connection: Connection,
    table: Table,
    beginning: str,
    noun: str,
    *which: ColumnElement[bool],
    about: Sequence[ColumnElement[str]] = (),
) -> UUID:
    """Returns the id that begins so, with 4 digits or more, of the rows to which `which` applies.

    Raises `NotFound` with the code `not_found` without a match, `invalid_id` if no id begins so,
    and `ambiguous_id` if there are several: the message lists them with the columns `about`.
    """
    possible = between(beginning)
    if possible is None:
        raise NotFound(
            f"{beginning!r} is not the id of a {noun}, nor the beginning of one ({_FEWEST} "
            "characters or more)",
            code="invalid_id",
        )
    query = select(table.c.id, *about).where(table.c.id.between(*possible), *which)
    rows = connection.execute(query.order_by(table.c.id).limit(_NAMED + 1)).all()
    if not rows:
        dots = "" if possible[0] == possible[1] else "…"
        raise NotFound(f"there is no {noun} {beginning}{dots}")
    if len(rows) > 1:
        lines = [f"  {row[0]} {', '.join(filter(None, row[1:]))}".rstrip() for row in rows]
        lines[_NAMED:] = ["  …"] * (len(lines) > _NAMED)
        message = f"several ids begin with {beginning!r}; write more of the {noun}'s:"
        raise NotFound("\n".join([message, *lines]), code="ambiguous_id")
    return UUID(str(rows[0].id))
