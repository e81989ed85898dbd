"""The ledger: the connection over which a worker's process writes what its attempts tell, each time
in one transaction with all that follows from it."""

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Any
from uuid import UUID

import psycopg
from celery import Celery
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.publishing.publisher import Publisher, publisher
from pgbeat.config import Settings
from pgbeat.database import connections, lock_waits, migrate, poolers
from pgbeat.database.prepared import PreparedConnection, Statement
from pgbeat.jobs import dispatch, executions, job_reports, lifecycle
from pgbeat.jobs.dispatch import Dispatched
from pgbeat.jobs.job_reports import JobReport
from pgbeat.jobs.model import Ended
from pgbeat.worker.attempts import Attempt

Shape = Callable[[dict[str, Any]], dict[str, Any]]
#: A lane, by its namespace and its name.
Lane = tuple[str, str]

#: Attempts in one statement: a plan that was made for few may compare each with each.
_STATEMENT = 100


class RecorderSession:
    """Of one process; used by one thread. What its methods raise is the driver's, or Celery's for
    what can't be published."""

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        worker_id: int,
        url: URL,
        connected: Callable[[Connection], None],
    ) -> None:
        self._app, self._settings, self._worker_id = app, settings, worker_id
        #: `connected` is told of each new connection before it is used.
        self._url, self._connected = url, connected
        self._pid = os.getpid()
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._prepared: PreparedConnection
        self._published: Publisher | None = None

    # ----- the connection

    def open(self) -> Connection:
        """The connection, made anew where there is none."""
        if self._connection is not None:
            return self._connection
        if self._engine is None:
            name = f"pgbeat worker {socket.gethostname()}:{self._pid}"[:63]
            self._engine = connections.engine(
                self._url, name, connect_args={"prepare_threshold": 2, "connect_timeout": 5}
            )
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            own = poolers.keeps_session(connection, self._engine)
            connections.prepare_session(connection)
            migrate.check(connection)
            connections.configure(connection, PLANS)
            self._connected(connection)
        except BaseException:
            connections.close(connection)
            raise
        self._connection = connection
        self._prepared = PreparedConnection(connections.driver(connection), prepares=own)
        return connection

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def close(self) -> None:
        """Drops the connection, and what was to be published over it."""
        connection, self._connection = self._connection, None
        if self._published is not None:
            self._published.clear()
        if connection is not None:
            connections.close(connection)

    def fileno(self) -> int | None:
        """The connection's socket, where there is one."""
        if self._connection is None:
            return None
        with suppress(Exception):
            return connections.driver(self._connection).fileno()
        return None

    def publisher(self) -> Publisher:
        """Who publishes what follows."""
        if self._published is None:
            producers: list[Any] = []

            def producer() -> Any:
                if not producers:
                    producers.append(self._app.amqp.Producer(self._app.connection_for_write()))
                return producers[0]

            self._published = publisher(self._app, self._settings, producer)
        return self._published

    # ----- what is written

    def write(
        self, batch: Sequence[Attempt], shape: Shape = dict, *, wait: float | None = None
    ) -> set[Lane]:
        """Writes attempts, their documents brought into a shape; lanes that have room now. `wait`
        is for how many seconds it waits for a lock, if not for as long as usual."""
        news: list[dict[str, Any]] = []
        more: list[dict[str, Any]] = []
        again: list[dict[str, Any]] = []
        for attempt in batch:
            documents = attempt.documents(self._worker_id, self._pid)
            for is_new, document in documents:
                part = more if not is_new else again if len(documents) == 2 else news
                part.append(shape(document))
        # What goes on began before what is new.
        told = [*_batches(True, again), *_batches(False, more), *_batches(True, news)]

        def record() -> list[Ended]:
            if wait is not None:
                lock_waits.limit_waiting(self.open(), wait)
            return self._record(told)

        return self._commit(record)

    def locked(self, job_ids: Sequence[str]) -> set[str]:
        """Returns those of the jobs (ids) that can't be written now, because another transaction
        has locked them, their schedule, one that waits for that, or their group."""
        return set(map(str, self.open().scalars(_LOCKED, {"ids": list(job_ids)})))

    def record_reports(self, reports: Sequence[JobReport]) -> set[Lane]:
        """Records what the main process reports of jobs; returns the lanes that have room now."""
        return self._commit(lambda: job_reports.record(self.open(), self._worker_id, reports))

    def dispatch(self, lane: Lane) -> Dispatched:
        """Dispatches a lane's jobs, as far as it has room, in transactions of its own."""
        return dispatch.dispatch_lane(self.open(), self.publisher(), *lane)

    def cancelled(self, jobs: Sequence[str]) -> set[str]:
        """Those of the jobs (ids) that are to be cancelled."""
        return set(map(str, self.open().scalars(_CANCELLED, {"ids": list(jobs)})))

    def _record(self, told: Iterable[tuple[Statement, bytes]]) -> list[Ended]:
        ended: list[Ended] = []
        for statement, documents in told:
            ended += _ended(self._prepared.run(statement, documents))
        return ended

    def _commit(self, write: Callable[[], list[Ended]]) -> set[Lane]:
        """A transaction, with what follows from the jobs that it ended."""
        lanes: set[Lane] = set()
        for last in (False, False, True):
            try:
                with self._transaction():
                    ended = write()
                    if ended:
                        lanes = lifecycle.follow(self.open(), self.publisher(), ended)
                break
            except (psycopg.Error, DBAPIError) as error:
                if last or not (executions.is_race(error) or _is_deadlock(error)):
                    raise
        return lanes

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """As `db.transaction`, with less Python around it."""
        prepared = self._prepared
        prepared.run(_BEGIN)
        try:
            connections.configure_transaction(self.open())
            yield
        except BaseException:
            if prepared.is_alive():
                prepared.run(_ROLLBACK)
            raise
        prepared.run(_COMMIT)


