"""Measures pgbeat beside its peers in one run: `python benchmarks/beat.py --help`."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator

from beats.contenders import Contender, Pgbeat
from beats.machine import description
from beats.measures import WITH, Bench, Figures, change, idle, lateness, launch
from beats.peers import CONTENDERS, RedBeat
from beats.processes import ProcessError, Processes
from beats.report import number, print_results
from beats.spec import Spec
from beats.takeover import takeover
from runner import Run, arguments_parser, measure_all
from servers import Redis

MEASURES = ("idle", "launch", "change", "late", "takeover")
SIZES = (1_000, 10_000, 100_000, 1_000_000)
#: Peers take minutes at this size and above.
FULL_SIZE = 1_000_000
MOST_DUE = 10_000

Case = tuple[str, Callable[[Contender], Figures]]


def cases(measure: str, bench: Bench, options: argparse.Namespace) -> Iterator[Case]:
    """The cases of a measure: a title, and what to run for a contender."""
    if measure == "idle":
        for size in options.sizes:
            yield (
                f"{number(size)} schedules",
                lambda contender, size=size: (  # type: ignore[misc]
                    idle(bench, contender, size)
                    if size < FULL_SIZE or options.full or isinstance(contender, Pgbeat)
                    else {"note": "--full"}
                ),
            )
    if measure == "launch":
        for size in options.sizes:
            if size <= MOST_DUE or (options.full and size < FULL_SIZE):
                due = min(size, MOST_DUE)
                yield (
                    f"{number(due)} of {number(size)} schedules",
                    lambda contender, size=size, due=due: launch(bench, contender, size, due),  # type: ignore[misc]
                )
        due = min(MOST_DUE, max(options.sizes))
        for title, columns in WITH.items():
            yield (
                f"{number(due)} of {number(due)} schedules, with {title}",
                lambda contender, columns=columns: (  # type: ignore[misc]
                    launch(bench, contender, due, due, columns)
                    if isinstance(contender, Pgbeat)
                    else {"note": "-"}
                ),
            )
    if measure == "change":
        size = min(1_000, max(options.sizes))
        yield f"{number(size)} schedules", lambda contender: _change(bench, contender, size)
    if measure == "late":
        size, seconds = min(1_000, max(options.sizes)), 15
        yield (
            f"{number(size)} schedules, every second, {seconds} s",
            lambda contender: lateness(bench, contender, size, seconds),
        )
    if measure == "takeover":
        yield f"{options.repeats} times", lambda contender: _takeover(bench, contender, options)


def _change(bench: Bench, contender: Contender, size: int) -> Figures:
    if contender.changes is None:
        return {"note": contender.change_note}
    figures = change(bench, contender, size, contender.changes)
    return {**figures, "remark": contender.change_note} if contender.change_note else figures


def _takeover(bench: Bench, contender: Contender, options: argparse.Namespace) -> Figures:
    if isinstance(contender, Pgbeat):
        return takeover(bench, contender, options.repeats)
    if isinstance(contender, RedBeat):
        said, _ = bench.processes.run(contender.spec, "lock-timeout", limit=60)
        timeout = said[0]["lock_timeout_s"]
        return {"lock_timeout_s": timeout, "note": f"{timeout:.0f} s (default lock timeout)"}
    return {"note": contender.takeover_note}


def contenders_for(options: argparse.Namespace, say: Callable[[str], None]) -> list[str]:
    """The names to compare; says which are left out and why."""
    names = []
    for name in options.schedulers:
        kind = CONTENDERS[name]
        if not kind.installed():
            say(f"{name}: skipped (not installed: {kind.package})")
        elif kind.uses_redis and not Redis.installed():
            say(f"{name}: skipped (no redis-server)")
        else:
            names.append(name)
    return names


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = arguments_parser(__doc__, tuple(MEASURES), "schedulers", tuple(CONTENDERS))
    parser.add_argument(
        "--sizes",
        type=lambda text: sorted(int(part) for part in text.split(",")),
        default=list(SIZES),
        metavar="NUMBERS",
        help=f"of schedules; {','.join(map(str, SIZES))}",
    )
    parser.add_argument("--repeats", type=int, default=10, help="of the take-over; 10")
    parser.add_argument("--full", action="store_true", help="peers at 1M too; launches at 100k")
    return parser.parse_args(arguments)


def main() -> int:
    """Runs the benchmark; 130 after Ctrl-C, with the tables of what was measured until then."""
    options = parse(sys.argv[1:])
    with Run(options) as run:
        names = contenders_for(options, run.say)
        postgres = run.stack.enter_context(run.postgres())
        packages = [kind.package for kind in CONTENDERS.values()]
        run.environment = description(packages, postgres.settings)
        needs_redis = any(CONTENDERS[name].uses_redis for name in names)
        redis = run.stack.enter_context(Redis()) if needs_redis else None
        processes = run.stack.enter_context(Processes())
        contenders = []
        for number_, name in enumerate(names):
            kind = CONTENDERS[name]
            own = run.folder / name
            own.mkdir()
            database = ""
            if kind.uses_postgres:
                database = postgres.database(f"pgbeat_bench_{os.getpid()}_{number_}")
            servers = (
                postgres.pid if kind.uses_postgres else None,
                redis.pid if redis and kind.uses_redis else None,
            )
            servers = tuple(pid for pid in servers if pid is not None)
            spec = Spec(name, str(own), database, redis.url if redis else "", servers)
            try:
                processes.run(spec, "migrate", limit=120)
                contenders.append(kind(spec))
            except ProcessError as error:
                run.say(f"{name}: skipped ({error})")
        bench = Bench(processes, run.say)
        all_cases = (
            (measure, *case) for measure in options.only for case in cases(measure, bench, options)
        )
        measure_all(all_cases, contenders, processes, run.say, run.results)
    print_results(run.console, run.results, options.schedulers)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
