"""Records and reads executions: one row for each attempt at a job on a worker."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

import psycopg
from sqlalchemy import Connection, func, select, text

from pgbeat.database import connections, sql
from pgbeat.database.connections import recordset
from pgbeat.database.prepared import Statement
from pgbeat.database.tables import executions
from pgbeat.errors import NotFound
from pgbeat.jobs.states import endings
from pgbeat.jobs.states.endings import Ended, columns_except

State = Literal["running", "completed", "failed", "cancelled", "skipped", "snoozed"]


#: States of a job that goes back to wait, or is cancelled if somebody asked for that: its task has
#: not ended for Celery.
UNDECIDED = ("scheduled", "pending")


class ExecutionRecord(NamedTuple):
    """What a worker records of an attempt when it begins, makes progress or ends.

    Times are seconds before now, because a worker's clock may be wrong. `None` leaves a field as it
    is.
    """

    #: Chosen by the worker, so that recording twice writes one row.
    id: str
    job_id: str
    #: Whether it was not recorded before.
    is_new: bool
    state: State = "running"
    #: The new state of the job: the same, or `scheduled` for Celery's retry, or `pending` if the
    #: message is requeued.
    job_state: str = "running"
    worker: str | None = None
    worker_id: int | None = None
    pid: int | None = None
    acks_late: bool | None = None
    retry_attempt: int | None = None
    began: float | None = None
    ended: float | None = None
    lost: bool | None = None
    duration_ms: float | None = None
    cpu_time_ms: float | None = None
    memory_peak_mb: float | None = None
    progress_done: float | None = None
    progress_total: float | None = None
    progress_message: str | None = None
    result: str | None = None
    error: str | None = None
    traceback: str | None = None
    metadata: Mapping[str, Any] | None = None
    #: The last lines that the task logged.
    log: Mapping[str, Any] | None = None
    checkpoint: Any = None
    #: Seconds from the end until the job runs again, for its state `scheduled`. If the execution
    #: snoozed, the job has no slot meanwhile, and `message` is sent then. A batch's member that is
    #: retried has a `message`, too.
    runs_in: float | None = None
    message: Mapping[str, Any] | None = None
    #: Whether an earlier execution of the job, or this one, may have been recorded before.
    is_repeated: bool | None = None
    #: The job to write for a task that was published without one: as `pgbeat.write_jobs` takes it,
    #: without what the execution says.
    job: Mapping[str, Any] | None = None


# What they write of a record, under names that no column of jobs has.
_RECORD = {
    "id": "execution_id", "job_id": "job_id", "state": "own_state", "worker": "own_worker",
    "error": "own_error", "metadata": "reported",
    **{name: name for name in (
        "worker_id", "pid", "acks_late", "retry_attempt", "began_at", "ended_at", "lost",
        "duration_ms", "cpu_time_ms", "memory_peak_mb", "progress_done", "progress_total",
        "progress_message", "result", "traceback", "log",
    )},
}  # fmt: skip
# What they change of a job that ends, which also has no `run_at` any more.
_CHANGED = (
    "state",
    "started_at",
    "finished_at",
    "worker",
    "error",
    "retried_by",
    "checkpoint",
    "executions",
    "attempt",
)
_KEPT = columns_except(*_CHANGED, "run_at")
_HAS_DEPENDENTS = """(SELECT true FROM (SELECT parent_id, outcome FROM pgbeat.dependencies) AS d
            WHERE d.parent_id = id AND d.outcome IS NULL LIMIT 1) IS NOT NULL"""
#: What the files have in common, by the words in braces that it replaces there.
_PARTS = {
    "kept": ", ".join(f"j.{name}" for name in _KEPT),
    "record": ", ".join(f"r.{name} AS {alias}" for name, alias in _RECORD.items()),
    "record_names": ", ".join(_RECORD.values()),
    "ended_job": ", ".join([*_KEPT, *_CHANGED]),
    "ended_execution": """id, job_id, schedule_id, number, state, lost, retry_attempt, worker,
            worker_id, pid, acks_late, started_at, finished_at, duration_ms, cpu_time_ms,
            memory_peak_mb, progress_done, progress_total, progress_message, result, error,
            traceback, metadata, log, recorded_at""",
    # Celery's own retries beyond those of the policy don't count.
    "attempt": """CASE WHEN j.keeps_id THEN greatest(j.attempt, least(
                  coalesce(r.retry_attempt, 0) + 1, j.max_attempts)) ELSE j.attempt END""",
    # It goes back to its queue, but a snooze of another execution has deleted its message.
    "is_unsent": "(r.job_state = 'pending' AND j.dispatched_at IS NULL AND j.lane IS NULL)",
    # A plain task that snoozes is sent again by Celery. Of a job, it is noted when that must be.
    "is_sent": "r.message IS NULL AND (r.state <> 'snoozed' OR r.runs_in IS NULL)",
    "result": "id, namespace, state, lane, group_id, retried_by, dispatched_at IS NOT NULL, "
    f"{_HAS_DEPENDENTS}",
    "is_awaited": "(lane IS NOT NULL OR group_id IS NOT NULL OR retried_by IS NOT NULL "
    f"OR dispatched_at IS NULL OR {_HAS_DEPENDENTS})",
}


#: Record new executions, and changes of known ones. The parameter is a JSON array of objects with
#: fields of `ExecutionRecord`, with each job once. The files say what they guarantee.
BEGIN = Statement("executions_begin", sql.load("executions_begin.sql", **_PARTS))
GO_ON = Statement("executions_go_on", sql.load("executions_go_on.sql", **_PARTS))


def record(connection: Connection, records: Sequence[ExecutionRecord]) -> list[Ended]:
    """Records executions, and changes the states of their jobs.

    Returns ended jobs for `lifecycle.follow`: those in a lane or a group, those that will be
    retried or that others depend on, and cancelled ones. Recording again changes nothing.
    """
    ended: list[Ended] = []
    cursor = psycopg.RawCursor(connections.driver(connection))
    undecided = [run.job_id for run in records if run.job_state in UNDECIDED]
    unanswered = endings.lock_undecided(connection, undecided)
    for is_new, batch in _batches(records):
        statement = BEGIN if is_new else GO_ON
        rows = cursor.execute(statement.sql, [recordset(batch)])
        ended += [
            Ended(*row)._replace(unanswered=unanswered.get(row[0]))
            for row in rows
            if row[1] is not None
        ]
    return ended


def _batches(records: Sequence[ExecutionRecord]) -> Iterator[tuple[bool, list[ExecutionRecord]]]:
    """Yields batches of successive records that are all new or all known, with each job once."""
    batch: list[ExecutionRecord] = []
    seen: set[str] = set()
    for record in records:
        if batch and (record.is_new != batch[0].is_new or record.job_id in seen):
            yield batch[0].is_new, batch
            batch, seen = [], set()
        batch.append(record)
        seen.add(record.job_id)
    if batch:
        yield batch[0].is_new, batch


#: The key of an execution's artifacts in its metadata. They have no column, so that a worker can
#: write them into the schema of the previous version.
ARTIFACTS = "artifacts"


def artifacts_of(metadata: Mapping[str, Any]) -> list[str]:
    """Returns the artifacts in an execution's metadata, without values that are not text."""
    names = metadata.get(ARTIFACTS)
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str)]


