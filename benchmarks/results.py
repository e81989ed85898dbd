"""Measures result backends beside each other: `python benchmarks/results.py --help`."""

import argparse
import sys
from collections.abc import Iterator
from subprocess import Popen
from typing import Any

from backends.contenders import CONTENDERS, Contender, Rpc
from backends.kills import chord_kills
from beats.machine import description
from beats.measures import Figures
from beats.processes import ProcessError, Processes, last_words, wait_until
from beats.report import Comparison, Row, against, number, print_results
from brokers.executions import Executions
from runner import Case, Run, arguments_parser, available, measure_all
from servers import opened

MEASURES = ("latency", "drain", "rows", "group", "chord", "waits", "kills")
#: Seconds that a worker may take to begin, and a command to end.
START_LIMIT, LIMIT = 60.0, 240.0

TABLES = {
    "latency": (
        "delay().get(), an idle prefork worker: {}",
        [Row("p50, ms", "p50_ms"), Row("p99, ms", "p99_ms"), Row("max, ms", "max_ms")],
    ),
    "drain": ("No-ops whose results are stored: {}", [Row("tasks/s", "per_s", "more")]),
    "rows": ("Tasks that insert a row each: {}", [Row("tasks/s", "per_s", "more")]),
    "group": ("A group until get() returns: {}", [Row("median, s", "median_s")]),
    "chord": (
        "A chord until its body's result is there: {}",
        [Row("median, s", "median_s"), Row("last part to body, median, ms", "body_ms")],
    ),
    "waits": (
        "One process waits for many results: {}",
        [Row("s", "seconds"), Row("its CPU, s", "cpu_s")],
    ),
    "kills": (
        "Bodies of chords whose worker is killed as it publishes them: {}",
        [
            Row("before: lost", "before_lost"),
            Row("before: run twice", "before_twice"),
            Row("after: lost", "after_lost"),
            Row("after: run twice", "after_twice"),
        ],
    ),
}
COMPARISONS: dict[str, Comparison] = {
    "pgbeat vs redis": against("redis"),
    "pgbeat vs redis_only": against("redis_only"),
    "pgbeat vs db": against("db"),
    "pgbeat vs pgmq": against("pgmq"),
}


class Runner(Processes):
    """Starts `backends.child` and a worker, prefork with two processes."""

    commands = "backends.child"

    def begin_worker(self, contender: Contender, processes: int = 2, **settings: Any) -> Popen[str]:
        """Starts the worker, with more settings of its app."""
        spec = contender.spec.within("worker").with_settings(**settings)
        return self.celery(
            spec.with_options(spec.worker_options),
            "-A",
            "backends.app",
            "worker",
            "-l",
            "ERROR",
            "-c",
            str(processes),
            "--without-mingle",
        )

    def ask(self, contender: Contender, command: str, *arguments: float) -> Figures:
        """Runs a command of `backends.child`; returns what it said."""
        spec = contender.spec.within("child")
        said, in_time = self.run(spec, command, *arguments, limit=LIMIT)
        if not in_time:
            raise ProcessError(f"{command} took more than {LIMIT:.0f} s")
        return said[0] if said else {}


def drain(runner: Runner, contender: Contender, tasks: int, command: str = "send") -> Figures:
    """The rate at which a worker gets through tasks that wait for it."""
    if command == "send_rows" and not contender.inserts:
        return {"note": "n/a"}
    executions = Executions(contender.spec.executions)
    runner.ask(contender, command, tasks)
    worker = runner.begin_worker(contender)

    def ran(count: int) -> bool:
        if worker.poll() is not None:
            raise ProcessError(last_words(contender.spec.within("worker")) or "the worker ended")
        return executions.count() >= count

    if not wait_until(lambda: ran(1), START_LIMIT) or not wait_until(lambda: ran(tasks), LIMIT):
        raise ProcessError(f"{executions.count()} of {tasks} tasks ran")
    times = [each.at for each in executions.read()]
    tenth = len(times) // 10  # the worker's first seconds are not its pace
    return {"per_s": (len(times) - 1 - tenth) / (times[-1] - times[tenth])}


def with_worker(runner: Runner, contender: Contender, command: str, *arguments: float) -> Figures:
    """Runs a command while a worker is there."""
    if command == "chords" and isinstance(contender, Rpc):
        return {"note": "n/a"}
    executions = Executions(contender.spec.executions)
    runner.begin_worker(contender)
    figures = runner.ask(contender, command, *arguments)
    if command == "chords":
        # Each chord's last record is its body's.
        times, parts = [each.at for each in executions.read()], int(arguments[0])
        gaps = [times[n] - times[n - 1] for n in range(parts, len(times), parts + 1)]
        figures["body_ms"] = 1e3 * sorted(gaps)[len(gaps) // 2]
    return figures


def cases(measure: str, runner: Runner, options: argparse.Namespace) -> Iterator[Case[Contender]]:
    """The cases of a measure."""
    if measure == "kills":
        title = f"{number(options.kills)} at each step"
        yield measure, title, lambda contender: chord_kills(runner, contender, options.kills)
        return
    commands = {
        "latency": ("latency", options.latency),
        "group": ("groups", options.members, options.times),
        "chord": ("chords", options.members, options.times),
        "waits": ("waits", options.waits),
    }
    if measure in ("drain", "rows"):
        title = f"{number(options.tasks)} waiting, prefork -c 2"
        send = "send" if measure == "drain" else "send_rows"
        yield measure, title, lambda contender: drain(runner, contender, options.tasks, send)
        return
    command, count, *more = commands[measure]
    yield (
        measure,
        f"{number(count)}, prefork -c 2",
        lambda contender: with_worker(runner, contender, command, count, *more),
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = arguments_parser(__doc__, MEASURES, "contenders", tuple(CONTENDERS))
    for flag, default, words in (
        ("--latency", 500, "calls whose latency is taken"),
        ("--tasks", 5_000, "tasks to drain"),
        ("--members", 1_000, "members of a group and a chord"),
        ("--times", 3, "groups and chords"),
        ("--waits", 10_000, "results that one process waits for"),
        ("--kills", 20, "workers killed at each step of a chord's end"),
    ):
        parser.add_argument(flag, type=int, default=default, help=f"{words}; {default:,}")
    return parser.parse_args(arguments)


def main() -> int:
    """Runs the benchmark; 130 after Ctrl-C, with the tables of what was measured until then."""
    options = parse(sys.argv[1:])
    with Run(options) as run:
        names = available(options.contenders, CONTENDERS, run.say)
        postgres = run.postgres()
        needed = {server for name in names for server in CONTENDERS[name].needs}
        servers = opened(run.stack, postgres, needed)
        runner = run.stack.enter_context(Runner())
        contenders = []
        for name in names:
            (run.folder / name).mkdir()
            contenders.append(CONTENDERS[name](servers, run.folder / name))
        run.environment = description(["pgbeat", "celery", "kombu", "redis"], postgres.settings)
        every = (case for measure in options.only for case in cases(measure, runner, options))
        measure_all(every, contenders, runner, run.say, run.results)
    print_results(run.console, run.results, options.contenders, TABLES, COMPARISONS)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
