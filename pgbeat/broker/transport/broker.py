"""Holds a process's two connections to its broker, which all of kombu's connections share.

One publishes and does everything else; the other only consumes.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from math import inf
from typing import Any, NamedTuple

import psycopg
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL

from pgbeat.broker import exchanges, messages, own_tables, ports, queues
from pgbeat.broker.messages import Message
from pgbeat.broker.transport.consuming import claim_sql, consumers
from pgbeat.broker.transport.consuming.claims import ClaimedMessage, deliveries
from pgbeat.broker.transport.consuming.session import Session
from pgbeat.broker.transport.group_commit import GroupCommit
from pgbeat.broker.transport.options import Options
from pgbeat.config import place
from pgbeat.database import connections, fence, forks, identity, poolers, privileges, server_errors
from pgbeat.database.migrations import migrate
from pgbeat.database.prepared import PreparedConnection
from pgbeat.errors import SchemaError

logger = logging.getLogger("pgbeat.transport")

#: Seconds for which an exchange counts as unbound, unless a notification says otherwise.
_UNBOUND = 0.5
#: A session that ends within this many seconds has failed; and the longest pause before the next.
_SHORT_LIFE, LONGEST_PAUSE = 5.0, 2.0
#: Seconds between two looks for a newer server.
_LOOKS = 15.0
#: Seconds after a failure in which no connection is made only to send an event.
_OUT_OF_REACH = 5.0
#: Seconds that closing connections waits for a statement to end.
_PATIENCE = 1.0


class Working(NamedTuple):
    """The working connection, for use through SQLAlchemy and without it."""

    connection: Connection
    prepared: PreparedConnection

    def is_usable(self) -> bool:
        """Returns whether it is alive, as far as known, and its server was not left behind."""
        return self.prepared.is_alive() and not fence.is_left_behind(self.connection)


class _Published(NamedTuple):
    """A message for a queue, and how it commits: a value of synchronous_commit."""

    message: Message
    commit: bytes | None


class Broker:
    """One broker as this process knows it."""

    def __init__(self, url: URL, options: Options) -> None:
        self.url, self.options = url, options
        #: Held while the working connection is used.
        self.lock = threading.RLock()
        #: How each publish commits; a setting of the session would be lost behind a pooler.
        self._commit = (options.synchronous_commit or "").encode() or None
        #: By which consumers and sessions name this process.
        self.process = f"{socket.gethostname()}:{os.getpid()}"
        self._engine = self._make_engine(url)
        self._lookout: fence.Lookout | None = None
        self._working: Working | None = None
        #: Why no connection could be had, the last time that none could, and when that was.
        self._unreachable: psycopg.OperationalError | None = None
        self._unreachable_at = -inf
        self._has_tables = False
        self._session: Session | None = None
        #: Whether there was a consuming session.
        self.has_consumed = False
        #: Sessions in a row that failed soon after they were opened.
        self._failures = 0
        self._unbound: dict[str, float] = {}
        self._group = GroupCommit(
            self._put, self._put_all, lambda one, other: one.commit == other.commit
        )
        #: Open kombu connections.
        self.users = 0
        #: This process's former consumers, which others may still take for alive.
        self.abandoned: set[int] = set()

    def _make_engine(self, url: URL) -> Engine:
        name = f"pgbeat transport {self.process}"
        # psycopg must not prepare statements by itself: there may be a pooler.
        arguments = {"prepare_threshold": None, **self.options.connect_args}
        return connections.engine(url, name[:63], connect_args=arguments)

    @contextmanager
    def work(self) -> Iterator[Working]:
        """Yields the working connection, in autocommit mode, and locks it for the block.

        A broken connection is closed; the next block gets a new one. If none can be had, those who
        waited for the lock meanwhile don't try again, one after the other.
        """
        forks.check_process()
        unreachable_before = self._unreachable
        with self.lock:
            if self._working is None or not self._working.is_usable():
                self._drop()
                if self._unreachable is not unreachable_before:
                    raise psycopg.OperationalError(str(self._unreachable))
                self._working = self._connect()
            prepared = self._working.prepared
            try:
                yield self._working
            except BaseException as error:
                # An interruption may have left a statement unfinished.
                is_error = isinstance(error, Exception) and not prepared.is_in_statement()
                if connections.is_lost(error) or not is_error:
                    self._drop()
                if server_errors.is_read_only(error):  # for kombu, no error of a connection
                    raise psycopg.OperationalError(connections.first_line(error)) from error
                raise

    def _connect(self) -> Working:
        try:
            connection = _open(self._engine)
        except Exception as error:
            self._unreachable = psycopg.OperationalError(connections.first_line(error))
            self._unreachable_at = time.monotonic()
            raise
        try:
            fence.require_newest(connection, self.options.connect_args)
            # Each time: `pgbeat migrate` may have run since the last connection.
            with privileges.required():
                migrate.check(connection)
            if not self._has_tables:
                own_tables.adopt(connection)
                self._has_tables = True
            # Prepared statements would stay in a pooler's session, in the way of other clients.
            prepares = poolers.keeps_session(connection, self._engine)
            isolates = not connections.isolate(connection)
            self.end_abandoned(connection)
        except BaseException:
            connections.close(connection)
            raise
        self._lookout = fence.Lookout(self.url, _LOOKS, self.options.connect_args)
        return Working(
            connection, PreparedConnection(connections.driver(connection), prepares, isolates)
        )

    def end_abandoned(self, connection: Connection) -> None:
        """Ends this process's former consumers.

        Otherwise they would keep what they had until their leases ran out, or the server noticed.
        """
        for consumer in list(self.abandoned):
            consumers.give_up(connection, consumer, self.process)
            self.abandoned.discard(consumer)

    def open(self) -> None:
        """Connects if necessary. Raises `SchemaError` and the driver's errors."""
        with self.work():
            self.users += 1

    @property
    def is_connected(self) -> bool:
        """Whether there is a working connection, alive or not."""
        return self._working is not None

    def release(self) -> None:
        """Ends one use; the last one closes the connections.

        It doesn't wait for a thread that connects: what that one gets is closed with its own use.
        """
        self.users -= 1
        if self.users > 0:
            return
        is_locked = self.lock.acquire(timeout=_PATIENCE)
        try:
            if self.users > 0:  # another thread has connected meanwhile
                return
            self.users = 0
            if is_locked:
                self._drop()
            session, self._session = self._session, None
        finally:
            if is_locked:
                self.lock.release()
        if session is not None:
            session.close()

    def _drop(self) -> None:
        working, self._working = self._working, None
        if working is not None:
            connections.close(working.connection)
        if self._lookout is not None:
            self._lookout.stop()
            self._lookout = None

    def session(self) -> Session:
        """Returns the consuming session, opened at the first call."""
        if self._session is not None and self._session.lost is not None:
            self._pause(self._session)
        try:
            with self.lock:
                if self._session is None or self._session.lost is not None:
                    self._session, self.has_consumed = self._open_session(), True
                return self._session
        except SchemaError:
            time.sleep(LONGEST_PAUSE)  # the connection is good, so Celery tries again at once
            raise

    def _pause(self, lost: Session) -> None:
        """Waits a moment if sessions keep failing, to spare the process and the server."""
        lived = time.monotonic() - lost.opened_at
        self._failures = self._failures + 1 if lived < _SHORT_LIFE else 0
        if self._failures > 1:
            time.sleep(min(0.05 * 2**self._failures, LONGEST_PAUSE))

    @property
    def has_session(self) -> bool:
        """Whether this process consumes."""
        return self._session is not None and self._session.lost is None

    @property
    def lease(self) -> float:
        """Seconds that the consuming session's lease lasts; 0 if it has none."""
        return self._session.lease if self._session is not None and self.has_session else 0.0

    def _open_session(self) -> Session:
        with self.work() as (other, _), privileges.required():
            self.end_abandoned(other)
            connection = _open(self._engine)
            try:
                if not poolers.is_shared(connection, other):
                    connections.note_own_session(connection)
                    return Session(self, connection)
                if self.options.direct_url is not None:
                    connections.close(connection)
                    engine = self._make_engine(self.options.direct_url)
                    connection = _open(engine)
                    poolers.check_direct(other, connection, engine)
                    return Session(self, connection)
                logger.warning(
                    "There is a transaction-mode pooler in front of %s, so LISTEN and session "
                    "locks don't work. Consumers poll for messages every half second and hold "
                    "leases of %g s. Set the transport option direct_url to the server's own DSN "
                    "to get messages at once.",
                    place(self.url),
                    self.options.lease,
                )
                return Session(self, connection, lease=self.options.lease)
            except BaseException:
                connections.close(connection)
                raise

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a domain function with the working connection, in a transaction."""
        with self.work() as (connection, _), connections.transaction(connection):
            return function(connection, *args, **kwargs)

    def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a domain function that executes a single statement, without a transaction.

        That takes one round trip instead of three.
        """
        with self.work() as (connection, prepared):
            isolated = connections.transaction(connection) if prepared.isolates else nullcontext()
            with isolated:
                return function(connection, *args, **kwargs)

    def publish(self, message: Message, transient: bool = False) -> int:
        """Publishes and commits a message; returns how many queues got it.

        What is `transient`, as events are, is given up at once if the server was out of reach a
        moment ago: the sender, perhaps a worker's loop, has better things to wait for.
        """
        if transient and time.monotonic() < self._unreachable_at + _OUT_OF_REACH:
            raise psycopg.OperationalError(str(self._unreachable))
        if message.new_job is not None:
            with self.work() as working:
                is_written = ports.job_writer().write_at_once(working, message)
            return 1 if is_written else int(self.do(_put_with_job, message))
        commit = b"off" if transient else self._commit
        if message.queue is not None:
            return self._group.publish(_Published(message, commit))
        if transient and self._unbound.get(message.exchange, 0) > time.monotonic():
            return 0
        parameters = (*_parameters(message, commit), message.routing_key.encode())
        with self.work() as (_, prepared):
            count = _count(prepared.run(messages.ROUTE_ONE, *parameters))
            if count == 0 and transient and not self.do(exchanges.is_bound, message.exchange):
                # Mostly events. Their first consumer may miss those of half a second.
                self._unbound[message.exchange] = time.monotonic() + _UNBOUND
        return count

    def _put(self, published: "_Published") -> int:
        """Puts a message into its queue."""
        parameters = _parameters(*published)
        with self.work() as (_, prepared):
            count = _count(prepared.run(messages.PUT_ONE, *parameters))
            if count == 0:
                # A missing queue is created, as by kombu's virtual transports.
                self.do(queues.declare, published.message.queue)
                count = _count(prepared.run(messages.PUT_ONE, *parameters))
        return count

    def _put_all(self, batch: "Sequence[_Published]") -> list[int | None]:
        """Puts messages that commit alike into their queues, but not into those that are missing.

        Returns the count of each, `None` for the latter.
        """
        rows = connections.recordset(entry.message for entry in batch).encode()
        with self.work() as (_, prepared):
            result = prepared.run(messages.PUT_ALL, rows, batch[0].commit)
        missing = {result.get_value(row, 0) for row in range(result.ntuples)}
        names = [(entry.message.queue or "").encode() for entry in batch]
        return [None if name in missing else 1 for name in names]

    def database_identity(self, *, again: bool = False) -> identity.Identity:
        """Returns the identity of this broker's database, read `again` if told so."""
        with self.work() as (connection, _):
            return identity.cached(connection, again=again)

    def take(self, queue: int) -> ClaimedMessage | None:
        """Takes the queue's next message, without acknowledgement."""
        with self.work() as (_, prepared):
            taken = deliveries(prepared.run(claim_sql.TAKE, b"{%d}" % queue, b"1", b"0", b"{}"))
        return taken[0] if taken else None

    def disown(self) -> None:
        """Drops the connections in a forked child."""
        sockets = set() if self._session is None else self._session.files
        for held in (self._working, self._session):
            with suppress(psycopg.OperationalError):  # it is lost
                if held is not None:
                    sockets.add(held.prepared.fileno())
        forks.disown(self, sockets)

    def bindings_changed(self) -> None:
        """Forgets which exchanges are unbound."""
        self._unbound.clear()


