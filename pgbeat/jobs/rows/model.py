"""Reads and locks the rows of jobs. The id of a job is the Celery task id.

`docs/reference/jobs.md` shows the states and which may follow which. `pgbeat.jobs.flow.lifecycle`
does what a change of state brings with it.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    case,
    func,
    literal_column,
    null,
    select,
    text,
    tuple_,
)

from pgbeat.database import sql
from pgbeat.database.tables import jobs
from pgbeat.errors import NotFound
from pgbeat.jobs.rows import ids
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.unique_keys import UniqueKey

State = Literal[
    "pending", "scheduled", "running", "paused", "completed", "failed", "cancelled", "skipped"
]
#: Final states.
ENDED = ("completed", "failed", "cancelled", "skipped")


#: Stands for the time of the transaction that writes a new job.
NOW = datetime.max.replace(tzinfo=UTC)


class Job(NamedTuple):
    """A row of `pgbeat.jobs`, as read at one moment, or a new one; the defaults are a new one's."""

    id: UUID
    namespace: str
    task: str
    job_source: str
    created_by: str
    schedule_id: int | None = None
    schedule: str | None = None
    due_at: datetime | None = None
    template: str | None = None
    #: `None` if the arguments are not JSON.
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    #: Celery's publish options.
    options: Mapping[str, Any] = {}
    queue: str | None = None
    state: State = "pending"
    run_at: datetime | None = None
    #: When its message was sent; `None` while it waits for its lane, its group or a person.
    dispatched_at: datetime | None = None
    lane: str | None = None
    priority: int = 0
    #: In the line of its lane.
    position: Decimal | None = None
    tags: Sequence[str] = ()
    resources: Mapping[str, float] = {}
    attempt: int = 1
    max_attempts: int = 1
    retry_base: timedelta = timedelta(minutes=1)
    retry_cap: timedelta = timedelta(hours=1)
    retry_of: UUID | None = None
    retried_by: UUID | None = None
    group_id: UUID | None = None
    group_position: int | None = None
    #: It waits for others: those before it in its group, or jobs that it depends on.
    is_blocked: bool = False
    #: Jobs that it depends on, and that have not ended.
    unfinished_parents: int = 0
    unique_key: str | None = None
    #: Since when it is paused, or awaits approval; `None` if it isn't.
    paused_at: datetime | None = None
    awaits_approval: bool = False
    #: An administrator must approve it, and each retry by hand, before it runs.
    requires_approval: bool = False
    approved_by: str | None = None
    approved_at: datetime | None = None
    cancel_requested_by: str | None = None
    cancel_requested_at: datetime | None = None
    #: The error with which to end a job that was cancelled while it ran.
    cancel_reason: str | None = None
    checkpoint: Any = None
    is_system_job: bool = False
    created_at: datetime = NOW
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    error: str | None = None
    #: Why its schedule launched it, and the interval that it is for, which ends at `due_at` if
    #: `interval_end` is `None`.
    trigger: str | None = None
    interval_start: datetime | None = None
    interval_end: datetime | None = None
    #: Distinguishes the jobs of one tick, if its launcher launches several.
    run_key: str | None = None
    #: Written by people (`pgbeat.jobs.preparing.details`).
    description: str | None = None
    labels: Mapping[str, str] = {}
    metadata: Mapping[str, Any] = {}
    must_start_by: datetime | None = None
    must_end_by: datetime | None = None
    #: When it was marked as late, and the deadlines that it missed: `start`, `end`.
    late_at: datetime | None = None
    missed_deadlines: Sequence[str] = ()
    #: The message to send at its dispatch (`kept_messages`); `None`: one made of the fields above.
    message: Mapping[str, Any] | None = None
    #: With which it takes turns in its lane: `tenant=acme`; empty if the lane is not fair.
    fair_key: str = ""
    #: Its place in Celery's canvas (`pgbeat.jobs.messages.canvas`); `None` if it is no part of
    #: anything.
    root_id: UUID | None = None
    parent_id: UUID | None = None
    canvas: Mapping[str, Any] | None = None
    #: The group whose callback it is.
    callback_of: UUID | None = None
    #: It was sent as a task: Celery retries it, under its id.
    keeps_id: bool = False

    @property
    def is_dispatched(self) -> bool:
        """Returns whether its message has been sent, or is sent by what writes the job."""
        return self.dispatched_at is not None

    @property
    def key(self) -> UniqueKey | None:
        """Returns its unique key, with the task that it is one of."""
        return None if self.unique_key is None else UniqueKey(self.task, self.unique_key)

    @property
    def has_ended(self) -> bool:
        """Returns whether the state is final."""
        return self.state in ENDED

    @property
    def waits_for_event(self) -> str | None:
        """Returns the key of the event that it waits for (`pgbeat.wait_for`), if it is shown."""
        if self.state != "scheduled" or self.dispatched_at is not None:
            return None
        waits_for = self.message.get("waits_for") if isinstance(self.message, Mapping) else None
        key = waits_for.get("key") if isinstance(waits_for, Mapping) else None
        return key if isinstance(key, str) else None

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "job", str(self.id), {name: getattr(self, name) for name in _AUDITED}


