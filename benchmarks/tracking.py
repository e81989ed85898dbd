"""Measures what tracking costs a worker: `python benchmarks/tracking.py --help`."""

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from beats.machine import description
from beats.measures import Figures, micros
from beats.processes import ProcessError, wait_until
from brokers.contenders import Pgbeat
from brokers.measures import PREFORK, Bench, rates
from brokers.processes import Workers
from rich.console import Console
from rich.table import Table
from runner import Run
from usage import Usage

#: Tasks before those that count: the first of each process connect it.
WARM = 1_000
#: Seconds that a drain may take.
LIMIT = 120.0
POOLS = {"prefork": PREFORK, "solo": ("solo", 1), "threads": ("threads", 2)}


class Jobs(Pgbeat):
    """Messages of jobs: `pgbeat_track` off, or of launched jobs."""

    #: `pgbeat_track`.
    track: ClassVar[str] = "launched"
    are_jobs: ClassVar[bool] = True

    def settle(self) -> None:
        with self.connect() as connection:
            if self.are_jobs:
                connection.execute(
                    """
                    UPDATE kombu_message
                       SET job_id = (payload::json -> 'headers' ->> 'id')::uuid,
                           payload = replace(payload, '"headers": {',
                               '"headers": {"pgbeat_job": true, ')
                    """
                )
                connection.execute(
                    """
                    INSERT INTO pgbeat.jobs (id, task, args, kwargs, job_source, created_by,
                                             is_system_job, dispatched_at)
                    SELECT job_id, payload::json -> 'headers' ->> 'task', '[]', '{}', 'system',
                           'benchmark', true, now() FROM kombu_message
                    """
                )
            connection.execute("VACUUM (FULL, ANALYZE) kombu_message")
            connection.execute("VACUUM (ANALYZE) pgbeat.unfinished_jobs")
        super().settle()

    def told(self) -> int:
        """Executions that are written with their end."""
        with self.connect() as connection:
            row = connection.execute(
                "SELECT count(*) FROM pgbeat.executions WHERE state = 'completed'"
            ).fetchone()
        return int(row[0]) if row else 0


class Off(Jobs):
    """The same messages, tracking turned off."""

    name = "off"
    track = "off"


class Launched(Jobs):
    """Jobs that are tracked."""

    name = "launched"


class Plain(Jobs):
    """Tasks that are no jobs, and so not tracked, by a worker that tracks jobs."""

    name = "plain"
    are_jobs = False


class All(Plain):
    """Tasks that become jobs by being tracked."""

    name = "all"
    track = "all"


MODES: tuple[type[Jobs], ...] = (Off, Launched, Plain, All)


def drain(bench: Bench, contender: Jobs, pool: tuple[str, int], tasks: int) -> Figures:
    """Returns the rate of no-ops that wait when the worker starts, and the CPU time of each."""
    bench.fill(contender, WARM + tasks)
    with bench.workers(contender, *pool) as crew:
        crew.wait_for_first()
        crew.wait(WARM, LIMIT, pause=0.01)
        worker, server = crew.usage(), Usage(contender.spec.server)
        before = crew.executions.count()
        if not crew.wait(WARM + tasks, LIMIT):
            raise ProcessError(f"{tasks} tasks took more than {LIMIT:g} s")
        is_tracked = contender.track == "all" or (contender.are_jobs and contender.track != "off")
        expected = WARM + tasks if is_tracked else 0
        wait_until(lambda: contender.told() >= expected, 10.0)
        spent = {"worker_us": worker.seconds(), "server_us": server.seconds()}
        done = crew.executions.read()[before:]
    told = contender.told()
    if told != expected:
        raise ProcessError(f"{told} executions are told of, not {expected}")
    return {**rates(done), **micros(spent, WARM + tasks - before), "tasks": len(done)}


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000, help="tasks to drain; 20,000")
    parser.add_argument("--rounds", type=int, default=3, help="times that all take turns; 3")
    parser.add_argument(
        "--pools", default="prefork,solo", help=f"of {','.join(POOLS)}; prefork,solo"
    )
    parser.add_argument(
        "--modes",
        default=",".join(mode.name for mode in MODES),
        help=f"of {','.join(mode.name for mode in MODES)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    return parser.parse_args(arguments)


FIGURES = (
    ("tasks a second", "per_s", 1),
    ("CPU of the worker, us a task", "worker_us", -1),
    ("CPU of the server, us a task", "server_us", -1),
)


def report(console: Console, pool: str, results: dict[str, list[Figures]]) -> None:
    """A table of the medians, with what tracking adds to `off`."""
    table = Table(title=f"No-ops, {pool}: medians, and the median of each round's ratio to off")
    table.add_column("")
    for mode in results:
        table.add_column(mode, justify="right")
    for label, key, _ in FIGURES:
        cells = []
        for mode, figures in results.items():
            values = [float(each[key]) for each in figures if each.get(key) is not None]
            if not values:
                cells.append("?")
                continue
            cell = f"{statistics.median(values):,.0f}"
            if mode != "off" and "off" in results:
                pairs = zip(figures, results["off"], strict=False)
                ratios = [float(one[key]) / float(other[key]) for one, other in pairs]
                cell += f"  ({100 * (statistics.median(ratios) - 1):+.1f} %)"
            cells.append(cell)
        table.add_row(label, *cells)
    console.print(table)


def main() -> int:
    """Runs the benchmark; 130 after Ctrl-C, with the tables of what was measured until then."""
    options = parse(sys.argv[1:])
    with Run(options) as run:
        postgres = run.stack.enter_context(run.postgres())
        run.environment = description(["pgbeat", "celery"], postgres.settings)
        processes = run.stack.enter_context(Workers())
        contenders = []
        for mode in MODES:
            if mode.name in options.modes.split(","):
                (run.folder / mode.name).mkdir()
                contender = mode(postgres, run.folder / mode.name)
                settings = {"pgbeat_track": mode.track}
                contender.spec = replace(contender.spec, settings=settings)
                contenders.append(contender)
        bench = Bench(processes, run.say)
        for pool in options.pools.split(","):
            results = run.results[pool] = {each.name: [] for each in contenders}
            for turn in range(options.rounds):
                # Who comes first changes, for a machine that gets slower or faster.
                for contender in contenders if turn % 2 else reversed(contenders):
                    figures = drain(bench, contender, POOLS[pool], options.tasks)
                    results[contender.name].append(figures)
                    words = ", ".join(f"{label} {figures[key]:,.0f}" for label, key, _ in FIGURES)
                    run.say(f"{pool}, round {turn + 1}, {contender.name}: {words}")
    for pool, results in run.results.items():
        report(run.console, pool, results)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
