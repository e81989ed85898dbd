"""Audit: who changed what, when, and how it was before and after."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, insert, select

from pgbeat.tables import audit

Origin = Literal["cli", "api", "page"]


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
) -> None:
    """Notes a change, in the transaction that makes it. `before` and `after` are JSON; no
    secrets."""
    connection.execute(
        insert(audit).values(
            namespace=namespace, actor=actor, origin=origin, verb=verb, kind=kind, subject=subject,
            before=before, after=after,
        )
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