class Execution(NamedTuple):
    """A row of `pgbeat.executions`."""

    id: UUID
    job_id: UUID
    schedule_id: int | None
    number: int
    state: str
    #: Whether its process or machine died.
    lost: bool
    #: The number of Celery's own retries before it.
    retry_attempt: int
    worker: str
    worker_id: int | None
    pid: int | None
    acks_late: bool
    started_at: datetime
    finished_at: datetime | None
    duration_ms: float | None
    cpu_time_ms: float | None
    memory_peak_mb: float | None
    progress_done: float | None
    progress_total: float | None
    progress_message: str | None
    result: str | None
    error: str | None
    traceback: str | None
    metadata: dict[str, Any]

    @property
    def artifacts(self) -> list[str]:
        """Returns what the task has produced: paths or URLs."""
        return artifacts_of(self.metadata)


_COLUMNS = [executions.c[name] for name in Execution._fields]


def of_job(
    connection: Connection, job_id: str | UUID, *, before: int | None = None, limit: int = 100
) -> list[Execution]:
    """Returns a job's executions, the newest first.

    For the next page, `before` is the lowest number of this one. Numbers have the order in which
    executions were recorded: Celery's retry may be recorded before the execution that it follows.
    """
    query = select(*_COLUMNS).where(executions.c.job_id == str(job_id))
    if before is not None:
        query = query.where(executions.c.number < before)
    query = query.order_by(executions.c.number.desc()).limit(limit)
    runs = [Execution(*row) for row in connection.execute(query)]
    return sorted(runs, key=lambda run: (run.started_at, run.number), reverse=True)


