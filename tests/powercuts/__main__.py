"""Cuts the power of a broker's server again and again: `python -m tests.powercuts pgbeat`."""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from tests.powercuts import filesystem
from tests.powercuts.cases import BUILDS, CASES, GATE, JOURNALS, NATIVE, POSTGRES
from tests.powercuts.machine import PROGRAMS, Host, Machine, NotStarted, image
from tests.support.processes import Process

#: Seconds within which a publisher must publish, on a busy machine.
_START = 1200.0
_WORKER = ("celery", "-A", "tests.powercuts.app", "worker", "-P", "threads", "-c", "8")


def _host(given: argparse.Namespace, folder: Path, server: tuple[str, ...]) -> Host:
    if given.filesystem:
        return filesystem.FileSystem(folder, server)
    return Machine(image(given.image), folder, server, given.accelerator)


@dataclass
class Result:
    """What became of a broker's messages."""

    name: str
    build: str
    cuts: int = 0
    #: Blocks that were in the disk's cache when the power was cut.
    blocks_lost: int = 0
    blocks_kept: int = 0
    acknowledged: int = 0
    #: Acknowledged, and never executed.
    lost: int = 0
    executed: int = 0
    executed_again: int = 0
    #: Jobs that were seen to be completed, and those of them that weren't after the cut.
    completed_jobs: int = 0
    undone_jobs: int = 0
    #: Whether the server started after each cut.
    started: bool = True

    @property
    def holds(self) -> bool:
        """Whether nothing was lost."""
        return self.started and not self.lost and not self.undone_jobs


class Attack:
    """One broker under load, whose power is cut."""

    def __init__(self, name: str, build: str, given: argparse.Namespace, folder: Path) -> None:
        self._case, self._given, self._folder = CASES[name], given, folder
        self._chance = random.Random(given.seed)  # noqa: S311
        self._result = Result(name, build)
        server = (*self._case.server, *(BUILDS[build].arguments if build else ()))
        folder.mkdir(parents=True)
        self._host = _host(given, folder, server)
        place = self._host.place
        self._dsn = POSTGRES.format(place)
        settings = {
            "broker": self._case.url.format(place),
            "build": build,
            "folder": str(folder),
            "options": self._case.options(place),
            "schema": self._dsn if self._case.has_jobs else None,
            "threads": given.threads,
        }
        self._env = {**os.environ, "POWERCUTS": json.dumps(settings)}
        self._commands = {
            "publisher": ("tests.powercuts.app",),
            "worker": (*_WORKER, "--without-gossip", "--without-mingle", "--without-heartbeat"),
        }
        self._processes: dict[str, Process] = {}
        self._completed: set[str] = set()
        #: How many messages were given up after a cut before.
        self._given_up = 0
        #: Files that the app writes, and how often each id was there.
        self._noted = {(folder / name).open("a+"): Counter[str]() for name in JOURNALS}

    def run(self) -> Result:
        """Cuts the power as often as wanted; returns what was lost."""
        share = self._given.publishes / self._given.cuts
        try:
            self._boot()
            self._case.prepare(self._host.place)
            self._start("publisher")
            self._start("worker")
            self._load(1)  # until both work
            (self._folder / GATE).unlink()
            self._check()
            os.sync()  # RabbitMQ doesn't start without the files of queues, which it doesn't flush
            while self._result.cuts < self._given.cuts:
                self._load(share * self._chance.uniform(0.8, 1.2))
                self._cut()
                self._boot()
                self._result.undone_jobs += len(self._completed - self._completed_now())
                self._check()
        except NotStarted as error:
            self._say(str(error))
            self._result.started = False
        finally:
            for process in self._processes.values():
                process.kill_group()
            self._host.close()
        self._count()
        return self._result

    def _start(self, name: str) -> None:
        """Starts the publisher or the worker; kills the one before."""
        if name in self._processes:
            self._processes[name].kill_group()
        log = self._folder / f"{name}-{self._result.cuts}.log"
        command = [sys.executable, "-m", *self._commands[name]]
        self._processes[name] = Process(command, log, self._env)

    def _boot(self) -> None:
        self._say(f"the server answers {self._host.boot():.0f} s after the power came on")

    def _load(self, publishes: float) -> None:
        """Lets the publisher publish so many while the worker works, or for `patience` seconds."""
        self._count()
        before, end, begun = self._result.acknowledged, time.monotonic() + _START, False
        (self._folder / GATE).touch()
        while self._result.acknowledged < before + publishes and time.monotonic() < end:
            time.sleep(0.2)
            self._count()
            if not begun and self._result.acknowledged > before:
                end, begun = time.monotonic() + self._given.patience, True
        assert begun, self._processes["publisher"].output[-3000:]
        for process in self._processes.values():
            assert process.poll() is None, process.output[-3000:]
        self._completed |= self._completed_now()
        self._result.completed_jobs = len(self._completed)

    def _cut(self) -> None:
        lost, kept = self._host.cut(self._chance.choice((0.0, 0.5)), self._chance)
        (self._folder / GATE).unlink()
        self._result.cuts += 1
        self._result.blocks_lost += lost
        self._result.blocks_kept += kept
        self._count()
        self._say(
            f"power cut after {self._result.acknowledged} publishes: "
            f"the disk's cache lost {lost} blocks and kept {kept}"
        )

    def _check(self) -> None:
        """Waits until all is executed, or nothing moves even with a new worker; says what is lost.

        What is given up in one check may still be executed before the last one, which waits longer.
        """
        result = self._result
        is_last = result.cuts == self._given.cuts
        patience = self._given.patience / (6 if is_last else 30)
        given_up = 0 if is_last else self._given_up
        for _ in range(2):
            last, changed = -1, time.monotonic()
            while (left := self._count()) > given_up and time.monotonic() < changed + patience:
                if left != last:
                    last, changed = left, time.monotonic()
                time.sleep(0.5)
            if left <= given_up:
                break
            self._start("worker")
        self._given_up = left
        self._say(
            f"of {result.acknowledged} publishes {result.lost} are lost; "
            f"of {result.completed_jobs} completed jobs {result.undone_jobs} are undone"
        )

    def _count(self) -> int:
        """Counts what the publisher and the tasks have noted; returns what must be executed yet."""
        for file, ids in self._noted.items():
            ids.update(line.strip() for line in file)
        acknowledged, executed = self._noted.values()
        result = self._result
        result.acknowledged, result.executed = len(acknowledged), len(executed)
        result.executed_again = executed.total() - len(executed)
        result.lost = len(acknowledged.keys() - executed.keys())
        return result.lost

    def _completed_now(self) -> set[str]:
        if not self._case.has_jobs:
            return set()
        with psycopg.connect(self._dsn) as connection:
            rows = connection.execute("SELECT id FROM pgbeat.jobs WHERE state = 'completed'")
            return {str(id) for (id,) in rows}

    def _say(self, text: str) -> None:
        name = f"{self._result.name} {self._result.build}".strip()
        print(f"{time.strftime('%X')} {name}, cut {self._result.cuts}: {text}", flush=True)


