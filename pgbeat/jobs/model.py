"""Jobs: one row for each unit of launched work; its id is the Celery task id.

Here are their rows, and which state may follow which (`docs/reference/jobs.md` has the picture).
What must be done with the broker beside that is `pgbeat.jobs.lifecycle`'s.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, func, select, text, tuple_

from pgbeat.database.connections import recordset
from pgbeat.database.tables import jobs
from pgbeat.errors import InvalidTransition, NotFound
from pgbeat.names import NAMESPACE

State = Literal[
    "pending", "scheduled", "running", "paused", "completed", "failed", "cancelled", "skipped"
]
#: Ends of a job's life.
ENDED = ("completed", "failed", "cancelled", "skipped")


class NewJob(NamedTuple):
    """A job to be made. `args` and `kwargs` are `None` where they are not JSON."""

    id: str
    namespace: str
    task: str
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    job_source: str
    created_by: str
    is_system_job: bool
    #: Whether its message goes to the broker in this transaction.
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
    #: Those before it in its group go first.
    blocked_by_group: bool | None = None
    unique_key: str | None = None
    awaits_approval: bool | None = None
    checkpoint: Any = None
    #: Why its schedule launched it, and the timetable's time before `due_at`.
    trigger: str | None = None
    interval_start: datetime | None = None
    #: What people wrote on it (`pgbeat.jobs.details`).
    description: str | None = None
    labels: Mapping[str, str] | None = None
    metadata: Mapping[str, Any] | None = None
    #: Which of the jobs of its tick it is, where its launcher says so.
    run_key: str | None = None


# What is left out has the column's default.
_CREATE_SQL = """
    INSERT INTO pgbeat.jobs AS j
           (id, namespace, task, args, kwargs, job_source, created_by, is_system_job, dispatched_at,
            state, schedule_id, schedule, due_at, queue, options, template, run_at, lane, priority,
            tags, resources, max_attempts, retry_base, retry_cap, retry_of, group_id,
            group_position, blocked_by_group, unique_key, awaits_approval, requires_approval,
            checkpoint, trigger, interval_start, description, labels, metadata, run_key)
    SELECT id, namespace, task, args, kwargs, job_source, created_by, is_system_job,
           CASE WHEN is_dispatched THEN now() END,
           state, schedule_id, schedule, due_at, queue, coalesce(options, '{}'), template, run_at,
           lane, coalesce(priority, 0), coalesce(tags, '{}'), coalesce(resources, '{}'),
           coalesce(max_attempts, 1), coalesce(retry_base, 60) * interval '1 second',
           coalesce(retry_cap, 3600) * interval '1 second', retry_of, group_id, group_position,
           coalesce(blocked_by_group, false), unique_key, coalesce(awaits_approval, false),
           coalesce(awaits_approval, false), checkpoint, trigger, interval_start, description,
           coalesce(labels, '{}'), coalesce(metadata, '{}'), run_key
      FROM json_to_recordset(CAST(:batch AS json)) AS d (
               id uuid, namespace text, task text, args jsonb, kwargs jsonb, job_source text,
               created_by text, is_system_job boolean, is_dispatched boolean, state text,
               schedule_id bigint, schedule text, due_at timestamptz, queue text, options jsonb,
               template text, run_at timestamptz, lane text, priority smallint, tags text[],
               resources jsonb, max_attempts integer, retry_base float8, retry_cap float8,
               retry_of uuid, group_id uuid, group_position integer, blocked_by_group boolean,
               unique_key text, awaits_approval boolean, checkpoint jsonb, trigger text,
               interval_start timestamptz, description text, labels jsonb, metadata jsonb,
               run_key text)
    ON CONFLICT DO NOTHING
