"""Recovery: ends what nobody else will end: executions of dead workers, jobs without a message.

The rule: a job that was given to the broker is given up only if it has no message any more, and
no worker that lives has accepted it. Either its message left the queue in another way
(`pgbeat.message_ends` says which), or the worker that acknowledged it is dead.

Any number of processes sweep; what one has locked the others leave alone, so all is done once. What
an open transaction has locked is left for the next sweep, and delays nothing else.
"""

import time
from collections.abc import Sequence
from typing import Literal, NamedTuple
from uuid import UUID, uuid4
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Connection, text

from pgbeat.broker import message_ends, other_brokers
from pgbeat.broker.publishing.publisher import Publisher, TransactionPublisher
from pgbeat.config import Settings
from pgbeat.database import connections, piecewise
from pgbeat.jobs import executions, lifecycle, rescue_log, workers
from pgbeat.jobs import model as jobs
from pgbeat.jobs.executions import Run
from pgbeat.jobs.missing_messages import RELEASED, Vanished
from pgbeat.jobs.model import Ended
from pgbeat.jobs.rescue_log import Line, Loss
from pgbeat.jobs.workers import Lost

__all__ = ["RELEASED", "Sweeper", "Told", "lose", "release", "settle", "sweep"]

#: Seconds between two looks for jobs whose message is gone.
_LOOK = 5.0


def release(
    connection: Connection, publisher: Publisher, runs: Sequence[UUID], why: str
) -> set[tuple[str, str]]:
    """Ends executions (ids) as lost, with all that follows; returns the lanes that have room.

    The connection is in autocommit mode. What is locked is left for the next time.
    """

    def part(some: Sequence[UUID]) -> tuple[set[tuple[str, str]], list[Line]]:
        try:
            lost = workers.take(connection, some)
            ended = lose(connection, publisher, lost, why)
            lanes = lifecycle.follow(connection, publisher, ended)
        except BaseException:
            publisher.clear()
            raise
        return lanes, rescue_log.describe(connection, [Loss(e.job_id, e.id) for e in lost])

    freed: set[tuple[str, str]] = set()
    for lanes, lines in piecewise.in_transactions(connection, runs, part):
        rescue_log.log(lines)
        freed |= lanes
    return freed


def lose(
    connection: Connection, publisher: Publisher, lost: Sequence[Lost], why: str
) -> list[Ended]:
    """Ends executions that are locked (`workers.abandoned`, `workers.take`) as lost. Their jobs
    wait for the message that comes again, or else fail, and may be retried. Those that ended; the
    rest is for `lifecycle.follow`."""
    if not lost:
        return []
    fates = _fates(connection, publisher, lost)
    runs = [
        Run(
            str(each.id),
            str(each.job_id),
            False,
            state="failed",
            job_state=fates[each.id],
            lost=True,
            error=f"lost: {why.format(worker=each.worker)}",
        )
        for each in lost
    ]
    ended = executions.record(connection, runs)
    workers.count(connection, RELEASED, len(lost))
    return ended


def _fates(connection: Connection, publisher: Publisher, lost: Sequence[Lost]) -> dict[UUID, str]:
    """Returns what becomes of the job of each execution.

    `pending`: its message is delivered again, or another worker has accepted it since then, and is
    about to record that. `cancelled`: it would have been delivered again, but was purged or
    expired. Else `failed`.
    """
    job_ids = [str(each.job_id) for each in lost]
    ends: dict[str, message_ends.End] = {}
    if isinstance(publisher, TransactionPublisher):
        back = publisher.tables.carrying(connection, job_ids)
        # The broker that the app was moved from delivers again what was not acknowledged.
        late = [str(each.job_id) for each in lost if each.acks_late]
        back |= other_brokers.sent(connection, late)
        ends = message_ends.newest(connection, set(job_ids) - back)
    else:
        back = {str(each.job_id) for each in lost if each.acks_late}
    fates: dict[UUID, str] = {}
    for each in lost:
        end = ends.get(str(each.job_id))
        fates[each.id] = "pending" if str(each.job_id) in back else "failed"
        if end is not None and end.how != "accepted":
            fates[each.id] = "cancelled"
        elif end is not None and end.worker_id not in (None, each.worker_id):
            fates[each.id] = "pending"
    return fates


class Told(NamedTuple):
    """What a worker's main process says of a job whose own process can't."""

    job_id: str
    state: Literal["failed", "cancelled"]
    error: str
    job_state: str
    #: Whether its process died.
    lost: bool
    #: Whether it had begun.
    began: bool = True
    worker: str = ""
    acks_late: bool = False
    #: The worker hasn't registered its task. Another one may have: unless none has, it is retried.
    is_unknown: bool = False


