"""A process's connection to the database that keeps its results."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from psycopg.pq.abc import PGresult
from sqlalchemy import Connection
from sqlalchemy.engine import URL

from pgbeat.config import place
from pgbeat.database import connections, forks, migrate, poolers
from pgbeat.database.prepared import Parameter, PreparedConnection, Statement

logger = logging.getLogger("pgbeat.results")

#: Seconds for which a statement is tried again on a lost connection, and the longest pause.
_PATIENCE, _LONGEST_PAUSE = 20.0, 1.0

Answer = TypeVar("Answer")


class StoreConnection(NamedTuple):
    """The connection, for SQLAlchemy and without it."""

    connection: Connection
    prepared: PreparedConnection
    #: Whether the session is this connection's alone, so that it can listen.
    listens: bool


class Store:
    """The results in one database as this process reaches them. For any number of threads."""

    def __init__(self, url: URL, connect_args: Mapping[str, Any]) -> None:
        self.url = url
        #: Held while the connection is used.
        self.lock = threading.RLock()
        #: What this process waits for (`waiting.Waits`), once it does.
        self.waits: Any = None
        self._working: StoreConnection | None = None
        self._is_in_transaction = False
        name = f"pgbeat results {socket.gethostname()}:{os.getpid()}"
        arguments = {"prepare_threshold": None, **connect_args}
        self._engine = connections.engine(url, name[:63], connect_args=arguments)

    @contextmanager
    def work(self) -> Iterator[StoreConnection]:
        """Yields the connection, in autocommit mode, for a block.

        A connection that broke is given up; the next block gets a new one.
        """
        with self.lock:
            if self._working is None or not (
                self._is_in_transaction or self._working.prepared.is_alive()
            ):
                self._drop()
                self._working = self._connect()
            try:
                yield self._working
            except BaseException as error:
                # An interruption leaves it in the midst of something.
                if connections.is_lost(error) or not isinstance(error, Exception):
                    self._drop()
                raise
            self._hear(self._working)

    def _connect(self) -> StoreConnection:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            migrate.check(connection)
            keeps = poolers.keeps_session(connection, self._engine)
            if not keeps:
                _warn_of_pooler(self.url)
            isolates = not connections.isolate(connection)
        except BaseException:
            connections.close(connection)
            raise
        raw = connections.driver(connection)
        return StoreConnection(connection, PreparedConnection(raw, keeps, isolates), keeps)

    def _drop(self) -> None:
        working, self._working = self._working, None
        if working is not None:
            connections.close(working.connection)

    def _hear(self, working: StoreConnection) -> None:
        heard = working.prepared.notifications()
        if heard and self.waits is not None:
            self.waits.hear(heard)

    def run(self, statement: Statement, *parameters: Parameter) -> PGresult:
        """Executes a statement that may be executed again, if the connection is lost meanwhile."""

        def run() -> PGresult:
            with self.work() as working:
                return working.prepared.run(statement, *parameters)

        return self._persist(run)

    def atomically(self, function: Callable[[Connection], Answer]) -> Answer:
        """Calls a function in a transaction: the one that is open in this thread, or its own.

        It may be called again, if the connection is lost before the commit is known to have
        succeeded.
        """

        def call() -> Answer:
            with self.work() as working:
                if self._is_in_transaction:
                    return function(working.connection)
                with connections.transaction(working.connection):
                    self._is_in_transaction = True
                    try:
                        return function(working.connection)
                    finally:
                        self._is_in_transaction = False

        return self._persist(call)

    def _persist(self, call: Callable[[], Answer]) -> Answer:
        """Tries again for a while if the connection is lost; in a transaction all of it is."""
        give_up_at, pause = time.monotonic() + _PATIENCE, 0.0
        while True:
            try:
                return call()
            except Exception as error:
                if not connections.is_lost(error) or self._belongs_to_transaction():
                    raise
                if time.monotonic() >= give_up_at:
                    raise
                if not pause:
                    logger.warning(
                        "Lost the connection to the results in %s, trying again: %s",
                        place(self.url),
                        connections.first_line(error),
                    )
                time.sleep(pause)
                pause = min(pause + 0.1, _LONGEST_PAUSE)

    def _belongs_to_transaction(self) -> bool:
        """Whether this thread is inside of `atomically`."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return self._is_in_transaction
        finally:
            self.lock.release()

    def disown(self) -> None:
        """Lets go of the parent's connection, which must not be ended by a child."""
        if self.waits is not None:
            self.waits.disown()
        sockets = []
        if self._working is not None and not self._working.connection.closed:
            sockets = [self._working.prepared.fileno()]
        forks.disown(self, sockets)


_stores: dict[tuple[str, str], Store] = {}
_lock = threading.Lock()
#: Databases behind a pooler that were warned of.
_warned: set[str] = set()


def store(url: URL, connect_args: Mapping[str, Any]) -> Store:
    """Returns this process's store of that URL and these arguments of libpq's."""
    forks.check_process()
    key = (url.render_as_string(hide_password=False), repr(sorted(connect_args.items())))
    with _lock:
        if key not in _stores:
            _stores[key] = Store(url, connect_args)
        return _stores[key]


def _after_fork() -> None:
    global _stores, _lock
    for each in _stores.values():
        each.disown()
    _stores, _lock = {}, threading.Lock()


forks.in_child(_after_fork)


def _warn_of_pooler(url: URL) -> None:
    where = place(url)
    if where not in _warned:
        _warned.add(where)
        logger.warning(
            "A transaction-mode pooler stands before the results in %s: LISTEN doesn't work "
            "through it. Who waits for a result looks for it up to twice a second.",
            where,
        )
