"""Channels that hand messages to a sink, such as a caller's transaction, instead of committing."""

from collections.abc import Callable
from typing import Any, Protocol

from amqp.protocol import queue_declare_ok_t
from kombu import Connection as BrokerConnection

from pgbeat.broker import exchanges, messages
from pgbeat.broker.messages import Message
from pgbeat.broker.queues import check_name
from pgbeat.broker.transport.channel import Channel
from pgbeat.broker.transport.transport import Transport


class MessageSink(Protocol):
    """Where a channel's messages go."""

    def write(self, message: Message) -> object:
        """Takes a message."""

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a domain function with the connection."""


class OutboxChannel(Channel):
    """A channel for publishing, which gives to its connection's sink what it would commit."""

    def _do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.connection.client.sink.do(function, *args, **kwargs)

    def _ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._do(function, *args, **kwargs)

    def write(self, message: Message, transient: bool) -> int | None:
        """Hands a message to the sink."""
        client = self.connection.client
        client.sink.write(message if client.delays else message._replace(available_at=None))
        return None

    def enclosing(self, *names: str | None) -> None:
        """Returns `None`: this is the channel of a transaction."""

    def exchange_declare(self, exchange: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Declares an exchange. Raises `ValueError` for a name that the database would refuse."""
        if exchange:
            check_name(exchange)
        super().exchange_declare(exchange, *args, **kwargs)

    def queue_declare(self, queue: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Creates a queue, whose consumer declares the rest. Raises `ValueError`, too."""
        check_name(queue)
        self._do(declare_queue, queue)
        return queue_declare_ok_t(queue, 0, 0)

    def close(self) -> None:
        """Closes the channel, which has no claims."""
        self.closed = True


def declare_queue(connection: Any, queue: str) -> None:
    """Creates a queue if it is missing."""
    messages.declare(connection, [queue])


#: Domain functions that create an exchange or a binding.
DECLARATIONS = (exchanges.declare, exchanges.bind)


class _OutboxTransport(Transport):
    Channel = OutboxChannel
    #: None, since kombu would publish again in a transaction that has failed.
    connection_errors: tuple[type[BaseException], ...] = ()
    channel_errors = ()

    def establish_connection(self) -> Transport:
        return self

    def close_connection(self, connection: Any) -> None:
        self.channels.clear()


class OutboxConnection(BrokerConnection):
    """A connection for `apply_async(connection=…)` and producers that publishes into a sink.

    With `delays` the table keeps messages until their ETA; without, the worker does.
    """

    def __init__(self, sink: MessageSink, delays: bool = True) -> None:
        super().__init__("localhost", transport=_OutboxTransport)
        self.sink, self.delays = sink, delays

    def forget_declared(self) -> None:
        """Forgets declarations, which may have been rolled back, so that they are made again."""
        self.declared_entities.clear()
