"""The channel: what kombu asks of a broker, in terms of queues and messages in Postgres."""

import json
import logging
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kombu.transport.virtual.base import UNDELIVERABLE_FMT, UndeliverableWarning
from kombu.utils import json as kombu_json

from pgbeat.broker import messages, queues
from pgbeat.broker.messages import Message
from pgbeat.broker.transport.claims import ClaimedMessage
from pgbeat.broker.transport.declarations import DeclaringChannel, not_found
from pgbeat.broker.transport.qos import QoS

logger = logging.getLogger("pgbeat.transport")

#: Without a limit on the prefetch, a blocking consumer's claims begin with one and double.
_FIRST_BATCH = 1


class Consumer:
    """One `basic_consume`."""

    __slots__ = ("callback", "no_ack", "queue", "queue_id", "tag")

    def __init__(
        self, tag: str, queue: str, queue_id: int, no_ack: bool, callback: Callable[[Any], Any]
    ) -> None:
        self.tag, self.queue, self.queue_id = tag, queue, queue_id
        self.no_ack, self.callback = no_ack, callback


class Pending(NamedTuple):
    """A `basic_consume` that waits for others."""

    tag: str
    queue: str
    no_ack: bool
    callback: Callable[[Any], Any]


class Channel(DeclaringChannel):
    """A channel on `pgbeat.broker.transport`."""

    QoS = QoS
    supports_fanout = True
    closed: bool
    exchange_types: Any

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._consumers: dict[str, Consumer] = {}
        self._by_queue: dict[int, deque[Consumer]] = {}
        #: What was claimed, and whether it is to be acknowledged.
        self._buffer: deque[tuple[ClaimedMessage, bool]] = deque()
        #: Messages in the buffer that are to be acknowledged.
        self._reserved = 0
        self._batch = _FIRST_BATCH
        self._session: Any = None
        #: What `basic_consume` was asked for and the database does not know yet.
        self._pending: list[Pending] = []
        #: Ids of the queues consumed with acknowledgements, and without; how many consumers each
        #: has.
        self.acked: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()

    # ----- the database

    @property
    def session(self) -> Any:
        """The process's consuming side; the one that this channel consumes by."""
        if self._session is None:
            self._session = self.connection.open_session()
        return self._session

    def _write(self, message: Message, transient: bool) -> int | None:
        """Puts a message; how many queues got it, if that is known."""
        return int(self.broker.publish(message, transient))

    # ----- publishing

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> None:
        other = self.enclosing(exchange)
        if other is not None and other.takes(message):
            try:
                other.basic_publish(message, exchange, routing_key, **kwargs)
            finally:
                other.forget_client(self.connection.client)
            return
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            self._put(routing_key, message)
            return
        count = self._publish(message, exchange=exchange, routing_key=routing_key or "")
        if count == 0 and self.deadletter_queue is not None:
            warnings.warn(
                UndeliverableWarning(
                    UNDELIVERABLE_FMT.format(exchange=exchange, routing_key=routing_key)
                ),
                stacklevel=2,
            )
            self._put(self.deadletter_queue, message)

    def _put(self, queue: str, payload: Any, **kwargs: Any) -> None:
        self._publish(payload, queue=queue)

    def _publish(self, payload: Any, **where: Any) -> int | None:
        is_transient = payload["properties"].get("delivery_mode") == 1
        return self._write(_message(payload, **where), is_transient)

    def _restore(self, message: Any) -> None:
        self.session.requeue([message.delivery_tag])

    # ----- consuming

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Any,
        consumer_tag: str,
        nowait: bool = False,
        **kwargs: Any,
    ) -> None:
        """Consumes from a queue. With `nowait`, from this and others in one go: kombu's consumers
        say so for all of their queues but the last."""
        self._pending.append(Pending(consumer_tag, queue, bool(no_ack), callback))
        if not nowait:
            self.consume_pending()

    def consume_pending(self) -> None:
        """Begins to consume what was asked for with `nowait`."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        ids = self.broker.ask(queues.use, [each.queue for each in pending])
        missing = [each.queue for each in pending if each.queue not in ids]
        if missing:
            raise not_found("queue", missing[0])
        session = self.session
        with session.lock:
            for tag, queue, no_ack, callback in pending:
                consumer = Consumer(tag, queue, ids[queue], no_ack, callback)
                self._consumers[tag] = consumer
                self._by_queue.setdefault(consumer.queue_id, deque()).append(consumer)
                self._queues(consumer)[consumer.queue_id] += 1
            session.subscribe(self, [ids[each.queue] for each in pending])

    def _queues(self, consumer: Consumer) -> Counter[int]:
        return self.taken if consumer.no_ack else self.acked

    def basic_cancel(self, consumer_tag: str) -> None:
        self.consume_pending()
        if consumer_tag in self._consumers:
            self._cancel([consumer_tag])

    def _cancel(self, tags: Sequence[str]) -> None:
        """Ends consumers: nothing is claimed for them any more, and what was goes back."""
        session = self.session
        if session.lost is not None:
            self._forget(tags)
            return
        # Another thread may be about to claim for them.
        with session.alone():
            gone = self._forget(tags)
            self._return_buffered()
            session.unsubscribe(self, [consumer.queue_id for consumer in gone])

    def _forget(self, tags: Sequence[str]) -> list[Consumer]:
        gone = [self._consumers.pop(tag) for tag in tags]
        for consumer in gone:
            self._by_queue[consumer.queue_id].remove(consumer)
            counts = self._queues(consumer)
            counts[consumer.queue_id] -= 1
            if not counts[consumer.queue_id]:
                del counts[consumer.queue_id]
        return gone

    def _return_buffered(self) -> None:
        """Gives back what was claimed for consumers that are no more. What they took
        without acknowledgement is lost with them, as in AMQP."""
        if self.session.lost is not None:
            return
        with self.session.alone():
            kept: deque[tuple[ClaimedMessage, bool]] = deque()
            mine = []
            for delivery, acked in self._buffer:
                if self._has_consumer(delivery.queue, acked):
                    kept.append((delivery, acked))
                elif acked:
                    mine.append(delivery.id)
            self._buffer = kept
            self._reserved -= len(mine)
            self.session.requeue(mine, counts=False)

    def _has_consumer(self, queue: int, acked: bool) -> bool:
        return any(c.no_ack is not acked for c in self._by_queue.get(queue, ()))

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        queue_id = self.broker.ask(queues.use, [queue]).get(queue)
        if queue_id is None:
            raise not_found("queue", queue)
        delivery = self.broker.take(queue_id) if no_ack else self.session.claim_one(queue_id)
        if delivery is None:
            return None
        return self._message(delivery, queue, no_ack)

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        for tag in self.qos.up_to(delivery_tag) if multiple else [delivery_tag]:
            self.qos.ack(tag)

    def acknowledge(self, delivery_tag: int, *, starts_job: bool = False) -> None:
        """Deletes the message: with the next statement where one is sure to come soon. Where the
        session is lost the message has gone back."""
        if self._session is not None and self.connection is not None:
            self._session.ack(delivery_tag, starts_job=starts_job)
            self.connection.acks_wait()

    def basic_recover(self, requeue: bool = False) -> Any:
        if not requeue:
            raise NotImplementedError("there is no recovery without requeue")
        return self.qos.restore_unacked()

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        self.qos.prefetch_count = prefetch_count
        if self._session is not None:
            self._session.wake()

    # What the session asks of a channel, and gives it, with its lock held.

    def credit(self) -> int:
        free: int | None = self.qos.can_consume_max_estimate()
        if free is not None:
            return max(free - self._reserved, 0)
        return self._free_batch()

    def has_plenty(self, credit: int) -> bool:
        return bool(self.connection.is_evented and credit * 2 < self.qos.prefetch_count)

    @property
    def polls_credit(self) -> bool:
        """Whether credit may come back without a word."""
        return self._qos is not None and self._qos.free is not None

    def room(self) -> int:
        return self._free_batch()

    def _free_batch(self) -> int:
        if self.connection.is_evented:
            return max(int(self.broker.options.batch_size) - len(self._buffer), 0)
        return 0 if self._buffer else self._batch

    def receive(self, found: list[ClaimedMessage], *, acked: bool) -> None:
        self._buffer.extend((delivery, acked) for delivery in found)
        if acked:
            self._reserved += len(found)
        if len(found) == self._batch:
            self._batch = min(self._batch * 2, int(self.broker.options.batch_size))
        if found:
            self.connection.has_received()

    @property
    def has_messages(self) -> bool:
        """Whether something was claimed and not delivered."""
        return bool(self._buffer)

    def deliver_one(self) -> bool:
        """Hands the next message to its consumer; whether there was one."""
        session = self.session
        with session.lock:
            if session.lost is not None:
                # Others have by now what had to be acknowledged; what hadn't is this process's.
                self._buffer = deque(found for found in self._buffer if not found[1])
                self._reserved = 0
            if not self._buffer:
                return False
            delivery, acked = self._buffer.popleft()
            consumer = self._next_consumer(delivery.queue, acked)
            if acked:
                self._reserved -= 1
            if consumer is None:
                if acked:
                    session.requeue([delivery.id], counts=False)
                return True
            message = self._message(delivery, consumer.queue, consumer.no_ack)
        if message is not None:
            consumer.callback(message)
        return True

    def _next_consumer(self, queue: int, acked: bool) -> Consumer | None:
        """Returns whose turn it is, among those that acknowledge or those that don't."""
        waiting = self._by_queue.get(queue, ())
        for consumer in waiting:
            if consumer.no_ack is not acked:
                self._by_queue[queue].remove(consumer)
                self._by_queue[queue].append(consumer)
                return consumer
        return None

    def _message(self, delivery: ClaimedMessage, queue: str, no_ack: bool) -> Any:
        """Returns the message, noted if it must be acknowledged; `None` for an invalid row."""
        try:
            message = self._read(delivery, queue)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            logger.error("Message %d of queue %r is not kombu's: %s", delivery.id, queue, error)
            if not no_ack:
                self.session.reject([delivery.id], f"not a message of kombu's: {error}")
            return None
        if not no_ack:
            self.qos.append(message, delivery.id)
        return message

    def _read(self, delivery: ClaimedMessage, queue: str) -> Any:
        # What JSON has no word for, kombu marks so.
        read = kombu_json.loads if b"__type__" in delivery.payload else json.loads
        payload = read(delivery.payload)
        if "body" not in payload:
            raise ValueError("it has no body")
        properties = payload.setdefault("properties", {})
        properties["delivery_tag"] = delivery.id
        info = properties.setdefault("delivery_info", {})
        info.setdefault("exchange", "")
        info.setdefault("routing_key", queue)
        info["redelivered"] = is_again = delivery.redelivered or delivery.deliveries > 1
        if is_again:
            headers = payload["headers"] = payload.get("headers") or {}
            headers["redelivered"] = True
            # As RabbitMQ's quorum queues count them: deliveries that failed before.
            headers["x-delivery-count"] = delivery.deliveries - 1
        return self.Message(payload, channel=self)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        session = self._session
        try:
            if session is not None and session.lost is None:
                self._cancel(list(self._consumers))
                if self._qos is not None:
                    self._qos.restore_unacked_once()
                session.flush_acks()
        finally:
            self._consumers.clear()
            self._pending.clear()
            if self._qos is not None:
                self._qos.forget()  # what ends later has nothing to acknowledge any more
            if self.connection is not None:
                self.connection.close_channel(self)
            self.exchange_types = None


def _message(payload: Any, **where: Any) -> Message:
    try:
        return messages.message(payload, **where)
    except TypeError:  # times and the like in headers: kombu knows how
        return messages.message(payload, **where, dumps=kombu_json.dumps)
