"""Executions: one row for each attempt at a job on a worker, written by that worker."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

import psycopg
from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import IntegrityError

from pgbeat.database.connections import recordset
from pgbeat.database.prepared import Statement
from pgbeat.database.tables import executions
from pgbeat.errors import NotFound
from pgbeat.jobs.model import ENDING, OUTCOME, REASON, RETRY, Ended, of_known

State = Literal["running", "completed", "failed", "cancelled", "skipped"]


class ExecutionRecord(NamedTuple):
    """What a worker tells of an attempt: that it began, how it goes, that it ended.

    Times are seconds before now: workers' clocks are not compared with the database's. What is
    `None` says nothing.
    """

    #: Chosen by the worker, so that what is told twice is written once.
    id: str
    job_id: str
    #: Whether it was not told of before.
    is_new: bool
    state: State = "running"
    #: What becomes of the job: as the attempt, or `scheduled` for Celery's retry, `pending` for a
    #: message that goes back.
    job_state: str = "running"
    worker: str | None = None
    worker_id: int | None = None
    pid: int | None = None
    acks_late: bool | None = None
    retry_attempt: int | None = None
    #: The how-manieth of its job; `None` for the next.
    number: int | None = None
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
    checkpoint: Any = None
    #: Of a task that nobody made a job for: make one, with what follows.
    makes_job: bool | None = None
    namespace: str | None = None
    task: str | None = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    queue: str | None = None
    created_by: str | None = None


_RUNS = """
    SELECT *, now() - coalesce(began, 0) * interval '1 second' AS began_at,
           CASE WHEN state <> 'running' THEN now() - coalesce(ended, 0) * interval '1 second' END
               AS ended_at
      FROM json_to_recordset(CAST(:batch AS json)) AS d (
               id uuid, job_id uuid, is_new boolean, state text, job_state text, worker text,
               worker_id integer, pid integer, acks_late boolean, retry_attempt integer,
               number integer, began float8, ended float8, lost boolean, duration_ms float8,
               cpu_time_ms float8, memory_peak_mb float8, progress_done float8,
               progress_total float8, progress_message text, result text, error text,
               traceback text, metadata jsonb, checkpoint jsonb, makes_job boolean, namespace text,
               task text, args jsonb, kwargs jsonb, queue text, created_by text)
"""
#: To be joined: not worth to be read anew for each row that it is compared with.
_EACH = "(SELECT * FROM r OFFSET 0) AS r"
_OUTCOME = OUTCOME.format(to="r.job_state")
#: What the job becomes.
_JOB = f"""
           state = {_OUTCOME},
           finished_at = CASE WHEN {_OUTCOME} IN ('completed', 'failed', 'cancelled', 'skipped')
               THEN r.ended_at END,
           error = {REASON.format(to=_OUTCOME, error="r.error")},
           retried_by = {RETRY.format(to="r.job_state")},
           checkpoint = coalesce(r.checkpoint, j.checkpoint)
