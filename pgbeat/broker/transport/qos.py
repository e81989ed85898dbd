"""What a channel's consumers have and did not acknowledge, as kombu asks for it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from pgbeat.broker.messages import JOB_HEADER

if TYPE_CHECKING:
    from pgbeat.broker.transport.channel import Channel


class QoS(virtual.QoS):
    """What was delivered and not acknowledged; the database has it too."""

    def __init__(self, channel: "Channel", prefetch_count: int = 0) -> None:
        # Not the base's: it gives messages back at the interpreter's exit. Here they go back
        # with the session.
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        self._delivered: dict[int, Any] = {}
        #: How many the consumer is free for, where that is not a matter of acknowledgements.
        self.free: Callable[[], int] | None = None

    def can_consume(self) -> bool:
        return self.can_consume_max_estimate() != 0

    def can_consume_max_estimate(self) -> int | None:
        limits = []
        if self.prefetch_count:
            limits.append(self.prefetch_count - len(self._delivered))
        if self.free is not None:
            limits.append(self.free())
        return max(min(limits), 0) if limits else None

    def append(self, message: Any, delivery_tag: int) -> None:
        self._delivered[delivery_tag] = message

    def ack(self, delivery_tag: int) -> None:
        message = self._delivered.pop(delivery_tag, None)
        if message is not None:
            starts_job = bool((message.headers or {}).get(JOB_HEADER))
            self.channel.acknowledge(delivery_tag, starts_job=starts_job)

    def up_to(self, delivery_tag: int) -> list[int]:
        """Returns the tags that were delivered no later than this one."""
        tags = list(self._delivered)
        return tags[: tags.index(delivery_tag) + 1] if delivery_tag in self._delivered else []

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        if self._delivered.pop(delivery_tag, None) is not None:
            if requeue:
                self.channel.session.requeue([delivery_tag])
            else:
                self.channel.session.reject([delivery_tag])

    def forget(self) -> None:
        """Forgets what was delivered, so that nothing of it is acknowledged."""
        self._delivered.clear()

    def restore_unacked(self) -> list[Any]:
        """Gives everything back that was delivered and not acknowledged."""
        tags = list(self._delivered)
        self._delivered.clear()
        if tags:
            self.channel.session.requeue(tags, counts=False)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        self.restore_unacked()

    def _flush(self) -> None:
        """Does nothing: there is nothing to flush."""
