"""Reads what the trace of a job is computed from."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.access.redaction import Redactor
from pgbeat.database import sql
from pgbeat.jobs.explaining.trace import Hold, Trace, TracedAttempt, TracedRun, trace
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running.steps import ShownStep
from pgbeat.jobs.states import retries

#: Executions of a trace, the newest.
MOST = 100

_COLUMNS = ", ".join(f"e.{name}" for name in TracedRun._fields[:-1])
_RUNS = text(sql.load("trace_rows.sql", "runs", columns=_COLUMNS))
_BLOCKED = text(sql.load("trace_rows.sql", "blocked"))
_CHANGES = text(
    """
    SELECT subject, at, verb, after FROM pgbeat.audit
     WHERE namespace = :namespace AND kind = 'job' AND subject = ANY (CAST(:ids AS text[]))
       AND verb IN ('create', 'update', 'pause', 'resume')
     ORDER BY subject, id LIMIT 1000
    """
)


def of_job(
    connection: Connection, redactor: Redactor, job: Job, now: datetime, known: Sequence[ShownStep]
) -> Trace:
    """Returns the trace of a job with all jobs that it retries and all its retries.

    `known` are their steps (`steps.of_job`).
    """
    chain = retries.chain(connection, job.id) or [job]
    ids = [str(job.id) for job in chain]
    rows = connection.execute(_RUNS, {"ids": ids, "limit": MOST + 1})
    runs = [TracedRun(*row)._replace(note=redactor.whole(job.task, row.note)) for row in rows]
    has_more, runs = len(runs) > MOST, runs[MOST - 1 :: -1] if runs else []
    if has_more:  # jobs that ended before those executions have others, which are left out
        first = runs[0]
        chain = [
            job
            for job in chain
            if job.id == first.job_id or (job.finished_at or now) > first.started_at
        ]
    blocked: dict[UUID, Any] = {
        row.id: row.until for row in connection.execute(_BLOCKED, {"ids": ids})
    }
    values = {"ids": ids, "namespace": job.namespace}
    changes = {
        subject: list(those)
        for subject, those in groupby(connection.execute(_CHANGES, values), lambda row: row.subject)
    }
    attempts = []
    for attempt in chain:
        own_runs = [run for run in runs if run.job_id == attempt.id]
        done = changes.get(str(attempt.id), [])
        attempts.append(
            TracedAttempt(
                attempt,
                own_runs,
                is_whole=not has_more or not own_runs or own_runs[0].number == 1,
                run_at=_run_at(attempt, done, own_runs),
                blocked_until=blocked.get(attempt.id),
                holds=_holds(done),
            )
        )
    if has_more:
        known = [step for step in known if step.began_at >= runs[0].started_at]
    return trace(attempts, now, steps=known, is_whole=not has_more)


def _run_at(job: Job, changes: Iterable[Any], runs: Sequence[TracedRun]) -> datetime | None:
    """Returns before when a job was not to run for the first time.

    A job that began has no such time any more: of a retry it follows from its policy, of another
    one from what the audit log has.
    """
    if job.run_at is not None and not runs:
        return job.run_at
    if job.retry_of is not None and job.attempt > 1:
        seconds = job.retry_base.total_seconds() * 2 ** min(job.attempt - 2, 60)
        delay = timedelta(seconds=min(seconds, job.retry_cap.total_seconds()))
        return job.created_at + delay
    run_at: datetime | None = None
    for change in changes:
        after: Mapping[str, Any] = change.after or {}
        if change.verb in ("create", "update") and "run_at" in after:
            run_at = after["run_at"] and datetime.fromisoformat(after["run_at"])
    return run_at


def _holds(changes: Iterable[Any]) -> list[Hold]:
    """Returns when a job was paused."""
    holds: list[Hold] = []
    for change in changes:
        is_held = bool(holds) and holds[-1].until is None
        if change.verb == "pause" and not is_held:
            holds.append(Hold(change.at, None))
        elif change.verb == "resume" and is_held:
            holds[-1] = holds[-1]._replace(until=change.at)
    return holds
