"""The harness's contract: what the environment says, what stdin asks for, what stdout tells."""

import json
import math
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any, Self

#: Seconds that the percentiles look back.
WINDOW = 30
#: Buckets of a histogram grow by this: three significant figures.
_STEP = math.log(1.001)


@dataclass(frozen=True)
class Config:
    """What the harness asks for."""

    mode: str
    pacing: str
    rate: int
    control: Path | None
    batch_max: int
    batch_s: float
    target_depth: int
    workers: int
    payload: int
    sample_every: int
    instance: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Reads the environment. Raises `ValueError` for a scenario that this adapter lacks."""

        def number(name: str, default: int) -> int:
            return int(environment.get(name) or default)

        scenario = environment.get("SCENARIO", "long_horizon")
        if scenario != "long_horizon":
            raise ValueError(f"SCENARIO must be long_horizon, got {scenario}")
        control = environment.get("PRODUCER_RATE_CONTROL_FILE")
        return cls(
            mode=environment.get("PRODUCER_MODE", "fixed"),
            pacing=environment.get("PRODUCER_PACING", "adapter"),
            rate=number("PRODUCER_RATE", 800),
            control=Path(control) if control else None,
            batch_max=number("PRODUCER_BATCH_MAX", 128),
            batch_s=number("PRODUCER_BATCH_MS", 25) / 1000,
            target_depth=number("TARGET_DEPTH", 1000),
            workers=number("WORKER_COUNT", 32),
            payload=number("JOB_PAYLOAD_BYTES", 256),
            sample_every=number("SAMPLE_EVERY_S", 5),
            instance=number("BENCH_INSTANCE_ID", 0),
        )


class Histogram:
    """The percentiles of the last `WINDOW` seconds, in bounded memory."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Counter[int]]] = deque()

    def add(self, ms: float) -> None:
        """Counts a latency."""
        second = int(time.monotonic())
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter()))
            while self._seconds[0][0] <= second - WINDOW:
                self._seconds.popleft()
        self._seconds[-1][1][round(math.log(max(ms, 0.001)) / _STEP)] += 1

    def percentile(self, share: int) -> float:
        """Returns the latency that so many percent of the window's stay below; 0 without any."""
        since = time.monotonic() - WINDOW
        total: Counter[int] = Counter()
        for second, counts in self._seconds:
            if second >= since:
                total.update(counts)
        left = total.total() * share / 100
        for bucket in sorted(total):
            left -= total[bucket]
            if left <= 0:
                return math.exp(bucket * _STEP)
        return 0.0


def batches(config: Config, depth: Callable[[], int], stopped: Event) -> Iterator[int]:
    """Yields how many jobs to insert next, when it is time."""
    if config.mode == "depth-target":
        return _up_to(config, depth, stopped)
    if config.pacing == "harness":
        return _tokens(config)
    return _at_rate(config, stopped)


def _tokens(config: Config) -> Iterator[int]:
    """The harness paces: each line of stdin is `ENQUEUE n`."""
    for line in sys.stdin:
        word, _, number = line.partition(" ")
        if word == "ENQUEUE":
            left = int(number)
            while left > 0:
                yield min(left, config.batch_max)
                left -= config.batch_max


def _at_rate(config: Config, stopped: Event) -> Iterator[int]:
    """What the time that really went by allows."""
    credit, last = 0.0, time.monotonic()
    while not stopped.wait(config.batch_s):
        now = time.monotonic()
        credit += rate_now(config) * (now - last)
        last = now
        while credit >= 1:
            count = min(int(credit), config.batch_max)
            yield count
            credit -= count


def _up_to(config: Config, depth: Callable[[], int], stopped: Event) -> Iterator[int]:
    """As many as the queue lacks."""
    while not stopped.is_set():
        count = min(config.target_depth - depth(), config.batch_max)
        if count > 0:
            yield count
        else:
            stopped.wait(0.01)


def rate_now(config: Config) -> float:
    """Returns the rate that the phase asks for; 0 if no rate is asked for."""
    if config.mode != "fixed":
        return 0.0
    try:
        return float(config.control.read_text()) if config.control else config.rate
    except (OSError, ValueError):  # being written
        return config.rate


class Telemetry:
    """Writes records for the harness."""

    def __init__(self, system: str, config: Config) -> None:
        self._system, self._config = system, config
        every = config.sample_every
        self._begun = time.monotonic()
        #: When the next sample is due, on the wall clock's boundary.
        self._due = (time.time() // every + 1) * every

    def describe(self, manifest: Mapping[str, Any], version: str) -> None:
        """Writes the descriptor, from the static manifest."""
        self._write(
            kind="descriptor",
            event_tables=manifest["event_tables"],
            event_indexes=manifest["event_indexes"],
            extensions=manifest["extensions"],
            version=version,
            schema_version=version,
            db_name=manifest["db_name"],
            started_at=_now(),
        )

    def due(self) -> float | None:
        """Returns the seconds since the last sample, if another is due."""
        if time.time() < self._due:
            return None
        while self._due <= time.time():
            self._due += self._config.sample_every
        begun, self._begun = self._begun, time.monotonic()
        return self._begun - begun

    def sample(self, values: Mapping[str, tuple[float, float]]) -> None:
        """Writes a record for each metric: its value, and the seconds that it covers."""
        t = _now()
        for metric, (value, window) in values.items():
            self._write(
                t=t,
                kind="adapter",
                subject_kind="adapter",
                subject="",
                metric=metric,
                value=value,
                window_s=window,
            )

    def _write(self, **record: Any) -> None:
        record |= {"system": self._system, "instance_id": self._config.instance}
        os.write(sys.stdout.fileno(), json.dumps(record).encode() + b"\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
