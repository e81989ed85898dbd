"""Measures brokers for Celery beside each other: `python benchmarks/transport.py --help`."""

import argparse
import sys
from collections.abc import Iterator

from beats.machine import description
from beats.measures import Figures
from beats.report import number, print_results
from brokers.contenders import CONTENDERS, Contender, Pgbeat, PostgresBroker
from brokers.ends import ENDS, end_worker
from brokers.held import HELD, drain_held
from brokers.measures import PREFORK, Bench, compete, drain, idle, latency, publish
from brokers.processes import Workers
from brokers.tables import COMPARISONS, TABLES
from runner import Case, Run, arguments_parser, available, measure_all
from servers import opened

MEASURES = ("publish", "drain", "compete", "latency", "idle", "ends", "backlog", "held")
POOLS = (PREFORK, ("solo", 1), ("threads", 2))
COMPETING = 4
PER_SECOND = 20


def cases(measure: str, bench: Bench, options: argparse.Namespace) -> Iterator[Case[Contender]]:
    """The cases of a measure: its name, a title, and what to run for a contender."""
    tasks = options.tasks
    if measure == "publish":
        yield (
            measure,
            f"{number(options.publish)} tasks",
            lambda contender: publish(bench, contender, options.publish, options.bulk),
        )
    if measure == "drain":
        for pool in POOLS:
            yield (
                measure,
                f"{number(tasks)} waiting, {pool[0]} -c {pool[1]}".replace(" -c 1", ""),
                lambda contender, pool=pool: drain(bench, contender, pool, tasks, tasks),  # type: ignore[misc]
            )
    if measure == "compete":
        yield (
            measure,
            f"{COMPETING} solo workers",
            lambda contender: compete(bench, contender, COMPETING, tasks),
        )
    if measure == "latency":
        yield (
            measure,
            f"{number(options.latency)} tasks, {PER_SECOND} a second, prefork -c 2",
            lambda contender: latency(bench, contender, options.latency, PER_SECOND),
        )
    if measure == "idle":
        yield (
            measure,
            f"prefork -c 2, {options.idle:g} s",
            lambda contender: idle(bench, contender, options.idle, options.settle),
        )
    if measure == "ends":
        for how in ENDS:
            yield (
                measure,
                how,
                lambda contender, how=how: end_worker(bench, contender, how, options.patience),  # type: ignore[misc]
            )
    if measure == "backlog":
        for waiting in (tasks, options.backlog + tasks):
            yield (
                measure,
                f"{number(waiting)} waiting, the first {number(tasks)}, prefork -c 2",
                lambda contender, waiting=waiting: _backlog(bench, contender, options, waiting),  # type: ignore[misc]
            )
    if measure == "held":
        rate = f", {options.rate:g} a second" if options.rate else ""
        for held in options.holders:
            yield (
                measure,
                f"{held}, {options.minutes:g} min, prefork -c 2{rate}",
                lambda contender, held=held: _held(bench, contender, options, held),  # type: ignore[misc]
            )


def _backlog(
    bench: Bench, contender: Contender, options: argparse.Namespace, waiting: int
) -> Figures:
    if isinstance(contender, Pgbeat) or options.full:
        return drain(bench, contender, PREFORK, options.tasks, waiting)
    return {"note": "--full"}


def _held(bench: Bench, contender: Contender, options: argparse.Namespace, held: str) -> Figures:
    if not isinstance(contender, PostgresBroker):
        return {"note": "n/a"}
    if isinstance(contender, Pgbeat) or options.full:
        return drain_held(bench, contender, held, 60 * options.minutes, options.rate)
    return {"note": "--full"}


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = arguments_parser(__doc__, tuple(MEASURES), "contenders", tuple(CONTENDERS))
    for flag, kind, default, words in (
        ("--publish", int, 2_000, "tasks to publish one by one"),
        ("--bulk", int, 20_000, "tasks to publish in one transaction"),
        ("--tasks", int, 5_000, "tasks to drain"),
        ("--latency", int, 300, "tasks whose latency is taken"),
        ("--idle", float, 20.0, "seconds of idling"),
        ("--settle", float, 10.0, "seconds before that"),
        ("--patience", float, 30.0, "seconds in which an ended worker's tasks must come back"),
        ("--backlog", int, 1_000_000, "messages that wait behind those drained"),
        ("--minutes", float, 1.0, "that a transaction is held open"),
        ("--rate", float, 0.0, "messages a second meanwhile; 0: as fast as they are worked off"),
    ):
        parser.add_argument(flag, type=kind, default=default, help=f"{words}; {default:,g}")
    parser.add_argument(
        "--holders",
        type=lambda names: names.split(","),
        default=list(HELD),
        metavar="NAMES",
        help=f"what is held open, of {','.join(HELD)}",
    )
    parser.add_argument("--full", action="store_true", help="peers in backlog and held, too")
    return parser.parse_args(arguments)


def main() -> int:
    """Runs the benchmark; 130 after Ctrl-C, with the tables of what was measured until then."""
    options = parse(sys.argv[1:])
    with Run(options) as run:
        names = available(options.contenders, CONTENDERS, run.say)
        postgres = run.postgres()
        servers = opened(run.stack, postgres, {CONTENDERS[name].server for name in names})
        processes = run.stack.enter_context(Workers())
        contenders = []
        for name in names:
            (run.folder / name).mkdir()
            broker = CONTENDERS[name]
            contenders.append(broker(servers[broker.server], run.folder / name))
        run.environment = {
            **description(["pgbeat", "amqp"], postgres.settings),
            "servers": {contender.name: contender.version() for contender in contenders},
        }
        bench = Bench(processes, run.say)
        every = (case for measure in options.only for case in cases(measure, bench, options))
        measure_all(every, contenders, processes, run.say, run.results)
    print_results(run.console, run.results, options.contenders, TABLES, COMPARISONS)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
