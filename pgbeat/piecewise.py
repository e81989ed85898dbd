"""Writing many things of which some may be locked: those that are not are written all the same."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat import db, leases

T = TypeVar("T")
R = TypeVar("R")

#: Seconds that a statement waits for a lock while the rest waits for it, and that one call may
#: spend on that altogether.
WAIT, BUDGET = 0.02, 0.2
#: lock_not_available, deadlock_detected, serialization_failure.
_LOCKED = frozenset({"55P03", "40P01", "40001"})


def is_locked(error: BaseException) -> bool:
    """Whether a statement failed because of another transaction's locks."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, psycopg.Error) and cause.sqlstate in _LOCKED


def each_unlocked(
    items: Sequence[T], write: Callable[[Sequence[T]], R], *, budget: float = BUDGET
) -> tuple[list[R], list[T]]:
    """Writes items together, or in ever smaller parts where something is locked.

    `write` is one transaction, whose waiting for locks is limited. Returns what it returned for
    each part, in order, and the items that are still to be written: those that are locked, and
    those that there was no time for after `budget` seconds of waiting.
    """
    results: list[R] = []
    left: list[T] = []
    todo = [items] if items else []
    while todo:
        part = todo.pop()
        if budget <= 0:
            left.extend(part)
            continue
        began = time.monotonic()
        try:
            results.append(write(part))
        except Exception as error:
            if not is_locked(error):
                raise
            budget -= time.monotonic() - began
            if len(part) == 1:
                left.extend(part)
            else:
                middle = len(part) // 2
                todo += [part[middle:], part[:middle]]
    return results, left


def in_transactions(
    connection: Connection, items: Sequence[T], write: Callable[[Sequence[T]], R]
) -> list[R]:
    """As `each_unlocked`, each part in a transaction of its own; what is left stays as it is.

    The connection is in autocommit mode.
    """

    def part(some: Sequence[T]) -> R:
        with db.transaction(connection):
            leases.limit_waiting(connection, WAIT)
            return write(some)

    return each_unlocked(items, part)[0]
