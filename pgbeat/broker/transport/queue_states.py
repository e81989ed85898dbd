"""The queues that a process consumes: which of them to look at, and which will announce messages.

Pure bookkeeping, without a database. What is asked for at each step costs as much as there are
queues in that state, however many are consumed.
"""

from collections.abc import Iterable
from typing import NamedTuple

#: Seconds until a queue is asked again that could not be awaited: they double up to the last.
_RETRY, _LAST_RETRY = 0.002, 0.25


class _Watch:
    """What is known of one queue."""

    __slots__ = ("full", "is_awaited", "retry_after", "users")

    def __init__(self) -> None:
        self.users = 0
        #: Whether the next message will be announced.
        self.is_awaited = False
        #: Claims in a row that got all they wanted.
        self.full = 0
        self.retry_after = _RETRY


class Left(NamedTuple):
    """Queues that are consumed no more."""

    queues: list[int]
    #: Those among them that were awaited.
    awaited: list[int]


class Watches:
    """Queues, by their ids.

    A queue is *hungry* while there may be messages in it that no consumer has claimed, and
    *awaited* while its next message will be announced.
    """

    def __init__(self) -> None:
        self._watches: dict[int, _Watch] = {}
        self.hungry: set[int] = set()
        self._not_awaited: set[int] = set()
        #: When to look again at queues that could not be awaited.
        self._retries: dict[int, float] = {}

    def __contains__(self, queue: int) -> bool:
        return queue in self._watches

    def __len__(self) -> int:
        return len(self._watches)

    @property
    def all_awaited(self) -> bool:
        """Whether the next message of each queue will be announced."""
        return not self._not_awaited

    def add(self, queues: Iterable[int]) -> list[int]:
        """Consumes queues once more; returns those that were not consumed before."""
        new = []
        for queue in queues:
            watch = self._watches.get(queue)
            if watch is None:
                watch = self._watches[queue] = _Watch()
                self._not_awaited.add(queue)
                new.append(queue)
            watch.users += 1
            self.hungry.add(queue)
        return new

    def remove(self, queues: Iterable[int]) -> Left:
        """Consumes queues once less; returns those that are not consumed any more."""
        left = Left([], [])
        for queue in queues:
            watch = self._watches.get(queue)
            if watch is None:
                continue
            watch.users -= 1
            if watch.users == 0:
                del self._watches[queue]
                self.hungry.discard(queue)
                self._not_awaited.discard(queue)
                self._retries.pop(queue, None)
                left.queues.append(queue)
                if watch.is_awaited:
                    left.awaited.append(queue)
        return left

    def make_hungry(self, queue: int) -> bool:
        """Notes that a queue may have messages; returns whether it is consumed."""
        is_consumed = queue in self._watches
        if is_consumed:
            self.hungry.add(queue)
        return is_consumed

    def make_all_hungry(self) -> None:
        """Notes that every queue may have messages."""
        self.hungry.update(self._watches)

    def claiming(self, queues: Iterable[int]) -> None:
        """Notes that a claim is about to look at queues: it may miss what is announced later."""
        self.hungry.difference_update(queues)

    def claimed(self, queues: Iterable[int], *, is_full: bool) -> None:
        """Notes what a claim found: as much as it wanted, or all that there was."""
        for queue in queues:
            watch = self._watches.get(queue)
            if watch is not None:
                watch.full = watch.full + 1 if is_full else 0
                if is_full:
                    self.hungry.add(queue)

    def plenty(self) -> list[int]:
        """Returns queues that need not be awaited any longer: each claim is full."""
        found = []
        for queue in self.hungry:
            watch = self._watches[queue]
            if watch.is_awaited and watch.full > 1:
                found.append(queue)
        return found

    def leave(self, queues: Iterable[int]) -> None:
        """Notes that queues are awaited no more."""
        for queue in queues:
            if queue in self._watches:
                self._watches[queue].is_awaited = False
                self._not_awaited.add(queue)

    def wanted(self) -> list[int]:
        """Returns queues that had nothing, and should announce what comes."""
        return [q for q in self._not_awaited if q not in self.hungry and q not in self._retries]

    def answered(self, wanted: Iterable[int], granted: set[int], now: float) -> None:
        """Notes which of the wanted queues are awaited now.

        What came before was not announced, so they are hungry. A publisher that has not committed
        keeps the others from being awaited; they are looked at again in a moment.
        """
        for queue in wanted:
            watch = self._watches.get(queue)
            if watch is None:
                continue
            if queue in granted:
                watch.is_awaited, watch.retry_after = True, _RETRY
                self._not_awaited.discard(queue)
                self.hungry.add(queue)
            else:
                self._retries[queue] = now + watch.retry_after
                watch.retry_after = min(watch.retry_after * 2, _LAST_RETRY)

    def look(self, now: float) -> None:
        """Makes those queues hungry that it is time to look at again."""
        for queue in [queue for queue, at in self._retries.items() if now >= at]:
            del self._retries[queue]
            self.hungry.add(queue)

    @property
    def next_at(self) -> float | None:
        """When to look again at a queue that could not be awaited."""
        return min(self._retries.values(), default=None)