def count_of_job(connection: Connection, job_id: str | UUID) -> int:
    """Returns the number of a job's executions in the database."""
    query = select(func.count()).select_from(executions).where(executions.c.job_id == str(job_id))
    return int(connection.execute(query).scalar_one())


_ARTIFACTS = text(
    """
    SELECT job_id, metadata FROM pgbeat.executions
     WHERE job_id = ANY (CAST(:ids AS uuid[])) AND metadata -> 'artifacts' IS NOT NULL
     ORDER BY job_id, number
    """
)


def artifacts(connection: Connection, job_ids: Collection[UUID]) -> dict[UUID, list[str]]:
    """Returns the artifacts of these jobs, each once, without jobs that have none."""
    by_job: dict[UUID, dict[str, None]] = {}
    if job_ids:
        rows = connection.execute(_ARTIFACTS, {"ids": [str(job_id) for job_id in job_ids]})
        for job_id, metadata in rows:
            by_job.setdefault(job_id, {}).update(dict.fromkeys(artifacts_of(metadata)))
    return {job_id: list(names) for job_id, names in by_job.items() if names}


def get(connection: Connection, execution_id: UUID) -> Execution:
    """Returns an execution. Raises `NotFound`."""
    query = select(*_COLUMNS).where(executions.c.id == execution_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"there is no execution {execution_id}")
    return Execution(*row)


#: The execution of job `j` that began last, among the ten that were recorded last.
NEWEST = """
    SELECT * FROM (SELECT * FROM pgbeat.executions WHERE job_id = j.id
                    ORDER BY number DESC LIMIT 10) AS recorded
     ORDER BY started_at DESC, number DESC LIMIT 1
"""
_E_COLUMNS = ", ".join(f"e.{name}" for name in Execution._fields)
_NEWEST = text(sql.load("executions.sql", "newest", columns=_E_COLUMNS, newest=NEWEST))


def newest(connection: Connection, job_ids: Collection[UUID]) -> dict[UUID, Execution]:
    """Returns the newest execution of each of these jobs, without jobs that have none."""
    if not job_ids:
        return {}
    rows = connection.execute(_NEWEST, {"ids": [str(job_id) for job_id in job_ids]})
    return {row.job_id: Execution(*row) for row in rows}


class TaskRun(NamedTuple):
    """An execution, with what its job was called with."""

    execution: Execution
    task: str
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    root_id: UUID | None
    parent_id: UUID | None
    #: Whether the job has ended.
    has_ended: bool


_OF_ALL = text(sql.load("executions.sql", "of_all", columns=_E_COLUMNS))


def of_all(connection: Connection, namespace: str, *, limit: int) -> list[TaskRun]:
    """Returns the newest executions of all jobs, the newest first."""
    rows = connection.execute(_OF_ALL, {"namespace": namespace, "limit": limit})
    width = len(Execution._fields)
    return [TaskRun(Execution(*row[:width]), *row[width:]) for row in rows]
