"""Limits how long the leader waits for locks of other transactions; it postpones what needs one.

An application may keep a transaction open for as long as it likes. The leader's session waits for
any lock for `PATIENCE` at most; only what needs that lock is postponed, and tried again soon.
"""

import logging
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection, text

from pgbeat.database import connections

logger = logging.getLogger("celery.beat.pgbeat")

T = TypeVar("T")

#: Seconds for which the leader waits for a lock, and for one that is known to be held.
PATIENCE, BRIEFLY = 0.1, 0.01
#: The settings of a session that waits no longer than `PATIENCE`.
LIMITED = {"lock_timeout": f"{int(PATIENCE * 1000)}"}
#: Why something is postponed, for rows and logs.
LOCKED = "another transaction holds a lock that it needs"
#: Seconds after which something postponed is tried again, the first time and at most.
_FIRST, _LONGEST = 0.05, 0.5
#: Seconds after which a postponement is logged, and after its last attempt forgotten.
_LOGGED, _FORGOTTEN = 1.0, 60.0


def limit_waiting(connection: Connection, seconds: float) -> None:
    """Limits the wait for locks in the open transaction."""
    connection.execute(
        text("SELECT set_config('lock_timeout', :ms, true)"), {"ms": f"{int(seconds * 1000)}"}
    )


def is_lock_timeout(error: BaseException) -> bool:
    """Returns whether a statement failed because it may not wait any longer for a lock."""
    return connections.sqlstate(error) == "55P03"


def briefly(connection: Connection) -> None:
    """Limits the waits of the open transaction: some lock that it may need is held elsewhere."""
    limit_waiting(connection, BRIEFLY)


@dataclass(slots=True)
class _Entry:
    since: float
    until: float
    delay: float
    is_logged: bool = False


class Postponed:
    """Remembers what waits for another transaction's lock, by any key. Not for several threads.

    Each time that something is postponed again it is left alone for twice as long, up to half a
    second. What is postponed for longer than a second is logged once.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}

    def add(self, key: Hashable, what: str, why: str) -> float:
        """Postpones something, and returns the seconds until it must be tried again.

        The log says `what` was postponed, and `why`.
        """
        now = time.monotonic()
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(now, now, _FIRST)
        else:
            entry.delay = min(2 * entry.delay, _LONGEST)
        entry.until = now + entry.delay
        if not entry.is_logged and now - entry.since >= _LOGGED:
            entry.is_logged = True
            logger.warning("Postponed %s: %s", what, why)
        return entry.delay

    def done(self, keys: Iterable[Hashable]) -> None:
        """Forgets what was done after all."""
        for key in keys:
            self._entries.pop(key, None)

    def remaining(self, key: Hashable) -> float | None:
        """Returns the seconds for which something must be left alone; `None` if it need not be."""
        entry = self._entries.get(key)
        seconds = 0.0 if entry is None else entry.until - time.monotonic()
        return seconds if seconds > 0 else None

    def was_held(self, key: Hashable) -> bool:
        """Returns whether something was postponed, and has not been done since."""
        return key in self._entries

    def held(self) -> list[Hashable]:
        """Returns the keys of what must be left alone now."""
        now = time.monotonic()
        old = [k for k, entry in self._entries.items() if entry.until + _FORGOTTEN < now]
        self.done(old)
        return [key for key, entry in self._entries.items() if entry.until > now]

    def wake_in(self) -> float | None:
        """Returns the seconds until the next retry; `None` if nothing is postponed."""
        now = time.monotonic()
        times = [e.until - now for e in self._entries.values() if e.until > now]
        return min(times, default=None)

    def clear(self) -> None:
        """Forgets all."""
        self._entries.clear()