"""
#: Of which jobs more is to be done: what is cancelled may have Celery's own retry on its way.
_AWAITED = """state <> 'running' AND (lane IS NOT NULL OR group_id IS NOT NULL
        OR retried_by IS NOT NULL OR state = 'cancelled')"""
# A worker's plan may have been made when the tables were empty, or nearly: rows are found through
# arrays of ids, or LATERAL, so that it can't read them whole.
#
# A delivery that comes when another attempt seems to run: that one's worker is gone, unless this is
# the retry that it asked for, which it is about to tell. What is told
# late, of an attempt that another followed, or again, says no more of the job than that it was
# completed. And what a process tells last that its worker has ended already, its worker has told:
# such an execution has no pid.
_BEGIN_SQL = f"""
    WITH r AS MATERIALIZED ({_RUNS}),
    made AS (
        INSERT INTO pgbeat.jobs AS j
               (id, namespace, task, args, kwargs, queue, state, job_source, created_by,
                is_system_job, dispatched_at, created_at, started_at, finished_at, worker, error,
                checkpoint)
        SELECT job_id, coalesce(namespace, 'default'), task, args, kwargs, queue, job_state,
               'system', coalesce(created_by, 'celery'), true, began_at, began_at, began_at,
               CASE WHEN job_state NOT IN ('running', 'scheduled', 'pending') THEN ended_at END,
               worker, error, checkpoint
          FROM r WHERE makes_job
        ON CONFLICT (id) DO NOTHING
        RETURNING {ENDING}),
    gone AS (
        UPDATE pgbeat.executions e
           SET state = 'failed', lost = true, finished_at = now(), recorded_at = clock_timestamp(),
               error = 'lost: the message was delivered again'
         WHERE e.id = ANY (ARRAY(
                   SELECT n.id FROM r CROSS JOIN LATERAL (
                       SELECT o.id FROM pgbeat.executions o
                        WHERE o.job_id = r.job_id AND o.id <> r.id
                          AND {of_known("o.state = 'running' AND o.started_at <= r.began_at")}
                          AND o.retry_attempt >= coalesce(r.retry_attempt, 0)
                        LIMIT 1000) AS n))
           AND {of_known("e.state = 'running'")}
        RETURNING e.id),
    counted AS (
        INSERT INTO pgbeat.counters AS c (namespace, metric, label, kind, value)
        SELECT '', 'stale_claims_released', '', '', count(*) FROM gone HAVING count(*) > 0
        ON CONFLICT (namespace, metric, label, kind)
        DO UPDATE SET value = c.value + excluded.value),
    began AS (
        UPDATE pgbeat.jobs j
           SET started_at = coalesce(j.started_at, r.began_at),
               worker = r.worker, run_at = NULL, {_JOB}
          FROM {_EACH} WHERE j.id = r.job_id AND j.id = ANY (ARRAY(SELECT job_id FROM r))
           AND {of_known("j.state IN ('pending', 'scheduled', 'running')")}
           AND (r.job_state = 'completed' OR NOT EXISTS (
               SELECT FROM pgbeat.executions n WHERE n.job_id = r.job_id
                  AND CASE WHEN n.id = r.id THEN n.state <> 'running'
                      ELSE n.started_at > r.began_at END))
        RETURNING {ENDING}),
    written AS (
        INSERT INTO pgbeat.executions
               (id, job_id, schedule_id, number, state, lost, retry_attempt, worker, worker_id,
                pid, acks_late, started_at, finished_at, duration_ms, cpu_time_ms, memory_peak_mb,
                progress_done, progress_total, progress_message, result, error, traceback,
                metadata, recorded_at)
        SELECT r.id, r.job_id, j.schedule_id,
               coalesce(r.number, 1 + coalesce((SELECT max(n.number) FROM pgbeat.executions n
                                                 WHERE n.job_id = r.job_id), 0)),
               r.state, coalesce(r.lost, false), coalesce(r.retry_attempt, 0),
               coalesce(r.worker, ''), r.worker_id, r.pid, coalesce(r.acks_late, false),
               r.began_at, r.ended_at, r.duration_ms, r.cpu_time_ms, r.memory_peak_mb,
               r.progress_done, r.progress_total, r.progress_message, r.result,
               {REASON.format(to="r.state", error="r.error")}, r.traceback,
               coalesce(r.metadata, '{{}}'),
               CASE WHEN r.state <> 'running' THEN clock_timestamp() END
          FROM r LEFT JOIN (
                   SELECT o.id, o.schedule_id, o.state, o.cancel_reason FROM pgbeat.jobs o
                    WHERE o.id = ANY (ARRAY(SELECT job_id FROM r)) ORDER BY o.id
                   OFFSET 0) AS j ON j.id = r.job_id
         WHERE (j.id IS NOT NULL OR r.makes_job)
           AND NOT (r.state = 'running' AND j.state IN ('failed', 'cancelled') AND EXISTS (
               SELECT FROM pgbeat.executions n
                WHERE n.job_id = r.job_id AND n.worker_id = r.worker_id AND n.pid IS NULL))
        ON CONFLICT (id) DO NOTHING)
    SELECT * FROM began WHERE {_AWAITED}
    """  # noqa: S608
#: When one ended that had begun: never before it began, by as little as two messages' ways differ.
_ENDED = """CASE WHEN r.state <> 'running' THEN coalesce(
    e.started_at + r.duration_ms * interval '1 millisecond', r.ended_at) END"""
# One that was given up for lost, and was alive, says how it really ended; its job has gone on.
_GO_ON_SQL = f"""
    WITH r AS MATERIALIZED ({_RUNS}),
    jobs AS (
        UPDATE pgbeat.jobs j SET {_JOB.replace("r.ended_at", _ENDED)}
          FROM {_EACH} JOIN pgbeat.executions e
            ON e.id = r.id AND e.id = ANY (ARRAY(SELECT id FROM r))
         WHERE j.id = r.job_id AND j.id = ANY (ARRAY(SELECT job_id FROM r))
           AND {of_known("j.state = 'running' AND e.state = 'running'")}
           AND (r.state <> 'running' OR r.checkpoint IS NOT NULL)
           AND (r.job_state = 'completed' OR NOT EXISTS (
               SELECT FROM pgbeat.executions n
                WHERE n.job_id = r.job_id AND n.started_at > e.started_at))
        RETURNING {ENDING}),
    written AS (
        UPDATE pgbeat.executions e
           SET state = r.state, finished_at = {_ENDED},
               recorded_at = CASE WHEN r.state <> 'running'
                                  THEN coalesce(e.recorded_at, clock_timestamp()) END,
               lost = coalesce(r.lost, false) AND r.state IN ('failed', 'cancelled'),
               duration_ms = coalesce(r.duration_ms, e.duration_ms),
               cpu_time_ms = coalesce(r.cpu_time_ms, e.cpu_time_ms),
               memory_peak_mb = coalesce(r.memory_peak_mb, e.memory_peak_mb),
               progress_done = coalesce(r.progress_done, e.progress_done),
               progress_total = coalesce(r.progress_total, e.progress_total),
               progress_message = coalesce(r.progress_message, e.progress_message),
               result = coalesce(r.result, e.result),
               error = CASE WHEN r.state = 'running' THEN e.error
                       WHEN r.state = 'cancelled' THEN (
                           SELECT {REASON.format(to="r.state", error="r.error")}
                             FROM pgbeat.jobs j WHERE j.id = e.job_id)
                       ELSE r.error END,
               traceback = coalesce(r.traceback, e.traceback),
               metadata = e.metadata || coalesce(r.metadata, '{{}}')
          FROM {_EACH} WHERE e.id = r.id AND e.id = ANY (ARRAY(SELECT id FROM r))
           AND (e.state = 'running' OR (e.lost AND r.state <> 'running')))
    SELECT * FROM jobs WHERE {_AWAITED}
    """  # noqa: S608
_BEGIN, _GO_ON = text(_BEGIN_SQL), text(_GO_ON_SQL)
#: The same for sessions that prepare them: of attempts that are new, and of known ones. $1 is an
#: array of JSON objects, which have the fields of `Run`, each job once.
BEGIN = Statement("executions_begin", _BEGIN_SQL.replace(":batch", "$1"))
GO_ON = Statement("executions_go_on", _GO_ON_SQL.replace(":batch", "$1"))


def record(connection: Connection, runs: Sequence[ExecutionRecord]) -> list[Ended]:
    """Writes what a worker tells, with what it does to the jobs; those that somebody waits for: a
    lane, a group, the job that tries again (which is not made yet); and those that are cancelled.

    Again, it changes nothing. Raises `IntegrityError` where another worker just began the same job:
    once more, it works.
    """
    ended: list[Ended] = []
    for is_new, batch in _batches(runs):
        statement = _BEGIN if is_new else _GO_ON
        rows = connection.execute(statement, {"batch": recordset(batch)})
        ended += [Ended(*row) for row in rows]
    return ended


def is_race(error: BaseException) -> bool:
    """Whether two workers began the same job at the same moment, and one has to write again."""
    cause = error.orig if isinstance(error, IntegrityError) else error
    return isinstance(cause, psycopg.errors.UniqueViolation) and "executions_number" in str(cause)


def _batches(runs: Sequence[ExecutionRecord]) -> Iterator[tuple[bool, list[ExecutionRecord]]]:
    """Runs of the same kind one after the other, each job once in a batch."""
    batch: list[ExecutionRecord] = []
    seen: set[str] = set()
    for run in runs:
        if batch and (run.is_new != batch[0].is_new or run.job_id in seen):
            yield batch[0].is_new, batch
            batch, seen = [], set()
        batch.append(run)
        seen.add(run.job_id)
    if batch:
        yield batch[0].is_new, batch


#: The key of an execution's metadata that holds its artifacts. Kept there, they need no column: a
#: worker of this version can write them into the schema of the version before.
ARTIFACTS = "artifacts"


def artifacts_of(metadata: Mapping[str, Any]) -> list[str]:
    """Returns the artifacts in an execution's metadata; none where something else has the key."""
    found = metadata.get(ARTIFACTS)
    if not isinstance(found, list):
        return []
    return [each for each in found if isinstance(each, str)]