def _put_with_job(connection: Connection, message: Message) -> int:
    """Writes a message with the job that it makes, which may have to wait or exist already."""
    left = ports.job_writer().write(connection, [message], is_own=True)
    return messages.put(connection, left) or 1


def _open(engine: Engine) -> Connection:
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


def _parameters(message: Message, commit: bytes | None) -> tuple[bytes | None, ...]:
    return (
        (message.exchange if message.queue is None else message.queue).encode(),
        message.payload.encode(),
        b"%d" % message.priority,
        message.available_at.encode() if message.available_at else None,
        b"%d" % message.ttl if message.ttl is not None else None,
        commit,
        message.job_id.encode() if message.job_id else None,
    )


def _count(result: PGresult) -> int:
    return result.command_tuples or 0


_brokers: dict[tuple[Any, ...], Broker] = {}
_lock = threading.Lock()


def broker(url: URL, options: Options) -> Broker:
    """Returns this process's broker of that URL and these options."""
    forks.check_process()
    key = (url.render_as_string(hide_password=False), repr(options))
    with _lock:
        if key not in _brokers:
            _brokers[key] = Broker(url, options)
        return _brokers[key]


def _disown_all() -> None:
    global _brokers, _lock
    inherited, _brokers, _lock = _brokers, {}, threading.Lock()
    for inherited_broker in inherited.values():
        inherited_broker.disown()


forks.in_child(_disown_all)
