"""Runs functions in other threads, whose errors reach the test."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from tests.support.processes import until
from tests.support.rows import Sql

T = TypeVar("T")

#: Finds sessions that wait for another transaction.
WAITS = "SELECT 1 FROM pg_locks WHERE NOT granted"


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Makes calls at once, each in a thread, and returns their results. Raises the first error."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@contextmanager
def waiting(sql: Sql, call: Callable[[], T]) -> Iterator[Future[T]]:
    """Makes a call in another thread, which waits for a transaction until the block ends that.

    Raises the call's error after the block.
    """
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(call)
        until(lambda: made.done() or sql(WAITS), what="it waits")
        assert not made.done()
        yield made
        made.result(30)


@contextmanager
def repeating(step: Callable[[], object]) -> Iterator[None]:
    """Repeats a function in another thread during the block. Raises its error at the end."""
    done = threading.Event()

    def repeat() -> None:
        while not done.is_set():
            step()

    with ThreadPoolExecutor(1) as pool:
        repeated = pool.submit(repeat)
        try:
            yield
        finally:
            done.set()
        repeated.result()
