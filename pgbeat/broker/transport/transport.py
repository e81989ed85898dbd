"""Connects kombu to a broker in Postgres, for event loops and for threads."""

import os
import socket
import threading
import time
from contextlib import suppress
from queue import Empty
from typing import Any

import psycopg
from kombu import exceptions
from kombu.transport.virtual import base as virtual
from sqlalchemy.engine import URL
from sqlalchemy.exc import InterfaceError, OperationalError

from pgbeat.broker import ports, queues
from pgbeat.broker.transport import broker as brokers
from pgbeat.broker.transport import ignored_options
from pgbeat.broker.transport.channel import Channel
from pgbeat.broker.transport.consuming.session import Session
from pgbeat.broker.transport.options import Options
from pgbeat.config import postgres_url, redacted
from pgbeat.database import connections, server_errors
from pgbeat.database.watched import readable
from pgbeat.errors import SchemaError

#: Seconds for which messages are delivered before the event loop continues.
_SLICE = 0.005
#: Seconds between two looks by the event loop's timer, in case nothing else wakes it.
_TICK = 0.5


def is_outage(error: BaseException) -> bool:
    """Returns whether kombu failed because of the database, for a reason that may pass."""
    cause = error.__cause__
    is_kombus = isinstance(error, exceptions.OperationalError)
    return is_kombus and cause is not None and server_errors.is_passing(cause)


