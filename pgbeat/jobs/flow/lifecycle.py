"""Does what a change of a job's state brings with it, in the transaction that changed the state.

That is: sending or withdrawing its message, inserting its retry, advancing its group and the jobs
that depend on it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.broker import messages
from pgbeat.broker.messages import AWAITED_HEADER, Withdrawn
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.broker.publishing.publisher import Publisher, TransactionPublisher
from pgbeat.database import channels, connections, server_errors
from pgbeat.errors import BrokerUnavailable
from pgbeat.jobs.flow import dependencies
from pgbeat.jobs.groups import progress
from pgbeat.jobs.lanes import slots
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.messages import answers, kept_messages
from pgbeat.jobs.messages import headers as job_headers
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.states import endings, retries
from pgbeat.jobs.states.endings import Ended

_NOTIFY = text("SELECT pg_notify(:channel, 'jobs')").bindparams(channel=channels.SCHEDULES)
#: How soon workers must record the ends of a lane's jobs; `None` if nothing waits for them.
Urgency = Literal["now", "soon"] | None


def publish(
    connection: Connection, publisher: Publisher, batch: Iterable[Job], urgency: Urgency = "soon"
) -> list[Ended]:
    """Publishes the messages of dispatched jobs, and returns the jobs for which that failed.

    These have failed for it. `urgency` is that of jobs in a lane.
    """
    published: list[str] = []
    failed: list[Ended] = []
    for job in batch:
        try:
            _publish(publisher, job, urgency)
        except Exception as error:
            if server_errors.is_passing(error) or isinstance(error, BrokerUnavailable):
                raise
            message = f"it can't be published: {type(error).__name__}: {error}"
            failed += endings.end(connection, [job.id], "failed", message[:2000])
        else:
            published.append(str(job.id))
    publisher.flush(connection, published)
    publisher.clear(published)  # only these: the caller may have published others
    return failed


def _publish(publisher: Publisher, job: Job, urgency: Urgency) -> None:
    message = task_message(job, urgency)
    if job.message is not None and isinstance(publisher, TransactionPublisher):
        kept = kept_messages.read(job, message, delays=publisher.keeps_claimed)
        publisher.take(message.job_id, kept)
    else:
        publisher.publish(message)


def task_message(job: Job, urgency: Urgency) -> TaskMessage:
    """Returns the message that a job's row alone says; `urgency` as for `publish`."""
    options: dict[str, Any] = {**job.options}
    if job.queue is not None:
        options.setdefault("queue", job.queue)
    if job.priority:
        options.setdefault("priority", job.priority)
    if job.run_at is not None and job.state == "scheduled":
        options["eta"] = job.run_at
    awaited = urgency if job.lane is not None else None
    if awaited is None and job.group_id is not None:
        awaited = "soon"
    headers = {**({AWAITED_HEADER: awaited} if awaited else {}), **job_headers.of_job(job)}
    return TaskMessage(str(job.id), job.task, job.args or (), job.kwargs or {}, options, headers)


def cancel(
    connection: Connection, publisher: Publisher, job_ids: Sequence[str], *, by: str, reason: str
) -> list[Ended]:
    """Cancels jobs. Returns those that ended, for `follow`; workers will end those that run.

    Leaves out those whose tasks have succeeded.
    """
    if not job_ids:
        return []
    jobs.lock(connection, job_ids)
    ended = _end_waiting(connection, publisher, job_ids, "cancelled", reason)
    publisher.revoke(connection, endings.request_cancel(connection, job_ids, by, reason))
    return ended


def _end_waiting(
    connection: Connection,
    publisher: Publisher,
    job_ids: Sequence[str],
    to: Literal["cancelled", "skipped"],
    reason: str,
) -> list[Ended]:
    """Ends those of the jobs that don't run, with their results, and withdraws their messages.

    One whose task has succeeded doesn't wait: its worker is about to record that.
    """
    done = answers.succeeded(connection, publisher, job_ids)
    while True:
        job_ids = [job_id for job_id in job_ids if job_id not in done]
        with suppress(_SucceededError), connections.savepoint(connection):
            withdrawn = publisher.withdraw(connection, job_ids)
            ended = endings.end(connection, job_ids, to, reason)
            answers.give(connection, publisher, [_with_message(e, withdrawn) for e in ended])
            sent = [str(job.id) for job in ended if job.is_dispatched]
            # A success that is stored from now on finds the revocation, and waits for the commit.
            done = answers.succeeded(connection, publisher, sent)
            if done:
                raise _SucceededError
            publisher.revoke(connection, [job_id for job_id in sent if job_id not in withdrawn])
            return [job._replace(unanswered=None) for job in ended]


class _SucceededError(Exception):
    """The task of a job succeeded while the job was being ended."""


def _with_message(job: Ended, withdrawn: Mapping[str, Withdrawn]) -> Ended:
    """Returns the job with its message that was taken back, if its row kept none."""
    unanswered = job.unanswered
    if unanswered is None or unanswered.message is not None or str(job.id) not in withdrawn:
        return job
    message = kept_messages.of_withdrawn(withdrawn[str(job.id)])
    return job._replace(unanswered=unanswered._replace(message=message))


def follow(
    connection: Connection,
    publisher: Publisher,
    ended: Sequence[Ended],
    groups: Collection[UUID] = (),
    parents: Collection[UUID] = (),
    dependents: Collection[UUID] | None = None,
) -> set[Room]:
    """Ends the results of ended jobs, inserts their retries, and unblocks what waits for them.

    These are their groups, and the jobs that depend on them. Looks at the given `groups`, and at
    the jobs that wait for the given `parents`, as well; of the latter at `dependents` only, if
    these are given.

    Returns the lanes that have a free slot or a new job. The caller must dispatch them
    (`pgbeat.jobs.flow.dispatch`) after the commit.
    """
    rooms: set[Room] = set()
    changed, over = set(groups), set(parents)
    while ended or changed or over:
        answers.give(connection, publisher, ended)
        _keep_snoozed(connection, publisher, ended)
        rooms.update(Room(job.namespace, job.lane, job.id) for job in ended if job.lane is not None)
        # A job that was cancelled while it ran must not run again: as Celery's retry, or
        # redelivered.
        publisher.withdraw(connection, [str(job.id) for job in ended if job.state == "cancelled"])
        slots.notify_policies(connection, ended)
        retried = [job.id for job in ended if job.retried_by is not None]
        fresh = retries.insert_automatic(connection, retried)
        steps = (
            progress.advance(connection, changed | progress.groups_of(ended)),
            dependencies.advance(connection, over | dependencies.parents_of(ended), dependents),
        )
        changed, over, dependents = set(), set(), None
        unblocked = [job for step in steps for job in step.unblocked]
        rooms.update(
            Room(job.namespace, job.lane, job.id) for job in unblocked if job.lane is not None
        )
        dispatched = [job for job in (*fresh, *unblocked) if job.dispatched_at]
        failed = publish(connection, publisher, dispatched)
        for ending in (ending for step in steps for ending in step.endings):
            failed += _end_waiting(connection, publisher, *ending)
        ended = failed
    return rooms


def _keep_snoozed(connection: Connection, publisher: Publisher, ended: Sequence[Ended]) -> None:
    """Deletes the messages of snoozed jobs, and notifies beat, which sends them again in time.

    A worker that is killed before it acknowledges its message must leave none behind.
    """
    snoozed = [str(e.id) for e in ended if e.state == "scheduled" and not e.is_dispatched]
    if snoozed:
        if isinstance(publisher, TransactionPublisher):
            messages.delete(connection, snoozed)
        connection.execute(_NOTIFY)
