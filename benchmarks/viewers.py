"""Measures what viewers of the live overview cost: `python benchmarks/viewers.py --help`.

Each viewer does what a browser does: it listens to the page's events, and when it is told of a
change, reads the page anew, at most every five seconds.
"""

import argparse
import asyncio
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from beats.machine import Stolen, description
from beats.measures import Figures, percentiles
from brokers.contenders import Pgbeat
from brokers.processes import Workers
from rich.table import Table
from runner import Run
from servers import free_ports, wait_for_port
from streams import Client, Site, prepare
from usage import Usage

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import filling

from tests.support.many_rows import fill

PAGE = "/console/overview"
STREAM = "/console/changes?of=overview"
#: Seconds between two readings of a viewer, at least, as in the console's script.
LEAST = 5.0
#: Seconds between two changes, at random.
GAPS = (0.5, 1.5)
#: Seconds in which viewers come, and first read the page.
COMING = 10.0


class Viewer:
    """A browser that shows the page."""

    def __init__(self, site: Site) -> None:
        self._site, self._stream = site, Client(site, STREAM)
        self.took: list[float] = []
        self.size = 0
        self._read_at = 0.0

    async def show(self, after: float) -> None:
        """Comes after some seconds, and looks until it is cancelled."""
        await asyncio.sleep(after)
        await self._read()
        await self._stream.open()
        while True:
            await self._stream.told.get()
            soon = random.uniform(0.05, 0.2)
            await asyncio.sleep(max(soon, self._read_at + LEAST - time.monotonic()))
            while not self._stream.told.empty():
                self._stream.told.get_nowait()
            await self._read()

    async def _read(self) -> None:
        begun = time.monotonic()
        self.size = len(await self._site.read(PAGE))
        self._read_at = time.monotonic()
        self.took.append(1000 * (self._read_at - begun))

    def close(self) -> None:
        """Closes the stream."""
        self._stream.close()


async def change(database: "psycopg.Connection[Any]") -> None:
    """Changes a schedule every second or so, which streams of the overview are told of."""
    while True:
        await asyncio.sleep(random.uniform(*GAPS))
        await asyncio.to_thread(
            database.execute,
            "INSERT INTO pgbeat.audit (actor, origin, verb, kind, subject)"
            " VALUES ('user:bench', 'api', 'pause', 'schedule', 's1')",
        )


async def measure(site: Site, web: int, contender: Pgbeat, count: int, seconds: float) -> Figures:
    """Returns what so many viewers cost in so many seconds, and how long a page takes them."""
    viewers = [Viewer(site) for _ in range(count)]
    stolen = Stolen()
    with contender.connect() as database:
        tasks = [
            asyncio.create_task(each.show(COMING * number / max(1, count)))
            for number, each in enumerate(viewers)
        ]
        tasks.append(asyncio.create_task(change(database)))
        await asyncio.sleep(COMING + LEAST)
        for each in viewers:
            each.took.clear()
        usages = Usage(web), Usage(contender.spec.server)
        begun = time.monotonic()
        await asyncio.sleep(seconds)
        lasted = time.monotonic() - begun
        cpu = [each.seconds() for each in usages]
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                raise RuntimeError(f"a viewer gave up: {ended!r}")
    for each in viewers:
        each.close()
    took = [one for each in viewers for one in each.took]
    return {
        "viewers": count,
        "pages_per_s": len(took) / lasted,
        "page_kb": viewers[0].size / 1000,
        **percentiles(took),
        "web": None if cpu[0] is None else 100 * cpu[0] / lasted,
        "server": None if cpu[1] is None else 100 * cpu[1] / lasted,
        "stolen": stolen.percent(),
    }


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", default="1,200", help="how many look; 1,200")
    parser.add_argument("--seconds", type=float, default=30.0, help="of measuring; 30")
    parser.add_argument("--jobs", type=int, default=100_000, help="in the database; 100,000")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    return parser.parse_args(arguments)


def main() -> int:
    """Runs the benchmark."""
    options = parse(sys.argv[1:])
    with Run(options) as run:
        postgres = run.stack.enter_context(run.postgres())
        run.environment = description(["pgbeat", "fastapi", "uvicorn"], postgres.settings)
        processes = run.stack.enter_context(Workers())
        contender = Pgbeat(postgres, run.folder)
        contender.spec = replace(contender.spec, settings={"pgbeat_url": contender.url})
        contender.reset()
        filling.prepare(contender.url)
        fill(contender.url, options.jobs)
        token, _ = prepare(contender)
        for count in map(int, options.viewers.split(",")):
            [port] = free_ports(1)
            arguments = ("-A", "brokers.app", "pgbeat", "web", "--port", str(port))
            process = processes.celery(contender.spec, *arguments)
            try:
                wait_for_port(process, port, 60, "pgbeat web")
                site = Site(port, token)
                found = asyncio.run(measure(site, process.pid, contender, count, options.seconds))
            finally:
                processes.kill(process)
            run.results[str(count)] = found
    table = Table(title="Viewers of the live overview")
    for title in (
        "viewers",
        "pages a second",
        "kB each",
        "ms: p50",
        "p95",
        "% of a core: web",
        "server",
    ):
        table.add_column(title, justify="right")
    for figures in run.results.values():
        names = ("viewers", "pages_per_s", "page_kb", "p50_ms", "p95_ms", "web", "server")
        table.add_row(*(_cell(figures[name]) for name in names))
    run.console.print(table)
    return run.finish()


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}".removesuffix(".0")


if __name__ == "__main__":
    sys.exit(main())