class Transport(virtual.Transport):
    """kombu's transport for `pgbeat+postgresql://user:password@host:5432/database`."""

    Channel = Channel

    can_parse_url = True
    default_port = 5432
    driver_type = "postgresql"
    driver_name = "psycopg"
    connection_errors: tuple[type[BaseException], ...] = (
        *virtual.Transport.connection_errors,
        OperationalError,
        InterfaceError,
        psycopg.OperationalError,
        psycopg.InterfaceError,
        ConnectionError,
        # A worker waits until `pgbeat migrate` has run, as it does for an unreachable server.
        SchemaError,
    )
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        # The password must not be in the host name, which `inspect stats` and Flower show.
        host = str(client.hostname or "")
        if "://" in host and (url := postgres_url(host)).password is not None:
            client.password = str(url.password)
            client.hostname = url._replace(password=None).render_as_string()
        self._broker: brokers.Broker | None = None
        #: The broker that counts this as a user.
        self._opened: brokers.Broker | None = None
        self._pid = os.getpid()
        self._session: Session | None = None
        self._owned: set[str] = set()
        self._loop: Any = None
        self._loop_fd: int | None = None
        self._loop_thread: int | None = None
        self._file: int | None = None
        self._timer: Any = None
        self._soon: tuple[float, Any] | None = None
        self._is_draining = False
        self._is_waiting = False
        self._waker: tuple[socket.socket, socket.socket] | None = None

    def driver_version(self) -> str:
        """Returns psycopg's version."""
        return psycopg.__version__

    # ----- the connection

    @property
    def url(self) -> URL:
        """The database's URL, in whatever form kombu has it."""
        client = self.client
        host = str(client.hostname or "localhost")
        if "://" in host:
            url = postgres_url(host)
            return url.set(password=client.password) if client.password else url
        # After a failover kombu has its parts.
        return URL.create(
            "postgresql+psycopg",
            username=client.userid,
            password=client.password,
            host=host.removeprefix("pgbeat+"),
            port=int(client.port) if client.port else None,
            database=str(client.virtual_host or "").lstrip("/") or None,
        )

    @property
    def broker(self) -> brokers.Broker:
        """This process's broker; after a fork, the child's."""
        if self._broker is None or self._pid != os.getpid():
            self._broker = brokers.broker(self.url, Options.read(self.client.transport_options))
            if self.client.ssl:  # broker_use_ssl, or kombu's own argument
                ignored_options.warn("Settings", {"broker_use_ssl": ignored_options.TLS})
            self._pid = os.getpid()
            self._session = None
        return self._broker

    def establish_connection(self) -> "Transport":
        """Connects. Raises the driver's errors."""
        self.broker.open()
        if self._opened is self.broker:  # this is a reconnect
            self.broker.release()
        self._opened = self.broker
        ports.equip_apps()
        return self

    def create_channel(self, connection: Any) -> Any:
        """Returns a new channel."""
        channel = self.Channel(connection)
        self.channels.append(channel)
        return channel

    def close_connection(self, connection: Any) -> None:
        """Requeues unacknowledged messages, and releases the broker's connections."""
        is_own = self._pid == os.getpid()
        try:
            for channel in list(self.channels):
                with suppress(*self.connection_errors):
                    if is_own:
                        channel.close()
            # If the session is lost, the server may be out of reach, and its queues go with it.
            if is_own and self._owned and self.verify_connection(self):
                with suppress(*self.connection_errors):
                    owner = self.open_session().id
                    self.broker.do(queues.delete_exclusive, list(self._owned), owner)
        finally:
            self.channels.clear()
            self._owned.clear()
            self._leave_loop()
            self._close_file()
            if self._waker is not None:
                for end in self._waker:
                    end.close()
                self._waker = None
            if is_own and self._broker is not None:
                if self._session is not None:
                    self._session.remove_waker(self.wake)
                self._broker.release()
            self._broker = self._opened = self._session = None

    def verify_connection(self, connection: Any) -> bool:
        """Returns whether the connection is alive, as far as known."""
        return self._session is None or self._session.is_alive()

    def qos_semantics_matches_spec(self, connection: Any) -> bool:
        """Returns false, for a prefetch limit that changes while its channel consumes.

        Celery takes true for a limit of each consumer, which can't change.
        """
        return False

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Returns the URL for people, by default without its password."""
        url = self.url.set(drivername="postgresql")
        if include_password:
            return f"pgbeat+{url.render_as_string(hide_password=False)}"
        return f"pgbeat+{redacted(url)}".replace("***", mask)

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """The port and host of an incomplete URL."""
        return {"port": self.default_port, "hostname": "localhost"}

    def open_session(self) -> Session:
        """Returns the consuming session, for a channel of this connection."""
        broker = self.broker  # a new one after a fork
        if self._session is None or self._session.lost is not None:
            session = broker.session()
            if self._session is None:
                self._waker = socket.socketpair()
                for end in self._waker:
                    end.setblocking(False)
            self._close_file()
            # A duplicate, since other connections of this process may wait for the same socket, or
            # close it.
            self._file = os.dup(session.prepared.fileno())
            session.files.add(self._file)
            self._session = session
            session.add_waker(self.wake)
        return self._session

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            if self._session is not None:
                self._session.files.discard(file)
            if self._loop is not None and self._loop_fd == file:
                self._loop.remove_reader(file)
                self._loop_fd = None
            with suppress(OSError):
                os.close(file)

    def own(self, queue: str) -> None:
        """Notes that a queue is exclusive to this connection and must be deleted with it."""
        self._owned.add(queue)

    # ----- waking

    def wake(self) -> None:
        """Wakes the thread or event loop that waits for this connection."""
        if self._waker is not None:
            with suppress(OSError):
                self._waker[1].send(b"\0")

    def _drain_waker(self) -> None:
        if self._waker is not None:
            with suppress(OSError):
                self._waker[0].recv(4096)

    def has_received(self) -> None:
        """Wakes the waiting thread; another thread may have claimed messages for a channel."""
        if self._is_waiting:
            self.wake()

    def acks_wait(self) -> None:
        """Makes the session send acknowledgements soon."""
        session = self._session
        if session is None:
            return
        if self.is_evented:  # the loop sends them at its next turn
            if threading.get_ident() != self._loop_thread:
                self.wake()
        elif self._is_waiting:
            self.wake()
        elif self._is_draining:
            # The caller is a callback, which may have much left to do.
            session.send_acks()
        else:
            session.flush_acks()

    # ----- threads: one message for each call

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Delivers one message. Raises `TimeoutError` (`socket.timeout`) if none comes in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._is_draining = True
        try:
            for channel in list(self.channels):
                channel.consume_pending()
            while not self._deliver_one():
                session = self._session
                if session is not None:
                    if session.lost is not None:
                        self._raise_lost(session)
                    if session.step():
                        continue
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                self._wait(session, left)
        finally:
            self._is_draining = False

    def _deliver_one(self) -> bool:
        for channel in list(self.channels):
            if channel.has_messages and channel.deliver_one():
                # Channels take turns.
                if channel in self.channels and len(self.channels) > 1:
                    self.channels.remove(channel)
                    self.channels.append(channel)
                return True
        return False

    def _wait(self, session: Session | None, seconds: float | None) -> None:
        if session is None or self._waker is None or self._file is None:
            time.sleep(min(seconds if seconds is not None else 1.0, 1.0))
            return
        # From here on other threads wake this one. What they found before that it must see itself.
        self._is_waiting = True
        try:
            if session.has_acks or any(c.has_messages for c in self.channels) or session.step():
                return
            until = session.until_next()
            seconds = until if seconds is None else min(seconds, until)
            sockets = [self._file, self._waker[0].fileno()]
            ready = readable(sockets, seconds)
        finally:
            self._is_waiting = False
        if sockets[1] in ready:
            self._drain_waker()
        if sockets[0] in ready:
            session.read()

    def _raise_lost(self, session: Session) -> None:
        raise psycopg.OperationalError(
            f"the consumer's connection was lost: {connections.first_line(session.lost or Empty())}"
        )

    # ----- Celery's event loop

    @property
    def is_evented(self) -> bool:
        """Whether an event loop drives this connection."""
        return self._loop is not None

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Lets an event loop drive this connection."""
        self._leave_loop()
        self._loop = loop
        loop.on_tick.add(self._on_tick)
        self._timer = loop.call_repeatedly(_TICK, self._on_tick)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Ends that."""
        self._leave_loop()

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.on_tick.discard(self._on_tick)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._soon is not None:
            self._soon[1].cancel()
            self._soon = None
        if self._loop_fd is not None:
            loop.remove_reader(self._loop_fd)
            self._loop_fd = None
        if self._waker is not None:
            loop.remove_reader(self._waker[0])

    def _on_tick(self) -> None:
        for channel in list(self.channels):
            channel.consume_pending()
        session, loop = self._session, self._loop
        if session is None or loop is None:
            return
        self._loop_thread = threading.get_ident()
        if session.lost is not None:
            self._raise_lost(session)
        if self._loop_fd is None and self._waker is not None:
            self._loop_fd = self._file
            loop.add_reader(self._loop_fd, self._on_readable)
            loop.add_reader(self._waker[0], self._drain_waker)
        session.send_step()
        self._deliver()
        soon = session.until_next()
        if soon < _TICK and (self._soon is None or self._soon[0] > time.monotonic() + soon):
            if self._soon is not None:
                self._soon[1].cancel()
            timer = loop.call_later(max(soon, 0.001), self._on_time)
            self._soon = (time.monotonic() + soon, timer)

    def _on_time(self) -> None:
        self._soon = None
        self._on_tick()

    def _on_readable(self) -> None:
        if self._session is not None and self._session.lost is None:
            self._session.read()
            self._session.send_step()
            self._deliver()

    def _deliver(self) -> None:
        """Delivers claimed messages for a moment. The solo pool's tasks run in here."""
        until = time.monotonic() + _SLICE
        while self._deliver_one():
            if time.monotonic() > until:
                self.wake()  # the loop comes back at once, with acknowledgements
                break
