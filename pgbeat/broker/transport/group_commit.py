"""Writes what several threads publish at the same moment in one transaction.

A commit waits for the server's disk, and the commits of one connection wait for each other. So the
first thread (or greenlet) writes at once; those that come meanwhile wait, and one of them then
writes for all of them. Each returns after the commit of its message. A lone thread never waits.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from pgbeat.database import connections
from pgbeat.errors import PgbeatError

T = TypeVar("T")

#: What a message or the database is to blame for; anything else interrupts the thread that writes.
_FAILURES = (psycopg.Error, SQLAlchemyError, PgbeatError)
#: The most messages of one transaction.
_MOST = 500


class _Waiting(Generic[T]):
    """A thread that waits for its message's commit, or for its turn to write."""

    __slots__ = ("count", "error", "item", "leads", "thread", "woken")

    def __init__(self, item: T) -> None:
        self.item, self.thread = item, threading.get_ident()
        #: Held until the message is committed, or has failed, or the thread must write.
        self.woken = threading.Lock()
        self.woken.acquire()
        self.leads = False
        self.count: int | None = None
        self.error: BaseException | None = None

    def result(self) -> int:
        """Returns the count, or raises the error."""
        if self.error is not None:
            raise self.error
        if self.count is None:
            raise psycopg.OperationalError(
                "the thread that wrote this message was interrupted: it may be published or not"
            )
        return self.count


class GroupCommit(Generic[T]):
    """Publishes messages for the threads of a process.

    `write` commits a message and returns how many queues got it. `write_all` commits several, which
    `share` a transaction, and returns the count of each, or `None` where `write` must do it.
    """

    def __init__(
        self,
        write: Callable[[T], int],
        write_all: Callable[[Sequence[T]], Sequence[int | None]],
        share: Callable[[T, T], bool],
    ) -> None:
        self._write, self._write_all, self._share = write, write_all, share
        self._mutex = threading.Lock()
        self._waiting: deque[_Waiting[T]] = deque()
        #: The thread that writes, if any.
        self._leader: int | None = None

    def publish(self, item: T) -> int:
        """Publishes a message; returns how many queues got it. Raises what the write raises."""
        me, leads, waiting = threading.get_ident(), False, None
        try:
            with self._mutex:
                if self._leader is None:
                    self._leader, leads = me, True
                elif self._leader != me:  # otherwise a signal handler publishes
                    waiting = _Waiting(item)
                    self._waiting.append(waiting)
            return self._write(item) if waiting is None else self._wait(waiting)
        finally:
            if leads:
                self._pass_on()

    def _wait(self, mine: _Waiting[T]) -> int:
        try:
            mine.woken.acquire()
            if mine.leads:
                self._write_batch(self._take(mine))
        except BaseException:
            with self._mutex:
                if mine in self._waiting:
                    self._waiting.remove(mine)
            raise
        finally:
            if mine.leads:
                self._pass_on()
        return mine.result()

    def _take(self, mine: _Waiting[T]) -> list[_Waiting[T]]:
        """Returns those that share a transaction with the first one, which is the caller's."""
        with self._mutex:
            batch = [waiter for waiter in self._waiting if self._share(mine.item, waiter.item)]
            batch = list(islice(batch, _MOST))
            taken = set(map(id, batch))
            self._waiting = deque(waiter for waiter in self._waiting if id(waiter) not in taken)
        return batch

    def _pass_on(self) -> None:
        """Lets the next one write, if any waits."""
        with self._mutex:
            first = self._waiting[0] if self._waiting else None
            self._leader = None if first is None else first.thread
            if first is not None:
                first.leads = True
                first.woken.release()

    def _write_batch(self, batch: Sequence[_Waiting[T]]) -> None:
        """Writes a batch and wakes its threads, whatever happens."""
        try:
            if len(batch) > 1:
                self._write_together(batch)
            for waiter in batch:
                if waiter.count is None and waiter.error is None:
                    self._write_alone(waiter)
        finally:
            for waiter in batch[1:]:
                waiter.woken.release()

    def _write_together(self, batch: Sequence[_Waiting[T]]) -> None:
        """Writes a batch; leaves out those that must be written alone."""
        try:
            counts = self._write_all([waiter.item for waiter in batch])
        except _FAILURES as error:
            # A lost connection may have committed them. Otherwise none is: one of them is invalid.
            if connections.is_lost(error):
                for waiter in batch:
                    waiter.error = copy.copy(error)
            return
        for waiter, count in zip(batch, counts, strict=True):
            waiter.count = count

    def _write_alone(self, one: _Waiting[T]) -> None:
        try:
            one.count = self._write(one.item)
        except _FAILURES as error:
            one.error = error
