"""Measures durable steps beside other libraries': `python benchmarks/steps.py --help`."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psutil
import psycopg
from beats.machine import description
from beats.measures import Figures, percentiles
from beats.processes import ProcessError, wait_until
from beats.report import Comparison, Row, against, number, print_results
from brokers.contenders import PostgresBroker
from brokers.measures import PREFORK, Bench, Crew
from brokers.processes import Workers
from durable.contenders import CONTENDERS, Contender, Peer, Programs
from runner import Case, Run, arguments_parser, available, measure_all
from tracking import Launched, Plain, drain

from pgbeat.jobs.lanes.model import HAS_SLOT

MEASURES = ("step", "event", "sleep", "without")
#: Seconds that a wait may take.
LIMIT = 300.0
#: Steps and events that don't count.
WARM = 20

_TIMES = [Row("p50, ms", "p50_ms"), Row("p99, ms", "p99_ms"), Row("max, ms", "max_ms")]
TABLES = {
    "step": ("The time of a step: {}", _TIMES),
    "event": ("From an event until its task has run on: {}", _TIMES),
    "sleep": (
        "Jobs that sleep: {}",
        [
            Row("slots of their lane", "slots"),
            Row("messages", "messages"),
            Row("the worker's memory before, MB", "before_mb"),
            Row("… after", "after_mb"),
            Row("the beat's idle pass before, ms", "before_ms"),
            Row("… after", "after_ms"),
        ],
    ),
    "without": (
        "No-ops without steps a second, prefork -c 2: {}",
        [Row("now", "now", "more"), Row("before", "before", "more")],
    ),
}
COMPARISONS: dict[str, Comparison] = {
    f"pgbeat vs {name}": against(name) for name in CONTENDERS if name != "pgbeat"
}
#: What a task does in its steps.
TASKS = {
    "steps": "it returns a small dict",
    "rows": "it also writes a row in the step's transaction",
    "bare": "no step, the row alone",
}
_ASLEEP = """
    SELECT count(*) FROM pgbeat.unfinished_jobs
     WHERE state = 'scheduled' AND dispatched_at IS NULL AND message ? 'waits_for'
