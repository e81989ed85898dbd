"""Records who changed which row when, with the values before and after.

A change is recorded in its own transaction. The record has the columns that people decide on: times
in ISO 8601 (UTC), lengths of time in seconds, no secrets.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from sqlalchemy import Connection, insert, select, text, update

from pgbeat.access.actors import Origin
from pgbeat.access.redaction import Redactor
from pgbeat.database.tables import audit


class Author(NamedTuple):
    """The actor of changes, with the namespace and the interface."""

    namespace: str
    #: As in `created_by` of jobs: `user:alice`.
    name: str
    origin: Origin


class Audited(Protocol):
    """A row whose changes are recorded."""

    @property
    def audited(self) -> tuple[str, str, Mapping[str, Any]]:
        """Returns the kind (schedule, job …), the name or id, and the columns to record."""


Row = TypeVar("Row", bound=Audited)
#: A verb, and the row before and after it.
Changed = tuple[str, Row | None, Row | None]


class AuditRecord(NamedTuple):
    """A row of `pgbeat.audit`."""

    id: int
    at: datetime
    #: As in `created_by` of jobs: `user:alice`.
    actor: str
    origin: Origin
    verb: str
    #: What was changed: schedule, job, lane …
    kind: str
    #: Its name or id.
    subject: str
    #: JSON.
    before: Any
    after: Any


_COLUMNS = [audit.c[name] for name in AuditRecord._fields]


# One JSON document for all records: a sync may change a hundred thousand schedules.
_INSERT = text(
    """
    INSERT INTO pgbeat.audit (namespace, actor, origin, verb, kind, subject, before, after)
    SELECT :namespace, :actor, :origin, verb, kind, subject, before, after
      FROM json_to_recordset(CAST(:batch AS json))
           AS b (verb text, kind text, subject text, before jsonb, after jsonb)
    """
)


def record(
    connection: Connection,
    author: Author,
    verb: str,
    before: Audited | None,
    after: Audited | None,
    **more: Any,
) -> None:
    """Records a change of a row: `before` is `None` for a new row, `after` for a deleted one.

    Records nothing if the row is the same. `after` may be another row that came of it, such as the
    retry of a job. `more` is added to the values after the change.
    """
    _write(connection, author, [_entry(verb, before, after, more)])


def record_all(connection: Connection, author: Author, changes: Iterable[Changed[Row]]) -> None:
    """Records changes of any number of rows, in one statement."""
    _write(connection, author, [_entry(*change) for change in changes])


def record_action(
    connection: Connection,
    author: Author,
    verb: str,
    kind: str,
    subject: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> int:
    """Records a change of something that is not an `Audited` row; returns the record's id.

    `before` and `after` are JSON; values that are the same in both are left out.
    """
    old, new = differing(before, after)
    row = insert(audit).values(
        namespace=author.namespace,
        actor=author.name,
        origin=author.origin,
        verb=verb,
        kind=kind,
        subject=subject,
        before=old,
        after=new,
    )
    return int(connection.execute(row.returning(audit.c.id)).scalar_one())


def amend(connection: Connection, change_id: int, after: Any) -> None:
    """Replaces the values after a change, for one that takes several transactions."""
    connection.execute(update(audit).where(audit.c.id == change_id).values(after=after))


def bulk_entry(
    connection: Connection, author: Author | None, change_id: int, verb: str
) -> dict[str, Any] | None:
    """Returns the values after a change of several jobs, if the author has begun it."""
    if author is None:
        return None
    query = select(audit.c.after).where(
        audit.c.id == change_id,
        audit.c.namespace == author.namespace,
        audit.c.actor == author.name,
        audit.c.verb == verb,
        audit.c.kind == "jobs",
    )
    values: dict[str, Any] | None = connection.execute(query).scalar_one_or_none()
    return values


def compared(before: Mapping[str, Row], after: Mapping[str, Row]) -> list[Changed[Row]]:
    """Returns the changes of rows, which are given by name, for `record_all`."""
    pairs = [(before.get(name), after.get(name)) for name in {**before, **after}]
    return [
        ("create" if old is None else "delete" if new is None else "update", old, new)
        for old, new in pairs
    ]


def _entry(
    verb: str, before: Audited | None, after: Audited | None, more: Mapping[str, Any] = {}
) -> dict[str, Any] | None:
    """Returns a record for `_INSERT`; `None` if nothing changed."""
    row = after if before is None else before
    if row is None:
        return None
    kind, subject, values = row.audited
    old, new = None if before is None else plain(values), None
    if after is not None:
        _, new_subject, values = after.audited
        new = {**plain(values), **more}
        if new_subject != subject:
            old, new = None, {"id": new_subject, **new}
    old, new = differing(old, new)
    if before is not None and after is not None and old is None and new is None:
        return None
    return {"verb": verb, "kind": kind, "subject": subject, "before": old, "after": new}


def _write(
    connection: Connection, author: Author, entries: Iterable[dict[str, Any] | None]
) -> None:
    batch = [entry for entry in entries if entry is not None]
    if batch:
        values = {"namespace": author.namespace, "actor": author.name, "origin": author.origin}
        connection.execute(_INSERT, {**values, "batch": json.dumps(batch, ensure_ascii=False)})


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as the audit log keeps them: JSON."""
    return {name: as_json(value) for name, value in values.items()}


def as_json(value: Any) -> Any:
    """Returns a value as JSON has it: times in ISO 8601 (UTC), lengths of time in seconds."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    if isinstance(value, UUID | Decimal):
        return str(value)
    return value


def differing(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Returns the values that differ between two states.

    A state is `None` if the thing doesn't exist. Of the other state, that leaves all values except
    `None`.
    """
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
    redactor: Redactor | None = None,
) -> list[AuditRecord]:
    """Returns records, the newest first. For the next page, `before` is the last record's `id`.

    With a redactor they are masked; if it masks the keys of events, no event is found by its own.
    """
    query = select(*_COLUMNS).where(audit.c.namespace == namespace)
    asked = {"kind": kind, "subject": subject, "actor": actor, "verb": verb}
    for name, value in asked.items():
        if value is not None:
            query = query.where(audit.c[name] == value)
    if before is not None:
        query = query.where(audit.c.id < before)
    if redactor is not None and redactor.names(None) and subject is not None:
        query = query.where(audit.c.kind != "event")
    rows = connection.execute(query.order_by(audit.c.id.desc()).limit(limit))
    records = [AuditRecord(*row) for row in rows]
    return records if redactor is None else [redactor.audited(record) for record in records]
