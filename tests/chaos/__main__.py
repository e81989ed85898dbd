"""Makes chaos: `python -m tests.chaos --minutes 120 --seed 7`."""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Container
from pathlib import Path
from typing import Any

from tests.chaos import load, promises, site
from tests.chaos.broken_builds import BUILDS
from tests.chaos.faults import Faults
from tests.chaos.load import Load
from tests.chaos.record import Record, note
from tests.chaos.site import Site

#: Once it is calm, everything unfinished must finish: within so many seconds something must, and
#: all within so many.
_STILL, _CALM = 60.0, 600.0
_UNFINISHED = """
    SELECT (SELECT count(*) FROM pgbeat.jobs WHERE finished_at IS NULL)
         + (SELECT count(*) FROM pgbeat.executions WHERE state = 'running')
         + (SELECT count(*) FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id
             WHERE q.name = 'celery')
         + (SELECT count(*) FROM pgbeat.schedules
             WHERE upstream_ended > 0 AND after IS NOT NULL
                OR once_at IS NOT NULL AND enabled)
"""
#: What is due at the end of something else, or once, goes on.
_PAUSE = "UPDATE pgbeat.schedules SET paused_at = now() WHERE after IS NULL AND once_at IS NULL"
#: Schedules that should have been decided long ago.
_STALLED = """
    SELECT name, next_run, waiting_for FROM pgbeat.schedules
     WHERE enabled AND paused_at IS NULL AND next_run < now() - interval '45 s'
"""


def run(
    folder: Path,
    seconds: float,
    seed: int,
    pause: float = 4.0,
    only: Container[str] = (),
    build: str = "",
) -> list[str]:
    """Makes chaos for so long, in rounds of at most ten minutes; returns the broken promises.

    `build` is the name of a broken build.
    """
    broken: list[str] = []
    with site.opened(folder, build) as place:
        load.prepare(place)
        requests = Load(place, seed)
        faults = Faults(place, requests, seed, only)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not broken:
            note(folder, "rounds", {"began": site.now()})
            broken += _round(faults, requests, min(end, time.monotonic() + 600), pause)
            requests.promised.save(folder)
            place.keep_log()
            record = Record(folder, place.sql, requests.app)
            broken += promises.broken(promises.check(record))
            print(f"-- {record.counts()}", flush=True)
        place.dump()
    return broken


def _round(faults: Faults, requests: Load, end: float, pause: float) -> list[str]:
    """Faults and requests until `end`, then a calm; returns what did not go on or finish."""
    place, broken = faults.site, list[str]()
    record = Record(place.folder, place.sql, requests.app)
    place.sql("UPDATE pgbeat.schedules SET paused_at = NULL")
    requests.start()
    began, chance = time.monotonic(), random.Random(faults.chance.random())  # noqa: S311
    while time.monotonic() < end:
        time.sleep(max(0.0, min(chance.uniform(0, 2 * pause), end - time.monotonic())))
        faults.step()
        broken += promises.broken(promises.check_meanwhile(record))
        if time.monotonic() > began + 60:
            broken += [f"a schedule stands still: {row}" for row in record.rows(_STALLED)]
    faults.calm()
    requests.stop()
    broken += [f"a request failed: {error}" for error in requests.errors]
    place.sql(_PAUSE)
    requests.release_all()
    return broken + _unfinished(place)


def _unfinished(place: Site) -> list[str]:
    """Waits until everything has finished; returns what doesn't."""
    began = changed = time.monotonic()
    left: Any = None
    while (row := place.sql(_UNFINISHED)[0]) != (0,):
        now = time.monotonic()
        if row != left:
            left, changed = row, now
        if now > min(changed + _STILL, began + _CALM):
            return [f"{row[0]} things don't finish, {now - began:.0f} s after the last fault"]
        time.sleep(0.2)
    return []


def main() -> int:
    """Makes chaos as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--pause", type=float, default=4.0, help="mean seconds between faults")
    parser.add_argument("--only", nargs="+", default=(), help="faults, such as fill_disk")
    parser.add_argument("--build", choices=BUILDS, default="", help="a broken build")
    parser.add_argument("--folder", type=Path, help="where logs and journal stay")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {given.seed}, folder {folder}", flush=True)
    broken = run(folder, given.minutes * 60, given.seed, given.pause, given.only, given.build)
    for line in broken:
        print(f"BROKEN {line}", flush=True)
    print(f"seed {given.seed}: {len(broken)} broken promises", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
