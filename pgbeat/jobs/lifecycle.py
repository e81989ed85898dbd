"""What a job's state brings with it: its message, the job that tries again, the next of its group.

All of it is written into the open transaction, beside the state.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection

from pgbeat.broker.messages import AWAITED_HEADER
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.database import connections
from pgbeat.errors import BrokerUnavailable
from pgbeat.jobs import headers as job_headers
from pgbeat.jobs import model as jobs
from pgbeat.jobs.groups import progress
from pgbeat.jobs.lanes import slots
from pgbeat.jobs.model import Ended, Job


def task_message(job: Job, is_awaited: bool = True) -> TaskMessage:
    """What is to be published for a job. `is_awaited`: others in its lane or group wait for its
    end."""
    options: dict[str, Any] = {**job.options}
    if job.queue is not None:
        options.setdefault("queue", job.queue)
    if job.priority:
        options.setdefault("priority", job.priority)
    if job.run_at is not None and job.state == "scheduled":
        options["eta"] = job.run_at
    others = job.group_id is not None or (is_awaited and job.lane is not None)
    headers = {**({AWAITED_HEADER: True} if others else {}), **_headers(job)}
    return TaskMessage(str(job.id), job.task, job.args or (), job.kwargs or {}, options, headers)


def _headers(job: Job) -> Mapping[str, Any]:
    return job_headers.headers(
        job.schedule, job.due_at, job.interval_start, job.trigger, job.attempt
    )


def publish(
    connection: Connection, publisher: Publisher, batch: Iterable[Job], is_awaited: bool = True
) -> list[Ended]:
    """Gives jobs that are dispatched to the broker. One that can't be published fails for it; those
    are returned."""
    published: list[str] = []
    failed: list[Ended] = []
    for job in batch:
        try:
            publisher.publish(task_message(job, is_awaited))
        except Exception as error:
            if connections.is_lost(error) or isinstance(error, BrokerUnavailable):
                raise
            message = f"it can't be published: {type(error).__name__}: {error}"
            failed += jobs.end(connection, [job.id], "failed", message[:2000])
        else:
            published.append(str(job.id))
    publisher.flush(connection, published)
    publisher.clear(published)  # and nothing of what our caller has made
    return failed


def cancel(
    connection: Connection, publisher: Publisher, job_ids: Sequence[str], *, by: str, reason: str
) -> list[Ended]:
    """Cancels jobs: one that runs is ended by its worker, which then says so; the others end now,
    their messages taken back. Those that ended; the rest is for `follow`."""
    if not job_ids:
        return []
    jobs.lock(connection, job_ids)
    ended = end_waiting(connection, publisher, job_ids, "cancelled", reason)
    publisher.revoke(connection, jobs.ask_to_end(connection, job_ids, by, reason))
    return ended


def end_waiting(
    connection: Connection,
    publisher: Publisher,
    job_ids: Sequence[str],
    to: Literal["cancelled", "skipped"],
    reason: str,
) -> list[Ended]:
    """Ends those of the jobs that don't run, their messages taken back."""
    withdrawn = publisher.withdraw(connection, job_ids)
    ended = jobs.end(connection, job_ids, to, reason)
    given = [str(job.id) for job in ended if job.is_dispatched]
    publisher.revoke(connection, [job_id for job_id in given if job_id not in withdrawn])
    return ended


def follow(
    connection: Connection,
    publisher: Publisher,
    ended: Sequence[Ended],
    also: Collection[UUID] = (),
) -> set[tuple[str, str]]:
    """Sees to what waits for these jobs' ends, and goes on with the groups `also`; the lanes
    (namespace and name) that have room now, or something new, which are for `dispatch` once
    this transaction is committed."""
    lanes: set[tuple[str, str]] = set()
    todo, touched = list(ended), set(also)
    while todo or touched:
        lanes.update((job.namespace, job.lane) for job in todo if job.lane is not None)
        # What was cancelled while it ran must not come again: as Celery's retry, or redelivered.
        publisher.withdraw(connection, [str(job.id) for job in todo if job.state == "cancelled"])
        slots.report_completed(connection, todo)
        again: list[UUID] = [job.id for job in todo if job.retried_by is not None]
        fresh = jobs.try_again(connection, again)
        step = progress.advance(connection, touched | progress.of(todo))
        touched = set()
        fresh += step.unblocked
        lanes.update((job.namespace, job.lane) for job in step.unblocked if job.lane is not None)
        todo = publish(connection, publisher, [job for job in fresh if job.dispatched_at])
        for ending in step.endings:
            todo += end_waiting(connection, publisher, *ending)
    return lanes


def settle_groups(
    connection: Connection, publisher: Publisher, namespace: str
) -> set[tuple[str, str]]:
    """Goes on with groups in which something is to be done and nobody will tell; the lanes that
    have something new."""
    return follow(connection, publisher, [], progress.stuck(connection, namespace))
