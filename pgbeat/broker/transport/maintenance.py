"""Chores: what consumers do for all of them, each in its turn: claims of the dead go back, what is
expired goes, what was delayed comes."""

import logging
import random
import time
from typing import NamedTuple

from sqlalchemy import Connection

from pgbeat.broker import consumers, dead_letters, discards, useless_messages
from pgbeat.broker.messages import BrokerTables
from pgbeat.broker.transport.options import Options
from pgbeat.database import connections

logger = logging.getLogger("pgbeat.transport")

#: Seconds between two looks at what there is to do.
_SURVEY = 0.8
#: Seconds between two looks for claims whose consumer nobody knows, by all consumers together; and
#: the part of its time that one may spend on them.
_SWEEP, _SWEEP_SHARE = 30.0, 0.05
#: Seconds between two looks for old dead letters, and messages of no use, by all together; and
#: where there was more than one look deletes.
_PRUNE, _AT_ONCE = 600.0, 0.1
#: Most delayed messages that come at once, and most that are deleted.
_MOST = 1000


class Done(NamedTuple):
    """What a look has brought about, of which nobody else tells this session."""

    came_back: bool = False
    came_due: bool = False


class Chores:
    """Those that are one consumer's to do."""

    def __init__(
        self, connection: Connection, tables: BrokerTables, options: Options, consumer: int
    ) -> None:
        self._connection, self._tables, self._options = connection, tables, options
        self._consumer = consumer
        now = time.monotonic()
        #: When to look again.
        self.next_at = now
        self._sweep_at = now + random.uniform(0, _SWEEP)  # noqa: S311
        self._prune_at = now + random.uniform(0, _PRUNE)  # noqa: S311

    def look(self, now: float) -> Done:
        """Does what there is to do."""
        survey = consumers.survey(self._connection, self._tables, self._consumer)
        came_back, came_due = bool(survey.dead) and self._bury(survey.dead), False
        if survey.has_expired:
            with connections.transaction(self._connection):
                discards.expire(self._connection, self._tables)
        next_due = survey.next_due
        if next_due is not None and next_due <= 0:
            promoted = self._promote()
            came_due = promoted > 0
            next_due = 0.0 if promoted == _MOST else 0.05
        if now >= self._sweep_at:
            came_back = self._sweep(survey.consumers) or came_back
        if now >= self._prune_at:
            self._prune(survey.consumers)
        # Many consumers share the work: about ten looks a second, all together.
        interval = _SURVEY * max(1.0, survey.consumers / 10) * random.uniform(0.8, 1.2)  # noqa: S311
        if next_due is not None:
            interval = min(interval, next_due)
        interval = min(interval, max(self._prune_at - time.monotonic(), 0.0))
        self.next_at = time.monotonic() + interval
        return Done(came_back, came_due)

    def _bury(self, dead: list[int]) -> bool:
        """Gives back what dead consumers had; whether that was anything."""
        released = 0
        with connections.transaction(self._connection):
            if consumers.take_turn(self._connection, self._tables):
                limit = self._options.limit
                released = consumers.bury(self._connection, self._tables, dead, limit=limit)
        if released:
            logger.warning("Released %d messages that dead consumers had claimed", released)
        return released > 0

    def _sweep(self, consumer_count: int) -> bool:
        """Releases claims of unknown consumers; whether there were any."""
        began = time.monotonic()
        unknown = consumers.unknown(self._connection, self._tables)
        ended = time.monotonic()
        interval = _SWEEP * max(consumer_count, 1) * random.uniform(0.8, 1.2)  # noqa: S311
        self._sweep_at = ended + max(interval, (ended - began) / _SWEEP_SHARE)
        return bool(unknown) and self._bury(unknown)

    def _promote(self) -> int:
        """Lets come what is due; how many messages."""
        with connections.transaction(self._connection):
            if not consumers.take_turn(self._connection, self._tables):
                return 0
            return consumers.promote(self._connection, self._tables, _MOST)

    def _prune(self, consumer_count: int) -> None:
        """Deletes what is of no use: a little at a time, as long as there is more."""
        has_more = useless_messages.delete(self._connection, self._tables, _MOST) >= _MOST
        if self._options.dead_letter_days:
            seconds = self._options.dead_letter_days * 86400
            dropped = dead_letters.drop(
                self._connection, self._tables, older_than=seconds, limit=_MOST
            )
            has_more = has_more or dropped >= _MOST
        interval = _PRUNE * max(consumer_count, 1) * random.uniform(0.8, 1.2)  # noqa: S311
        self._prune_at = time.monotonic() + (_AT_ONCE if has_more else interval)
