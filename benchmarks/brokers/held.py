"""Throughput on Postgres while a transaction elsewhere in the database stays open.

Dead rows can't be removed in that time, whatever autovacuum does; a queue's table is nothing but
dead rows. Reports of the nightly kind and forgotten sessions do that to every database.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from beats.measures import Figures
from beats.processes import ProcessError
from usage import Usage

from brokers.contenders import PostgresBroker
from brokers.measures import PREFORK, Bench, Crew, micros

#: What is held open: statements of its session.
HELD: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "a read-only snapshot": (
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        "SELECT count(*) FROM pg_class",
    ),
    "a writing transaction": (
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "SELECT txid_current()",
        "CREATE TABLE bench_held AS SELECT 1 AS held",
    ),
}
#: Messages that wait: filled up to the upper number when below the lower one.
WAITING = (2_500, 5_000)
#: The windows that are compared, in seconds, at most.
WINDOW = 20.0


def drain_held(bench: Bench, contender: PostgresBroker, held: str, seconds: float) -> Figures:
    """Returns a busy worker's no-ops a second, and the CPU time of each.

    Measures when something has just been opened, and at the end of the time that it is held.
    """
    window = min(WINDOW, seconds / 3)
    bench.fill(contender, WAITING[1])
    with bench.workers(contender, *PREFORK) as crew:
        crew.wait_for_first()
        supply = Supply(contender, crew)
        with _open(contender, HELD[held]):
            first = supply.measure(window)
            supply.keep_up(seconds - 2 * window)
            last = supply.measure(window)
    kept = 100 * last["per_s"] / first["per_s"] if first["per_s"] else 0.0
    return {
        "seconds": seconds,
        "window_s": window,
        "first": first,
        "last": last,
        "kept_percent": kept,
    }


class Supply:
    """Keeps messages waiting for a crew that works them off."""

    def __init__(self, contender: PostgresBroker, crew: Crew) -> None:
        self._contender = contender
        self._crew = crew
        self._filled = WAITING[1]

    def keep_up(self, seconds: float) -> None:
        """Fills the queue up whenever it gets low, for a time."""
        low, high = WAITING
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._crew.wait(self._filled - low, min(0.2, left)):
                if self._crew.executions.count() >= self._filled:
                    raise ProcessError("the worker ran out of messages")
                self._contender.copy(high - low)
                self._filled += high - low

    def measure(self, seconds: float) -> Figures:
        """The same, and what the crew did in that time."""
        worker, server = self._crew.usage(), Usage(self._contender.spec.server)
        before, begun = self._crew.executions.count(), time.monotonic()
        self.keep_up(seconds)
        spent = {"worker_us": worker.seconds(), "server_us": server.seconds()}
        count, took = self._crew.executions.count() - before, time.monotonic() - begun
        return {"per_s": count / took, **micros(spent, count)}


@contextmanager
def _open(contender: PostgresBroker, statements: tuple[str, ...]) -> Iterator[None]:
    with contender.connect() as connection:
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        for statement in statements:
            connection.execute(statement)
        try:
            yield
        finally:
            if statements:
                connection.execute("ROLLBACK")
