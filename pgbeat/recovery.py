"""Recovery: what becomes of executions whose worker died, and of jobs whose message is gone.

Any number of processes sweep; what one has locked the others leave alone, so all is done once.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple
from uuid import UUID, uuid4
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Connection, text

from pgbeat import db, executions, jobs, lifecycle, workers
from pgbeat.config import Settings
from pgbeat.executions import Run
from pgbeat.jobs import Ended
from pgbeat.publisher import Publisher, TransactionPublisher
from pgbeat.workers import Lost

#: What is counted of it in `pgbeat.counters`.
RELEASED = "stale_claims_released"
#: Seconds between two looks for jobs whose message is gone, how many jobs are looked at, and how
#: long a job's message has to be gone: its worker may be about to tell.
_LOOK, _PAGE, _GONE = 5.0, 500, 15.0


def lose(
    connection: Connection, publisher: Publisher, lost: Sequence[Lost], why: str
) -> list[Ended]:
    """Ends executions that are locked (`workers.abandoned`, `workers.take`) as lost. Their jobs
    wait for the message that comes again, or else fail, and may be retried. Those that ended; the
    rest is for `lifecycle.follow`."""
    if not lost:
        return []
    job_ids = [str(each.job_id) for each in lost]
    if isinstance(publisher, TransactionPublisher):
        back = publisher.tables.carrying(connection, job_ids)
    else:
        back = {str(each.job_id) for each in lost if each.acks_late}
    runs = [
        Run(
            str(each.id),
            str(each.job_id),
            False,
            state="failed",
            job_state="pending" if str(each.job_id) in back else "failed",
            lost=True,
            error=f"lost: {why.format(worker=each.worker)}",
        )
        for each in lost
    ]
    ended = executions.record(connection, runs)
    workers.count(connection, RELEASED, len(lost))
    return ended


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

    Raises `IntegrityError` where the process tells of it just now: once more, it works.
    """
    values = {"worker": worker, "jobs": [each.job_id for each in told]}
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
            ended += jobs.end(
                connection, [each.job_id], to, each.error, of=("pending", "scheduled")
            )
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
        #: Jobs whose message was not there, and since when (`time.monotonic()`).
        self._suspects: dict[str, float] = {}
        #: Of each state, the last job that was looked at.
        self._after = {"pending": _START, "scheduled": _START}

    def sweep(self, connection: Connection) -> set[tuple[str, str]]:
        """One round."""
        publisher = self._publisher()
        if publisher is None:  # pragma: no cover
            return set()
        session = db.driver(connection).info.backend_pid
        if session != self._session:  # those that tell may have been cut off just as we were
            self._session, self._suspects = session, {}
        lanes = self._release(connection, publisher)
        if isinstance(publisher, TransactionPublisher) and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK
            lanes |= self._give_up_dead_letters(connection, publisher)
            if publisher.keeps_claimed and workers.number(connection):
                lanes |= self._give_up_vanished(connection, publisher)
        return lanes

    def _release(self, connection: Connection, publisher: Publisher) -> set[tuple[str, str]]:
        dead = workers.look_for_missing(connection)
        if not connection.scalar(_ANY_ABANDONED, {"dead": dead}):
            return set()
        with db.transaction(connection):
            lost = workers.abandoned(connection, self.namespace, dead)
            ended = lose(connection, publisher, lost, "the worker {worker} died")
            return lifecycle.follow(connection, publisher, ended)

    def _give_up_dead_letters(
        self, connection: Connection, publisher: TransactionPublisher
    ) -> set[tuple[str, str]]:
        """Jobs whose message nobody will get: a worker rejected it, or it was delivered in vain too
        often."""
        if not publisher.tables.exist(connection):
            return set()
        found = connection.execute(
            publisher.tables.text(_DEAD_LETTERS), {"namespace": self.namespace}
        ).all()
        if not found:
            return set()
        with db.transaction(connection):
            ended: list[Ended] = []
            for job_id, reason in found:
                error = f"its message is a dead letter: {reason}"
                ended += jobs.end(
                    connection, [job_id], "failed", error, of=("pending", "scheduled", "running")
                )
            return lifecycle.follow(connection, publisher, ended)

    def _give_up_vanished(
        self, connection: Connection, publisher: TransactionPublisher
    ) -> set[tuple[str, str]]:
        """Jobs whose message was acknowledged by a worker that died before it told of them."""
        now = time.monotonic()
        suspects: dict[str, float] = {}
        expired: list[str] = []
        for state, (at, after) in self._after.items():
            values = {
                "namespace": self.namespace, "state": state, "at": at, "after": after,
                "suspects": list(self._suspects), "limit": _PAGE,
            }  # fmt: skip
            rows = connection.execute(publisher.tables.text(_VANISHED), values).all()
            page = [(row.created_at, row.id) for row in rows if row.in_page]
            self._after[state] = page[-1] if len(page) == _PAGE else _START
            for row in rows:
                job_id = str(row.id)
                if row.is_gone:
                    suspects[job_id] = self._suspects.get(job_id, now)
                    if row.may_expire:
                        expired.append(job_id)
        self._suspects = suspects
        lost = [job_id for job_id, since in self._suspects.items() if now - since > _GONE]
        if not lost:
            return set()
        with db.transaction(connection):
            late = set(lost) & set(expired)
            what = "its message expired before a worker took it"
            ended = jobs.end(connection, late, "cancelled", what, of=("pending", "scheduled"))
            what = "lost: its message is gone, and no worker told that it began"
            gone = jobs.end(
                connection, set(lost) - late, "failed", what, of=("pending", "scheduled")
            )
            workers.count(connection, RELEASED, len(gone))
            return lifecycle.follow(connection, publisher, ended + gone)


_START = (datetime(1, 1, 2, tzinfo=UTC), UUID(int=0))
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
_DEAD_LETTERS = """
    SELECT d.job_id, d.reason FROM {dead} d JOIN pgbeat.jobs j ON j.id = d.job_id
     WHERE d.job_id IS NOT NULL AND d.died_at > now() - interval '1 day'
       AND j.namespace = :namespace
       AND (j.state IN ('pending', 'scheduled') AND j.dispatched_at IS NOT NULL
            OR j.state = 'running' AND NOT EXISTS (
                SELECT FROM pgbeat.executions e WHERE e.job_id = j.id AND e.state = 'running'))
       AND NOT EXISTS (SELECT FROM {message} m WHERE m.job_id = d.job_id)
     LIMIT 500
"""
_VANISHED = """
    WITH page AS (
        SELECT id, dispatched_at, created_at, options FROM pgbeat.jobs
         WHERE namespace = :namespace AND state = :state
           AND (created_at, id) > (:at, CAST(:after AS uuid))
         ORDER BY created_at, id LIMIT :limit),
    looked AS (
        SELECT id, dispatched_at, created_at, options, true AS in_page FROM page
         UNION ALL
        SELECT id, dispatched_at, created_at, options, false FROM pgbeat.jobs
         WHERE id = ANY (CAST(:suspects AS uuid[])) AND state = :state
           AND id NOT IN (SELECT id FROM page))
    SELECT id, created_at, in_page,
           jsonb_exists_any(options, '{{expires,expiration}}') AS may_expire,
           coalesce(dispatched_at < now() - interval '10 seconds', false)
           AND NOT EXISTS (SELECT FROM {message} m WHERE m.job_id = looked.id) AS is_gone
      FROM looked ORDER BY created_at, id
"""
