"""Measures what a long history costs: `python benchmarks/history.py --help`.

Two databases lie side by side on one server, one with few ended jobs and one with many, and all is
measured on both in turns. Run it with pgbeat's extras `test` and `web`.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import beats.contenders
import psycopg
import tracking
from beats import measures
from beats.machine import description
from beats.measures import Figures
from beats.processes import Processes
from beats.spec import Spec
from brokers.measures import PREFORK, Bench
from brokers.processes import Workers
from celery import Celery
from rich.table import Table
from runner import Run, names_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import filling
import web as pages

from pgbeat.beat.maintenance import histories
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.testing import embedded
from pgbeat.testing.embedded import EmbeddedServer
from tests.support.web import Web

MEASURES = ("pages", "launch", "drain", "vacuum", "retention")
#: Schedules that are due at once, and jobs to drain.
DUE, TASKS = 10_000, 8_000
#: What changes all the time, and so is vacuumed.
LIVE_TABLES = "pgbeat.unfinished_jobs, pgbeat.running_executions, pgbeat.schedules, kombu_message"
#: Exit code if the time was over before all was filled in.
NOT_YET = 75

_CLEAR = """
    DELETE FROM pgbeat.schedules WHERE name LIKE 'bench-%';
    UPDATE pgbeat.schedules SET next_run = now() + interval '1 day';
    UPDATE pgbeat.groups SET state = 'completed', finished_at = now() WHERE finished_at IS NULL;
    DELETE FROM pgbeat.unfinished_jobs; DELETE FROM pgbeat.running_executions;
    DELETE FROM kombu_message; DROP TABLE IF EXISTS bench_message
"""
_SIZES = """
    SELECT history, sum(reltuples)::bigint, sum(pg_total_relation_size(c.oid))::bigint
      FROM pgbeat.partitions p JOIN pg_class c ON c.oid = format('pgbeat.%I', p.name)::regclass
     WHERE c.reltuples > 0 GROUP BY history
