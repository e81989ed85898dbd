"""Rescues executions of dead workers and jobs without a message: they end, and may be retried.

The rule: a dispatched job is given up only if its message is gone and no living worker has accepted
it. Either the message left the queue in another way (`pgbeat.broker.message_ends` says which), or
the worker that acknowledged it is dead.

Any number of processes may rescue at the same time. Each skips rows that another transaction has
locked, so that everything is done once, and leaves them for the next round.
"""

import time
from collections.abc import Sequence
from uuid import UUID
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Connection

from pgbeat.broker import external_brokers, message_ends, messages
from pgbeat.broker.publishing.publisher import Publisher, TransactionPublisher
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.database.locks import batches
from pgbeat.jobs.flow import batch_members, lifecycle
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.messages import answers
from pgbeat.jobs.rescuing import rescue_log
from pgbeat.jobs.rescuing.missing_messages import MissingMessages
from pgbeat.jobs.rescuing.rescue_log import LogMessage, Loss
from pgbeat.jobs.running import executions, workers
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.running.workers import LostExecution
from pgbeat.jobs.states.endings import Ended

# Seconds between two searches for jobs whose message is gone.
_MESSAGES_INTERVAL = 5.0


def end_lost(
    connection: Connection, publisher: Publisher, execution_ids: Sequence[UUID], why: str
) -> set[Room]:
    """Ends executions as lost, follows up on their jobs, and returns the lanes with free slots.

    `why` may name the `{worker}`. The connection must be in autocommit mode.
    """

    def part(some: Sequence[UUID]) -> tuple[set[Room], list[LogMessage]]:
        try:
            lost = workers.lock_running(connection, some)
            ended = _mark_lost(connection, publisher, lost, why)
            lanes = lifecycle.follow(connection, publisher, ended)
        except BaseException:
            publisher.clear()
            raise
        return lanes, rescue_log.describe(connection, [Loss(e.job_id, e.id) for e in lost])

    freed: set[Room] = set()
    for lanes, lines in batches.in_transactions(connection, execution_ids, part):
        rescue_log.log(lines)
        freed |= lanes
    return freed


def _mark_lost(
    connection: Connection, publisher: Publisher, lost: Sequence[LostExecution], why: str
) -> list[Ended]:
    """Ends locked executions as lost, and returns the jobs that ended.

    The other jobs wait until their message is delivered again. If none will be, a result that says
    that the task has succeeded is the end that the worker could not record.
    """
    if not lost:
        return []
    job_states = _job_states(connection, publisher, lost)
    gone = [str(run.job_id) for run in lost if job_states[run.id] == "failed"]
    done = answers.succeeded(connection, publisher, gone)
    records = [
        _completed(run, done[str(run.job_id)])
        if str(run.job_id) in done
        else ExecutionRecord(
            str(run.id),
            str(run.job_id),
            False,
            state="failed",
            job_state=job_states[run.id],
            lost=True,
            error=f"lost: {why.format(worker=run.worker)}",
        )
        for run in lost
    ]
    lost_jobs = [record.job_id for record in records if record.lost]
    unanswered = answers.of_jobs(connection, lost_jobs)
    ended = executions.record(connection, records)
    workers.count(connection, workers.RELEASED, len(lost_jobs))
    return answers.with_ends(connection, ended, unanswered)


def _completed(run: LostExecution, seconds: float) -> ExecutionRecord:
    ids = str(run.id), str(run.job_id)
    return ExecutionRecord(*ids, False, state="completed", job_state="completed", ended=seconds)


def _job_states(
    connection: Connection, publisher: Publisher, lost: Sequence[LostExecution]
) -> dict[UUID, str]:
    """Returns the new state of each execution's job.

    `pending`: its message will be delivered again, or is kept in its row, or another worker has
    accepted it and is about to record that. `cancelled`: the message was purged or has expired.
    Otherwise `failed`: also if the worker that accepted it has recorded its end, which did not
    count while this one ran.
    """
    job_ids = [str(run.job_id) for run in lost]
    ends: dict[str, message_ends.End] = {}
    if isinstance(publisher, TransactionPublisher):
        back = messages.carrying(connection, job_ids)
        # A broker that the app used before delivers again what was not acknowledged.
        late = [str(run.job_id) for run in lost if run.acks_late]
        back |= external_brokers.sent(connection, late)
        back |= batch_members.halve(connection, [run.id for run in lost])
        ends = message_ends.newest(connection, set(job_ids) - back)
    else:
        back = {str(run.job_id) for run in lost if run.acks_late}
    elsewhere = {
        run.id: end.worker_id
        for run in lost
        if (end := ends.get(str(run.job_id))) is not None
        and end.how == "accepted"
        and end.worker_id not in (None, run.worker_id)
    }
    has_failed = workers.ended_beside(connection, elsewhere.keys())
    states: dict[UUID, str] = {}
    for run in lost:
        end = ends.get(str(run.job_id))
        states[run.id] = "pending" if str(run.job_id) in back else "failed"
        if end is not None and end.how != "accepted":
            states[run.id] = "cancelled"
        elif run.id in elsewhere and (run.id, elsewhere[run.id]) not in has_failed:
            states[run.id] = "pending"
    return states


def rescue(connection: Connection, publisher: Publisher, settings: Settings) -> set[Room]:
    """Does one round of rescue, and returns the lanes that have free slots.

    The connection must be in autocommit mode. Calls with the same publisher share one `Rescuer`.
    """
    rescuer = _rescuers.get(publisher)
    if rescuer is None or rescuer.settings != settings:
        rescuer = _rescuers[publisher] = Rescuer(publisher, settings)
    return rescuer.rescue(connection)


class Rescuer:
    """Rescues in rounds, and remembers what it has noticed."""

    def __init__(self, publisher: Publisher, settings: Settings) -> None:
        # A weak reference: the publisher is the key of `_rescuers`.
        self.settings, self.namespace = settings, settings.namespace
        self._publisher = ref(publisher)
        self._session = 0
        self._messages_at = 0.0
        self._missing_messages = MissingMessages(settings.namespace)

    def rescue(self, connection: Connection) -> set[Room]:
        """Does one round, and returns the lanes that have free slots."""
        publisher = self._publisher()
        if publisher is None:  # pragma: no cover
            return set()
        session = connections.driver(connection).info.backend_pid
        if session != self._session:  # recording workers may have lost their sessions as well
            self._session = session
            self._missing_messages.forget()
        dead = workers.find_dead(connection, self.settings.lock_patience)
        lanes = self._end_abandoned(connection, publisher, dead)
        if isinstance(publisher, TransactionPublisher) and time.monotonic() >= self._messages_at:
            self._messages_at = time.monotonic() + _MESSAGES_INTERVAL
            lanes |= self._missing_messages.rescue(connection, publisher, dead)
        return lanes

    def _end_abandoned(
        self, connection: Connection, publisher: Publisher, dead: Sequence[int]
    ) -> set[Room]:
        if not workers.any_abandoned(connection, dead):
            return set()
        abandoned = workers.abandoned_executions(connection, self.namespace, dead)
        why = "the worker {worker} died"
        return end_lost(connection, publisher, [run.id for run in abandoned], why)


_rescuers: "WeakKeyDictionary[Publisher, Rescuer]" = WeakKeyDictionary()
