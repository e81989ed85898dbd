"""A process's connection to the database that keeps its results."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection
from sqlalchemy.engine import URL

from pgbeat.broker.transport.transport import is_outage
from pgbeat.config import place
from pgbeat.database import connections, fence, forks, poolers, server_errors
from pgbeat.database.locks import batches, lock_waits
from pgbeat.database.migrations import migrate
from pgbeat.database.prepared import (
    BorrowedConnection,
    Parameter,
    PreparedConnection,
    Statement,
    StatementRunner,
)

if TYPE_CHECKING:
    from pgbeat.results.waiting import Waits

logger = logging.getLogger("pgbeat.results")

Answer = TypeVar("Answer")

#: Connections of threads that wait for a lock; other threads wait for one of these.
_MOST_APART = 8


class StoreConnection(NamedTuple):
    """The connection, for SQLAlchemy and without it."""

    connection: Connection
    prepared: PreparedConnection
    #: Whether the session is this connection's alone, so that it can listen.
    listens: bool
    #: Whether it waits for locks only briefly, since several threads use it.
    is_brief: bool = False

    def is_active(self) -> bool:
        """Returns whether a statement was sent whose result has not been read."""
        return self.prepared.pgconn.transaction_status == TransactionStatus.ACTIVE


class Joined(Protocol):
    """A connection with a transaction that a thread's statements join."""

    @property
    def connection(self) -> Connection:
        """The connection for SQLAlchemy."""

    @property
    def prepared(self) -> StatementRunner:
        """The connection without it."""

    @property
    def is_brief(self) -> bool:
        """Whether it waits for locks only briefly, since several threads use it."""


class _Borrowed(NamedTuple):
    connection: Connection
    prepared: BorrowedConnection
    is_brief: bool = False


def wait_at_most(working: Joined, seconds: float) -> None:
    """Limits the waits for locks in the open transaction, unless they are brief anyway."""
    if not working.is_brief:
        lock_waits.limit_waiting(working.connection, seconds)


def is_temporary(error: BaseException) -> bool:
    """Returns whether a transaction may succeed if it is repeated later."""
    return server_errors.is_passing(error) or batches.is_locked(error) or is_outage(error)


