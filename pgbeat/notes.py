"""Notes: what the audit is told of each change, whichever way it was made.

Each is written in the transaction of the change itself. Of a row they have the columns that people
decide on, by their names: times in ISO 8601 (UTC), lengths of time in seconds, no secrets.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat import audit
from pgbeat.audit import Author, note
from pgbeat.calendars import Calendar
from pgbeat.groups import Group
from pgbeat.jobs import Job
from pgbeat.lanes import Lane
from pgbeat.queues import Queue
from pgbeat.schedules import Schedule
from pgbeat.templates import Template
from pgbeat.webhooks import Webhook

if TYPE_CHECKING:
    from pgbeat.dispatch import Decision

Row = TypeVar("Row", Schedule, Lane, Template, Calendar, Webhook, Queue)

#: What a job's note leaves out: it may be large.
_OF_JOB = [name for name in Job._fields if name not in {
    "id", "namespace", "schedule_id", "args", "kwargs", "options", "checkpoint",
}]  # fmt: skip
#: What each kind's note has.
_KINDS: dict[type, tuple[str, Collection[str]]] = {
    Schedule: (
        "schedule",
        [name for name in Schedule._fields if name not in {
            "id", "uid", "namespace", "name", "probe_at", "due_at", "waiting_for", "ended",
            "cursor", "created_at", "updated_at", "failures_from", "version",
        }],
    ),
    Lane: ("lane", ["max_running", "rate", "policy", "options", "paused_at"]),
    Template: (
        "template",
        ["description", "task", "args", "kwargs", "options", "queue", "job", "created_by"],
    ),
    Calendar: ("calendar", ["definition"]),
    Webhook: (
        "webhook",
        ["url", "events", "enabled", "disabled_reason", "secret_hint", "previous_until",
         "created_by"],
    ),
    Queue: ("queue", ["paused_at"]),
}  # fmt: skip


def change(
    connection: Connection, by: Author, verb: str, before: Row | None, after: Row | None
) -> None:
    """Notes what became of a row: `None` before it was made, and once it is gone. Nothing, where it
    stayed as it was."""
    changes(connection, by, [(verb, before, after)])


def changes(
    connection: Connection, by: Author, made: Iterable[tuple[str, Row | None, Row | None]]
) -> None:
    """The same of any number of rows, in one statement."""
    batch = []
    for verb, before, after in made:
        row = after if before is None else before
        if row is None:
            continue
        kind, names = _KINDS[type(row)]
        if before is not None and after is not None:
            names = [name for name in names if getattr(before, name) != getattr(after, name)]
            if not names:
                continue
        old, new = audit.differing(_noted(before, names), _noted(after, names))
        batch.append({"verb": verb, "kind": kind, "subject": row.name, "before": old, "after": new})
    if batch:
        author = {"namespace": by.namespace, "actor": by.name, "origin": by.origin}
        connection.execute(_INSERT, {**author, "batch": json.dumps(batch, ensure_ascii=False)})


# One JSON document for a batch of any size: a sync may change a hundred thousand schedules.
_INSERT = text(
    """
    INSERT INTO pgbeat.audit (namespace, actor, origin, verb, kind, subject, before, after)
    SELECT :namespace, :actor, :origin, verb, kind, subject, before, after
      FROM json_to_recordset(CAST(:batch AS json))
           AS b (verb text, kind text, subject text, before jsonb, after jsonb)
    """
)


def compared(
    before: Mapping[str, Row], after: Mapping[str, Row]
) -> list[tuple[str, Row | None, Row | None]]:
    """What became of rows by name, for `changes`."""
    made = []
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        verb = "create" if old is None else "delete" if new is None else "update"
        made.append((verb, old, new))
    return made


def job(
    connection: Connection,
    by: Author,
    verb: str,
    job_id: UUID,
    before: Job | None,
    after: Job | None,
    **more: Any,
) -> None:
    """Notes what was done with a job. What became of one that was tried again is a new job: it is
    the one after, and there is none before. `more` is what else there is to say of it then."""
    old, new = _noted(before, _OF_JOB), _noted(after, _OF_JOB)
    if new is not None:
        new |= {"id": str(after.id)} if after is not None and after.id != job_id else {}
        new |= more
    note(connection, by, verb, "job", str(job_id), old, new)


def group_made(connection: Connection, by: Author, group: Group, jobs: Sequence[Job]) -> None:
    """Notes a new group."""
    after = {
        "name": group.name, "mode": group.mode, "on_failure": group.on_failure, "jobs": len(jobs),
        "tasks": sorted({job.task for job in jobs})[:20],
    }  # fmt: skip
    note(connection, by, "create", "group", str(group.id), None, after)


def group_cancelled(connection: Connection, by: Author, group: Group) -> None:
    """Notes that a group's end was asked for; `group` is as it was before."""
    note(
        connection, by, "cancel", "group", str(group.id),
        {"cancelled_by": group.cancelled_by}, {"cancelled_by": by.name},
    )  # fmt: skip


def dead(
    connection: Connection, by: Author, verb: str, chosen: Mapping[int, str], count: int
) -> None:
    """Notes what was done with dead letters: their ids with their queues, of which those of no
    queue are not put back. Of one, its id is the subject; of several, their queue, if they have
    one. Nothing, where it was done with none."""
    if not count:
        return
    if verb == "requeue":
        chosen = {each: queue for each, queue in chosen.items() if queue}
    queues = Counter(chosen.values())
    subject = next(iter(queues)) if len(queues) == 1 else ""
    if len(chosen) == 1:
        subject = str(next(iter(chosen)))
    after = {"count": count, "queues": dict(queues), "ids": [*chosen][:100]}
    note(connection, by, verb, "dead letter", subject, None, after)


def redelivered(
    connection: Connection, by: Author, webhook: str, count: int, ids: Sequence[UUID] = ()
) -> None:
    """Notes that deliveries of a webhook are tried again. Nothing, where there are none."""
    if count:
        after = {"count": count, **({"deliveries": [*map(str, ids)][:100]} if ids else {})}
        note(connection, by, "redeliver", "webhook", webhook, None, after)


def decisions(by: Author, verb: str) -> "Callable[[Connection, Sequence[Decision]], None]":
    """What notes decisions on schedules: that of a trigger, those of a backfill."""

    def write(connection: Connection, made: "Sequence[Decision]") -> None:
        for tick in (decision.tick for decision in made):
            after = {
                "due_at": _plain(tick.due_at),
                "outcome": tick.outcome,
                "job_id": tick.job_id,
                "why": tick.reason or tick.error,
            }
            if tick.more_job_ids:
                after["job_ids"] = tick.job_ids
            note(connection, by, verb, "schedule", tick.schedule, None, after)

    return write


def _noted(row: Any, names: Collection[str]) -> dict[str, Any] | None:
    return None if row is None else {name: _plain(getattr(row, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    if isinstance(value, UUID | Decimal):
        return str(value)
    return value
