"""Keeps a recorder's connection, and writes over it.

Each batch is written in one transaction with everything that follows from it.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import psycopg
from celery import Celery
from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.publishing.publisher import Publisher, publisher
from pgbeat.config import Settings, place
from pgbeat.database import connections, fence, poolers, privileges, sql
from pgbeat.database.locks import lock_waits
from pgbeat.database.migrations import migrate
from pgbeat.database.prepared import PreparedConnection
from pgbeat.database.server_errors import Outage
from pgbeat.errors import SchemaError
from pgbeat.jobs.flow import dispatch, lifecycle
from pgbeat.jobs.flow.dispatch import Dispatched
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.running import executions, job_reports
from pgbeat.jobs.running.job_reports import JobReport
from pgbeat.jobs.running.stacks import Reason
from pgbeat.jobs.states import endings
from pgbeat.jobs.states.endings import Ended
from pgbeat.worker.recording import execution_batches
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.recording.execution_batches import Shape

logger = logging.getLogger("celery.worker.pgbeat")

#: Seconds until a database that can't be reached is tried again: the first time, and at most.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 1.0
#: Seconds until a database without a schema that this version can use is tried again.
_SCHEMA_WAIT = 60.0
#: Settings of the session. Its plans must use the indexes, whatever the statistics say of a table
#: that was empty a minute ago.
PLANS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_material": "off",
    "enable_mergejoin": "off",
    # Locked rows are written later, and delay nothing else.
    "lock_timeout": "100ms",
}


class RecorderSession:
    """The session of one process, used by one thread.

    Its methods raise the driver's errors, and Celery's if a message can't be published. After an
    error of the connection, `fail` closes it and sets when to try again.
    """

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        worker_id: int,
        url: URL,
        connected: Callable[[Connection], None],
    ) -> None:
        """`connected` is called with each new connection before it is used."""
        self._app, self._settings, self.worker_id = app, settings, worker_id
        self._url, self._connected = url, connected
        self._pid = os.getpid()
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._prepared: PreparedConnection
        self._publisher: Publisher | None = None
        self._has_stacks = False
        #: When to connect again after a failure (`time.monotonic()`); 0 unless it failed.
        self.retry_at = 0.0
        self._wait = 0.0
        self._outage = Outage()

    def open(self) -> Connection:
        """Returns the connection, a new one at first."""
        if self._connection is not None and fence.is_left_behind(self._connection):
            self.close()
        if self._connection is not None:
            return self._connection
        if self._engine is None:
            name = f"pgbeat worker {socket.gethostname()}:{self._pid}"[:63]
            self._engine = connections.engine(
                self._url, name, connect_args={"prepare_threshold": 2}
            )
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            fence.require_newest(connection)
            keeps = poolers.keeps_session(connection, self._engine)
            connections.prepare_session(connection)
            migrate.check(connection)
            connections.configure(connection, PLANS)
            self._connected(connection)
        except BaseException:
            connections.close(connection)
            raise
        if self._wait:
            logger.info("Recording executions again")
        self._outage.end()
        self._wait = self.retry_at = 0.0
        self._connection = connection
        self._prepared = PreparedConnection(connections.driver(connection), prepares=keeps)
        return connection

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def close(self) -> None:
        """Closes the connection, and drops messages not yet published."""
        connection, self._connection = self._connection, None
        if self._publisher is not None:
            self._publisher.clear()
        if connection is not None:
            connections.close(connection)

    def fail(self, error: Exception, *, has_work: bool) -> None:
        """Closes the connection after an error, to open it again at `retry_at`.

        Logs the first of several failures, and why later ones last: as a warning, unless there is
        no schema and nothing to write, which may be intended.
        """
        self.close()
        why = connections.first_line(error)
        self._wait = min(self._wait * 2 or _FIRST_WAIT, _LONGEST_WAIT)
        is_plain = isinstance(error, (DBAPIError, psycopg.Error, SchemaError))
        is_quiet = isinstance(error, SchemaError) and not has_work
        if isinstance(error, SchemaError):
            self._wait = _SCHEMA_WAIT
        self.retry_at = time.monotonic() + self._wait
        if self._outage.is_news(why):
            logger.log(
                logging.INFO if is_quiet else logging.WARNING,
                "Can't record executions in %s, trying until it works: %s",
                place(self._url),
                why,
                exc_info=None if is_plain else error,
            )

    def fileno(self) -> int | None:
        """Returns the connection's socket, if there is a connection."""
        if self._connection is None:
            return None
        with suppress(Exception):
            return connections.driver(self._connection).fileno()
        return None

    def publisher(self) -> Publisher:
        """Returns the publisher for messages that follow from the end of a job."""
        if self._publisher is None:
            self._publisher = self.new_publisher()
        return self._publisher

    def new_publisher(self) -> Publisher:
        """Returns such a publisher for another thread."""
        producers: list[Any] = []

        def producer() -> Any:
            if not producers:
                producers.append(self._app.amqp.Producer(self._app.connection_for_write()))
            return producers[0]

        return publisher(self._app, self._settings, producer)

    def write(
        self, batch: Sequence[Attempt], shape: Shape = dict, *, wait: float | None = None
    ) -> set[Room]:
        """Writes attempts, their documents changed by `shape`; returns lanes that have room now.

        `wait` (seconds) replaces the session's limit on waiting for locks.
        """

        def record() -> list[Ended]:
            connection = self.open()
            if wait is not None:
                lock_waits.limit_waiting(connection, wait)
            written = execution_batches.write(
                connection, self._prepared, batch, self.worker_id, shape
            )
            again = [run.job_id for run in batch if run.job_state in executions.UNDECIDED]
            if gone := endings.ended_among(connection, again):  # what it has sent is of no use
                self.publisher().withdraw(connection, gone)
            return written.ended

        return self._commit(record)

    def record_reports(self, reports: Sequence[JobReport]) -> set[Room]:
        """Writes the main process's reports on jobs; returns lanes that have room now."""
        return self._commit(lambda: job_reports.record(self.open(), self.worker_id, reports))

    def dispatch(self, lane: tuple[str, str], job_ids: Collection[UUID] | None) -> Dispatched:
        """Dispatches a lane's jobs while it has room, in separate transactions."""
        return dispatch.dispatch_lane(self.open(), self.publisher(), *lane, job_ids)

    def locked(self, job_ids: Sequence[str]) -> set[str]:
        """Returns the jobs that can't be written now.

        Another transaction has locked the job, its schedule, a schedule that runs after that one,
        its group, or a job that depends on it.
        """
        return set(map(str, self.open().scalars(_LOCKED, {"ids": list(job_ids)})))

    def requests(self, running: Sequence[Attempt]) -> dict[UUID, set[Reason]]:
        """Returns what is wanted of running attempts, by the id of each or of its job.

        That is that it ends (`cancel`), or its stack.
        """
        connection = self.open()
        self._has_stacks = self._has_stacks or privileges.may_read(connection, "stacks")
        ids = {"jobs": [attempt.job_id for attempt in running]}
        if self._has_stacks:
            ids["executions"] = [attempt.id for attempt in running]
        wanted: dict[UUID, set[Reason]] = {}
        for key, reason in connection.execute(_REQUESTS[self._has_stacks], ids):
            wanted.setdefault(key, set()).add(reason)
        return wanted

    def _commit(self, write: Callable[[], list[Ended]]) -> set[Room]:
        """Writes in a transaction, with what follows from the jobs that ended.

        Returns the lanes to dispatch after it. If jobs can't be dispatched in it, the ends are
        recorded without that.
        """
        tries, dispatches = 3, True
        while True:
            try:
                with self._transaction():
                    ended = write()
                    if not ended:
                        return set()
                    lanes = lifecycle.follow(self.open(), self.publisher(), ended)
                    return self._dispatch_now(lanes) if lanes and dispatches else lanes
            except _NotDispatchedError:
                dispatches = False
            except (psycopg.Error, DBAPIError) as error:
                tries -= 1
                if not tries or not _is_passing(error):
                    raise

    def _dispatch_now(self, lanes: set[Room]) -> set[Room]:
        try:
            return dispatch.dispatch_in_transaction(self.open(), self.publisher(), lanes)
        except Exception as error:
            self.publisher().clear()
            if connections.is_lost(error):
                raise
            raise _NotDispatchedError from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Opens a transaction as `connections.transaction` does, but faster."""
        prepared = self._prepared
        prepared.command(connections.BEGIN)
        try:
            connections.configure_transaction(self.open())
            yield
        except BaseException:
            if prepared.is_alive():
                prepared.command("ROLLBACK")
            raise
        prepared.command("COMMIT")


class _NotDispatchedError(Exception):
    """Jobs can't be dispatched in a transaction, which must be rolled back."""


def _is_passing(error: Exception) -> bool:
    """Returns whether the transaction may be repeated at once.

    That is so after a deadlock or a conflict, and if the session lost its prepared statements.
    """
    return connections.sqlstate(error) in {"40P01", "40001", "26000"}


#: By whether the schema has stacks.
_REQUESTS = {
    True: text(sql.load("recorder_session.sql", "requests")),
    False: text(sql.load("recorder_session.sql", "requests", asked="")),
}
_LOCKED = text(sql.load("recorder_session.sql", "locked"))