"""
_SLOTS = f"SELECT count(*) FROM pgbeat.unfinished_jobs j WHERE lane = 'bench' AND {HAS_SLOT}"
_MESSAGES = "SELECT count(*) FROM kombu_message"


def step(bench: Bench, contender: Contender, task: str, options: argparse.Namespace) -> Figures:
    """The time of each step, in tasks that run one after another."""
    if task not in contender.tasks:
        return {"note": "n/a"}
    with contender.at_work(bench) as crew:
        for turn in range(options.times + 1):
            bench.child(contender.spec, task, options.steps if turn else WARM)
            _await(crew, WARM + turn * options.steps)
        done = crew.executions.read()[WARM:]
    return {"steps": len(done), **percentiles([1000 * (each.at - each.sent) for each in done])}


def event(bench: Bench, contender: Contender, options: argparse.Namespace) -> Figures:
    """From before an event is emitted until the next line of the task that waits for it."""
    total = options.events + WARM
    with contender.at_work(bench) as crew:
        bench.child(contender.spec, "wait", total)
        _await(crew, total)
        time.sleep(2)
        bench.child(contender.spec, "emit", total, options.per_second)

        def resumed() -> list[tuple[float, float]]:
            return sorted((each.sent, each.at) for each in crew.executions.read() if each.sent)

        if not wait_until(lambda: len(resumed()) >= total, LIMIT, 0.1):
            raise ProcessError(f"{len(resumed())} of {total} tasks ran on")
        times = [1000 * (at - sent) for sent, at in resumed()[WARM:]]
    return {"events": len(times), **percentiles(times)}


def sleep(bench: Bench, contender: Contender, count: int) -> Figures:
    """What jobs hold that sleep: compared to a fifth of them, by which the worker is warm."""
    if isinstance(contender, Peer):
        return {"note": "n/a"}
    figures: Figures = {}
    contender.reset()
    with contender.connect() as connection, bench.workers(contender, *PREFORK) as crew:
        for moment, jobs in (("before", count // 5), ("after", count + count // 5)):
            with bench.beat(contender):
                bench.child(contender.spec, "sleepers", jobs - _value(connection, _ASLEEP))
                if not wait_until(lambda n=jobs: _value(connection, _ASLEEP) == n, LIMIT, 0.1):
                    raise ProcessError(f"{_value(connection, _ASLEEP)} of {jobs} jobs sleep")
            figures[f"{moment}_mb"] = _memory_mb(crew)
            figures[f"{moment}_ms"] = bench.child(contender.spec, "idle")["idle_ms"]
        figures["slots"] = _value(connection, _SLOTS)
        figures["messages"] = _value(connection, _MESSAGES)
    return figures


def _await(crew: Crew, count: int) -> None:
    """Waits until so many records are there."""
    if not crew.wait(count, LIMIT):
        raise ProcessError(f"{crew.executions.count()} of {count} records in {LIMIT:g} s")


def _value(connection: psycopg.Connection, query: str) -> int:
    row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0


def _memory_mb(crew: Crew) -> float:
    """What the workers' processes don't share."""
    roots = [psutil.Process(process.pid) for process in crew.processes]
    family = [each for root in roots for each in (root, *root.children(recursive=True))]
    return float(sum(process.memory_full_info().uss for process in family) / 2**20)


class Jobs(Launched):
    """Jobs that have no steps, on the schema of the code that `PYTHONPATH` names."""

    def reset(self) -> None:
        PostgresBroker.reset(self)
        environment = {**os.environ, "PGBEAT_URL": self.url}
        command = [sys.executable, "-m", "pgbeat", "migrate"]
        subprocess.run(command, env=environment, cwd="/", check=True, stdout=subprocess.DEVNULL)


class Others(Jobs, Plain):
    """Tasks that are no jobs."""

    name, are_jobs = Plain.name, Plain.are_jobs


def without(bench: Bench, contender: Jobs, options: argparse.Namespace) -> Figures:
    """No-ops by this code, and by that of an older checkout, in turns."""
    codes = {"now": Path(__file__).parent.parent, "before": options.before}
    rates: dict[str, list[float]] = {name: [] for name in codes}
    for turn in range(options.rounds):
        # Who comes first changes, for a machine that gets slower or faster.
        for name in codes if turn % 2 else reversed(codes):
            os.environ["PYTHONPATH"] = str(codes[name].resolve())
            rates[name].append(drain(bench, contender, PREFORK, options.tasks)["per_s"])
            bench.say(f"    {name}: {number(rates[name][-1])} a second")
    del os.environ["PYTHONPATH"]
    return {name: median(values) for name, values in rates.items()} | {"rounds": rates}


def cases(measure: str, bench: Bench, options: argparse.Namespace) -> Iterator[Case[Contender]]:
    """The cases of a measure, but for those without steps."""
    if measure == "step":
        for task, words in TASKS.items():
            yield (
                measure,
                words,
                lambda contender, task=task: step(bench, contender, task, options),  # type: ignore[misc]
            )
    if measure == "event":
        title = f"{number(options.events)}, {number(options.per_second)} a second"
        yield measure, title, lambda contender: event(bench, contender, options)
    if measure == "sleep":
        title = number(options.sleepers)
        yield measure, title, lambda contender: sleep(bench, contender, options.sleepers)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = arguments_parser(__doc__, MEASURES, "contenders", tuple(CONTENDERS))
    for flag, default, words in (
        ("--steps", 200, "steps of a task"),
        ("--times", 5, "such tasks"),
        ("--events", 200, "events"),
        ("--per-second", 20, "events a second"),
        ("--sleepers", 10_000, "jobs that sleep"),
        ("--tasks", 10_000, "tasks to drain without steps"),
        ("--rounds", 3, "times that both versions drain them"),
    ):
        parser.add_argument(flag, type=int, default=default, help=f"{words}; {default:,}")
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER", help="a checkout to drain tasks beside this one"
    )
    return parser.parse_args(arguments)


def main() -> int:
    """Runs the benchmark; 130 after Ctrl-C, with the tables of what was measured until then."""
    options = parse(sys.argv[1:])
    with Run(options) as run:
        names = available(options.contenders, CONTENDERS, run.say)
        postgres = run.stack.enter_context(run.postgres())
        packages = ["pgbeat", "dbos", "absurd-sdk"]
        run.environment = description(packages, postgres.settings)
        processes = run.stack.enter_context(Programs())
        contenders = []
        for name in names:
            (run.folder / name).mkdir()
            contenders.append(CONTENDERS[name](postgres, run.folder / name))
        bench = Bench(processes, run.say)
        every = (case for measure in options.only for case in cases(measure, bench, options))
        measure_all(every, contenders, processes, run.say, run.results)
        if "without" in options.only and options.before:
            workers = run.stack.enter_context(Workers())
            bench = Bench(workers, run.say)
            for kind in (Jobs, Others):
                (run.folder / kind.name).mkdir()
            versions = [kind(postgres, run.folder / kind.name) for kind in (Jobs, Others)]
            case = ("without", number(options.tasks), lambda jobs: without(bench, jobs, options))
            measure_all([case], versions, workers, run.say, run.results)
    versions = {"without": run.results.pop("without", {})}
    print_results(run.console, run.results, options.contenders, TABLES, COMPARISONS)
    print_results(run.console, versions, [Jobs.name, Others.name], TABLES, {})
    run.results |= versions
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
