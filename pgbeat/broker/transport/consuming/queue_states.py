"""Tracks for each consumed queue whether to claim from it or to await its next message.

It does not touch the database. A call costs as much as there are queues in the state that it asks
for, however many are consumed.
"""

from collections.abc import Iterable
from typing import NamedTuple

#: Seconds until the next claim from a queue that could not be awaited: the first, and the most.
_RETRY, _LAST_RETRY = 0.002, 0.25


class QueueState:
    """The state of one queue."""

    __slots__ = ("consumers", "full_claims", "is_awaited", "retry_after")

    def __init__(self) -> None:
        #: Consumers in this process.
        self.consumers = 0
        #: Whether its next message will be announced.
        self.is_awaited = False
        #: Claims in a row that returned as many messages as they asked for.
        self.full_claims = 0
        self.retry_after = _RETRY


class Removed(NamedTuple):
    """Queues that are no longer consumed, and those of them that were awaited."""

    queues: list[int]
    awaited: list[int]


class QueueStates:
    """The states of queues, by their ids.

    A queue is *claimable* while it may have messages that no consumer has claimed, and *awaited*
    while its next message will be announced. A queue that was found empty must be awaited; one
    whose claims are all full need not be.
    """

    def __init__(self) -> None:
        self._states: dict[int, QueueState] = {}
        self.claimable: set[int] = set()
        self._not_awaited: set[int] = set()
        #: By queue that could not be awaited, when to claim from it again.
        self._retries: dict[int, float] = {}

    def __contains__(self, queue: int) -> bool:
        return queue in self._states

    def __len__(self) -> int:
        return len(self._states)

    @property
    def queues(self) -> list[int]:
        """The ids of the queues that are consumed."""
        return list(self._states)

    @property
    def all_awaited(self) -> bool:
        """Whether the next message of each queue will be announced."""
        return not self._not_awaited

    def add(self, queues: Iterable[int]) -> list[int]:
        """Adds a consumer to each queue; returns the queues that had none."""
        new = []
        for queue in queues:
            state = self._states.get(queue)
            if state is None:
                state = self._states[queue] = QueueState()
                self._not_awaited.add(queue)
                new.append(queue)
            state.consumers += 1
            self.claimable.add(queue)
        return new

    def remove(self, queues: Iterable[int]) -> Removed:
        """Removes a consumer from each queue; returns the queues that have none left."""
        removed = Removed([], [])
        for queue in queues:
            state = self._states.get(queue)
            if state is None:
                continue
            state.consumers -= 1
            if state.consumers == 0:
                del self._states[queue]
                self.claimable.discard(queue)
                self._not_awaited.discard(queue)
                self._retries.pop(queue, None)
                removed.queues.append(queue)
                if state.is_awaited:
                    removed.awaited.append(queue)
        return removed

    def mark_claimable(self, queue: int) -> bool:
        """Marks a queue that may have messages; returns whether it is consumed."""
        is_consumed = queue in self._states
        if is_consumed:
            self.claimable.add(queue)
        return is_consumed

    def mark_all_claimable(self) -> None:
        """Marks every queue as one that may have messages."""
        self.claimable.update(self._states)

    def claim_sent(self, queues: Iterable[int]) -> None:
        """Records that a claim is sent, which may miss messages announced from now on."""
        self.claimable.difference_update(queues)

    def claim_done(self, queues: Iterable[int], *, is_full: bool) -> None:
        """Records whether a claim returned all that it asked for, or else all there were."""
        for queue in queues:
            state = self._states.get(queue)
            if state is not None:
                state.full_claims = state.full_claims + 1 if is_full else 0
                if is_full:
                    self.claimable.add(queue)

    def to_leave(self) -> list[int]:
        """Returns queues that need no longer be awaited, since every claim is full."""
        return [
            queue
            for queue in self.claimable
            if (state := self._states[queue]).is_awaited and state.full_claims > 1
        ]

    def left(self, queues: Iterable[int]) -> None:
        """Records that queues are no longer awaited."""
        for queue in queues:
            if queue in self._states:
                self._states[queue].is_awaited = False
                self._not_awaited.add(queue)

    def to_await(self) -> list[int]:
        """Returns queues that were found empty and must be awaited."""
        return [q for q in self._not_awaited if q not in self.claimable and q not in self._retries]

    def awaited(self, asked: Iterable[int], granted: set[int], now: float) -> None:
        """Records which of the queues are awaited now.

        Earlier messages were not announced, so these queues are claimable. The others can't be
        awaited yet because a publisher has not committed; they are claimable in a moment.
        """
        for queue in asked:
            state = self._states.get(queue)
            if state is None:
                continue
            if queue in granted:
                state.is_awaited, state.retry_after = True, _RETRY
                self._not_awaited.discard(queue)
                self.claimable.add(queue)
            else:
                self._retries[queue] = now + state.retry_after
                state.retry_after = min(state.retry_after * 2, _LAST_RETRY)

    def advance(self, now: float) -> None:
        """Makes the queues claimable whose retry is due."""
        for queue in [queue for queue, at in self._retries.items() if now >= at]:
            del self._retries[queue]
            self.claimable.add(queue)

    @property
    def retry_at(self) -> float | None:
        """When the next retry of a queue that could not be awaited is due."""
        return min(self._retries.values(), default=None)