# The audit log leaves out what may be large.
_UNAUDITED = {
    "id", "namespace", "schedule_id", "args", "kwargs", "options", "checkpoint", "root_id",
    "parent_id", "canvas", "callback_of", "message", "paused_at",
}  # fmt: skip
_AUDITED = [name for name in Job._fields if name not in _UNAUDITED]
_COLUMNS = [jobs.c[name] for name in Job._fields]
#: The same in SQL, of a row `j`.
COLUMNS = ", ".join(f"j.{name}" for name in Job._fields)
_FIND = text(sql.load("model.sql", "find", columns=COLUMNS))
_IN_FULL = text(sql.load("model.sql", "in_full"))
_FIND_AS_OWNER = text(sql.load("model.sql", "find_as_owner", columns=COLUMNS))


def get(
    connection: Connection,
    job_id: str | UUID,
    *,
    namespace: str | None = None,
    for_update: bool = False,
) -> Job:
    """Returns a job. Raises `NotFound`, also for an invalid id."""
    wanted = ids.parse(job_id, "job")
    query = select(*_COLUMNS).where(jobs.c.id == wanted)
    if namespace is not None:
        query = query.where(jobs.c.namespace == namespace)
    row = connection.execute(query.with_for_update() if for_update else query).one_or_none()
    if row is None and for_update:  # what had locked it may have moved it to another table
        row = connection.execute(query.with_for_update()).one_or_none()
    if row is None:
        raise NotFound(f"there is no job {wanted}")
    return Job(*row)


def find(
    connection: Connection, job_ids: Collection[str | UUID], *, as_owner: bool = False
) -> list[Job]:
    """Returns the jobs with these ids that exist, in no order.

    With `as_owner`, the role may not read the table.
    """
    wanted = [str(job_id) for job_id in job_ids]
    statement = _FIND_AS_OWNER if as_owner else _FIND
    return [Job(*row) for row in connection.execute(statement, {"ids": wanted})] if wanted else []


def brief(columns: Any) -> list[ColumnElement[Any]]:
    """Returns the columns of a table or a subquery as a `Job` in a list, without what may be large.

    Of a message, it has for what the job waits.
    """
    no_object: ColumnElement[Any] = literal_column("CAST('{}' AS jsonb)")
    key: ColumnElement[Any] = literal_column("'waits_for'")
    waits_for = func.jsonb_build_object(key, columns.message.op("->")(key))
    instead: dict[str, ColumnElement[Any]] = {
        "args": null(),
        "kwargs": null(),
        "options": no_object,
        "checkpoint": null(),
        "metadata": no_object,
        "message": case((columns.message.bool_op("?")(key), waits_for)),
        "canvas": null(),
    }
    return [instead.get(name, columns[name]).label(name) for name in Job._fields]


def find_brief(connection: Connection, job_ids: Collection[str | UUID]) -> list[Job]:
    """Returns `brief` jobs with these ids that exist, in no order."""
    query = select(*brief(jobs.c)).where(jobs.c.id.in_([str(job_id) for job_id in job_ids]))
    return [Job(*row) for row in connection.execute(query)] if job_ids else []


