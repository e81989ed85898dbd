"""Opens kombu's connections to the broker, and collects messages from them."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

import kombu
from kombu.asynchronous import Hub

import pgbeat as _pgbeat  # the transport's alias
from tests.support.processes import until
from tests.support.rows import Sql
from tests.support.transport_workers import transport_url

__all__ = ["Connect", "Inbox", "Loop", "_pgbeat", "connections", "kombu", "publish"]

#: Nothing may depend on looks at the tables that nobody asked for.
OPTIONS: dict[str, Any] = {"polling_interval": 600}


class Connect(Protocol):
    """Opens a connection, which the test's end closes."""

    def __call__(self, url: str | None = None, **options: Any) -> Any:
        """Connects to the test's database, with transport options."""


@contextmanager
def connections(dsn: str) -> Iterator[Connect]:
    """Connections that are closed with the block."""
    with ExitStack() as stack:

        def connect(url: str | None = None, **options: Any) -> Any:
            given = {**OPTIONS, **options}
            connection = kombu.Connection(url or transport_url(dsn), transport_options=given)
            stack.callback(connection.release)
            return connection

        yield connect


def publish(connection: Any, queue: str, *bodies: Any, **properties: Any) -> None:
    channel = connection.channel()
    producer = kombu.Producer(channel, serializer="json")
    for body in bodies:
        producer.publish(body, routing_key=queue, **properties)
    channel.close()


def terminate_others(sql: Sql) -> None:
    """Ends all other sessions in the test's database, and waits until they have ended."""
    sql(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def others(sql: Sql) -> list[str]:
    return [
        name
        for (name,) in sql(
            "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    ]


class Inbox:
    """A consumer on a channel of its own, and what it got."""

    def __init__(self, connection: Any, *queues: Any, prefetch: int = 0, **kwargs: Any) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.messages: list[Any] = []
        named = [q if isinstance(q, kombu.Queue) else kombu.Queue(q) for q in queues]
        self.consumer = kombu.Consumer(
            self.channel, named, on_message=self.messages.append, accept=["json"], **kwargs
        )
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def get(self, count: int = 1, seconds: float = 20.0) -> list[Any]:
        """Waits for so many messages; takes them out of the box."""
        self.drain(count, seconds)
        if len(self.messages) < count:
            raise AssertionError(f"{len(self.messages)} of {count} messages in {seconds:g} s")
        found, self.messages[:] = self.messages[:count], self.messages[count:]
        return found

    def bodies(self, count: int = 1, seconds: float = 20.0) -> list[Any]:
        """Returns the bodies of so many messages, and acknowledges them."""
        found = self.get(count, seconds)
        if not self.consumer.no_ack:
            for message in found:
                message.ack()
        return [message.payload for message in found]

    def drain(self, count: int, seconds: float) -> None:
        """Waits until so many are there, or the time is over."""
        deadline = time.monotonic() + seconds
        with suppress(TimeoutError):
            while len(self.messages) < count:
                self.connection.drain_events(timeout=max(deadline - time.monotonic(), 0))

    def all_there_is(self) -> list[Any]:
        """Bodies of the messages that are there now, acknowledged."""
        with suppress(TimeoutError):
            while True:
                self.connection.drain_events(timeout=0)
        return self.bodies(len(self.messages))

    def cancel(self) -> None:
        """Consumes no more."""
        self.consumer.cancel()


class Loop:
    """Celery's event loop, driving a connection."""

    def __init__(self, connection: Any) -> None:
        self.hub = Hub()
        connection.register_with_event_loop(self.hub)
        self._steps = self.hub.create_loop()

    def close(self) -> None:
        """Drives it no more."""
        self.hub.close()
        self.hub.poller.close()

    def step(self) -> None:
        """Waits for something to happen, and handles it."""
        next(self._steps)

    def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Goes on until the condition holds."""

        def met() -> Any:
            if not (value := condition()):
                self.step()
            return value

        return until(met, seconds)
