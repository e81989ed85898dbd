"""Maintains the broker: each consumer does a share of the work that serves all of them.

It requeues messages that dead consumers had claimed, deletes expired ones, and promotes delayed
ones when they are due.
"""

import logging
import random
import time
from typing import NamedTuple

from sqlalchemy import Connection

from pgbeat.broker import dead_letters, discards
from pgbeat.broker.transport.consuming import consumers, orphaned_messages
from pgbeat.broker.transport.options import Options
from pgbeat.database import connections, fence

logger = logging.getLogger("pgbeat.transport")

#: Seconds between two runs.
_INTERVAL = 0.8
#: Mean seconds between two runs while delayed messages become due, over all consumers; and how late
#: one may be promoted before a consumer does more than its share.
_DUE_INTERVAL, _LATE = 0.025, 0.1
#: The share of the consumers that at least count as taking part.
_FEWEST = 0.05
#: Seconds between two sweeps for claims of unknown consumers, over all consumers; and the share of
#: a consumer's time that they may take.
_SWEEP, _SWEEP_SHARE = 30.0, 0.05
#: Seconds between two deletions of old dead letters and orphaned messages, over all consumers; and
#: after one that left some.
_PRUNE, _AT_ONCE = 600.0, 0.1
#: The most messages promoted or deleted at once.
_BATCH = 1000


class MadeAvailable(NamedTuple):
    """Whether a run requeued or promoted messages; its own session gets no notification."""

    requeued: bool = False
    promoted: bool = False


class BrokerMaintenance:
    """One consumer's share of the maintenance."""

    def __init__(self, connection: Connection, options: Options, consumer: int) -> None:
        self._connection, self._options = connection, options
        self._consumer = consumer
        now = time.monotonic()
        #: When the next run is due, by the monotonic clock.
        self.next_at = now
        #: Seconds that this consumer leaves the next delayed message to others.
        self._leeway = 0.0
        #: The share of the consumers that seem to take part: none does while it runs a task in the
        #: thread that consumes, or has nothing to consume.
        self._share = 1.0
        self._sweep_at = now + random.uniform(0, _SWEEP)  # noqa: S311
        self._prune_at = now + random.uniform(0, _PRUNE)  # noqa: S311

    def hasten(self) -> None:
        """Schedules a run for a delayed message that is due in a moment.

        The leeway is drawn once a run, so that further messages cause no further runs.
        """
        self.next_at = min(self.next_at, time.monotonic() + self._leeway)

    def run(self, now: float) -> MadeAvailable:
        """Does the maintenance that is due, and schedules the next run.

        Raises `psycopg.OperationalError` if the server was left behind.
        """
        fence.require_not_left_behind(self._connection)
        due = consumers.due_maintenance(self._connection, self._consumer)
        requeued, promoted = bool(due.dead) and self._release_dead(due.dead), 0
        if due.has_expired:
            with connections.transaction(self._connection):
                discards.expire(self._connection)
        if due.next_due is not None and due.next_due <= 0:
            promoted = self._promote()
            self._judge(-due.next_due, promoted)
        taking_part = max(1.0, due.consumers * self._share)
        if now >= self._sweep_at:
            requeued = self._sweep(taking_part) or requeued
        if now >= self._prune_at:
            self._prune(taking_part)
        interval = self._interval(due.next_due, taking_part, has_more=promoted == _BATCH)
        self.next_at = time.monotonic() + interval
        return MadeAvailable(requeued, promoted > 0)

    def _judge(self, lateness: float, promoted: int) -> None:
        """Estimates by the lateness of what it promoted how many consumers take part."""
        if 0 < promoted < _BATCH:
            self._share *= 1.02 if lateness < _LATE else _LATE / lateness
            self._share = min(max(self._share, _FEWEST), 1.0)

    def _interval(self, next_due: float | None, taking_part: float, *, has_more: bool) -> float:
        """Returns the seconds until the next run, and draws the next leeway.

        About ten runs a second, over all consumers, and up to forty while delayed messages become
        due. Exponential leeways give this rate from the first moment on.
        """
        leeway = random.expovariate(1 / (_DUE_INTERVAL * taking_part))
        self._leeway = min(leeway, _LATE * taking_part)
        if has_more:
            return 0.0
        interval = _INTERVAL * max(1.0, taking_part / 10) * random.uniform(0.8, 1.2)  # noqa: S311
        if next_due is not None:
            interval = min(interval, max(next_due, 0.0) + self._leeway)
        return min(interval, max(self._prune_at - time.monotonic(), 0.0))

    def _release_dead(self, dead: list[int]) -> bool:
        """Requeues the messages that dead consumers had claimed; returns whether there were any."""
        released = 0
        with connections.transaction(self._connection):
            if consumers.try_maintenance_lock(self._connection):
                limit = self._options.limit
                released = consumers.release_dead(self._connection, dead, limit=limit)
        if released:
            logger.warning("Released %d messages that dead consumers had claimed", released)
        return released > 0

    def _sweep(self, taking_part: float) -> bool:
        """Releases claims of unknown consumers; returns whether there were any."""
        began = time.monotonic()
        unknown = consumers.unknown(self._connection)
        ended = time.monotonic()
        interval = _SWEEP * taking_part * random.uniform(0.8, 1.2)  # noqa: S311
        self._sweep_at = ended + max(interval, (ended - began) / _SWEEP_SHARE)
        return bool(unknown) and self._release_dead(unknown)

    def _promote(self) -> int:
        """Promotes delayed messages that are due; returns how many."""
        with connections.transaction(self._connection):
            if not consumers.try_maintenance_lock(self._connection):
                return 0
            return consumers.promote(self._connection, _BATCH)

    def _prune(self, taking_part: float) -> None:
        """Deletes a batch of old dead letters and orphaned messages."""
        has_more = orphaned_messages.delete(self._connection, _BATCH) >= _BATCH
        if self._options.dead_letter_days:
            seconds = self._options.dead_letter_days * 86400
            dropped = dead_letters.drop(self._connection, older_than=seconds, limit=_BATCH)
            has_more = has_more or dropped >= _BATCH
        interval = _PRUNE * taking_part * random.uniform(0.8, 1.2)  # noqa: S311
        self._prune_at = time.monotonic() + (_AT_ONCE if has_more else interval)