_CANCELLED = text(
    "SELECT id FROM pgbeat.jobs WHERE id = ANY (CAST(:ids AS uuid[])) "
    "AND cancel_requested_at IS NOT NULL"
)
# Locks what can be locked, for as long as the statement takes.
_LOCKED = text(
    """
    WITH mine AS MATERIALIZED (
        SELECT id, schedule_id, group_id FROM pgbeat.jobs WHERE id = ANY (CAST(:ids AS uuid[]))),
    touched AS MATERIALIZED (
        SELECT m.id AS job_id, m.schedule_id AS id FROM mine m WHERE m.schedule_id IS NOT NULL
         UNION
        SELECT m.id, d.id FROM mine m JOIN pgbeat.schedules s ON s.id = m.schedule_id
               JOIN pgbeat.schedules d ON d.namespace = s.namespace AND d.after = s.name),
    free_jobs AS MATERIALIZED (
        SELECT id FROM pgbeat.jobs WHERE id = ANY (CAST(:ids AS uuid[]))
           FOR NO KEY UPDATE SKIP LOCKED),
    free_schedules AS MATERIALIZED (
        SELECT id FROM pgbeat.schedules WHERE id = ANY (ARRAY(SELECT id FROM touched))
           FOR NO KEY UPDATE SKIP LOCKED),
    free_groups AS MATERIALIZED (
        SELECT id FROM pgbeat.groups WHERE id = ANY (ARRAY(SELECT group_id FROM mine))
           FOR UPDATE SKIP LOCKED)
    SELECT m.id FROM mine m
     WHERE NOT EXISTS (SELECT FROM free_jobs f WHERE f.id = m.id)
        OR EXISTS (SELECT FROM touched t
                    WHERE t.job_id = m.id AND t.id NOT IN (SELECT id FROM free_schedules)
                      AND EXISTS (SELECT FROM pgbeat.schedules s WHERE s.id = t.id))
        OR m.group_id NOT IN (SELECT id FROM free_groups)
           AND EXISTS (SELECT FROM pgbeat.groups g WHERE g.id = m.group_id)
    """
)
#: How a session plans what workers tell: by the indexes, whatever the statistics say of a table
#: that was empty a minute ago.
PLANS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_material": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    # What another transaction has locked is written later, and delays nothing else.
    "lock_timeout": "100ms",
}


_BEGIN, _COMMIT = Statement("begin", connections.BEGIN), Statement("commit", "COMMIT")
_ROLLBACK = Statement("rollback", "ROLLBACK")
_encode = json.JSONEncoder(default=str).encode


def _batches(is_new: bool, documents: list[dict[str, Any]]) -> Iterator[tuple[Statement, bytes]]:
    """Statements and their parameter, each job once in a statement; in one order, so that no two
    wait for each other."""
    statement = executions.BEGIN if is_new else executions.GO_ON
    todo = sorted(documents, key=_by_job)
    while todo:
        batch: list[dict[str, Any]] = []
        rest: list[dict[str, Any]] = []
        last = None
        for document in todo:
            (rest if document["job_id"] == last else batch).append(document)
            last = document["job_id"]
        for first in range(0, len(batch), _STATEMENT):
            yield statement, _encode(batch[first : first + _STATEMENT]).encode()
        todo = rest


_by_job = itemgetter("job_id")


def _ended(result: PGresult) -> Iterator[Ended]:
    """The rows of what was recorded."""
    for row in range(result.ntuples):
        found = (result.get_value(row, column) for column in range(7))
        job, namespace, state, lane, group, again, given = (
            None if value is None else value.decode() for value in found
        )
        yield Ended(
            UUID(job), str(namespace), str(state), lane, UUID(group) if group else None,
            UUID(again) if again else None, given == "t",
        )  # fmt: skip


def _is_deadlock(error: Exception) -> bool:
    cause = getattr(error, "orig", error)
    return getattr(cause, "sqlstate", None) in {"40P01", "40001"}
