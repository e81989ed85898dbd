"""Writes batches in parts: an item that is locked, or fails, doesn't keep the others from it."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat.database import connections, lock_waits

T = TypeVar("T")
R = TypeVar("R")

#: Seconds that a statement waits for a lock while the rest waits for it, and that one call may
#: spend on that altogether.
WAIT, BUDGET = 0.02, 0.2
#: lock_not_available, deadlock_detected, serialization_failure.
_LOCKED = frozenset({"55P03", "40P01", "40001"})


def is_locked(error: BaseException) -> bool:
    """Returns whether a statement failed because of another transaction's locks."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, psycopg.Error) and cause.sqlstate in _LOCKED


def each_unlocked(
    items: Sequence[T],
    write: Callable[[Sequence[T]], R],
    *,
    key: Callable[[T], Hashable] = id,
    budget: float = BUDGET,
) -> tuple[list[R], list[T]]:
    """Writes items together, or in ever smaller parts where something is locked.

    `write` is one transaction, whose waiting for locks is limited; items with the same `key` stay
    together, in order. Returns what it returned for each part, and the items that are still to be
    written: first those that there was no time for after `budget` seconds of waiting, then those
    that are locked.
    """
    bundles: dict[Hashable, list[T]] = {}
    for item in items:
        bundles.setdefault(key(item), []).append(item)
    results: list[R] = []
    late: list[T] = []
    locked: list[T] = []
    # Halves before quarters: what is not locked is soon written, wherever it stands.
    todo = deque([list(bundles.values())] if bundles else [])
    while todo:
        part = todo.popleft()
        some = [item for bundle in part for item in bundle]
        if budget <= 0:
            late += some
            continue
        began = time.monotonic()
        try:
            results.append(write(some))
        except Exception as error:
            if not is_locked(error):
                raise
            budget -= time.monotonic() - began
            if len(part) == 1:
                locked += some
            else:
                middle = len(part) // 2
                todo += [part[:middle], part[middle:]]
    return results, late + locked


def in_transactions(
    connection: Connection, items: Sequence[T], write: Callable[[Sequence[T]], R]
) -> list[R]:
    """As `each_unlocked`, each part in a transaction of its own; what is left stays as it is.

    The connection is in autocommit mode.
    """

    def part(some: Sequence[T]) -> R:
        with connections.transaction(connection):
            lock_waits.limit_waiting(connection, WAIT)
            return write(some)

    return each_unlocked(items, part)[0]


def in_parts(
    batch: Sequence[T],
    do: Callable[[Sequence[T]], object],
    give_up: Callable[[T, Exception], object],
    *,
    seconds: float = 1.0,
) -> None:
    """Does for the halves of a batch what failed for all of it, whatever the reason, and so on.

    `give_up` gets each item that fails by itself, with the error. What is left after so many
    `seconds` is not tried. Raises only what means that the connection is lost, or what `give_up`
    raises.
    """
    deadline = time.monotonic() + seconds
    size = (len(batch) + 1) // 2
    parts = [batch[size:], batch[:size]]
    while parts and time.monotonic() < deadline:
        part = parts.pop()
        if not part:
            continue
        try:
            do(part)
        except Exception as error:
            if connections.is_lost(error):
                raise
            if len(part) == 1:
                give_up(part[0], error)
                continue
            size = (len(part) + 1) // 2
            parts += [part[size:], part[:size]]
