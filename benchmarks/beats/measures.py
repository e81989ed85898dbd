"""The measures: each takes a contender, seeds it, runs it in subprocesses, returns figures."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from usage import Usage

from beats.contenders import Contender, Pgbeat
from beats.processes import ProcessError, Processes, last_words, read_line, wait_until
from beats.spec import Fleet

#: Limits in seconds: a seeding, a construction with its idle passes, a measure of launches.
SEED_LIMIT = 3_600.0
START_LIMIT = 120.0
LAUNCH_LIMIT = 15.0

Figures = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What every measure needs: the process table and a way to say how it goes."""

    processes: Processes
    say: Callable[[str], None]

    def seed(self, contender: Contender) -> None:
        """Puts the contender's fleet into its store and empties its queue."""
        _, in_time = self.processes.run(contender.spec, "seed", limit=SEED_LIMIT)
        if not in_time:
            raise ProcessError(f"seeding took more than {SEED_LIMIT:.0f} s")
        contender.queue().purge()


def micros(spent: dict[str, float | None], count: int) -> Figures:
    """CPU time of each of `count` things, in microseconds, of what could be told."""
    return {
        name: 1e6 * seconds / count
        for name, seconds in spent.items()
        if seconds is not None and count
    }


def with_fleet(contender: Contender, fleet: Fleet, **settings: Any) -> Contender:
    """The same contender with other schedules."""
    return type(contender)(contender.spec.with_fleet(fleet, **settings))


def idle(bench: Bench, contender: Contender, size: int) -> Figures:
    """Start-up, passes with nothing due, and memory: `size` schedules, next due in a day."""
    contender = with_fleet(contender, Fleet(size))
    bench.seed(contender)
    said, in_time = bench.processes.run(contender.spec, "idle", limit=START_LIMIT)
    figures: Figures = {key: value for line in said for key, value in line.items()}
    if not in_time:
        figures["limit_s"] = START_LIMIT
        if "startup_mb" in figures:
            figures["peak_mb"] = figures["startup_mb"]
    return figures


#: What pgbeat decides with besides the time, for the measure of its launches: columns as SQL.
WITH: dict[str, dict[str, str]] = {
    "a condition in SQL each": {"condition_sql": "format('SELECT %%s + 1 > 0', n)"},
    "the same condition in SQL": {"condition_sql": "'SELECT count(*) > 0 FROM pgbeat.schedules'"},
    "policies": {
        "overlap": "'skip'",
        "catch_up": "'all'",
        "grace": "'1 hour'",
        "jitter": "'1 minute'",
        "min_interval": "'1 second'",
        "max_runs": "1000",
    },
}


def launch(
    bench: Bench, contender: Contender, size: int, due: int, columns: dict[str, str] | None = None
) -> Figures:
    """Launches a second: `due` of `size` schedules due at once, counted in the broker."""
    contender = with_fleet(contender, Fleet(size, due=due, columns=columns or {}))
    bench.seed(contender)
    queue = contender.queue()
    process = bench.processes.child(contender.spec, "launch")
    assert process.stdin and process.stdout
    try:
        if not read_line(process.stdout, START_LIMIT):
            if process.poll() is not None:
                raise ProcessError(last_words(contender.spec) or "it ended")
            return {"limit_s": START_LIMIT}
        usage = {"beat_us": Usage(process.pid), "server_us": Usage(*contender.spec.servers)}
        begun = time.perf_counter()
        process.stdin.write("go\n")
        process.stdin.flush()
        while True:
            launched, seconds = queue.count(), time.perf_counter() - begun
            if launched >= due or seconds >= LAUNCH_LIMIT:
                break
            time.sleep(0.01)
        spent = {name: each.seconds() for name, each in usage.items()}
    finally:
        bench.processes.kill(process)
    rate = {"launched": launched, "seconds": seconds, "per_s": launched / seconds}
    return {**rate, **micros(spent, launched)}


def change(bench: Bench, contender: Contender, size: int, repeats: int) -> Figures:
    """From a change to a stored schedule to its message, under a real `celery beat`."""
    contender = with_fleet(contender, Fleet(size, due=1), **contender.change_settings)
    bench.seed(contender)
    queue = contender.queue()
    process = bench.processes.beat(contender.spec, contender.scheduler)
    try:
        # The one schedule that is due shows that beat is up.
        if not wait_until(queue.count, START_LIMIT):
            raise ProcessError(last_words(contender.spec) or "beat launched nothing")
        # Poll periods are 5 s; a change is waited for twice as long, and made at any moment of it.
        longest = 5 if repeats <= 5 else 1
        limit = repeats * (longest + 10) + 20
        said, _ = bench.processes.run(contender.spec, "change", repeats, longest, limit=limit)
    finally:
        bench.processes.kill(process)
    times = [line["change_ms"] for line in said]
    figures: Figures = {"repeats": len(times), "ms": times}
    if len(times) < repeats:
        return {**figures, "limit_s": limit}
    return {**figures, "median_ms": statistics.median(times), "max_ms": max(times)}


def lateness(bench: Bench, contender: Contender, size: int, seconds: int) -> Figures:
    """How late `size` schedules on one-second intervals are, as the broker sees it.

    Their due times are spread over the second, so the k-th launch is due at start + k / size,
    whichever schedule it belongs to: a contender that drifts or can't keep up gets later and later.
    The first two seconds don't count. Launches that never came count as late as the end shows.
    """
    warm, lead, grace = 2, 12.0, 2.0
    start = time.time() + lead
    fleet = Fleet(size, every=1.0, due=size, due_at=start, step=1 / size)
    contender = with_fleet(contender, fleet)
    bench.seed(contender)
    queue = contender.queue()
    first, expected = warm * size, (warm + seconds) * size
    late: list[float] = []
    process = bench.processes.beat(contender.spec, contender.scheduler)
    try:
        seen, end = 0, start + warm + seconds + grace
        while seen < expected and (now := time.time()) < end:
            count = queue.count()
            late += [
                now - (start + k / size) for k in range(max(seen, first), min(count, expected))
            ]
            seen = max(seen, count)
            time.sleep(0.004)
    finally:
        bench.processes.kill(process)
    missing = [end - (start + k / size) for k in range(max(seen, first), expected)]
    figures: Figures = {
        "due": expected,
        "launched": min(seen, expected),
        "launched_percent": 100 * min(seen, expected) / expected,
        **percentiles([1000 * value for value in late + missing]),
    }
    if missing:
        figures["remark"] = "what it did not launch counts as late as the end of the run shows"
    if isinstance(contender, Pgbeat):
        figures["decided"] = _decided(contender, start + warm, seconds)
    return figures


def _decided(contender: Contender, start: float, seconds: int) -> Figures:
    import psycopg

    with psycopg.connect(contender.spec.database) as connection:
        rows = connection.execute(
            "SELECT outcome, extract(epoch FROM decided_at - due_at)::float8 * 1000"
            " FROM pgbeat.ticks"
            " WHERE due_at >= to_timestamp(%(start)s) AND due_at < to_timestamp(%(end)s)",
            {"start": start, "end": start + seconds},
        ).fetchall()
    launched = [late for outcome, late in rows if outcome == "launched"]
    return {"ticks": len(rows), "launched": len(launched), **percentiles(launched)}


def percentiles(values: Sequence[float]) -> Figures:
    """p50, p95, p99 and the maximum."""
    if not values:
        return {}
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]

    return {"p50_ms": at(0.5), "p95_ms": at(0.95), "p99_ms": at(0.99), "max_ms": ordered[-1]}
