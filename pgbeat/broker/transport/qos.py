"""Keeps the messages that a channel delivered and that are not acknowledged."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from pgbeat.broker.messages import JOB_HEADER

if TYPE_CHECKING:
    from pgbeat.broker.transport.channel import Channel


class QoS(virtual.QoS):
    """The unacknowledged messages of one channel; the database has them as claims."""

    def __init__(self, channel: "Channel", prefetch_count: int = 0) -> None:
        # Does not call the base's, which requeues messages at the interpreter's exit. Here the end
        # of the session requeues them.
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        self._delivered: dict[int, Any] = {}
        #: Those whose consumer raised an error.
        self._failed: set[int] = set()
        #: How many messages the worker is free for, if not only acknowledgements decide that.
        self.free: Callable[[], int] | None = None

    def can_consume(self) -> bool:
        """Returns whether the channel may get another message."""
        return self.can_consume_max_estimate() != 0

    def can_consume_max_estimate(self) -> int | None:
        """Returns how many more messages the channel may get; `None` for any number."""
        limits = []
        if self.prefetch_count:
            limits.append(self.prefetch_count - len(self._delivered))
        if self.free is not None:
            limits.append(self.free())
        return max(min(limits), 0) if limits else None

    def append(self, message: Any, delivery_tag: int) -> None:
        """Adds a delivered message."""
        self._delivered[delivery_tag] = message

    def hand_over(self, delivery_tag: int, message: Any, callback: Callable[[Any], None]) -> None:
        """Calls a consumer with a message. If it raises an error, the delivery counts.

        The error may end a worker, and the message, uncounted, would end one after the other.
        """
        try:
            callback(message)
        except Exception:
            self._failed = {tag for tag in self._failed if tag in self._delivered} | {delivery_tag}
            raise

    def ack(self, delivery_tag: int) -> None:
        """Acknowledges a message."""
        message = self._delivered.pop(delivery_tag, None)
        if message is not None:
            starts_job = bool((message.headers or {}).get(JOB_HEADER))
            self.channel.acknowledge(delivery_tag, starts_job=starts_job)

    def up_to(self, delivery_tag: int) -> list[int]:
        """Returns the tags of messages that were delivered no later than this one."""
        tags = list(self._delivered)
        return tags[: tags.index(delivery_tag) + 1] if delivery_tag in self._delivered else []

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Requeues a message, or makes it a dead letter."""
        if self._delivered.pop(delivery_tag, None) is not None:
            if requeue:
                self.channel.session.requeue([delivery_tag])
            else:
                self.channel.session.reject([delivery_tag])

    def put_back(self, delivery_tag: int, delay: float) -> None:
        """Requeues a message for so many seconds later. Its delivery is not counted."""
        if self._delivered.pop(delivery_tag, None) is not None:
            self.channel.session.put_back(delivery_tag, delay)

    def forget(self) -> None:
        """Forgets all messages, so that none is acknowledged later."""
        self._delivered.clear()

    def restore_unacked(self, tags: Iterable[int] | None = None) -> list[Any]:
        """Requeues all messages, or those with the tags.

        Their delivery is not counted, unless their consumer raised an error.
        """
        tags = list(self._delivered) if tags is None else list(tags)
        mine = {tag for tag in tags if self._delivered.pop(tag, None) is not None}
        for tags, counts in ((mine - self._failed, False), (mine & self._failed, True)):
            if tags:
                self.channel.session.requeue(sorted(tags), counts=counts)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Requeues all messages."""
        self.restore_unacked()

    def _flush(self) -> None:
        """Does nothing, unlike the base's."""