"""
_CREATE = text(_CREATE_SQL)


def create(connection: Connection, batch: Sequence[NewJob]) -> int:
    """Writes jobs; how many are new. One whose id is there, or whose unique key an unfinished job
    has, is left out."""
    return connection.execute(_CREATE, {"batch": recordset(batch)}).rowcount if batch else 0


class Job(NamedTuple):
    """A row of `pgbeat.jobs`, as read at one moment."""

    id: UUID
    namespace: str
    schedule_id: int | None
    schedule: str | None
    due_at: datetime | None
    template: str | None
    task: str
    #: `None` where the arguments are not JSON.
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    options: dict[str, Any]
    queue: str | None
    state: str
    run_at: datetime | None
    #: When it was given to the broker; `None` while it waits for its lane, its group or a person.
    dispatched_at: datetime | None
    lane: str | None
    priority: int
    position: Decimal | None
    tags: list[str]
    resources: dict[str, float]
    attempt: int
    max_attempts: int
    retry_base: timedelta
    retry_cap: timedelta
    retry_of: UUID | None
    retried_by: UUID | None
    group_id: UUID | None
    group_position: int | None
    #: Those before it in its group go first: it is not handed out.
    blocked_by_group: bool
    unique_key: str | None
    awaits_approval: bool
    #: It runs only once an administrator has approved it; so do its retries.
    requires_approval: bool
    approved_by: str | None
    approved_at: datetime | None
    cancel_requested_by: str | None
    cancel_requested_at: datetime | None
    #: What it is to end with, where it was running when its end was asked for.
    cancel_reason: str | None
    checkpoint: Any
    job_source: str
    created_by: str
    is_system_job: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    error: str | None
    #: Why its schedule launched it, and the timetable's time before `due_at`.
    trigger: str | None
    interval_start: datetime | None
    #: Which of the jobs of its tick it is, where its launcher says so.
    run_key: str | None
    description: str | None
    labels: dict[str, str]
    metadata: dict[str, Any]

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in ENDED

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "job", str(self.id), {name: getattr(self, name) for name in _AUDITED}


#: What the audit log leaves out may be large.
_AUDITED = [name for name in Job._fields if name not in {
    "id", "namespace", "schedule_id", "args", "kwargs", "options", "checkpoint",
}]  # fmt: skip
_COLUMNS = [jobs.c[name] for name in Job._fields]
#: The same for statements in SQL, of a row `j`.
COLUMNS = ", ".join(f"j.{name}" for name in Job._fields)
_MAKE = text(f"{_CREATE_SQL} RETURNING {COLUMNS}")
_FIND = text(f"SELECT {COLUMNS} FROM pgbeat.jobs j WHERE j.id = ANY (CAST(:ids AS uuid[]))")  # noqa: S608


def make(connection: Connection, batch: Sequence[NewJob]) -> list[Job]:
    """Writes jobs, as `create`; those that are new, in no order."""
    rows = connection.execute(_MAKE, {"batch": recordset(batch)}) if batch else ()
    return [Job(*row) for row in rows]


def get(
    connection: Connection,
    job_id: str | UUID,
    *,
    namespace: str | None = None,
    for_update: bool = False,
) -> Job:
    """A job. Raises `NotFound`, for an id that is none too."""
    try:
        wanted = UUID(str(job_id))
    except ValueError:
        raise NotFound(f"{job_id!r} is no job's id; ids are UUIDs") from None
    query = select(*_COLUMNS).where(jobs.c.id == wanted)
    if namespace is not None:
        query = query.where(jobs.c.namespace == namespace)
    row = connection.execute(query.with_for_update() if for_update else query).one_or_none()
    if row is None:
        raise NotFound(f"there is no job {wanted}")
    return Job(*row)


def find(connection: Connection, job_ids: Collection[str | UUID]) -> list[Job]:
    """The jobs of these ids that there are, in no order."""
    wanted = [str(job_id) for job_id in job_ids]
    return [Job(*row) for row in connection.execute(_FIND, {"ids": wanted})] if wanted else []


class Filter(NamedTuple):
    """Which jobs: those of which all that is given is true."""

    namespace: str = NAMESPACE
    state: str | None = None
    task: str | None = None
    schedule_id: int | None = None
    lane: str | None = None
    group_id: str | None = None
    template: str | None = None
    created_by: str | None = None
    is_system_job: bool | None = None
    job_source: str | None = None
    #: It has all of them.
    labels: Mapping[str, str] | None = None

    def clauses(self) -> list[ColumnElement[bool]]:
        """As conditions of SQL."""
        given = self._replace(labels=None)._asdict().items()
        found = [jobs.c[name] == value for name, value in given if value is not None]
        if self.labels:  # the second is the index's condition
            found += [jobs.c.labels.contains(dict(self.labels)), jobs.c.labels != {}]
        return found


def listing(
    connection: Connection,
    which: Filter,
    *,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 50,
) -> list[Job]:
    """Jobs, newest first. For the next page, `before` is (`created_at`, `id`) of the last one."""
    query = select(*_COLUMNS).where(*which.clauses())
    if before is not None:
        query = query.where(tuple_(jobs.c.created_at, jobs.c.id) < tuple_(*before))
    query = query.order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit)
    return [Job(*row) for row in connection.execute(query)]


def count_of_others(connection: Connection, which: Filter, name: str, *, limit: int) -> int:
    """Returns how many of these jobs somebody other than `name` made, counted up to `limit`."""
    query = select(jobs.c.id).where(*which.clauses(), jobs.c.created_by != name).limit(limit)
    return connection.scalar(select(func.count()).select_from(query.subquery())) or 0


def of_known(condition: str) -> str:
    """A condition on rows whose ids are given, such that no index is chosen by it. Statistics lag
    behind when much is launched at once: by them hardly any job has not ended, and to go through
    those seems quicker than to look so many up by their ids."""
    return f"CASE WHEN {condition} THEN true ELSE false END"


UNFINISHED = "state IN ('pending', 'scheduled', 'running', 'paused')"
_UNFINISHED_OF = text(
    f"""
    SELECT schedule_id, id, state FROM pgbeat.jobs
     WHERE schedule_id = ANY (CAST(:schedules AS bigint[])) AND schedule_id IS NOT NULL
       AND finished_at IS NULL AND {of_known(UNFINISHED)}
     ORDER BY created_at, id
    """  # noqa: S608
)


class Unfinished(NamedTuple):
    """A job that has not ended."""

    id: str
    state: str


def in_the_way(unfinished: Sequence[Unfinished]) -> str:
    """Returns why a schedule is not launched beside these jobs of it, oldest first."""
    last = unfinished[-1]
    if len(unfinished) == 1:
        return f"the job before it, {last.id}, is still {last.state}"
    return f"{len(unfinished)} jobs before it have not ended; the last, {last.id}, is {last.state}"


def unfinished(connection: Connection, schedules: Collection[int]) -> dict[int, list[Unfinished]]:
    """The jobs of schedules (ids) that have not ended, oldest first."""
    found: dict[int, list[Unfinished]] = {}
    if schedules:
        rows = connection.execute(_UNFINISHED_OF, {"schedules": list(schedules)})
        for schedule_id, job_id, state in rows:
            found.setdefault(schedule_id, []).append(Unfinished(str(job_id), state))
    return found


class Ended(NamedTuple):
    """A job that ended, or was interrupted, with what is to be seen to because of it."""

    id: UUID
    namespace: str
    state: str
    lane: str | None
    group_id: UUID | None
    #: The job that tries again.
    retried_by: UUID | None
    #: Whether it was given to the broker.
    is_dispatched: bool = True


#: What RETURNING says for `Ended`, of a row `j`.
ENDING = (
    "j.id, j.namespace, j.state, j.lane, j.group_id, j.retried_by, "
    "j.dispatched_at IS NOT NULL AS is_dispatched"
)

_END = text(
    f"""
    WITH mine AS (
        SELECT id FROM pgbeat.jobs
         WHERE id = ANY (CAST(:ids AS uuid[]))
           AND {of_known("state = ANY (CAST(:from AS text[]))")}
           FOR UPDATE SKIP LOCKED)
    UPDATE pgbeat.jobs j
       SET state = :to, finished_at = now(), error = coalesce(:error, error),
           awaits_approval = false,
           retried_by = CASE WHEN NOT :is_final THEN pgbeat.retry_id(j, CAST(:to AS text)) END
      FROM mine WHERE j.id = mine.id
    RETURNING {ENDING}
    """  # noqa: S608
)


def end(
    connection: Connection,
    job_ids: Collection[str | UUID],
    to: Literal["cancelled", "skipped", "failed"],
    error: str | None,
    *,
    of: Collection[str] = ("pending", "scheduled", "paused"),
    is_final: bool = False,
) -> list[Ended]:
    """Ends jobs that are in one of the states `of`; those that it ended. A row that somebody holds
    locked, who is just ending it or handing it out, is left alone. With `is_final`, none is
    retried."""
    if not job_ids:
        return []
    values = {
        "ids": [str(i) for i in job_ids], "from": list(of), "to": to, "error": error,
        "is_final": is_final,
    }  # fmt: skip
    return [Ended(*row) for row in connection.execute(_END, values)]


_LOCK = text(
    "SELECT FROM pgbeat.jobs WHERE id = ANY (CAST(:ids AS uuid[])) ORDER BY id FOR NO KEY UPDATE"
)


def lock(connection: Connection, job_ids: Collection[str | UUID]) -> None:
    """Waits until nobody changes these jobs, and lets nobody before the transaction ends: one that
    is about to run would seem neither to wait nor to run."""
    connection.execute(_LOCK, {"ids": [str(i) for i in job_ids]})


_TRY_LOCK = text(
    "SELECT id FROM pgbeat.jobs WHERE id = ANY (CAST(:ids AS uuid[])) AND finished_at IS NULL "
    "FOR NO KEY UPDATE SKIP LOCKED"
)


def try_lock(connection: Connection, job_ids: Collection[str | UUID]) -> set[str]:
    """Locks those of the jobs that have not ended and that no other transaction has locked; their
    ids."""
    found = connection.scalars(_TRY_LOCK, {"ids": [str(i) for i in job_ids]})
    return {str(job_id) for job_id in found}


_ASK_TO_END = text(
    f"""
    UPDATE pgbeat.jobs
       SET cancel_requested_at = now(), cancel_requested_by = :by, cancel_reason = :reason
     WHERE id = ANY (CAST(:ids AS uuid[])) AND {of_known("state = 'running'")}
    RETURNING id
    """  # noqa: S608
)


def ask_to_end(
    connection: Connection,
    job_ids: Collection[str | UUID],
    by: str,
    reason: str | None = None,
) -> list[str]:
    """Notes that running jobs are to be cancelled, and why, which is for their workers; returns
    their ids. A reason that was given before gives way to this one."""
    if not job_ids:
        return []
    values = {"ids": [str(i) for i in job_ids], "by": by, "reason": reason}
    found = connection.scalars(_ASK_TO_END, values)
    return [str(job_id) for job_id in found]


_TRY_AGAIN = text(
    f"""
    INSERT INTO pgbeat.jobs AS j
           (id, namespace, schedule_id, schedule, due_at, template, task, args, kwargs, options,
            queue, state, run_at, dispatched_at, lane, priority, tags, resources, attempt,
            max_attempts, retry_base, retry_cap, retry_of, group_id, group_position, unique_key,
            checkpoint, job_source, created_by, is_system_job, requires_approval, approved_by,
            approved_at, awaits_approval, trigger, interval_start, description, labels, metadata,
            run_key)
    SELECT retried_by, namespace, schedule_id, schedule, due_at, template, task, args, kwargs,
           options, queue, CASE WHEN is_approved THEN 'scheduled' ELSE 'paused' END,
           now() + least(retry_base * 2 ^ least(attempt - 1, 60), retry_cap),
           CASE WHEN lane IS NULL AND is_approved THEN now() END, lane, priority, tags, resources,
           attempt + 1, max_attempts, retry_base, retry_cap, id, group_id, group_position,
           unique_key, checkpoint, job_source, created_by, is_system_job, requires_approval,
           approved_by, approved_at, NOT is_approved, trigger, interval_start, description,
           labels, metadata, run_key
      FROM (SELECT *, NOT requires_approval OR approved_by IS NOT NULL AS is_approved
              FROM pgbeat.jobs
             WHERE id = ANY (CAST(:ids AS uuid[])) AND retried_by IS NOT NULL) AS old
    ON CONFLICT DO NOTHING
    RETURNING {COLUMNS}
    """  # noqa: S608
)


def try_again(connection: Connection, job_ids: Collection[UUID]) -> list[Job]:
    """Makes the jobs that try again what these did: `scheduled`, after base × 2^(attempt-1). The
    approval of a job counts for them."""
    if not job_ids:
        return []
    rows = connection.execute(_TRY_AGAIN, {"ids": [str(job_id) for job_id in job_ids]})
    return [Job(*row) for row in rows]


_DUE = text(
    f"""
    WITH due AS (
        SELECT id FROM pgbeat.jobs
         WHERE namespace = :namespace AND state = 'scheduled' AND dispatched_at IS NULL
           AND NOT blocked_by_group AND run_at <= now()
         ORDER BY run_at LIMIT :limit FOR UPDATE SKIP LOCKED)
    UPDATE pgbeat.jobs j SET state = 'pending',
           dispatched_at = CASE WHEN j.lane IS NULL THEN now() END
      FROM due WHERE j.id = due.id
    RETURNING {COLUMNS}
    """  # noqa: S608
)


_DUE_IDS = text(
    """
    SELECT id FROM pgbeat.jobs
     WHERE namespace = :namespace AND state = 'scheduled' AND dispatched_at IS NULL
       AND NOT blocked_by_group AND run_at <= now()
     ORDER BY run_at LIMIT :limit
    """
)
_TAKE_DUE = text(
    f"""
    WITH due AS (
        SELECT id FROM pgbeat.jobs
         WHERE id = ANY (CAST(:ids AS uuid[])) AND state = 'scheduled' AND dispatched_at IS NULL
           AND NOT blocked_by_group AND run_at <= now() FOR UPDATE SKIP LOCKED)
    UPDATE pgbeat.jobs j SET state = 'pending',
           dispatched_at = CASE WHEN j.lane IS NULL THEN now() END
      FROM due WHERE j.id = due.id
    RETURNING {COLUMNS}
    """  # noqa: S608
)


def due(connection: Connection, namespace: str, *, limit: int = 500) -> list[UUID]:
    """Ids of the jobs whose time has come and that wait outside of the broker, oldest first."""
    return list(connection.scalars(_DUE_IDS, {"namespace": namespace, "limit": limit}))


def take_due(
    connection: Connection,
    namespace: str,
    *,
    limit: int = 500,
    ids: Collection[UUID] | None = None,
) -> list[Job]:
    """Makes jobs `pending` whose time has come and that wait outside of the broker, of all or of
    these; returns them."""
    if ids is not None:
        rows = connection.execute(_TAKE_DUE, {"ids": [str(job_id) for job_id in ids]})
    else:
        rows = connection.execute(_DUE, {"namespace": namespace, "limit": limit})
    return [Job(*row) for row in rows]


def refuse(connection: Connection, job_id: UUID | str, verb: str, hint: str = "") -> None:
    """Raises `InvalidTransition`, with the state that the job is in, or `NotFound`."""
    raise InvalidTransition.of(job_id, get(connection, job_id).state, verb, hint)
