"""Evaluates conditions on threads of their own, so that none delays another schedule."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from queue import Empty, SimpleQueue

from pgbeat.beat.evaluation import Evaluation
from pgbeat.beat.evaluator import Evaluator

logger = logging.getLogger("pgbeat")

#: Seconds beyond the limit, so that the database is the first to say that a statement took long.
_GRACE = 0.5


@dataclass(slots=True, eq=False)
class _Work:
    evaluations: Sequence[Evaluation]
    run: Callable[[], list[Evaluation]]
    started: float | None = None
    result: Sequence[Evaluation] = ()
    is_done: bool = False
    #: Whether its time is up; its thread keeps running.
    abandoned: bool = False
    #: Whether its result must be dropped.
    unwanted: bool = False
    #: Guards the race between a late result and giving up on it.
    lock: threading.Lock = field(default_factory=threading.Lock)


class ConditionPool:
    """Runs evaluations on up to `threads` daemon threads, each for at most `timeout` seconds.

    Up to `capacity` schedules may wait or be evaluated. A thread can't be stopped from outside. If
    its time is up, its result is dropped, and another thread takes its place; its schedule is
    `stuck` until it returns.
    """

    def __init__(self, threads: int, timeout: float, capacity: int) -> None:
        self._threads, self._timeout, self._capacity = threads, timeout, capacity
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._work: dict[int, _Work] = {}
        self._abandoned: dict[int, _Work] = {}
        self._alive = self._idle = 0
        self._mutex = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    @property
    def held(self) -> list[int]:
        """Ids of the schedules that are being evaluated."""
        return list(self._work)

    @property
    def room(self) -> int:
        """Returns how many more schedules may be submitted now."""
        return max(0, self._capacity - len(self._work))

    def is_stuck(self, schedule_id: int) -> bool:
        """Returns whether an evaluation of the schedule that was given up still runs."""
        work = self._abandoned.get(schedule_id)
        if work is not None and work.is_done:
            del self._abandoned[schedule_id]
            return False
        return work is not None

    def submit(
        self, evaluations: Sequence[Evaluation], run: Callable[[], list[Evaluation]]
    ) -> None:
        """Queues an evaluation of some schedules together. `run` must not raise."""
        work = _Work(evaluations, run)
        for evaluation in evaluations:
            self._work[evaluation.schedule.id] = work
        self._queue.put(work)
        with self._mutex:
            start = self._idle < self._queue.qsize() and self._alive < self._threads
            self._alive += start
        if start:
            threading.Thread(target=self._serve, name="pgbeat-condition", daemon=True).start()

    def collect(self) -> tuple[list[Evaluation], list[Evaluation]]:
        """Returns evaluations that have returned, and those whose time is up."""
        self._drain()
        results: list[Evaluation] = []
        expired: list[Evaluation] = []
        now = time.monotonic()
        for work in dict.fromkeys(self._work.values()):
            ids = [evaluation.schedule.id for evaluation in work.evaluations]
            with work.lock:
                if work.is_done:
                    if not work.unwanted:
                        results += work.result
                elif work.started is not None and now - work.started > self._timeout + _GRACE:
                    work.abandoned = True
                    self._abandoned.update(dict.fromkeys(ids, work))
                    if not work.unwanted:
                        expired += work.evaluations
                    with self._mutex:
                        self._alive -= 1
                else:
                    continue
            for schedule_id in ids:
                del self._work[schedule_id]
        return results, expired

    def next_deadline(self) -> float | None:
        """Returns the seconds until the next evaluation's time is up; `None` if none runs."""
        starts = [work.started for work in self._work.values() if work.started is not None]
        if not starts:
            return None
        return max(0.0, min(starts) + self._timeout + _GRACE - time.monotonic()) + 0.01

    def forget(self) -> None:
        """Drops the results of everything under way: another beat may decide it meanwhile.

        What runs is held until it ends.
        """
        for work in self._work.values():
            work.unwanted = True

    def close(self) -> None:
        """Ends the threads, soon; one that evaluates ends when its condition returns.

        Takes no lock, since a signal's handler may call it.
        """
        for _ in range(self._alive):
            self._queue.put(None)

    def fileno(self) -> int:
        """Returns the file descriptor that is readable when a result came in."""
        return self._wake_read

    def _drain(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            return

    def _serve(self) -> None:
        while True:
            with self._mutex:
                self._idle += 1
            work = self._queue.get()
            with self._mutex:
                self._idle -= 1
            if work is None:
                return
            with work.lock:
                if work.abandoned:
                    continue
                work.started = time.monotonic()
            result = work.run()
            with work.lock:
                work.result, work.is_done = result, True
                late = work.abandoned
            if late:
                logger.warning(
                    "Schedule '%s': a condition that had been given up returned after %.1f s",
                    work.evaluations[0].schedule.name,
                    time.monotonic() - work.started,
                )
                return  # another thread has taken this one's place
            try:
                os.write(self._wake_write, b"\0")
            except (BlockingIOError, OSError):
                continue  # a full pipe wakes as well as one more byte


def evaluate_alone(evaluator: Evaluator, evaluation: Evaluation, now: datetime) -> Evaluation:
    """Evaluates one schedule on a new thread, and waits for as long as a condition may take.

    A thread can't be stopped: if its time is up, it keeps running, and its result is dropped.
    """
    results: SimpleQueue[Evaluation] = SimpleQueue()
    threading.Thread(
        target=lambda: results.put(evaluator.evaluate(evaluation, now)),
        name="pgbeat-condition",
        daemon=True,
    ).start()
    try:
        return results.get(timeout=evaluator.timeout + _GRACE)
    except Empty:
        return evaluator.time_out(evaluation)
