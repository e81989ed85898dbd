"""Reads and locks the rows of jobs. The id of a job is the Celery task id.

`docs/reference/jobs.md` shows the states and which may follow which. `pgbeat.jobs.lifecycle` does
what a change of state brings with it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Text,
    and_,
    cast,
    false,
    literal,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB

from pgbeat.database.tables import jobs
from pgbeat.errors import NotFound
from pgbeat.jobs import ids
from pgbeat.names import NAMESPACE

State = Literal[
    "pending", "scheduled", "running", "paused", "completed", "failed", "cancelled", "skipped"
]
#: Final states.
ENDED = ("completed", "failed", "cancelled", "skipped")


class Job(NamedTuple):
    """A row of `pgbeat.jobs`, as read at one moment."""

    id: UUID
    namespace: str
    schedule_id: int | None
    schedule: str | None
    due_at: datetime | None
    template: str | None
    task: str
    #: `None` if the arguments are not JSON.
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    options: dict[str, Any]
    queue: str | None
    state: str
    run_at: datetime | None
    #: When its message was sent; `None` while it waits for its lane, its group or a person.
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
    #: It waits for others: those before it in its group, or jobs that it depends on.
    is_blocked: bool
    #: Jobs that it depends on, and that have not ended.
    unfinished_parents: int
    unique_key: str | None
    awaits_approval: bool
    #: An administrator must approve it, and each retry by hand, before it runs.
    requires_approval: bool
    approved_by: str | None
    approved_at: datetime | None
    cancel_requested_by: str | None
    cancel_requested_at: datetime | None
    #: The error with which to end a job that was cancelled while it ran.
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
    #: Why its schedule launched it, and the due time before `due_at`.
    trigger: str | None
    interval_start: datetime | None
    #: Distinguishes the jobs of one tick, if its launcher launches several.
    run_key: str | None
    description: str | None
    labels: dict[str, str]
    metadata: dict[str, Any]
    must_start_by: datetime | None
    must_end_by: datetime | None
    #: When it was marked as late, and the deadlines that it missed: `start`, `end`.
    late_at: datetime | None
    missed_deadlines: list[str]
    #: What to send at its dispatch; `None` if the message is made from the fields above.
    message: dict[str, Any] | None = None
    #: With which it takes turns in its lane: `tenant=acme`; empty if the lane is not fair.
    fair_key: str = ""
    #: Its place in Celery's canvas (`pgbeat.jobs.canvas`); `None` if it is no part of anything.
    root_id: UUID | None = None
    parent_id: UUID | None = None
    canvas: dict[str, Any] | None = None
    #: The group whose callback it is.
    callback_of: UUID | None = None

    @property
    def has_ended(self) -> bool:
        """Returns whether the state is final."""
        return self.state in ENDED

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "job", str(self.id), {name: getattr(self, name) for name in _AUDITED}


# The audit log leaves out what may be large.
_UNAUDITED = {
    "id", "namespace", "schedule_id", "args", "kwargs", "options", "checkpoint", "root_id",
    "parent_id", "canvas", "callback_of",
}  # fmt: skip
_AUDITED = [name for name in Job._fields if name not in _UNAUDITED]
_COLUMNS = [jobs.c[name] for name in Job._fields]
#: The same in SQL, of a row `j`.
COLUMNS = ", ".join(f"j.{name}" for name in Job._fields)
_FIND = text(f"SELECT {COLUMNS} FROM pgbeat.jobs j WHERE j.id = ANY (CAST(:ids AS uuid[]))")  # noqa: S608


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


def find(connection: Connection, job_ids: Collection[str | UUID]) -> list[Job]:
    """Returns the jobs with these ids that exist, in no order."""
    wanted = [str(job_id) for job_id in job_ids]
    return [Job(*row) for row in connection.execute(_FIND, {"ids": wanted})] if wanted else []


class Filter(NamedTuple):
    """Selects jobs by all fields that are not `None`."""

    namespace: str = NAMESPACE
    state: str | None = None
    #: A name, or a glob such as `shop.*`.
    task: str | None = None
    schedule_id: int | None = None
    lane: str | None = None
    group_id: str | None = None
    template: str | None = None
    created_by: str | None = None
    is_system_job: bool | None = None
    job_source: str | None = None
    #: Whether it missed a deadline.
    late: bool | None = None
    #: The job must have all of them.
    labels: Mapping[str, str] | None = None
    #: When it was created: not before the first time, and before the second.
    created_from: datetime | None = None
    created_until: datetime | None = None
    #: The queue that a job names; if it names none, the task decides by one of the next two.
    queue: str | None = None
    routed_here: Sequence[str] | None = None
    routed_elsewhere: Sequence[str] | None = None
    #: A glob of the error, in upper or lower case; without `*` and `?`, a part of it.
    error: str | None = None
    #: In one of these states.
    states: Sequence[str] | None = None
    #: Whether a retry took its place.
    is_retried: bool | None = None
    ids: Sequence[UUID] | None = None
    #: It must have all of these tags.
    tags: Sequence[str] | None = None
    #: A name with dots, or a place and such names, of an argument, and its value as text.
    arguments: Sequence[tuple[str, str]] | None = None
    #: Each is a part of the task's name, or the beginning of the id.
    words: Sequence[str] | None = None
    #: Globs of tasks that are left out.
    not_tasks: Sequence[str] | None = None

    def clauses(self) -> list[ColumnElement[bool]]:
        """Returns the conditions in SQL."""
        return self.indexed() + self.unindexed(jobs.c)

    def indexed(self) -> list[ColumnElement[bool]]:
        """Returns the conditions for which there are indexes, or which take little beside one."""
        given = [(name, value) for name, value in self._asdict().items() if name not in _OTHERS]
        found = [jobs.c[name] == value for name, value in given if value is not None]
        if self.task is not None and not is_glob(self.task):
            found.append(jobs.c.task == self.task)
        if self.states is not None:
            found.append(jobs.c.state.in_(self.states))
        if self.ids is not None:
            found.append(jobs.c.id.in_(self.ids))
        if self.is_retried is not None:
            is_last = jobs.c.retried_by.is_(None)
            found.append(~is_last if self.is_retried else is_last)
        if self.late is not None:
            is_late = jobs.c.late_at.is_not(None)
            found.append(is_late if self.late else ~is_late)
        if self.created_from is not None:
            found.append(jobs.c.created_at >= self.created_from)
        if self.created_until is not None:
            found.append(jobs.c.created_at < self.created_until)
        if self.labels:  # the second condition makes Postgres use the index
            found += [jobs.c.labels.contains(dict(self.labels)), jobs.c.labels != {}]
        return found

    def unindexed(self, columns: Any) -> list[ColumnElement[bool]]:
        """Returns the others, of a table's or a subquery's columns."""
        found: list[ColumnElement[bool]] = []
        if self.task is not None and is_glob(self.task):
            found.append(columns.task.like(like(self.task)))
        if self.error is not None:
            glob = self.error if is_glob(self.error) else f"*{self.error}*"
            found.append(columns.error.ilike(like(glob)))
        if self.queue is not None:
            found.append(self._is_in_queue(columns))
        if self.tags:
            found.append(columns.tags.contains(list(self.tags)))
        found += [_argument(columns, *each) for each in self.arguments or ()]
        found += [_word(columns, each) for each in self.words or ()]
        found += [columns.task.not_like(like(each)) for each in self.not_tasks or ()]
        return found

    def _is_in_queue(self, columns: Any) -> ColumnElement[bool]:
        if self.routed_here is not None:
            is_routed = columns.task.in_(self.routed_here)
        elif self.routed_elsewhere is not None:
            is_routed = columns.task.not_in(self.routed_elsewhere)
        else:
            is_routed = false()
        return or_(columns.queue == self.queue, and_(columns.queue.is_(None), is_routed))


#: Fields of a filter that are no columns to compare.
_OTHERS = {
    "task", "late", "labels", "created_from", "created_until", "error", "states", "is_retried",
    "ids", "queue", "routed_here", "routed_elsewhere", "tags", "arguments", "words", "not_tasks",
}  # fmt: skip
_GLOB = frozenset("*?")
_TO_LIKE = str.maketrans({"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"})


def is_glob(text: str) -> bool:
    """Returns whether a text is a glob rather than a name."""
    return not _GLOB.isdisjoint(text)


def like(glob: str) -> str:
    """Returns a glob as a pattern of LIKE."""
    return glob.translate(_TO_LIKE)


def _argument(columns: Any, path: str, value: str) -> ColumnElement[bool]:
    """Returns the condition that an argument has this value: as text, or as JSON such as `5`."""
    values: list[Any] = [value]
    with suppress(ValueError):
        read = json.loads(value, parse_constant=str)
        if not isinstance(read, str):
            values.append(read)
    first, *inner = path.split(".")
    is_place = first.isdecimal() and len(first) < 9
    where = columns.args[int(first)] if is_place else columns.kwargs
    names = inner if is_place else [first, *inner]
    found = []
    for each in values:
        for name in reversed(names):
            each = {name: each}
        found.append(where.contains(cast(literal(json.dumps(each), Text), JSONB)))
    return or_(*found)


def _word(columns: Any, word: str) -> ColumnElement[bool]:
    is_named: ColumnElement[bool] = columns.task.ilike(like(f"*{word}*"))
    between = ids.between(word)
    return is_named if between is None else or_(is_named, columns.id.between(*between))


def listing(
    connection: Connection,
    which: Filter,
    *,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 50,
) -> list[Job]:
    """Returns jobs, the newest first.

    For the next page, `before` is (`created_at`, `id`) of the last job.
    """
    query = select(*_COLUMNS).where(*which.clauses())
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


UNFINISHED = "state IN ('pending', 'scheduled', 'running', 'paused')"
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
    found: dict[int, list[Unfinished]] = {}
    if schedules:
        rows = connection.execute(_UNFINISHED_OF, {"schedules": list(schedules)})
        for schedule_id, job_id, state in rows:
            found.setdefault(schedule_id, []).append(Unfinished(str(job_id), state))
    return found


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
    found = connection.scalars(_TRY_LOCK, {"ids": [str(i) for i in job_ids]})
    return {str(job_id) for job_id in found}
