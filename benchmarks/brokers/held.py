"""Throughput on Postgres while a transaction elsewhere in the database stays open.

Dead rows can't be removed in that time, whatever autovacuum does; a queue's table is nothing but
dead rows. Reports of the nightly kind and forgotten sessions do that to every database.
"""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from beats.measures import Figures
from beats.processes import ProcessError
from usage import Usage

from brokers.contenders import PostgresBroker
from brokers.measures import PREFORK, Bench, Crew, micros

_SNAPSHOT = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT count(*) FROM pg_class")
#: What is held open: statements of its session.
HELD: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "a read-only snapshot": _SNAPSHOT,
    "a snapshot and pg_dump": _SNAPSHOT,
    "a writing transaction": (
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "SELECT txid_current()",
        "CREATE TABLE bench_held AS SELECT 1 AS held",
    ),
}
#: Messages that wait in a window: filled up to the upper number when below the lower one.
WAITING = (2_500, 5_000)
#: The windows in which a full queue is drained: how many seconds, at most, and how many there are.
WINDOW, WINDOWS = 20.0, 7
#: Seconds between two additions of messages at a steady rate.
STEP = 0.1


def drain_held(
    bench: Bench, contender: PostgresBroker, held: str, seconds: float, rate: float
) -> Figures:
    """Returns a busy worker's no-ops a second, and the CPU time of each.

    Measures when something has just been opened, and then in even distances until the end of the
    time that it is held. Between these windows messages come at a rate, or always, if it is 0.
    """
    windows = WINDOWS if seconds >= 2 * WINDOWS * WINDOW else 2
    length = min(WINDOW, seconds / 3)
    pause = (seconds - windows * length) / (windows - 1)
    bench.fill(contender, WAITING[1])
    with bench.workers(contender, *PREFORK) as crew:
        crew.wait_for_first()
        supply = Supply(contender, crew)
        dump: tuple[str, ...] = ()
        if "pg_dump" in held:
            dump = (str(contender.program("pg_dump")), "--file=/dev/null", contender.url)
        with _open(contender, HELD[held]), _Dumps(dump) as dumps:
            measured = [_window(supply, length, dumps)]
            for _ in range(windows - 1):
                if rate:
                    supply.feed(pause, rate)
                else:
                    supply.keep_up(pause)
                measured.append(_window(supply, length, dumps))
    first, last = measured[0], measured[-1]
    kept = 100 * last["per_s"] / first["per_s"] if first["per_s"] else 0.0
    return {
        "seconds": seconds,
        "window_s": length,
        "windows": measured,
        "first": first,
        "last": last,
        "least_per_s": min(window["per_s"] for window in measured),
        "most_waited_ms": supply.most_waited * 1000,
        "kept_percent": kept,
    }


def _window(supply: "Supply", seconds: float, dumps: "_Dumps") -> Figures:
    """Returns what the crew did in a time, and for how much of it a dump ran."""
    before = dumps.seconds()
    figures = supply.measure(seconds)
    return {**figures, "dumping_percent": 100 * (dumps.seconds() - before) / seconds}


class Supply:
    """Keeps messages waiting for a crew that works them off."""

    def __init__(self, contender: PostgresBroker, crew: Crew) -> None:
        self._contender = contender
        self._crew = crew
        self._filled = WAITING[1]
        #: At a steady rate, the longest that a worker was behind, in seconds.
        self.most_waited = 0.0

    def keep_up(self, seconds: float) -> None:
        """Fills the queue up whenever it gets low, for a time."""
        low, high = WAITING
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._crew.wait(self._filled - low, min(0.2, left)):
                if self._crew.executions.count() >= self._filled:
                    raise ProcessError("the worker ran out of messages")
                self._fill(high - low)

    def feed(self, seconds: float, rate: float) -> None:
        """Adds messages at a steady rate, a second, for a time."""
        begun, added = time.monotonic(), 0
        while (passed := time.monotonic() - begun) < seconds:
            if due := int(passed * rate) - added:
                self._fill(due)
                added += due
                behind = self._filled - self._crew.executions.count() - due
                if passed > 10:  # by then it has worked off what the last window left
                    self.most_waited = max(self.most_waited, behind / rate)
            time.sleep(STEP)

    def measure(self, seconds: float) -> Figures:
        """Drains a full queue for a time, and returns what the crew did."""
        self._fill(max(WAITING[1] - (self._filled - self._crew.executions.count()), 0))
        worker, server = self._crew.usage(), Usage(self._contender.spec.server)
        before, begun = self._crew.executions.count(), time.monotonic()
        self.keep_up(seconds)
        spent = {"worker_us": worker.seconds(), "server_us": server.seconds()}
        count, took = self._crew.executions.count() - before, time.monotonic() - begun
        return {"filled": self._filled, "per_s": count / took, **micros(spent, count)}

    def _fill(self, count: int) -> None:
        if count:
            self._contender.copy(count)
            self._filled += count


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


class _Dumps:
    """Dumps a database again and again, with a second between two dumps."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv
        self._done = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._spent, self._began = 0.0, 0.0

    def seconds(self) -> float:
        """Returns for how long dumps have run so far."""
        began = self._began
        return self._spent + (time.monotonic() - began if began else 0.0)

    def __enter__(self) -> "_Dumps":
        if self._argv:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self._argv:
            self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(1):
            self._began = time.monotonic()
            subprocess.run(self._argv, check=True)
            self._spent, self._began = self.seconds(), 0.0
