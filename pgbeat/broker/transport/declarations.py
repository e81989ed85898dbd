"""Declares queues and exchanges, also for messages in a caller's transaction."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, TypeVar

import kombu
from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid
from sqlalchemy.exc import DBAPIError

from pgbeat.broker import discards, exchanges, queues
from pgbeat.broker.transport import ignored_options, transaction_blocks
from pgbeat.broker.transport.broker import LONGEST_PAUSE
from pgbeat.database import privileges
from pgbeat.database.locks import lock_waits
from pgbeat.errors import QueueLocked, SchemaError

T = TypeVar("T")
logger = logging.getLogger("pgbeat.transport")

#: Seconds to wait for a lock that the caller's own transaction may hold.
_PATIENCE = 1.0
#: Seconds between two attempts to declare a queue that another process has.
_PAUSE = 0.25
#: The types of AMQP's exchanges that are there from the start and are not direct.
_BUILT_IN = {"amq.topic": "topic", "amq.fanout": "fanout"}


def briefly(
    connection: Any, patience: float, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Calls a domain function that must not wait for a lock longer than `patience` (seconds)."""
    lock_waits.limit_waiting(connection, patience)
    return function(connection, *args, **kwargs)


def after_lease(lease: float, declare: Callable[[], T]) -> T:
    """Calls `declare` until the queue is not exclusive to another process, or the lease is over.

    Behind a pooler a killed worker counts as alive for its lease (seconds), and the worker started
    in its place has the same name and declares the same queues.
    """
    deadline, was_refused = time.monotonic() + 1.5 * lease, False
    while True:
        try:
            return declare()
        except QueueLocked as error:
            if lease == 0 or time.monotonic() > deadline:
                raise
            if not was_refused:
                logger.warning("Waiting up to %g s for the owner's lease: %s", lease, error)
            was_refused = True
        time.sleep(_PAUSE)


