"""Inserts jobs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.database.connections import recordset
from pgbeat.jobs.rows.model import COLUMNS, Job, State
from pgbeat.jobs.rows.unique_keys import UniqueKey


class NewJob(NamedTuple):
    """A job to insert. A field that is `None` gets the column's default."""

    id: str
    namespace: str
    task: str
    #: `None` if the arguments are not JSON.
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    job_source: str
    created_by: str
    is_system_job: bool
    #: Whether its message is sent in this transaction.
    is_dispatched: bool = True
    state: State = "pending"
    schedule_id: int | None = None
    schedule: str | None = None
    due_at: datetime | None = None
    queue: str | None = None
    #: Celery's publish options, as JSON.
    options: Mapping[str, Any] | None = None
    template: str | None = None
    run_at: datetime | None = None
    lane: str | None = None
    priority: int | None = None
    tags: Sequence[str] | None = None
    resources: Mapping[str, float] | None = None
    max_attempts: int | None = None
    #: Seconds.
    retry_base: float | None = None
    retry_cap: float | None = None
    retry_of: str | None = None
    group_id: str | None = None
    group_position: int | None = None
    #: It waits for the job before it in its group, or for those that it depends on.
    is_blocked: bool | None = None
    unfinished_parents: int | None = None
    unique_key: str | None = None
    awaits_approval: bool | None = None
    checkpoint: Any = None
    #: Why its schedule launched it, and the interval that it is for, as in `Job`.
    trigger: str | None = None
    interval_start: datetime | None = None
    interval_end: datetime | None = None
    #: Written by people (`pgbeat.jobs.preparing.details`).
    description: str | None = None
    labels: Mapping[str, str] | None = None
    metadata: Mapping[str, Any] | None = None
    #: Distinguishes the jobs of one tick, if its launcher launches several.
    run_key: str | None = None
    #: Seconds after its due time, or `run_at`, or its creation.
    must_start_within: float | None = None
    must_end_within: float | None = None
    #: Of a job that a task submits (`pgbeat.jobs.messages.canvas`).
    root_id: str | None = None
    parent_id: str | None = None
    #: The group whose callback it is.
    callback_of: str | None = None

    @property
    def key(self) -> UniqueKey | None:
        """Returns its unique key, with the task that it is one of."""
        return None if self.unique_key is None else UniqueKey(self.task, self.unique_key)


_INSERT = sql.load("new_jobs.sql", "insert")
#: Inserts the jobs of schedules that launch what their rows say: those of a relation `launch`, with
#: columns of the schedules and of the launches.
OF_SCHEDULES = sql.load("new_jobs.sql", "of_schedules")
_COUNT, _RETURN = text(_INSERT), text(f"{_INSERT} RETURNING {COLUMNS}")


def insert(connection: Connection, batch: Sequence[NewJob]) -> int:
    """Inserts jobs, and returns how many are new.

    Leaves out a job whose id or unique key an unfinished job has.
    """
    return connection.execute(_COUNT, {"batch": recordset(batch)}).rowcount if batch else 0


def insert_returning(connection: Connection, batch: Sequence[NewJob]) -> list[Job]:
    """Inserts jobs as `insert` does, and returns the new rows, in no order."""
    rows = connection.execute(_RETURN, {"batch": recordset(batch)}) if batch else ()
    return [Job(*row) for row in rows]
