"""Take-over: kill -9 the leading `celery beat`, and time the standby."""

import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from beats.contenders import Contender
from beats.measures import Bench, Figures, with_fleet
from beats.processes import ProcessError, last_words, wait_until
from beats.spec import Fleet, Spec

_SESSIONS = """
    SELECT l.pid, l.granted FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.objid = 1050 AND l.classid = 0
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def takeover(bench: Bench, contender: Contender, repeats: int) -> Figures:
    """Kills the leader of two real beats, `repeats` times.

    Returns the milliseconds until the standby has the lock, and until its first launch is
    committed. Something is due every 50 ms, so a launch can come at once.
    """
    fleet = Fleet(20, every=1.0, due=20, due_at=time.time() + 5, step=1 / 20)
    contender = with_fleet(contender, fleet)
    bench.seed(contender)
    locks, launches = [], []
    with psycopg.connect(contender.spec.database, autocommit=True) as connection:

        def one(query: str, *values: Any) -> Any:
            row = connection.execute(query, values).fetchone()
            return row[0] if row else None

        def holder() -> int | None:
            granted = [pid for pid, granted in connection.execute(_SESSIONS) if granted]
            return granted[0] if granted else None

        def waits() -> bool:
            return any(not granted for _, granted in connection.execute(_SESSIONS))

        def launched_since(moment: Any) -> bool:
            return bool(one("SELECT 1 FROM pgbeat.ticks WHERE decided_at > %s LIMIT 1", moment))

        specs = [_folder(contender.spec, name) for name in ("one", "two")]
        leader = bench.processes.beat(specs[0], contender.scheduler)
        if not wait_until(holder, 30):
            raise ProcessError(last_words(specs[0]) or "no beat took the lock")
        for repeat in range(repeats):
            spec = specs[(repeat + 1) % 2]
            standby = bench.processes.beat(spec, contender.scheduler)
            if not wait_until(waits, 30):
                raise ProcessError(last_words(spec) or "no beat stands by")
            moment = one("SELECT clock_timestamp()")
            if not wait_until(lambda since=moment: launched_since(since), 30):
                raise ProcessError("the leader launches nothing")
            time.sleep(random.uniform(0.2, 1.2))
            old = holder()
            begun = time.perf_counter()
            bench.processes.kill(leader)
            # What is decided after this is the standby's: the dead don't commit.
            dead_at = one("SELECT clock_timestamp()")
            if not wait_until(lambda dead=old: holder() not in (None, dead), 60, pause=0.001):
                raise ProcessError("nobody took over within 60 s")
            locks.append((time.perf_counter() - begun) * 1000)
            if not wait_until(lambda since=dead_at: launched_since(since), 60, pause=0.001):
                raise ProcessError("the standby launched nothing within 60 s")
            launches.append((time.perf_counter() - begun) * 1000)
            bench.say(f"    take-over {repeat + 1}: {locks[-1]:.0f} ms, {launches[-1]:.0f} ms")
            leader = standby
        bench.processes.kill(leader)
    return {
        "repeats": len(locks),
        "lock_ms": locks,
        "launch_ms": launches,
        "lock_median_ms": statistics.median(locks),
        "launch_median_ms": statistics.median(launches),
        "lock_max_ms": max(locks),
        "launch_max_ms": max(launches),
    }


def _folder(spec: Spec, name: str) -> Spec:
    folder = Path(spec.folder) / name
    folder.mkdir(exist_ok=True)
    return replace(spec, folder=str(folder))
