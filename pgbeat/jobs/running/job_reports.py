"""Records the ends of jobs whose own process can't do so: it died, or never got the task.

A worker's main process learns of them from Celery's signals.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.running import executions, workers
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.states import endings
from pgbeat.jobs.states.endings import Ended


class JobReport(NamedTuple):
    """The end of a job, as a worker's main process reports it."""

    job_id: str
    state: Literal["failed", "cancelled"]
    error: str
    #: The new state of the job: `state`, or `pending` if its message will be delivered again.
    job_state: str
    #: Whether its process died.
    lost: bool
    #: Whether it had begun.
    began: bool = True
    worker: str = ""
    acks_late: bool = False
    #: Whether this worker hasn't registered the task. The job is retried if another may have.
    is_unknown: bool = False
    #: Whether the worker has ended its result.
    is_answered: bool = True
    #: Whether it ends only if it is a member that waits for its batch.
    is_member: bool = False


_LAST = text(sql.load("job_reports.sql", "last"))
_LOCK = text(sql.load("job_reports.sql", "lock"))


def record(connection: Connection, worker: int, reports: Sequence[JobReport]) -> list[Ended]:
    """Ends jobs and this worker's executions of them, and returns them for `lifecycle.follow`.

    The executions may not have been recorded yet. Waits for locked rows, up to `lock_timeout`.
    """
    job_ids = [report.job_id for report in reports]
    jobs.lock(connection, job_ids)
    # A job that has ended has no row to lock: its process may be recording an execution just now.
    connection.execute(_LOCK, {"worker": worker})
    values = {"worker": worker, "jobs": job_ids}
    known = {str(job): rest for job, *rest in connection.execute(_LAST, values)}
    ended: list[Ended] = []
    for report in reports:
        if report.job_id not in known:
            continue
        execution_id, is_running, is_dispatched, is_member = known[report.job_id]
        if report.is_member and not is_member:
            continue
        if is_running or (execution_id is None and report.began):
            execution = _execution(report, worker, execution_id)
            gone = executions.record(connection, [execution])
            known[report.job_id] = [execution.id, False, is_dispatched, False]
        elif (
            is_dispatched or report.is_member
        ):  # a snoozed job is not, and has nothing to do with what died since
            is_final = report.is_unknown and not _may_be_known(connection, report.job_id)
            gone = endings.end(
                connection,
                [report.job_id],
                report.state,
                report.error,
                of=("pending", "scheduled"),
                is_final=is_final,
            )
        else:
            continue
        ended += [e._replace(unanswered=None) if report.is_answered else e for e in gone]
    workers.count(connection, workers.RELEASED, sum(report.lost for report in reports))
    return ended


def _may_be_known(connection: Connection, job_id: str) -> bool:
    """Returns whether another worker may have registered the task of a job."""
    job = jobs.get(connection, job_id)
    return workers.may_know_task(connection, job.namespace, job.task, None) is not None


def _execution(report: JobReport, worker: int, execution_id: UUID | None) -> ExecutionRecord:
    return ExecutionRecord(
        str(execution_id or uuid4()),
        report.job_id,
        execution_id is None,
        state=report.state,
        job_state=report.job_state,
        worker=report.worker,
        worker_id=worker,
        acks_late=report.acks_late,
        lost=report.lost,
        error=report.error,
    )
