"""Audit: who changed what, when, and how it was before and after."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, insert, select, update

from pgbeat.tables import audit

Origin = Literal["cli", "api", "page"]


class Author(NamedTuple):
    """Who makes changes, where, and by which way."""

    namespace: str
    #: As in `created_by` of jobs: `user:alice`.
    name: str
    origin: Origin


class Change(NamedTuple):
    """A row of `pgbeat.audit`."""

    id: int
    at: datetime
    #: As in `created_by` of jobs: `user:alice`.
    actor: str
    #: By which way it was made.
    origin: Origin
    verb: str
    #: Of what: schedule, job, lane …
    kind: str
    #: Its name or id.
    subject: str
    #: JSON.
    before: Any
    after: Any


_COLUMNS = [audit.c[name] for name in Change._fields]


def record(
    connection: Connection,
    *,
    namespace: str,
    actor: str,
    origin: Origin,
    verb: str,
    kind: str,
    subject: str,
    before: Any = None,
    after: Any = None,
) -> int:
    """Notes a change, in the transaction that makes it; the row's id. `before` and `after` are
    JSON; no secrets."""
    row = insert(audit).values(
        namespace=namespace, actor=actor, origin=origin, verb=verb, kind=kind, subject=subject,
        before=before, after=after,
    )  # fmt: skip
    return int(connection.execute(row.returning(audit.c.id)).scalar_one())


def amend(connection: Connection, change_id: int, after: Any) -> None:
    """Says more of a change that is made in several transactions."""
    connection.execute(update(audit).where(audit.c.id == change_id).values(after=after))


def note(
    connection: Connection,
    by: Author,
    verb: str,
    kind: str,
    subject: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> int:
    """Notes a change, in the transaction that makes it; the row's id.

    `before` and `after` are how the thing was and is, as JSON; what is the same in both is left
    out. Without them it is noted that it was done.
    """
    old, new = differing(before, after)
    return record(
        connection, namespace=by.namespace, actor=by.name, origin=by.origin, verb=verb, kind=kind,
        subject=subject, before=old, after=new,
    )  # fmt: skip


def differing(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Of two states of a thing (`None`: it is not there), what is not the same in both. Of a new
    or a deleted one, what has a value."""
    old, new = before or {}, after or {}
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return (
        {key: old.get(key) for key in keys} or None if before is not None else None,
        {key: new.get(key) for key in keys} or None if after is not None else None,
    )


def listing(
    connection: Connection,
    *,
    namespace: str,
    kind: str | None = None,
    subject: str | None = None,
    actor: str | None = None,
    verb: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[Change]:
    """Changes, the newest first. For the next page, `before` is the `id` of the last one."""
    query = select(*_COLUMNS).where(audit.c.namespace == namespace)
    asked = {"kind": kind, "subject": subject, "actor": actor, "verb": verb}
    for name, value in asked.items():
        if value is not None:
            query = query.where(audit.c[name] == value)
    if before is not None:
        query = query.where(audit.c.id < before)
    rows = connection.execute(query.order_by(audit.c.id.desc()).limit(limit))
    return [Change(*row) for row in rows]
