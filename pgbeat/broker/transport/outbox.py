"""Channels that write into somebody else's transaction instead of their own."""

from collections.abc import Callable
from typing import Any, Protocol

from amqp.protocol import queue_declare_ok_t
from kombu import Connection as BrokerConnection

from pgbeat.broker import exchanges
from pgbeat.broker.messages import BrokerTables, Message
from pgbeat.broker.queues import check_name
from pgbeat.broker.transport.channel import Channel
from pgbeat.broker.transport.transport import Transport


class MessageSink(Protocol):
    """Where a channel's messages go."""

    def write(self, message: Message) -> None:
        """Takes a message."""

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function of the domain with the connection and the broker's tables."""


class OutboxChannel(Channel):
    """A channel for publishing; what it would commit goes to its connection's sink."""

    def _do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.connection.client.sink.do(function, *args, **kwargs)

    def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._do(function, *args)

    def _write(self, message: Message, transient: bool) -> int | None:
        client = self.connection.client
        client.sink.write(message if client.delays else message._replace(available_at=None))
        return None

    def enclosing(self, *names: str | None) -> Any:
        return None

    def exchange_declare(self, exchange: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Raises `ValueError` for a name that none can have: the database would refuse it, and all
        that is declared with it."""
        if exchange:
            check_name(exchange)
        super().exchange_declare(exchange, *args, **kwargs)

    def queue_declare(self, queue: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """A queue that is published to is there; what else it is, its consumer declares. Raises
        `ValueError` as `exchange_declare` does."""
        check_name(queue)
        self._do(_declare, queue)
        return queue_declare_ok_t(queue, 0, 0)

    def close(self) -> None:
        """Closes the channel, which has claimed nothing."""
        self.closed = True


def _declare(connection: Any, tables: BrokerTables, queue: str) -> None:
    tables.declare(connection, [queue])


#: Functions of the domain that make a queue, or what leads to it.
DECLARATIONS = (_declare, exchanges.declare, exchanges.bind)


class _OutboxTransport(Transport):
    Channel = OutboxChannel
    #: kombu would publish again, on a transaction that is broken.
    connection_errors: tuple[type[BaseException], ...] = ()
    channel_errors = ()

    def establish_connection(self) -> Transport:
        return self

    def close_connection(self, connection: Any) -> None:
        self.channels.clear()


class OutboxConnection(BrokerConnection):
    """A connection for publishing into a sink: for `apply_async(connection=…)` and producers.

    With `delays` a task's ETA is kept in the table; without, by the worker.
    """

    def __init__(self, sink: MessageSink, delays: bool = True) -> None:
        super().__init__("localhost", transport=_OutboxTransport)
        self.sink, self.delays = sink, delays

    def forget_declared(self) -> None:
        """Has everything declared again: what was may have been rolled back."""
        self.declared_entities.clear()