def at_once(declare: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a channel's method declare at once, even inside a block of a caller's transaction.

    Otherwise others could not publish to the same queue until that transaction ends. If the
    transaction itself has declared it already and holds the locks, it declares it once more.
    """

    @wraps(declare)
    def declare_at_once(self: Any, *args: Any, **kwargs: Any) -> Any:
        other = self.enclosing(*args[:1], kwargs.get("queue"), kwargs.get("exchange"))
        if other is None or self.patience is not None:
            return declare(self, *args, **kwargs)
        self.patience = _PATIENCE
        try:
            return declare(self, *args, **kwargs)
        except DBAPIError as error:
            if not lock_waits.is_lock_timeout(error):
                raise
        finally:
            self.patience = None
        other.note_client(self.connection.client)
        return getattr(other, declare.__name__)(*args, **kwargs)

    return declare_at_once


class DeclaringChannel(virtual.Channel):
    """The part of a channel that declares, binds and deletes queues and exchanges."""

    exchange_types: Any
    #: The process's consuming session.
    session: Any
    #: Queues that it has declared and that are deleted by themselves.
    fleeting: set[str]
    #: Seconds to wait for locks, during a declaration for a caller's transaction.
    patience: float | None = None

    @property
    def broker(self) -> Any:
        """The process's broker."""
        return self.connection.broker

    def _ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a domain function that executes a single statement."""
        if self.patience is not None:
            return self._do(function, *args, **kwargs)
        with self._whole_schema():
            return self.broker.ask(function, *args, **kwargs)

    def _do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._whole_schema():
            if self.patience is not None:
                return self.broker.do(briefly, self.patience, function, *args, **kwargs)
            return self.broker.do(function, *args, **kwargs)

    @contextmanager
    def _whole_schema(self) -> Iterator[None]:
        """Raises `SchemaError` if a process that has consumed misses tables or rights.

        It does so after a pause: the connection is good, so Celery tries again at once.
        """
        if not self.broker.has_consumed:
            yield
            return
        try:
            with privileges.required():
                yield
        except SchemaError:
            time.sleep(LONGEST_PAUSE)
            raise

    # ----- publishing into a caller's transaction

    def enclosing(self, *names: str | None) -> Any:
        """Returns the channel of a caller's transaction to use instead of this one, if any.

        Remote control never is part of a transaction, since the sender waits for answers.
        """
        if any(name and name.endswith(".pidbox") for name in names):
            return None
        # A connection of the app's pool can be released to it; a caller's can't.
        is_chosen = "release" not in vars(self.connection.client)
        return transaction_blocks.channel_for(self.broker, is_chosen=is_chosen)

    # ----- exchanges and queues

    @at_once
    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Declares an exchange. Raises `ChannelError` for a wrong type."""
        type = type or "direct"
        exchange = exchange or f"amq.{type}"
        if passive:
            if self._do(exchanges.find_type, exchange) is None:
                raise not_found("exchange", exchange)
            return
        if type not in self.exchange_types:
            raise ChannelError(
                f"COMMAND_INVALID - unknown exchange type {type!r}; there are "
                + ", ".join(sorted(self.exchange_types)),
                (40, 10),
                "Channel.exchange_declare",
                "503",
            )
        super().exchange_declare(exchange, type, durable, auto_delete, arguments, nowait)
        has = self._ask(
            exchanges.declare, exchange, type, durable=bool(durable), auto_delete=bool(auto_delete)
        )
        if has is not None and has != type:
            self.state.exchanges.pop(exchange, None)
            raise ChannelError(
                f"PRECONDITION_FAILED - exchange {exchange!r} is of type {has}, not {type}; "
                "delete it, or declare it with that type",
                (40, 10),
                "Channel.exchange_declare",
                "406",
            )

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Deletes an exchange."""
        self.state.exchanges.pop(exchange, None)
        self._do(exchanges.delete, exchange, if_unused=if_unused)

    @at_once
    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Declares a queue. Raises `ChannelError` for wrong arguments or another's queue."""
        queue = queue or f"amq.gen-{uuid()}"
        if passive:
            declared = self._do(queues.find, queue)
            if declared is None:
                raise not_found("queue", queue)
            return queue_declare_ok_t(queue, declared.messages, declared.consumers)
        caller = self._owner(exclusive)
        options: dict[str, Any] = {
            "durable": bool(durable),
            "auto_delete": bool(auto_delete),
            "arguments": arguments,
            "owner": caller if exclusive else None,
            "caller": caller,
        }
        try:
            declared = self._ask(queues.declare_at_once, queue, **options) or after_lease(
                self.broker.lease if exclusive else 0.0,
                partial(self._do, queues.declare, queue, **options),
            )
        except QueueLocked as error:
            raise ChannelError(
                f"RESOURCE_LOCKED - {error}", (50, 10), "Channel.queue_declare", "405"
            ) from None
        except ValueError as error:
            raise ChannelError(
                f"PRECONDITION_FAILED - {error}", (50, 10), "Channel.queue_declare", "406"
            ) from None
        if exclusive:
            self.connection.own(queue)
        if exclusive or auto_delete or (arguments or {}).get("x-expires"):
            self.fleeting.add(queue)
        return queue_declare_ok_t(queue, declared.messages, declared.consumers)

    def already_declared(self, candidates: Iterable[kombu.Queue]) -> set[str]:
        """Returns the names of the queues that `declare` of each would leave as they are.

        It is one statement for all. Queues of a more special kind are left out.
        """
        wanted = [columns for queue in candidates if (columns := self._plain(queue)) is not None]
        bound: set[str] = self._ask(exchanges.find_bound, wanted) if wanted else set()
        return bound

    def _plain(self, queue: kombu.Queue) -> dict[str, Any] | None:
        """Returns the columns of a queue and its one binding; `None` for a more special one."""
        exchange = queue.exchange
        if not (queue.name and exchange and exchange.name) or exchange.passive:
            return None
        if queue.exclusive or queue.auto_delete or queue.bindings or queue.on_declared:
            return None
        arguments = self.prepare_queue_arguments(
            queue.queue_arguments or {},
            expires=queue.expires,
            message_ttl=queue.message_ttl,
            max_priority=queue.max_priority,
        )
        try:
            columns = queues.columns(arguments)
        except ValueError:  # its declaration says why
            return None
        return columns | {
            "name": queue.name,
            "exchange": exchange.name,
            "type": exchange.type,
            "routing_key": queue.routing_key or "",
        }

    def _owner(self, exclusive: bool) -> int | None:
        if exclusive:
            return int(self.session.id)
        return int(self.broker.session().id) if self.broker.has_session else None

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Returns the arguments of kombu's queues, such as `expires`, under their AMQP names.

        Warns of those that have no effect.
        """
        prepared = to_rabbitmq_queue_arguments(arguments, **kwargs)
        ignored_options.warn_of_arguments(prepared.keys() - queues.ARGUMENTS.keys())
        return prepared

    @at_once
    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Binds a queue to an exchange."""
        exchange = exchange or "amq.direct"
        known = self.state.exchanges.get(exchange)
        type = known["type"] if known else self._do(exchanges.find_type, exchange)
        type = type or _BUILT_IN.get(exchange, "direct")
        self._ask(exchanges.bind, queue, exchange, routing_key or "", type)
        self.broker.bindings_changed()

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Removes a binding."""
        self._do(exchanges.unbind, queue, exchange or "amq.direct", routing_key or "")

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> int:
        """Deletes a queue; returns how many messages waited."""
        return int(
            self._do(discards.delete_queue, queue, if_unused=if_unused, if_empty=if_empty) or 0
        )

    def list_bindings(self) -> Any:
        """Returns an iterator over all bindings."""
        return iter(self._do(exchanges.bindings))

    def get_exchanges(self) -> list[str]:
        """Returns the names of exchanges with bindings."""
        return sorted({exchange for _, exchange, _ in self._do(exchanges.bindings)})

    def _purge(self, queue: str) -> int:
        count = deleted = int(self._do(discards.purge, queue))
        while count == queues.PURGED:
            count = int(self._do(discards.purge, queue))
            deleted += count
        return deleted

    def _size(self, queue: str) -> int:
        declared = self._do(queues.find, queue)
        return int(declared.messages) if declared else 0

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self._do(queues.find, queue) is not None

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        self.queue_declare(queue, **kwargs)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self.queue_delete(queue)


class WorkerConsumer(kombu.Consumer):
    """A consumer of any number of queues, which declares only those that are not there as given."""

    def declare(self) -> None:
        """Declares queues, exchanges and bindings."""
        known = self.channel.already_declared(self.queues)
        for queue in self.queues:
            if queue.name not in known:
                queue.declare()


def not_found(kind: str, name: str) -> ChannelError:
    """Returns AMQP's error for a missing queue or exchange."""
    return ChannelError(
        f"NOT_FOUND - there is no {kind} {name!r}", (50, 10), f"Channel.{kind}_declare", "404"
    )
