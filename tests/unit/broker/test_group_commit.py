"""A thread that is interrupted, or fails, leaves no other one waiting."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from pgbeat.broker.transport.group_commit import GroupCommit
from tests.support.processes import until


class Interruption(BaseException):
    """What the signal's handler raises, as Ctrl-C does."""


@contextmanager
def on_signal(handler: Callable[[], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *args: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    raise Interruption


class Writes:
    """A group whose writes wait until they may go on, and what was written together."""

    def __init__(self) -> None:
        self.done: list[list[int]] = []
        self.goes_on = threading.Event()
        self.begun = 0
        self.group = GroupCommit(self.write, self.write_all, lambda one, other: True)

    def write(self, item: int) -> int:
        self.write_all([item])
        return item

    def write_all(self, items: Sequence[int]) -> list[int | None]:
        self.begun += 1
        self.goes_on.wait()
        self.done.append(list(items))
        return list(items)

    def until_waiting(self, *items: int) -> None:
        """Waits until just these wait."""
        until(lambda: [each.item for each in self.group._waiting] == list(items))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_one_that_waits_is_interrupted(pool: ThreadPoolExecutor) -> None:
    writes = Writes()
    first = pool.submit(writes.group.publish, 1)
    until(lambda: writes.begun)

    def kill() -> None:
        writes.until_waiting(2)
        os.kill(os.getpid(), signal.SIGUSR1)

    killed = pool.submit(kill)
    with on_signal(interrupt), pytest.raises(Interruption):
        writes.group.publish(2)
    killed.result()
    last = pool.submit(writes.group.publish, 3)
    writes.until_waiting(3)
    writes.goes_on.set()
    assert (first.result(), last.result(), writes.group.publish(4)) == (1, 3, 4)
    assert writes.done == [[1], [3], [4]]


def test_the_one_that_writes_for_others_is_interrupted(pool: ThreadPoolExecutor) -> None:
    """It can't know what became of the others' messages, and tells them so."""
    writes = Writes()
    writes.goes_on.set()
    first_may_end = threading.Event()
    writes.group._write = lambda item: first_may_end.wait() and item
    first = pool.submit(writes.group.publish, 1)
    until(lambda: writes.group._leader is not None)
    writes.goes_on.clear()

    def follow() -> None:
        writes.until_waiting(2)
        with pytest.raises(psycopg.OperationalError, match="interrupted"):
            writes.group.publish(3)

    def kill() -> None:
        writes.until_waiting(2, 3)
        first_may_end.set()
        until(lambda: writes.begun)
        os.kill(os.getpid(), signal.SIGUSR1)

    others = [pool.submit(follow), pool.submit(kill)]
    with on_signal(interrupt), pytest.raises(Interruption):
        writes.group.publish(2)
    for each in others:
        each.result()
    assert first.result() == 1 and writes.group.publish(4) == 4


def test_a_signal_handler_publishes_inside_a_write() -> None:
    writes = Writes()
    writes.goes_on.set()

    def write(item: int) -> int:
        if item == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        writes.done.append([item])
        return item

    writes.group._write = write
    with on_signal(lambda: writes.group.publish(2)):
        assert writes.group.publish(1) == 1
    assert writes.done == [[2], [1]] and writes.group._leader is None


def test_an_error_that_is_no_messages_fault(pool: ThreadPoolExecutor) -> None:
    """It is raised where it occurred; the thread that comes next goes on."""

    def write(item: int) -> int:
        raise Interruption

    writes = Writes()
    stock, writes.group._write = writes.group._write, write
    with pytest.raises(Interruption):
        writes.group.publish(1)
    writes.group._write = stock
    writes.goes_on.set()
    assert writes.group.publish(2) == 2
