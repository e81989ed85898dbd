"""Measures event streams of the web side: `python benchmarks/streams.py --help`."""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from beats.machine import Stolen, description
from beats.measures import Figures
from beats.processes import ProcessError
from brokers.contenders import Pgbeat
from brokers.processes import Workers
from rich.console import Console
from rich.table import Table
from runner import Run
from servers import free_ports, wait_for_port
from usage import Usage

#: Jobs that the streams watch, in turn.
JOBS = 20
#: The stream that watches all of them.
ALL = "/jobs/events"
#: Seconds that a stream may take to say something.
LIMIT = 60.0
#: Seconds between two changes, at random: more than a look's, so that each is told by itself.
GAPS = (0.8, 1.6)


@dataclass
class Site:
    """The web side, as clients ask it."""

    port: int
    token: str

    def request(self, path: str, *, is_last: bool = True) -> bytes:
        """A GET as it is written."""
        close = "close" if is_last else "keep-alive"
        return (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: {close}\r\n"
            f"Authorization: Bearer {self.token}\r\nAccept: text/html\r\n\r\n"
        ).encode()

    async def read(self, path: str) -> bytes:
        """What is at a path."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self.request(path))
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.read()
            if not head.startswith(b"HTTP/1.1 200"):
                raise ProcessError(f"{path} is answered {head.splitlines()[0].decode()}")
            return body
        finally:
            writer.close()


class Client:
    """One open stream: when it was told of something, each time."""

    def __init__(self, site: Site, path: str) -> None:
        self._site, self._path = site, path
        #: Events of each change: one of each job that it watches.
        self.events = JOBS if path == ALL else 1
        self.told: asyncio.Queue[float] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Opens it, and waits for its first event, where there is one at once."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._site.port)
        self._writer.write(self._site.request(self._path))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ProcessError(f"{self._path} is answered {head.splitlines()[0].decode()}")
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            if line.startswith(b"event:"):
                self.told.put_nowait(time.monotonic())

    def close(self) -> None:
        """Closes it."""
        if self._reading is not None:
            self._reading.cancel()
            self._writer.close()


@asynccontextmanager
async def opened(site: Site, paths: Sequence[str], first: bool) -> Any:
    """A stream for each path; with `first`, each is told something when it has come."""
    clients = [Client(site, path) for path in paths]
    try:
        for start in range(0, len(clients), 50):
            await asyncio.gather(*(each.open() for each in clients[start : start + 50]))
        if first:
            await asyncio.gather(*(asyncio.wait_for(c.told.get(), LIMIT) for c in clients))
        await asyncio.sleep(1.5)
        yield clients
    finally:
        for each in clients:
            each.close()


class Bench:
    """The web side on a database with jobs that run."""

    def __init__(self, contender: Pgbeat, site: Site, web: int, jobs: list[str]) -> None:
        self._contender, self._site, self._web, self._jobs = contender, site, web, jobs
        self._database = contender.connect()
        self._progress = 0.0

    def close(self) -> None:
        """Closes its connection."""
        self._database.close()

    def _move_on(self) -> float:
        """Progress of all jobs, in one transaction; when it was committed."""
        self._progress += 1
        self._database.execute(
            "UPDATE pgbeat.executions SET progress_done = %s WHERE job_id = ANY (%s)",
            (self._progress, self._jobs),
        )
        return time.monotonic()

    def _transactions(self) -> int:
        row = self._database.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
        return int(row[0]) if row else 0

    def _memory(self) -> float:
        return psutil.Process(self._web).memory_info().rss / 2**20

    def _usage(self) -> tuple[Usage, Usage]:
        return Usage(self._web), Usage(self._contender.spec.server)

    async def measure(
        self, kind: str, count: int, changes: int, idle: float, read: str = ""
    ) -> Figures:
        """So many streams of a kind; with `read`, who is told reads that page anew."""
        paths = [kind.format(job=self._jobs[n % JOBS]) for n in range(count)]
        pages = [read.format(job=self._jobs[n % JOBS]) for n in range(count)]
        await self._site.read(pages[0] if read else "/console/jobs")
        before, stolen = self._memory(), Stolen()
        begun = time.monotonic()
        async with opened(self._site, paths, first=kind != ALL) as clients:
            opening = time.monotonic() - begun - 1.5
            figures: Figures = {
                "streams": len(clients),
                "open_s": opening,
                "memory_mb": self._memory(),
                "memory_each_kb": (self._memory() - before) * 1024 / max(1, count),
            }
            if not read:
                figures |= await self._idle(idle)
            usage = self._usage()
            begun = time.monotonic()
            figures |= await self._changes(clients, changes, pages if read else [])
            took = time.monotonic() - begun
            for name, each in zip(("web", "server"), usage, strict=True):
                seconds = each.seconds()
                figures[f"{name}_busy"] = None if seconds is None else 100 * seconds / took
            figures["stolen"] = stolen.percent()
        return figures

    async def _idle(self, seconds: float) -> Figures:
        """What it takes when nothing happens."""
        await asyncio.sleep(1.5)  # for the server's counters
        usage, before = self._usage(), self._transactions()
        begun = time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - begun
        web, server = (each.seconds() for each in usage)
        await asyncio.sleep(1.5)
        asked = self._transactions() - before
        return {
            "queries_per_s": asked / (time.monotonic() - begun),
            "web_idle": None if web is None else 100 * web / took,
            "server_idle": None if server is None else 100 * server / took,
        }

    async def _changes(self, clients: list[Client], changes: int, pages: list[str]) -> Figures:
        """Makes one change after the other.

        Returns the milliseconds until the first, the middle and the last client was notified, or
        had read the page.
        """
        rounds: list[list[float]] = []
        for _ in range(changes):
            await asyncio.sleep(random.uniform(*GAPS))
            at = await asyncio.to_thread(self._move_on)
            took = await asyncio.gather(
                *(self._told(each, at, pages[n] if pages else "") for n, each in enumerate(clients))
            )
            rounds.append(sorted(took))
        return {
            f"{who}_{name}": 1000 * pick([each[place] for each in rounds])
            for who, place in (("first", 0), ("middle", len(clients) // 2), ("last", -1))
            for name, pick in (("p50", statistics.median), ("p95", _p95), ("max", max))
        }

    async def _told(self, client: Client, at: float, page: str) -> float:
        for _ in range(client.events):
            told = await asyncio.wait_for(client.told.get(), LIMIT)
        if page:
            await self._site.read(page)
            told = time.monotonic()
        return told - at


def _p95(values: list[float]) -> float:
    return sorted(values)[max(0, round(0.95 * len(values)) - 1)]


def prepare(contender: Pgbeat) -> tuple[str, list[str]]:
    """Jobs that run, and a token of an administrator."""
    from datetime import timedelta

    from pgbeat.access import tokens
    from pgbeat.config import postgres_url
    from pgbeat.database import connections

    jobs = [str(uuid4()) for _ in range(JOBS)]
    with contender.connect() as connection:
        for job in jobs:
            connection.execute(
                """
                INSERT INTO pgbeat.jobs (id, task, state, created_by, job_source, is_system_job,
                                         args, kwargs, started_at, dispatched_at)
                VALUES (%s, 'bench.noop', 'running', 'user:bench', 'user_api', false, '[]', '{}',
                        now(), now())
                """,
                (job,),
            )
            connection.execute(
                """
                INSERT INTO pgbeat.executions (job_id, number, worker, progress_done,
                                               progress_total)
                VALUES (%s, 1, 'bench', 0, 1000)
                """,
                (job,),
            )
    with connections.engine(postgres_url(contender.url), "bench").begin() as sessions:
        _, token = tokens.create(
            sessions,
            namespace="default",
            actor="bench",
            scope="admin",
            lifetime=timedelta(days=1),
            created_by="user:bench",
        )
    return token, jobs


#: What is open, by name: the stream, and the page that is read when it says something.
KINDS = {
    "job": ("/jobs/{job}/events", ""),
    "all": (ALL, ""),
    "page": ("/console/changes?of=job:{job}", ""),
    "read": ("/console/changes?of=job:{job}", "/console/jobs/{job}"),
}
ROWS = (
    ("until the first was told, ms: p50 / p95", "first_p50", "first_p95"),
    ("… the middle one", "middle_p50", "middle_p95"),
    ("… the last one", "last_p50", "last_p95"),
    ("… the last one, worst", "last_max"),
    ("memory of the process, MB", "memory_mb"),
    ("… of each stream, kB", "memory_each_kb"),
    ("idle: transactions a second of the database", "queries_per_s"),
    ("… CPU of the process / the server, % of a core", "web_idle", "server_idle"),
    ("with a change a second: CPU of both, %", "web_busy", "server_busy"),
    ("all open after, s", "open_s"),
)


def report(console: Console, results: dict[str, Figures]) -> None:
    """A table of what was measured."""
    table = Table(title="Event streams of one process")
    table.add_column("")
    for name, figures in results.items():
        table.add_column(f"{name.split()[0]} × {figures['streams']}", justify="right")
    for label, *keys in ROWS:
        cells = [
            " / ".join(_cell(figures.get(key)) for key in keys) for figures in results.values()
        ]
        table.add_row(label, *cells)
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", default="1,200", help="how many are open; 1,200")
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help=f"of {','.join(KINDS)}; all of them"
    )
    parser.add_argument("--changes", type=int, default=30, help="changes that are told; 30")
    parser.add_argument("--idle", type=float, default=15.0, help="seconds without any; 15")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    return parser.parse_args(arguments)


def _one(
    contender: Pgbeat, processes: Workers, kind: str, count: int, options: argparse.Namespace
) -> Figures:
    """One kind, in a process of its own."""
    contender.reset()
    token, jobs = prepare(contender)
    [port] = free_ports(1)
    arguments = ("-A", "brokers.app", "pgbeat", "web", "--port", str(port))
    process = processes.celery(contender.spec, *arguments)
    try:
        wait_for_port(process, port, 60, "pgbeat web")
        bench = Bench(contender, Site(port, token), process.pid, jobs)
        try:
            stream, page = KINDS[kind]
            return asyncio.run(bench.measure(stream, count, options.changes, options.idle, page))
        finally:
            bench.close()
    finally:
        processes.kill(process)


def main() -> int:
    """Runs the benchmark; 130 after Ctrl-C, with the table of what was measured until then."""
    options = parse(sys.argv[1:])
    with Run(options) as run:
        postgres = run.stack.enter_context(run.postgres())
        run.environment = description(["pgbeat", "fastapi", "uvicorn"], postgres.settings)
        processes = run.stack.enter_context(Workers())
        for kind in options.kinds.split(","):
            for count in map(int, options.streams.split(",")):
                contender = Pgbeat(postgres, run.folder)
                contender.spec = replace(contender.spec, settings={"pgbeat_url": contender.url})
                figures = _one(contender, processes, kind, count, options)
                run.results[f"{kind} {count}"] = figures
                run.say(f"{kind} × {count}: the last one after {figures['last_p50']:.0f} ms")
    report(run.console, run.results)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