_LAST = text(
    """
    SELECT j.id, e.id, coalesce(e.state = 'running', false),
           1 + coalesce((SELECT max(number) FROM pgbeat.executions WHERE job_id = j.id), 0)
      FROM pgbeat.jobs j LEFT JOIN LATERAL (
               SELECT id, state FROM pgbeat.executions
                WHERE job_id = j.id AND worker_id = :worker
                  AND (state = 'running' OR finished_at > now() - interval '1 minute')
                ORDER BY number DESC LIMIT 1) AS e ON true
     WHERE j.id = ANY (CAST(:jobs AS uuid[]))
    """
)


def settle(connection: Connection, worker: int, told: Sequence[Told]) -> list[Ended]:
    """Writes it: ends the execution of that worker, which may have died before it was told of.

    Waits for rows that another transaction has locked; a `lock_timeout` limits that.
    """
    job_ids = [each.job_id for each in told]
    jobs.lock(connection, job_ids)
    values = {"worker": worker, "jobs": job_ids}
    known = {str(job): rest for job, *rest in connection.execute(_LAST, values)}
    ended: list[Ended] = []
    for each in told:
        if each.job_id not in known:
            continue
        run, is_running, number = known[each.job_id]
        if is_running or (run is None and each.began):
            said = _run(each, worker, run, number)
            ended += executions.record(connection, [said])
            known[each.job_id] = [said.id, False, number]
        else:
            to = each.state
            is_final = each.is_unknown and not workers.may_know_task(connection, each.job_id)
            ended += jobs.end(
                connection, [each.job_id], to, each.error, of=("pending", "scheduled"),
                is_final=is_final,
            )  # fmt: skip
    workers.count(connection, RELEASED, sum(each.lost for each in told))
    return ended


def _run(told: Told, worker: int, run: UUID | None, number: int) -> Run:
    return Run(
        str(run or uuid4()),
        told.job_id,
        run is None,
        state=told.state,
        job_state=told.job_state,
        worker=told.worker,
        worker_id=worker,
        acks_late=told.acks_late,
        lost=told.lost,
        error=told.error,
        number=number,
    )


def sweep(connection: Connection, publisher: Publisher, settings: Settings) -> set[tuple[str, str]]:
    """Looks around once, and sees to what is left of the dead; the lanes that have room now.

    The connection is in autocommit mode. Of several calls with one publisher each knows what the
    last one saw.
    """
    sweeper = _sweepers.get(publisher)
    if sweeper is None or sweeper.settings != settings:
        sweeper = _sweepers[publisher] = Sweeper(publisher, settings)
    return sweeper.sweep(connection)


class Sweeper:
    """What one process remembers from sweep to sweep."""

    def __init__(self, publisher: Publisher, settings: Settings) -> None:
        # The sweeper is found by its publisher, and must not keep it.
        self.settings, self.namespace = settings, settings.namespace
        self._publisher = ref(publisher)
        self._session = 0
        self._look_at = 0.0
        self._vanished = Vanished(settings.namespace)

    def sweep(self, connection: Connection) -> set[tuple[str, str]]:
        """One round."""
        publisher = self._publisher()
        if publisher is None:  # pragma: no cover
            return set()
        session = connections.driver(connection).info.backend_pid
        if session != self._session:  # those that tell may have been cut off just as we were
            self._session = session
            self._vanished.forget()
        dead = workers.look_for_missing(connection)
        lanes = self._release(connection, publisher, dead)
        if isinstance(publisher, TransactionPublisher) and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK
            lanes |= self._vanished.look(connection, publisher, dead)
        return lanes

    def _release(
        self, connection: Connection, publisher: Publisher, dead: Sequence[int]
    ) -> set[tuple[str, str]]:
        if not connection.scalar(_ANY_ABANDONED, {"dead": list(dead)}):
            return set()
        found = workers.abandoned(connection, self.namespace, dead)
        why = "the worker {worker} died"
        return release(connection, publisher, [each.id for each in found], why)


_sweepers: "WeakKeyDictionary[Publisher, Sweeper]" = WeakKeyDictionary()

# Asked before a transaction is begun for it.
_ANY_ABANDONED = text(
    """
    SELECT EXISTS (
        SELECT FROM pgbeat.executions e
         WHERE e.state = 'running' AND e.worker_id IS NOT NULL
           AND (e.worker_id = ANY (CAST(:dead AS integer[]))
                OR NOT EXISTS (SELECT FROM pgbeat.workers w WHERE w.id = e.worker_id)))
    """
)