def table(results: list[Result]) -> str:
    """Returns a table with a row for each broker."""
    rows = [
        "| | cuts | acknowledged | lost | executed again | jobs completed | undone | blocks lost |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        name = f"{each.name} {each.build}".strip() + ("" if each.started else ", doesn't start")
        figures = [each.cuts, each.acknowledged, each.lost, each.executed_again]
        figures += [each.completed_jobs, each.undone_jobs, each.blocks_lost]
        rows.append(f"| {name} | {' | '.join(f'{figure:,}' for figure in figures)} |")
    return "\n".join(rows)


def main() -> int:
    """Runs what the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.powercuts", description=__doc__)
    parser.add_argument("names", nargs="+", choices=CASES, metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--publishes", type=int, default=100_000, help="in all, about")
    parser.add_argument("--threads", type=int, default=64, help="that publish at once")
    parser.add_argument(
        "--patience",
        type=float,
        default=900,
        help="seconds that a load may take; a sixth of them without progress ends a check",
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--accelerator", default="tcg", help="QEMU's: kvm where there is one")
    parser.add_argument("--image", type=Path, default=Path.home() / ".cache/pgbeat-powercuts")
    parser.add_argument(
        "--filesystem", action="store_true", help="cut a file system off, instead of a machine"
    )
    parser.add_argument("--build", choices=BUILDS, default="", help="a broken build; must fail")
    parser.add_argument("--json", type=Path, metavar="F", help="write the results to a file")
    given = parser.parse_args()
    programs = filesystem.PROGRAMS if given.filesystem else PROGRAMS
    if missing := [program for program in programs if shutil.which(program) is None]:
        parser.error(f"not in PATH: {', '.join(missing)}; Debian has them")
    if not given.filesystem and (native := NATIVE.intersection(given.names)):
        parser.error(f"the machine has no {', '.join(sorted(native))}: add --filesystem")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all that was started
    folder = Path(tempfile.mkdtemp(prefix="powercuts-"))
    print(f"seed {given.seed}, folder {folder}", flush=True)
    results = []
    for number, name in enumerate(given.names):
        results.append(Attack(name, given.build, given, folder / str(number)).run())
        print(table(results), flush=True)
        if given.json:
            given.json.write_text(json.dumps([asdict(each) for each in results], indent=1))
    return 0 if all(each.holds for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