"""


@dataclass(frozen=True)
class Filled:
    """A database with history."""

    url: str
    #: The server's process.
    pid: int
    folder: Path

    def connect(self) -> "psycopg.Connection[Any]":
        """Opens a connection in autocommit mode."""
        return psycopg.connect(self.url, autocommit=True)

    def clear(self) -> None:
        """Removes all that has not ended, and what is due."""
        with self.connect() as connection:
            for statement in _CLEAR.split(";"):
                connection.execute(statement.encode())

    def sizes(self) -> Figures:
        """Returns the rows and bytes of each history."""
        with self.connect() as connection:
            rows = connection.execute(_SIZES).fetchall()
        return {name: {"rows": count, "bytes": size} for name, count, size in rows}


class Beat(beats.contenders.Pgbeat):
    """A beat whose schedules are the only ones that are due."""

    def empty(self) -> None:
        """Leaves history where it is: whoever measures has cleared the rest."""


class Seeded(measures.Bench):
    """Seeds within this process, which knows `Beat`."""

    def seed(self, contender: beats.contenders.Contender) -> None:
        contender.seed()
        contender.queue().purge()


class Jobs(tracking.Launched):
    """Jobs in a database with history, which a worker records."""

    _server: Filled
    _since: ClassVar[float] = 0.0

    def _place(self) -> str:
        return self._server.url

    def reset(self) -> None:
        self._server.clear()
        self._since = time.time()

    def told(self) -> int:
        with self.connect() as connection:
            row = connection.execute(
                "SELECT count(*) FROM pgbeat.executions"
                " WHERE state = 'completed' AND finished_at > to_timestamp(%s)",
                [self._since],
            ).fetchone()
        return int(row[0]) if row else 0


def launch(database: Filled, run: Run, options: argparse.Namespace) -> Figures:
    """Returns the launches a second of 10,000 schedules that are due at once."""
    database.clear()
    broker = {"broker_url": f"pgbeat+{database.url}"}
    spec = Spec(
        "pgbeat", str(database.folder), database.url, servers=(database.pid,), settings=broker
    )
    with Processes() as processes:
        return measures.launch(Seeded(processes, run.say), Beat(spec), DUE, DUE)


def drain(database: Filled, run: Run, options: argparse.Namespace) -> Figures:
    """Returns the jobs a second of a worker of two processes that records them."""
    contender = Jobs(database, database.folder)
    contender.spec = replace(contender.spec, settings={"pgbeat_track": "launched"})
    with Workers() as processes:
        return tracking.drain(Bench(processes, run.say), contender, PREFORK, TASKS)


def vacuum(database: Filled, run: Run, options: argparse.Namespace) -> Figures:
    """Returns the seconds that vacuum takes in the tables that change, after other measures."""
    with database.connect() as connection:
        begun = time.perf_counter()
        connection.execute(f"VACUUM (ANALYZE) {LIVE_TABLES}".encode())
        return {"seconds": time.perf_counter() - begun}


def retention(database: Filled, run: Run, options: argparse.Namespace) -> Figures:
    """Returns the seconds in which the oldest day of each history goes."""
    engine = connections.engine(
        postgres_url(database.url), "pgbeat upkeep", isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        oldest = connection.exec_driver_sql(
            "SELECT now() - max(ends_at) FROM (SELECT min(ends_at) AS ends_at FROM"
            " pgbeat.partitions WHERE starts_at IS NOT NULL GROUP BY history) AS o"
        ).scalar_one()
        settings = Settings(postgres_url(database.url), retention_days=oldest.days)
        histories.note(connection, settings)
        histories.add_ahead(connection)
        dropped: Figures = {}
        begun = time.perf_counter()
        while (period := histories.drop_oldest(connection)) is not None:
            dropped[period.name] = time.perf_counter() - begun
            begun = time.perf_counter()
    engine.dispose()
    return {"seconds": sum(dropped.values()), "dropped": dropped}


def measure_pages(database: Filled, run: Run, options: argparse.Namespace) -> Figures:
    """Returns the milliseconds of each page and list."""
    with database.connect() as connection:
        found = connection.execute("SELECT 1 FROM pgbeat.schedules WHERE name = 'x1'").fetchone()
        if not found:
            pages.add_more(connection, schedules=DUE, messages=DUE)
        names = pages.names(connection)
    app = Celery("bench", broker=f"pgbeat+{database.url}", set_as_current=False)
    site = Web(app)
    try:
        return dict(pages.measure(site, names, options))
    finally:
        site.close()


RUN: dict[str, Callable[[Filled, Run, argparse.Namespace], Figures]] = {
    "pages": measure_pages,
    "launch": launch,
    "drain": drain,
    "vacuum": vacuum,
    "retention": retention,
}


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000_000, help="many; 100,000,000")
    parser.add_argument("--few", type=int, default=1_000_000, help="beside them; 1,000,000")
    parser.add_argument(
        "--only",
        type=lambda text: names_of(text, MEASURES),
        default=list(MEASURES),
        metavar="MEASURES",
        help=f"of {','.join(MEASURES)}",
    )
    parser.add_argument("--rounds", type=int, default=3, help="that both take turns; 3")
    parser.add_argument("--times", type=int, default=20, help="that a page is asked for; 20")
    parser.add_argument("--path", default="", help="only paths with this in them")
    parser.add_argument(
        "--folder", type=Path, help="where both databases are, and stay: another call goes on there"
    )
    parser.add_argument(
        "--fill-for",
        type=float,
        metavar="SECONDS",
        help=f"only fills, and ends with {NOT_YET} if more is left to do",
    )
    parser.add_argument(
        "--as-is", action="store_true", help="measures what FOLDER has, however far it was filled"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="figures; others in it stay")
    return parser.parse_args(arguments)


def fill(server: EmbeddedServer, sizes: Sequence[int], run: Run, seconds: float) -> bool:
    """Fills both databases, or goes on; returns whether all is there after so many seconds."""
    end = time.monotonic() + seconds
    for jobs in sizes:
        name = f"history_{jobs}"
        server.create_database(name)
        if not filling.fill(server.dsn(name), jobs, run.say, end - time.monotonic()):
            return False
    return True


def measure(server: EmbeddedServer, run: Run, options: argparse.Namespace) -> None:
    """Measures all that was asked for, on both databases in turns."""
    databases = {}
    for jobs in (options.few, options.jobs):
        name = f"history_{jobs}"
        folder = run.folder / name
        folder.mkdir()
        databases[f"{jobs:,}"] = Filled(server.dsn(name), server.pid, folder)
    for name, database in databases.items():
        run.results.setdefault("sizes", {})[name] = database.sizes()
    for what in options.only:
        run.results[what] = {name: [] for name in databases}
        for turn in range(1 if what == "pages" else options.rounds):
            for name, database in databases.items():
                figures = RUN[what](database, run, options)
                run.results[what][name].append(figures)
                words = {k: round(v, 3) for k, v in figures.items() if isinstance(v, float)}
                run.say(f"{what}, round {turn + 1}, {name}: {words}")


def report(run: Run) -> None:
    """Prints what was measured, few beside many."""
    few, many = run.results["sizes"]
    table = Table("", few, many, "ratio", title="Ended jobs: medians")
    for history in run.results["sizes"][many]:
        sizes = [run.results["sizes"][name].get(history) for name in (few, many)]
        cells = [
            f"{each['rows']:,}, {each['bytes'] / 1e9:.1f} GB" if each else "" for each in sizes
        ]
        table.add_row(history, *cells, "")
    keys = {"launch": "per_s", "drain": "per_s", "vacuum": "seconds", "retention": "seconds"}
    for what, key in keys.items():
        if what in run.results:
            one, other = (
                statistics.median(each[key] for each in run.results[what][name])
                for name in (few, many)
            )
            digits = 0 if key == "per_s" else 3
            table.add_row(
                f"{what}, {key}", f"{one:,.{digits}f}", f"{other:,.{digits}f}", f"{other / one:.2f}"
            )
    run.console.print(table)
    if "pages" not in run.results:
        return
    table = Table("path", f"{few}: p50 / p95, ms", f"{many}: p50 / p95, ms", "ratio of p50")
    (one,), (other,) = (run.results["pages"][name] for name in (few, many))
    for path in sorted(one, key=lambda path: -other[path]["ms"] / one[path]["ms"]):
        cells = [f"{each['ms']:.1f} / {each['p95_ms']:.1f}" for each in (one[path], other[path])]
        mark = " *" if other[path]["p95_ms"] > pages.GOAL else ""
        table.add_row(path, *cells, f"{other[path]['ms'] / one[path]['ms']:.2f}{mark}")
    run.console.print(table)


def main() -> int:
    """Runs the benchmark."""
    options = parse(sys.argv[1:])
    with Run(options) as run:
        folder = options.folder or run.folder / "server"
        run.folder.chmod(0o755)  # Postgres runs as another user, where this is root's
        sizes = (options.few, options.jobs)
        if not options.as_is:
            with embedded.server(folder, filling.SETTINGS) as server:
                is_filled = fill(server, sizes, run, options.fill_for or float("inf"))
            if options.fill_for:
                return 0 if is_filled else NOT_YET
        if options.json and options.json.exists():
            run.results = json.loads(options.json.read_text())["results"]
        with embedded.server(folder) as server:
            with psycopg.connect(server.dsn()) as connection:
                settings = {"server_version": str(connection.info.server_version)}
            run.environment = description(["pgbeat", "fastapi"], settings)
            measure(server, run, options)
    report(run)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