class Store:
    """The results in one database as this process reaches them. For any number of threads.

    They share one connection. If there are several, its waits for locks are brief: a thread that
    an application's transaction keeps waiting gets a connection of its own.
    """

    def __init__(self, url: URL, connect_args: Mapping[str, Any]) -> None:
        self.url, self._connect_args = url, connect_args
        #: Held while the connection is used.
        self.lock = threading.RLock()
        #: What this process waits for (`waiting.Waits`), once it does.
        self.waits: Waits | None = None
        self._working: StoreConnection | None = None
        #: Whether other threads use it than the one in which prefork and solo run their tasks.
        self._is_shared = False
        self._apart = threading.BoundedSemaphore(_MOST_APART)
        #: Has in `joined` the connection whose transaction the thread's statements join, and in
        #: `own` the connection of a thread that waits.
        self._local = threading.local()
        name = f"pgbeat results {socket.gethostname()}:{os.getpid()}"
        arguments = {"prepare_threshold": None, **connect_args}
        self.engine = connections.engine(url, name[:63], connect_args=arguments)

    @contextmanager
    def work(self, *, checked: bool = True) -> Iterator[StoreConnection]:
        """Yields the connection, in autocommit mode, for a block.

        A connection that broke is given up, as is one to a server that was left behind; the next
        block gets a new one. With `checked`, one that broke while it was idle is, too.
        """
        with self.lock:
            if self._is_broken(checked):
                self._drop()
            if self._working is None:
                self._working = self._connect()
            try:
                self._working = self._limited(self._working)
                yield self._working
            except BaseException as error:
                # An interruption, such as a time limit, leaves it in the midst of something.
                is_interrupted = not isinstance(error, Exception) or self._working.is_active()
                if connections.is_lost(error) or is_interrupted:
                    self._drop()
                raise
            self._hear(self._working)

    def _limited(self, working: StoreConnection) -> StoreConnection:
        """Makes its waits for locks brief if several threads use the connection."""
        if threading.current_thread() is not threading.main_thread():
            self._is_shared = True
        if not self._is_shared or working.is_brief:
            return working
        connections.configure(working.connection, lock_waits.LIMITED)
        return working._replace(is_brief=True)

    def _is_broken(self, checked: bool) -> bool:
        working = self._working
        if working is None or working is self.joined:
            return False
        if fence.is_left_behind(working.connection):
            return True
        return checked and not working.prepared.is_alive()

    def check_schema(self) -> None:
        """Raises `SchemaError` if the database's schema is missing or does not fit."""
        connection = self.engine.connect()
        try:
            migrate.check(connection)
        finally:
            connections.close(connection)

    def _connect(self) -> StoreConnection:
        connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            fence.require_newest(connection, self._connect_args)
            migrate.check(connection)
            keeps = poolers.keeps_session(connection, self.engine)
            if not keeps:
                _warn_of_pooler(self.url)
            isolates = not connections.isolate(connection)
        except BaseException:
            connections.close(connection)
            raise
        raw = connections.driver(connection)
        return StoreConnection(connection, PreparedConnection(raw, keeps, isolates), keeps)

    def close(self) -> None:
        """Closes the connection; the next use opens another."""
        with self.lock:
            self._drop()

    def _drop(self) -> None:
        working, self._working = self._working, None
        if working is not None:
            connections.close(working.connection)

    def _hear(self, working: StoreConnection) -> None:
        heard = working.prepared.notifications()
        if heard and self.waits is not None:
            self.waits.hear(heard)

    @property
    def joined(self) -> Joined | None:
        """The connection whose transaction this thread's statements join, if there is one."""
        joined: Joined | None = getattr(self._local, "joined", None)
        return joined

    @contextmanager
    def transaction(
        self, theirs: Connection | None = None, commit: Callable[[], None] | None = None
    ) -> Iterator[Joined]:
        """Opens a transaction that this thread's statements join until the end of the block.

        Args:
            theirs: A connection of the caller's, with an open transaction.
            commit: Commits that transaction. Without it, the caller does so later, and nothing may
                wait for that.
        """
        committed: list[Callable[[], object]] = []
        with ExitStack() as stack:
            if theirs is not None:
                working: Joined = _Borrowed(theirs, BorrowedConnection(connections.driver(theirs)))
            else:
                working = stack.enter_context(self._session())
                stack.enter_context(connections.transaction(working.connection))
            self._local.joined, self._local.committed = working, committed
            try:
                yield working
            finally:
                self._local.joined = None
            if commit is not None:
                commit()
        for call in committed:
            try:
                call()
            except Exception:
                logger.exception("What follows from a result that is stored failed")

    def after_commit(self, call: Callable[[], object]) -> None:
        """Calls a function once the transaction that this thread has joined is committed."""
        self._local.committed.append(call)

    def take_calls(self) -> bool:
        """Drops what must wait for that commit; returns whether there was anything."""
        had_any = bool(self._local.committed)
        self._local.committed.clear()
        return had_any

    def run(self, statement: Statement, *parameters: Parameter) -> PGresult:
        """Executes a statement that may be executed again, if the connection is lost meanwhile."""

        def run() -> PGresult:
            # A connection that was lost while it was idle shows it now.
            with self._session(checked=False) as working:
                return working.prepared.run(statement, *parameters)

        if self.joined is not None:
            return self.joined.prepared.run(statement, *parameters)
        return self._persist(run, is_temporary)

    def run_once(self, statement: Statement, *parameters: Parameter) -> PGresult:
        """Executes a statement that must not be executed again if its answer is lost."""

        def run() -> PGresult:
            with self._session() as working:
                return working.prepared.run(statement, *parameters)

        return self._persist(run, batches.is_locked)

    def atomically(
        self, function: Callable[[Joined], Answer], *, runs_again: bool = False
    ) -> Answer:
        """Calls a function in a transaction: the one that this thread has joined, or its own.

        It may be called again: if the connection is lost before the commit is known to have
        succeeded, and for other transactions' locks, unless the caller `runs_again` by itself.
        """

        def call() -> Answer:
            with self.transaction() as working:
                return function(working)

        if self.joined is not None:
            return function(self.joined)
        return self._persist(call, server_errors.is_passing if runs_again else is_temporary)

    def _persist(self, call: Callable[[], Answer], passes: Callable[[Exception], bool]) -> Answer:
        def passes_here(error: Exception) -> bool:
            return passes(error) and not self._is_held_up(error)

        try:
            return server_errors.persist(call, self._warn, passes_here)
        except Exception as error:
            if not self._is_held_up(error):
                raise
        return server_errors.persist(partial(self._call_apart, call), self._warn, passes)

    def _is_held_up(self, error: Exception) -> bool:
        return self._is_shared and lock_waits.is_lock_timeout(error)

    def _call_apart(self, call: Callable[[], Answer]) -> Answer:
        """Calls a function that waits for a lock, on a connection that no other thread needs."""
        with self._apart:
            own = self._connect()
            self._local.own = own
            try:
                return call()
            finally:
                self._local.own = None
                connections.close(own.connection)

    def _session(self, *, checked: bool = True) -> AbstractContextManager[StoreConnection]:
        """Returns a block with the connection, or the thread's own while it waits for a lock."""
        own: StoreConnection | None = getattr(self._local, "own", None)
        return self.work(checked=checked) if own is None else nullcontext(own)

    def _warn(self, error: BaseException) -> None:
        why = connections.first_line(error)
        logger.warning("Can't use the results in %s, trying again: %s", place(self.url), why)

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


class StorePlace:
    """A database, and arguments of libpq's for it, as each process reaches it by one store."""

    def __init__(self, url: URL, connect_args: Mapping[str, Any]) -> None:
        self.url, self._connect_args = url, connect_args
        arguments = repr(sorted(connect_args.items()))
        self._key = (url.render_as_string(hide_password=False), arguments)

    def store(self) -> Store:
        """Returns this process's store."""
        forks.check_process()
        store = _stores.get(self._key)
        if store is None:
            with _lock:
                store = _stores.setdefault(self._key, Store(self.url, self._connect_args))
        return store


def _after_fork() -> None:
    global _stores, _lock
    for store in _stores.values():
        store.disown()
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
