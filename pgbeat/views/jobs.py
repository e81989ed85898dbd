"""Jobs, executions, their progress, traces, logs and statistics."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from pgbeat.access.redaction import Redactor
from pgbeat.database import connections
from pgbeat.jobs.explaining import explain
from pgbeat.jobs.explaining.trace import Phase, Trace
from pgbeat.jobs.flow import dependencies
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running import executions, steps
from pgbeat.jobs.running.executions import ARTIFACTS, Execution
from pgbeat.jobs.running.stacks import Stack
from pgbeat.jobs.running.task_logs import ExecutionLog
from pgbeat.jobs.states import retries
from pgbeat.monitoring.statistics import ExecutionStatistics
from pgbeat.storable import is_deep
from pgbeat.views import View, readable

#: Columns that only pgbeat needs, and the checkpoint, which `detail` has.
HIDDEN = {"schedule_id", "position", "fair_key", "message", "canvas", "keeps_id", "checkpoint"}

#: What is shown instead of JSON that is nested too deeply.
_IF_DEEP: View = {"args": None, "kwargs": None, "options": {}, "metadata": {}, "resources": {}}
#: What arguments are, unless SQL or a message's producer wrote others; these can't be shown.
_KINDS: dict[str, Any] = {"args": list | tuple, "kwargs": Mapping}
_OF_CHAIN = ("id", "state", "attempt", "created_at", "error")


def job(row: Job) -> View:
    """Returns a job."""
    columns = {name: value for name, value in row._asdict().items() if name not in HIDDEN}
    shown = readable(columns, _IF_DEEP) | {"waits_for_event": row.waits_for_event}
    amounts = shown["resources"].items()
    return shown | {
        **{name: None for name, kind in _KINDS.items() if not isinstance(shown[name], kind)},
        "resources": {name: number for name, number in amounts if isinstance(number, int | float)},
    }


def listed(connection: Connection, rows: Sequence[Job], redactor: Redactor) -> list[View]:
    """Returns jobs, already masked, with their progress and artifacts."""
    artifacts = executions.artifacts(connection, [row.id for row in rows])
    known = progress_of_jobs(connection, rows, redactor)
    return [
        job(row)
        | {
            "progress": known.get(row.id),
            "artifacts": redactor.artifacts(row.task, artifacts.get(row.id, [])),
        }
        for row in rows
    ]


def detail(connection: Connection, row: Job, redactor: Redactor, *, limit: int) -> View:
    """Returns a job, already masked, with its whereabouts, newest executions, chain and parents."""
    where = explain.of_job(connection, row, connections.now(connection))
    runs = executions.of_job(connection, row.id, limit=limit)
    runs = [redactor.row(run, row.task) for run in runs]
    chain = [redactor.row(attempt, row.task) for attempt in retries.chain(connection, row.id)]
    parents = dependencies.of_jobs(connection, [row.id], limit=100).get(row.id, [])
    [shown] = listed(connection, [row], redactor)
    return shown | {
        "checkpoint": None if is_deep(row.checkpoint) else row.checkpoint,
        "where": where._asdict(),
        "executions": [execution(run) for run in runs],
        "steps": [step._asdict() for step in steps.of_job(connection, redactor, row)],
        "chain": [{name: getattr(attempt, name) for name in _OF_CHAIN} for attempt in chain],
        "depends_on": [parent._asdict() for parent in parents],
        "dependents": dependencies.dependents(connection, redactor.actor, row.id, limit=100),
    }


#: Columns of an execution that only pgbeat needs, and those of its progress.
UNSHOWN = {"schedule_id", "worker_id", "progress_done", "progress_total", "progress_message"}


def execution(run: Execution) -> View:
    """Returns an execution."""
    metadata = {} if is_deep(run.metadata) else run.metadata
    return {name: value for name, value in run._asdict().items() if name not in UNSHOWN} | {
        "duration_ms": whole(run.duration_ms),
        "cpu_time_ms": whole(run.cpu_time_ms),
        "progress": progress_of(run),
        "artifacts": run.artifacts,
        "metadata": {key: value for key, value in metadata.items() if key != ARTIFACTS},
    }


def whole(value: float | None) -> int | None:
    """Returns a number of milliseconds, rounded."""
    return None if value is None else round(value)


def progress(done: float | None, total: float | None, message: str | None) -> View | None:
    """Returns progress with its percentage; `None` if a task reported none."""
    if done is None and message is None:
        return None
    percent = min(100.0, 100 * done / total) if done is not None and total else None
    return {"done": done, "total": total, "percent": percent, "message": message}


def progress_of(run: Execution) -> View | None:
    """Returns the progress of an execution, if there is any."""
    return progress(run.progress_done, run.progress_total, run.progress_message)


def progress_of_jobs(
    connection: Connection, rows: Sequence[Job], redactor: Redactor
) -> dict[UUID, View | None]:
    """Returns the progress of running jobs by their id."""
    running = {row.id: row.task for row in rows if row.state == "running"}
    return {
        job_id: progress_of(redactor.row(run, running[job_id]))
        for job_id, run in executions.newest(connection, list(running)).items()
    }


def trace(job_trace: Trace, now: datetime) -> View:
    """Returns the phases of a job and its retries."""
    return {
        "since": job_trace.since,
        "until": job_trace.until,
        "is_whole": job_trace.is_whole,
        "phases": [_phase(phase, now) for phase in job_trace.phases],
    }


def _phase(phase: Phase, now: datetime) -> View:
    return {
        "job_id": phase.job_id,
        "attempt": phase.attempt,
        "kind": phase.kind,
        "started_at": phase.begin,
        "finished_at": phase.end,
        "duration_seconds": phase.lasts(now).total_seconds(),
        "state": phase.state,
        "execution": phase.number,
        "where": phase.where,
        "value": phase.value,
        "note": phase.note,
    }


def log(run: ExecutionLog) -> View:
    """Returns the last lines of an execution."""
    return run._asdict() | {"lines": [line._asdict() for line in run.lines]}


def stack(row: Stack) -> View:
    """Returns a stack."""
    return row._asdict()


def figures(statistics: ExecutionStatistics) -> View:
    """Returns statistics of executions with their success rate."""
    return statistics._asdict() | {
        "average_ms": whole(statistics.average_ms),
        "p95_ms": whole(statistics.p95_ms),
        "success_rate": statistics.success_rate,
    }