class Execution(NamedTuple):
    """A row of `pgbeat.executions`."""

    id: UUID
    job_id: UUID
    schedule_id: int | None
    number: int
    state: str
    #: Its process died, or its machine.
    lost: bool
    #: Celery's own retries before it.
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
        """What its task has produced: paths or URLs."""
        return artifacts_of(self.metadata)


_COLUMNS = [executions.c[name] for name in Execution._fields]


def of_job(
    connection: Connection,
    job_id: str | UUID,
    *,
    before: int | None = None,
    limit: int = 100,
) -> list[Execution]:
    """A job's executions, the newest first. For the next page, `before` is the lowest number of
    this one: they are numbered as they were told of, and Celery's retry may be told of first."""
    query = select(*_COLUMNS).where(executions.c.job_id == str(job_id))
    if before is not None:
        query = query.where(executions.c.number < before)
    query = query.order_by(executions.c.number.desc()).limit(limit)
    found = [Execution(*row) for row in connection.execute(query)]
    return sorted(found, key=lambda run: (run.started_at, run.number), reverse=True)


def count_of_job(connection: Connection, job_id: str | UUID) -> int:
    """How many executions of a job are kept."""
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
    """Returns what these jobs have produced, over all their executions, each artifact once; jobs
    without artifacts are left out."""
    found: dict[UUID, dict[str, None]] = {}
    if job_ids:
        rows = connection.execute(_ARTIFACTS, {"ids": [str(job_id) for job_id in job_ids]})
        for job_id, metadata in rows:
            found.setdefault(job_id, {}).update(dict.fromkeys(artifacts_of(metadata)))
    return {job_id: list(names) for job_id, names in found.items() if names}


def get(connection: Connection, execution_id: UUID) -> Execution:
    """An execution. Raises `NotFound`."""
    query = select(*_COLUMNS).where(executions.c.id == execution_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"there is no execution {execution_id}")
    return Execution(*row)


#: The execution of `j` that began last, among those that were told of last.
NEWEST = """
    SELECT * FROM (SELECT * FROM pgbeat.executions WHERE job_id = j.id
                    ORDER BY number DESC LIMIT 10) AS told
     ORDER BY started_at DESC, number DESC LIMIT 1
"""
_NEWEST = text(
    f"""
    SELECT {", ".join(f"e.{name}" for name in Execution._fields)}
      FROM unnest(CAST(:ids AS uuid[])) AS j (id) CROSS JOIN LATERAL ({NEWEST}) AS e
    """  # noqa: S608
)


def newest(connection: Connection, job_ids: Collection[UUID]) -> dict[UUID, Execution]:
    """The newest execution of each of these jobs that has one."""
    if not job_ids:
        return {}
    rows = connection.execute(_NEWEST, {"ids": [str(job_id) for job_id in job_ids]})
    return {row.job_id: Execution(*row) for row in rows}