def in_full(connection: Connection, rows: Sequence[Job], *, most: int | None = None) -> list[Job]:
    """Returns `brief` jobs with their arguments, options and metadata.

    With `most`, the list ends with the job with which these have more characters in all.
    """
    values = {"ids": [str(row.id) for row in rows], "most": most}
    read = {row.id: row._mapping for row in connection.execute(_IN_FULL, values)}
    known = [number for number, row in enumerate(rows) if row.id in read]
    end = known[-1] + 1 if known else len(rows)
    return [row._replace(**read.get(row.id, {})) for row in rows[:end]]


def listing(
    connection: Connection,
    which: Filter,
    *,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 50,
) -> list[Job]:
    """Returns `brief` jobs, the newest first.

    For the next page, `before` is (`created_at`, `id`) of the last job.
    """
    query = select(*brief(jobs.c)).where(*which.clauses())
    if before is not None:
        query = query.where(tuple_(jobs.c.created_at, jobs.c.id) < tuple_(*before))
    query = query.order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit)
    return [Job(*row) for row in connection.execute(query)]


_ANY_OF_OTHERS = text(
    "SELECT EXISTS (SELECT FROM pgbeat.unfinished_jobs WHERE id = ANY (CAST(:ids AS uuid[])) "
    "AND created_by <> :name)"
)


def any_of_others(connection: Connection, job_ids: Collection[str], name: str) -> bool:
    """Returns whether others than `name` created one of these unfinished jobs."""
    return bool(connection.scalar(_ANY_OF_OTHERS, {"ids": list(job_ids), "name": name}))


def of_known(condition: str) -> str:
    """Returns the condition in a form that can't use an index, for rows that are selected by id.

    Statistics lag behind when many jobs are launched at once. Postgres then believes that almost
    all jobs have ended, and reads all unfinished jobs instead of looking these up by their ids.
    """
    return f"CASE WHEN {condition} THEN true ELSE false END"


_UNFINISHED_OF = text(
    """
    SELECT s.id, j.id, j.state
      FROM unnest(CAST(:schedules AS bigint[])) AS s (id) CROSS JOIN LATERAL (
           SELECT * FROM pgbeat.unfinished_jobs WHERE schedule_id = s.id OFFSET 0) AS j
     ORDER BY j.created_at, j.id
    """
)


class Unfinished(NamedTuple):
    """A job that has not ended."""

    id: str
    state: str


def overlap_reason(unfinished: Sequence[Unfinished]) -> str:
    """Returns why these jobs, the oldest first, keep their schedule from launching another."""
    last = unfinished[-1]
    if len(unfinished) == 1:
        return f"the job before it, {last.id}, is still {last.state}"
    return f"{len(unfinished)} jobs before it have not ended; the last, {last.id}, is {last.state}"


def unfinished(connection: Connection, schedules: Collection[int]) -> dict[int, list[Unfinished]]:
    """Returns the unfinished jobs of each of these schedules (ids), the oldest first."""
    unfinished_jobs: dict[int, list[Unfinished]] = {}
    if schedules:
        rows = connection.execute(_UNFINISHED_OF, {"schedules": list(schedules)})
        for schedule_id, job_id, state in rows:
            unfinished_jobs.setdefault(schedule_id, []).append(Unfinished(str(job_id), state))
    return unfinished_jobs


_LOCK = text(
    "SELECT FROM pgbeat.unfinished_jobs WHERE id = ANY (CAST(:ids AS uuid[])) "
    "ORDER BY id FOR NO KEY UPDATE"
)


def lock(connection: Connection, job_ids: Collection[str | UUID]) -> None:
    """Locks unfinished jobs until the transaction ends; waits for others that have locked them.

    Otherwise, a job that begins to run at this moment would be seen neither waiting nor running.
    """
    connection.execute(_LOCK, {"ids": [str(i) for i in job_ids]})


_TRY_LOCK = text(
    "SELECT id FROM pgbeat.unfinished_jobs WHERE id = ANY (CAST(:ids AS uuid[])) "
    "FOR NO KEY UPDATE SKIP LOCKED"
)


def try_lock(connection: Connection, job_ids: Collection[str | UUID]) -> set[str]:
    """Locks the unfinished jobs that no other transaction has locked, and returns their ids."""
    locked = connection.scalars(_TRY_LOCK, {"ids": [str(i) for i in job_ids]})
    return {str(job_id) for job_id in locked}
