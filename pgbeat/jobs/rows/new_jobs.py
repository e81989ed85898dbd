"""Writes new jobs: one with its message, or many."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.broker.messages import Message
from pgbeat.database import sql
from pgbeat.database.prepared import BorrowedConnection, PreparedConnection, Statement
from pgbeat.jobs.rows import unique_keys
from pgbeat.jobs.rows.model import COLUMNS, NOW, Job

#: Inserts the jobs of schedules that launch what their rows say: those of a relation `launch`, with
#: columns of the schedules and of the launches.
OF_SCHEDULES = sql.load("new_jobs.sql", "of_schedules")
_COUNT = text(sql.load("new_jobs.sql", "insert", result="count(*)"))
_RETURN = text(sql.load("new_jobs.sql", "insert", result=COLUMNS))


def insert(connection: Connection, batch: Sequence[Job]) -> int:
    """Inserts jobs, and returns how many are new.

    Leaves out a job whose id or unique key an unfinished job has. They may have ended already.
    """
    if not batch:
        return 0
    return int(connection.execute(_COUNT, {"batch": _recordset(batch)}).scalar_one())


def insert_returning(connection: Connection, batch: Sequence[Job]) -> list[Job]:
    """Inserts jobs as `insert` does, and returns the new rows, in no order."""
    rows = connection.execute(_RETURN, {"batch": _recordset(batch)}) if batch else ()
    return [Job(*row) for row in rows]


class NewRow(NamedTuple):
    """Postgres's answer to the write of a job."""

    #: The job's; that of another job which has its unique key; `None` if nothing was written.
    id: UUID | None
    #: `None` if the job is not new.
    created_at: datetime | None
    position: Decimal | None


_NAMES = ("fields", "taken_for", "payload", "queue", "priority", "is_awaited", "may_exist")
_WRITE = text(sql.load("new_jobs.sql", "write", **{name: f":{name}" for name in _NAMES}))
_WRITE_PREPARED = Statement(
    "write_job",
    sql.load("new_jobs.sql", "write", **{name: f"${n}" for n, name in enumerate(_NAMES, start=1)}),
)


def write(
    session: Connection | PreparedConnection | BorrowedConnection,
    job: Job,
    message: Message | None,
    taken_for: timedelta | None,
    *,
    is_awaited: bool = False,
    may_exist: bool = False,
) -> NewRow:
    """Writes a job, with its message if there is one, in one statement (`pgbeat.write_job`).

    Raises `NotUnique` and the session's errors.
    """
    payload, queue, priority = (
        (None, None, None)
        if message is None
        else (message.payload, message.queue, str(message.priority))
    )
    span = None if taken_for is None else _interval(taken_for)
    values = (
        _encode(_fields(job)),
        span,
        payload,
        queue,
        priority,
        "t" if is_awaited else "f",
        "t" if may_exist else "f",
    )
    with unique_keys.refusing():
        if isinstance(session, Connection):
            row = session.execute(_WRITE, dict(zip(_NAMES, values, strict=True))).one()
            job_id, made_at, position = (None if value is None else str(value) for value in row)
        else:
            result = session.run(
                _WRITE_PREPARED, *(None if value is None else value.encode() for value in values)
            )
            job_id, made_at, position = (
                None if value is None else value.decode()
                for value in (result.get_value(0, column) for column in range(3))
            )
    return NewRow(
        None if job_id is None else UUID(job_id),
        None if made_at is None else _EPOCH + timedelta(microseconds=int(made_at)),
        None if position is None else Decimal(position),
    )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DEFAULTS = tuple(Job._field_defaults.get(name) for name in Job._fields)


def _recordset(batch: Sequence[Job]) -> str:
    return _encode([_fields(job) for job in batch])


def _fields(job: Job) -> dict[str, Any]:
    """Returns the columns of a new job that have other values than `pgbeat.new_job()`."""
    fields = {
        name: value
        for name, value, default in zip(Job._fields, job, _DEFAULTS, strict=True)
        if value is not default and value != default
    }
    deadlines = [time for time in (job.must_start_by, job.must_end_by) if time is not None]
    if deadlines:
        fields["next_deadline"] = min(deadlines)
    return fields


def _plain(value: Any) -> Any:
    """Returns a value as JSON holds it for Postgres."""
    if value is NOW:
        return "now"
    return _interval(value) if isinstance(value, timedelta) else str(value)


def _interval(span: timedelta) -> str:
    return f"{span.total_seconds()!r} s"


_encode = json.JSONEncoder(default=_plain).encode
