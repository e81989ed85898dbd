"""Implements kombu's channel with queues and messages in Postgres."""

import json
import logging
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from kombu.transport.virtual.base import UNDELIVERABLE_FMT, UndeliverableWarning
from kombu.utils import json as kombu_json

from pgbeat.broker import payloads, queues
from pgbeat.broker.messages import CONSUMER, Message
from pgbeat.broker.transport import held_messages
from pgbeat.broker.transport.consuming.claims import ClaimedMessage
from pgbeat.broker.transport.declarations import DeclaringChannel, not_found
from pgbeat.broker.transport.qos import QoS

logger = logging.getLogger("pgbeat.transport")


@dataclass(slots=True, eq=False)
class Consumer:
    """One `basic_consume`."""

    tag: str
    queue: str
    no_ack: bool
    callback: Callable[[Any], Any]
    #: Known once the consumer is no longer pending.
    queue_id: int = 0


class Channel(DeclaringChannel):
    """A channel of pgbeat's transport."""

    QoS = QoS
    supports_fanout = True
    closed: bool
    exchange_types: Any

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.fleeting = set()
        self._consumers: dict[str, Consumer] = {}
        self._by_queue: dict[int, deque[Consumer]] = {}
        #: Claimed messages, and whether each must be acknowledged.
        self._buffer: deque[tuple[ClaimedMessage, bool]] = deque()
        #: How many of them must be acknowledged.
        self._reserved = 0
        #: What a blocking consumer without a prefetch limit claims next: more and more.
        self._batch = 1
        self._session: Any = None
        #: Consumers whose queues are not looked up yet.
        self._pending: list[Consumer] = []
        #: Consumers of each queue (id) with acknowledgements, and without.
        self.acked: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()

    # ----- the database

    @property
    def session(self) -> Any:
        """The process's consuming session, the same for as long as this channel lives."""
        if self._session is None:
            self._session = self.connection.open_session()
        return self._session

    def write(self, message: Message, transient: bool) -> int | None:
        """Writes a message; returns how many queues got it, if known."""
        return int(self.broker.publish(message, transient))

    # ----- publishing

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publishes a message. Raises `psycopg.OperationalError` if the channel is closed."""
        if self.closed:  # kombu reconnects while it declares a queue, and still has the old channel
            raise psycopg.OperationalError("the channel is closed")
        if held_messages.hold(self, message, exchange, routing_key, kwargs):
            return
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
        return self.write(_message(payload, **where), is_transient)

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
        """Begins to consume a queue, or with `nowait` only notes it.

        kombu's consumers set `nowait` for all of their queues but the last.
        """
        self._pending.append(Consumer(consumer_tag, queue, bool(no_ack), callback))
        if not nowait:
            self.consume_pending()

    def consume_pending(self) -> None:
        """Begins to consume all noted queues at once.

        Raises `psycopg.OperationalError` if one was declared here and is gone: who connects again
        declares it again, whereas Celery's worker ends at an error of a channel.
        """
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        ids = self.broker.ask(queues.use, [consumer.queue for consumer in pending])
        missing = [consumer.queue for consumer in pending if consumer.queue not in ids]
        if missing and missing[0] in self.fleeting:
            raise psycopg.OperationalError(
                f"queue {missing[0]!r} was deleted after it had been declared here: it expired, or "
                "its consumer counted as dead"
            )
        if missing:
            raise not_found("queue", missing[0])
        session = self.session
        with session.lock:
            for consumer in pending:
                consumer.queue_id = ids[consumer.queue]
                self._consumers[consumer.tag] = consumer
                self._by_queue.setdefault(consumer.queue_id, deque()).append(consumer)
                self._queues(consumer)[consumer.queue_id] += 1
            session.subscribe(self, [consumer.queue_id for consumer in pending])

    def _queues(self, consumer: Consumer) -> Counter[int]:
        return self.taken if consumer.no_ack else self.acked

    def basic_cancel(self, consumer_tag: str) -> None:
        """Ends a consumer."""
        self.consume_pending()
        if consumer_tag in self._consumers:
            self._cancel([consumer_tag])

    def _cancel(self, tags: Sequence[str]) -> None:
        """Ends consumers and requeues what was claimed for them."""
        session = self.session
        if session.lost is not None:
            self._forget(tags)
            return
        # Otherwise another thread might claim for them.
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
        """Requeues what was claimed for consumers that have ended.

        As in AMQP, messages taken without acknowledgement are lost.
        """
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
        """Returns the queue's next message, or `None`."""
        queue_id = self.broker.ask(queues.use, [queue]).get(queue)
        if queue_id is None:
            raise not_found("queue", queue)
        delivery = self.broker.take(queue_id) if no_ack else self.session.claim_one(queue_id)
        if delivery is None:
            return None
        return self._message(delivery, queue, no_ack)

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Acknowledges a message, with `multiple` also those delivered before it."""
        for tag in self.qos.up_to(delivery_tag) if multiple else [delivery_tag]:
            self.qos.ack(tag)

    def acknowledge(self, delivery_tag: int, *, starts_job: bool = False) -> None:
        """Acknowledges a message, if possible with the next statement.

        If the session is lost, the message has been requeued already.
        """
        if self._session is not None and self.connection is not None:
            self._session.ack(delivery_tag, starts_job=starts_job)
            self.connection.acks_wait()

    def put_back(self, delivery_tag: int, delay: float) -> None:
        """Requeues a message for so many seconds later. Its delivery is not counted."""
        self.qos.put_back(delivery_tag, delay)

    def basic_recover(self, requeue: bool = False) -> Any:
        """Requeues all unacknowledged messages."""
        if not requeue:
            raise NotImplementedError("basic_recover needs requeue=True")
        return self.qos.restore_unacked()

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Limits how many unacknowledged messages the channel may have."""
        self.qos.prefetch_count = prefetch_count
        if self._session is not None:
            self._session.wake()

    # ----- `Intake`, which the session calls with its lock held

    def credit(self) -> int:
        """Returns how many more messages with acknowledgement it takes."""
        free: int | None = self.qos.can_consume_max_estimate()
        if free is not None:
            return max(free - self._reserved, 0)
        return self.room()

    def has_plenty(self, credit: int) -> bool:
        """Returns whether a claim for so few messages may wait a moment."""
        return bool(self.connection.is_evented and credit * 2 < self.qos.prefetch_count)

    @property
    def polls_credit(self) -> bool:
        """Whether credit may come back without a call."""
        return self._qos is not None and self._qos.free is not None

    def room(self) -> int:
        """Returns how many more messages without acknowledgement it takes."""
        if self.connection.is_evented:
            return max(int(self.broker.options.batch_size) - len(self._buffer), 0)
        return 0 if self._buffer else self._batch

    def receive(self, messages: list[ClaimedMessage], *, acked: bool) -> None:
        """Takes claimed messages into the buffer."""
        self._buffer.extend((delivery, acked) for delivery in messages)
        if acked:
            self._reserved += len(messages)
        if len(messages) == self._batch:
            self._batch = min(self._batch * 2, int(self.broker.options.batch_size))
        if messages:
            self.connection.has_received()

    @property
    def has_messages(self) -> bool:
        """Whether claimed messages wait for their delivery."""
        return bool(self._buffer)

    def deliver_one(self) -> bool:
        """Delivers the next message to its consumer; returns whether there was one."""
        session = self.session
        with session.lock:
            if session.lost is not None:
                # Others have claimed what must be acknowledged; the rest belongs to this process.
                self._buffer = deque(entry for entry in self._buffer if not entry[1])
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
            self.qos.hand_over(delivery.id, message, consumer.callback)
        return True

    def _next_consumer(self, queue: int, acked: bool) -> Consumer | None:
        """Returns the queue's next consumer of those that acknowledge, or of those that don't."""
        waiting = self._by_queue.get(queue, ())
        for consumer in waiting:
            if consumer.no_ack is not acked:
                self._by_queue[queue].remove(consumer)
                self._by_queue[queue].append(consumer)
                return consumer
        return None

    def _message(self, delivery: ClaimedMessage, queue: str, no_ack: bool) -> Any:
        """Returns the message for the consumer; `None` for an invalid row, which it rejects."""
        try:
            message = self._read(delivery, queue, no_ack)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            logger.error("Message %d of queue %r is invalid: %s", delivery.id, queue, error)
            if not no_ack:
                self.session.reject([delivery.id], f"not a message of kombu's: {error}")
            return None
        if not no_ack:
            self.qos.append(message, delivery.id)
        return message

    def _read(self, delivery: ClaimedMessage, queue: str, no_ack: bool) -> Any:
        # kombu's mark for values that JSON does not have, such as times.
        read = kombu_json.loads if b"__type__" in delivery.payload else json.loads
        payload = read(delivery.payload)
        if "body" not in payload:
            raise ValueError("it has no body")
        headers = payload.get("headers")
        if headers and not payloads.verify(headers, delivery.job_id):
            logger.warning(
                "Message %d of queue %r claims to start a job (%s), but no pgbeat has sent it: it "
                "runs as a plain task",
                delivery.id,
                queue,
                headers.get("id"),
            )
        if delivery.at is not None:
            payloads.drop_due_eta(payload.get("headers"), delivery.at)
        properties = payload.setdefault("properties", {})
        properties["delivery_tag"] = delivery.id
        info = properties.setdefault("delivery_info", {})
        info.setdefault("exchange", "")
        info.setdefault("routing_key", queue)
        # The process that runs the task may acknowledge the message by itself.
        if not no_ack:
            info[CONSUMER] = self.session.id
        info["redelivered"] = is_again = delivery.redelivered or delivery.deliveries > 1
        if is_again:
            headers = payload["headers"] = headers or {}
            headers["redelivered"] = True
            # Counts failed deliveries, as RabbitMQ's quorum queues do.
            headers["x-delivery-count"] = delivery.deliveries - 1
        return self.Message(payload, channel=self)

    def close(self) -> None:
        """Ends the consumers, requeues unacknowledged messages and closes the channel."""
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
                self._qos.forget()  # tasks that end later must not acknowledge
            if self.connection is not None:
                self.connection.close_channel(self)
            self.exchange_types = None


def _message(payload: Any, **where: Any) -> Message:
    try:
        return payloads.message(payload, **where)
    except TypeError:  # a header has a time or the like, which kombu can encode
        return payloads.message(payload, **where, dumps=kombu_json.dumps)
