"""What runs in a subprocess: `python -m backends.child COMMAND`. Figures are JSON on stdout."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery import chord, group
from celery.result import GroupResult
from sqlalchemy import text

from backends.app import app, last, noop, row, sessions

#: Seconds that a caller waits for a result.
LIMIT = 120.0


def send(count: int) -> None:
    """Publishes no-ops, unmeasured."""
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            noop.apply_async(producer=producer)


def send_rows(count: int) -> None:
    """Publishes tasks that insert a row each, unmeasured."""
    with sessions().begin() as session:
        session.execute(text("CREATE TABLE IF NOT EXISTS bench_rows (n integer NOT NULL)"))
    with app.producer_pool.acquire(block=True) as producer:
        for n in range(count):
            row.apply_async((n,), producer=producer)


def latency(count: int) -> None:
    """`delay().get()`, one after the other."""
    for _ in range(20):
        noop.delay().get(timeout=LIMIT)
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        noop.delay().get(timeout=LIMIT)
        taken.append(time.perf_counter() - begun)
    _say(p50_ms=_percentile(taken, 50), p99_ms=_percentile(taken, 99), max_ms=1e3 * max(taken))


def groups(count: int, times: int) -> None:
    """A group of no-ops until `get` returns."""
    _repeat(times, lambda: group(noop.s() for _ in range(count)).delay().get(timeout=LIMIT))


def chords(count: int, times: int) -> None:
    """A chord of no-ops until the body's result is there."""
    _repeat(times, lambda: chord((noop.s() for _ in range(count)), last.s())().get(timeout=LIMIT))


def send_chord(count: int) -> None:
    """Publishes a chord of no-ops, unmeasured."""
    chord((noop.s() for _ in range(count)), last.s())()


def waits(count: int) -> None:
    """One process that waits for many results; they are published before."""
    results = [noop.delay() for _ in range(count)]
    begun = time.perf_counter()
    GroupResult("waited", results, app=app).get(timeout=LIMIT)
    _say(seconds=time.perf_counter() - begun, cpu_s=time.process_time())


def _repeat(times: int, call: Callable[[], Any]) -> None:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    _say(median_s=sorted(taken)[len(taken) // 2], max_s=max(taken))


def _percentile(values: Sequence[float], percent: int) -> float:
    return 1e3 * sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def _say(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


COMMANDS: dict[str, Callable[..., None]] = {
    "send": send,
    "send_rows": send_rows,
    "send_chord": send_chord,
    "latency": latency,
    "groups": groups,
    "chords": chords,
    "waits": waits,
}

if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    COMMANDS[command](*map(int, arguments))
