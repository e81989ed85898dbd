"""Kills processes of tasks with steps: `python -m tests.kills --runs 1000 --seed 7`."""

import argparse
import heapq
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from celery import chord
from celery.result import AsyncResult

import pgbeat
from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.testing.databases import TemporaryServer
from tests.kills.broken_builds import BUILDS
from tests.support.policy_workers import PolicyWorkers
from tests.support.processes import Process

POLICIES: dict[str, dict[str, Any]] = {"kills.order": {}, "kills.close": {}}
#: Members of a chord, and steps that write in a session.
_MEMBERS, _WRITERS = 4, 5
#: Within so many seconds something must happen.
_STILL = 180.0
_UNFINISHED = """
    SELECT (SELECT count(*) FROM pgbeat.unfinished_jobs),
           (SELECT count(*) FROM pgbeat.executions WHERE state = 'running')
"""


class Kills(PolicyWorkers):
    """A beat, workers that die, and a program that sends chords and emits events."""

    app = "tests.kills.app"
    policies = POLICIES

    def __init__(self, database: str, folder: Path, given: argparse.Namespace) -> None:
        super().__init__(database, folder)
        self.given, self.chance = given, random.Random(given.seed)  # noqa: S311
        self.env |= {
            "KILLS_SEED": str(given.seed),
            "KILLS_CHANCE": str(given.chance),
            "KILLS_BUILD": given.build,
        }
        self.sql("CREATE TABLE effects (run text, name text, value text)")
        #: Chords that were sent, by their names.
        self.chords: dict[str, AsyncResult[Any]] = {}
        self.timeouts: dict[str, str | None] = {}
        #: When to emit which event.
        self.events: list[tuple[float, str]] = []
        self.workers_killed = 0
        self.broken: list[str] = []

    def run_all(self) -> None:
        """Sends all runs, kills meanwhile, and waits until all have ended, or nothing moves."""
        self.beat(app=self.app).says("This beat leads", 120)
        workers = [self._worker() for _ in range(self.given.workers)]
        kill_at, changed, before = self._next_kill(), time.monotonic(), (0, 0, 0)
        runs = (f"run-{number}" for number in range(self.given.runs))
        send_until = time.monotonic() + self.given.minutes * 60
        for look in itertools.count():
            ((jobs, executions),) = self.sql(_UNFINISHED)
            now, left = time.monotonic(), (jobs, executions, self._size())
            while now < send_until and jobs + _MEMBERS < self.given.at_once and self._send(runs):
                jobs += _MEMBERS + 1
            self._emit(now)
            if left != before:
                before, changed = left, now
            if not jobs + executions or now > changed + _STILL:
                break
            if now > kill_at and " ready." in workers[0].output:
                workers[0].kill_group()
                workers = [*workers[1:], self._worker()]
                self.workers_killed, kill_at = self.workers_killed + 1, self._next_kill()
            if look % 100 == 0:
                sent = f"{len(self.timeouts)} runs sent, {jobs} jobs left"
                print(f"{time.strftime('%X')} {sent}", flush=True)
            time.sleep(0.1)
        if jobs + executions:
            self.broken.append(f"{jobs} jobs and {executions} executions don't finish")

    def _size(self) -> int:
        """Returns the size of the journal."""
        file = self.folder / "journal"
        return file.stat().st_size if file.exists() else 0

    def _worker(self) -> Process:
        options = ("-P", "prefork", "-c", str(self.given.processes), "--without-mingle")
        return self.worker(*options, app=self.app)

    def _next_kill(self) -> float:
        return time.monotonic() + self.chance.uniform(0.5, 1.5) * float(self.given.pause)

    def _send(self, runs: Any) -> bool:
        """Sends the next chord; returns whether there was one."""
        members = list(itertools.islice(runs, _MEMBERS))
        if not members:
            return False
        for run in members:
            # Some events come first, and some when their wait times out.
            self.timeouts[run] = self.chance.choice((None, None, "1 hour", "1 s"))
            after = self.chance.choice((0, self.chance.uniform(0, 4)))
            heapq.heappush(self.events, (time.monotonic() + after, run))
        name = f"chord-{len(self.chords)}"
        self._emit(time.monotonic())
        self.chords[name] = chord(
            [
                self.client.signature(
                    "kills.order", (run, self.timeouts[run], self.chance.uniform(0, 1))
                )
                for run in members
            ],
            self.client.signature("kills.close", kwargs={"chord": name}),
        ).delay()
        return True

    def _emit(self, now: float) -> None:
        while self.events and self.events[0][0] <= now:
            _, run = heapq.heappop(self.events)
            is_new = pgbeat.emit(f"paid/{run}", f"paid {run}", app=self.client)
            if not is_new or pgbeat.emit(f"paid/{run}", "again", app=self.client):
                self.broken.append(f"the event of {run} is not the first")

    def check(self) -> dict[str, int]:
        """Compares the journal and the database; returns counts."""
        got: dict[tuple[str, int], set[Any]] = defaultdict(set)
        counts: Counter[str] = Counter()
        for line in self.journal():
            what, run, *more = json.loads(line)
            counts[what] += 1
            if what == "got":
                got[run, more[0]].add(more[1])
        effects: dict[tuple[str, int], list[str]] = defaultdict(list)
        for run, name, value in self.sql("SELECT run, name, value FROM effects"):
            effects[run, 0 if name == "close" else int(name)].append(value)
        for key, values in sorted(got.items()):
            if len(values) > 1:
                self.broken.append(f"attempts of {key} got {values}")
        for key, written in effects.items():
            if len(written) > 1:
                self.broken.append(f"{len(written)} effects of {key}")
            elif {*written} != got[key]:
                self.broken.append(f"{key} got {got[key]}, and wrote {written}")
        wanted = len(self.timeouts) * _WRITERS + len(self.chords)
        if len(effects) != wanted:
            self.broken.append(f"{len(effects)} effects instead of {wanted}")
        for run, timeout in self.timeouts.items():
            ends = {f"paid {run}"} | ({"timed out"} if timeout == "1 s" else set())
            if not got[run, 4] <= ends or not all(got[run, step] for step in range(10)):
                self.broken.append(f"{run} got {[got[run, step] for step in range(10)]}")
            counts["timed_out"] += got[run, 4] == {"timed out"}
        self._check_jobs(got)
        executions = dict(self.sql("SELECT state, count(*) FROM pgbeat.executions GROUP BY 1"))
        print(f"executions: {executions}", flush=True)
        return {
            "runs": len(self.timeouts),
            "chords": len(self.chords),
            "processes_killed": counts["died"],
            "workers_killed": self.workers_killed,
            "effects": len(effects),
            "calls": counts["called"],
            "timed_out": counts["timed_out"],
        }

    def _check_jobs(self, got: dict[tuple[str, int], set[Any]]) -> None:
        jobs = self.sql("SELECT task, state, attempt, count(*) FROM pgbeat.jobs GROUP BY 1, 2, 3")
        wanted = {
            ("kills.order", "completed", 1, len(self.timeouts)),
            ("kills.close", "completed", 1, len(self.chords)),
        }
        if {*jobs} != wanted:
            self.broken.append(f"the jobs are {jobs}")
            return
        for number, (name, result) in enumerate(self.chords.items()):
            members = list(self.timeouts)[number * _MEMBERS : (number + 1) * _MEMBERS]
            for run, values in zip(members, result.get(timeout=10), strict=True):
                if [{value} for value in values] != [got[run, step] for step in range(10)]:
                    self.broken.append(f"{name} has {values} of {run}")


def main() -> int:
    """Does what the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=600, help="after which none is sent")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--chance", type=float, default=0.03, help="that a process dies at a moment"
    )
    parser.add_argument("--pause", type=float, default=40, help="mean seconds between two workers")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--processes", type=int, default=4, help="of a worker")
    parser.add_argument("--at-once", type=int, default=40, help="unfinished jobs, at most")
    parser.add_argument("--build", choices=BUILDS, default="", help="a broken build")
    parser.add_argument("--folder", type=Path, help="where logs and journal stay")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {given.seed}, folder {folder}", flush=True)
    server, began = TemporaryServer(), time.monotonic()
    try:
        migrate.upgrade(postgres_url(server.dsn))
        kills = Kills(server.dsn, folder, given)
        try:
            kills.run_all()
            counts = kills.check()
        finally:
            for process in kills.started:
                process.kill_group()
    finally:
        server.remove()
    for line in kills.broken[:20]:
        print(f"BROKEN {line}", flush=True)
    print(f"seed {given.seed}: {json.dumps(counts)}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{len(kills.broken)} broken promises", flush=True)
    return 1 if kills.broken else 0


if __name__ == "__main__":
    sys.exit(main())
