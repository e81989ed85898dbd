"""Writes batches in parts: an item that is locked, or fails, doesn't keep the others from it."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.database.locks import lock_waits

T = TypeVar("T")
R = TypeVar("R")

#: Seconds that a statement waits for a lock while the rest waits for it, and that one call may
#: spend on that altogether.
WAIT, BUDGET = 0.02, 0.2
#: lock_not_available, deadlock_detected, serialization_failure.
_LOCKED = frozenset({"55P03", "40P01", "40001"})


def is_locked(error: BaseException) -> bool:
    """Returns whether a statement failed because of another transaction's locks."""
    return connections.sqlstate(error) in _LOCKED


class Parted(NamedTuple, Generic[T, R]):
    """The outcome of a batch that was written in parts."""

    #: What `write` returned for each part.
    results: list[R]
    #: Items that were not tried, for lack of time.
    late: list[T]
    #: Items that failed by themselves, with the error.
    failed: list[tuple[T, Exception]]


def in_parts(
    items: Sequence[T],
    write: Callable[[Sequence[T]], R],
    *,
    may_fail: Callable[[Exception], bool] = is_locked,
    key: Callable[[T], Hashable] = id,
    budget: float = BUDGET,
) -> Parted[T, R]:
    """Writes items together, or in ever smaller parts where that fails.

    `write` is one transaction; items with the same `key` stay together, in order. Errors that are
    not such as `may_fail` accepts are raised. After `budget` seconds spent on parts that failed,
    the rest is not tried.
    """
    bundles: dict[Hashable, list[T]] = {}
    for item in items:
        bundles.setdefault(key(item), []).append(item)
    done: Parted[T, R] = Parted([], [], [])
    # Halves before quarters: what doesn't fail is soon written, wherever it stands. With half of
    # the time left, one part after the other is split down to its items: some are decided then,
    # though all parts fail.
    in_depth = budget / 2
    todo = deque([list(bundles.values())] if bundles else [])
    while todo:
        part = todo.popleft()
        some = [item for bundle in part for item in bundle]
        if budget <= 0:
            done.late.extend(some)
            continue
        began = time.monotonic()
        try:
            done.results.append(write(some))
        except Exception as error:
            if not may_fail(error):
                raise
            budget -= time.monotonic() - began
            if len(part) == 1:
                done.failed.extend((item, error) for item in some)
            else:
                halves = [part[: len(part) // 2], part[len(part) // 2 :]]
                if budget > in_depth:
                    todo.extend(halves)
                else:
                    todo.extendleft(reversed(halves))
    return done


def each_unlocked(
    items: Sequence[T],
    write: Callable[[Sequence[T]], R],
    *,
    may_fail: Callable[[Exception], bool] = is_locked,
    key: Callable[[T], Hashable] = id,
    budget: float = BUDGET,
) -> tuple[list[R], list[T]]:
    """Writes items as `in_parts`, where `write` limits its waiting for locks.

    Returns what `write` returned for each part, and the items that are still to be written: first
    those that were not tried, then those that are locked.
    """
    done = in_parts(items, write, may_fail=may_fail, key=key, budget=budget)
    return done.results, done.late + [item for item, _ in done.failed]


def in_transactions(
    connection: Connection, items: Sequence[T], write: Callable[[Sequence[T]], R]
) -> list[R]:
    """Writes items as `each_unlocked`, with a transaction for each part.

    What is locked stays as it is. The connection is in autocommit mode.
    """

    def part(some: Sequence[T]) -> R:
        with connections.transaction(connection):
            lock_waits.limit_waiting(connection, WAIT)
            return write(some)

    return each_unlocked(items, part)[0]
