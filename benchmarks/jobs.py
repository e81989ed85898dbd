"""Measures submitting and lanes: `python benchmarks/jobs.py --help`."""

import argparse
import sys
from pathlib import Path
from statistics import median

from beats.machine import description
from beats.measures import Figures
from beats.processes import ProcessError
from beats.spec import TASK
from brokers.contenders import Pgbeat
from brokers.measures import PREFORK, Bench, rates
from brokers.processes import Workers
from rich.table import Table
from runner import Run, names_of

#: Seconds that a measure may take.
LIMIT = 180.0
MEASURES = ["sending", "lanes", "fair"]
#: What is measured of one process that sends, by the command of `brokers.child`.
SENDING = {
    "apply_async": "publish",
    "apply_async of a task with a policy": "policy",
    "pgbeat.submit, a transaction each": "submit",
    "pgbeat.submit, all in one transaction": "submit_bulk",
    "pgbeat.submit_many": "submit_many",
}

#: Slots of the lanes that are measured with keys that take turns, and without.
SLOTS = (100, 2)
#: Who waits in them.
LINES: dict[str, dict[str, int]] = {
    "jobs of 100 tenants": {"tenants": 100},
    "10,000 of one wait": {"waiting": 10_000},
}

MAKE = """
    INSERT INTO pgbeat.jobs
        (id, task, args, kwargs, job_source, created_by, is_system_job, lane, tags)
    SELECT gen_random_uuid(), %(task)s, '[]', '{}', 'system', 'benchmark', true, 'bench',
           ARRAY['tenant-' || i %% %(tenants)s]
      FROM generate_series(1, %(count)s) AS i
"""


def lane(
    bench: Bench,
    contender: Pgbeat,
    limit: int | None,
    tasks: int,
    *,
    is_fair: bool = False,
    tenants: int = 1,
    waiting: int = 0,
) -> Figures:
    """Returns the no-ops a second of a worker of two processes.

    `tasks` jobs of as many tenants run in a lane with this limit, or without a limit, in which
    `waiting` more wait until the end.
    """
    contender.reset()
    bench.child(contender.spec, "send", 1)  # makes the queue
    with contender.connect() as connection:
        connection.execute(
            "INSERT INTO pgbeat.lanes (name, max_running, fair_by) VALUES ('bench', %s, %s)",
            (limit, "tag" if is_fair else None),
        )
        values = {"task": TASK, "count": tasks + waiting, "tenants": tenants}
        connection.execute(MAKE, values)
        connection.execute("VACUUM ANALYZE pgbeat.jobs")
    with bench.workers(contender, *PREFORK) as crew:
        crew.wait_for_first()
        before = crew.executions.count()
        with bench.beat(contender):
            if not crew.wait(before + tasks, LIMIT):
                raise ProcessError(f"{tasks} jobs took more than {LIMIT:g} s")
        done = crew.executions.read()[before + tasks // 10 : before + tasks]
    return {**rates(done), "tasks": len(done)}


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        type=lambda text: names_of(text, MEASURES),
        metavar="MEASURES",
        default=MEASURES,
        help=f"of {','.join(MEASURES)}",
    )
    parser.add_argument("--tasks", type=int, default=4000, help="jobs of a measure; 4,000")
    parser.add_argument("--rounds", type=int, default=3, help="times that all take turns; 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    return parser.parse_args(arguments)


def main() -> int:
    """Runs the benchmark; 130 after Ctrl-C, with the table of what was measured until then."""
    options = parse(sys.argv[1:])
    with Run(options) as run:
        postgres = run.stack.enter_context(run.postgres())
        run.environment = description(["pgbeat", "celery"], postgres.settings)
        contender = Pgbeat(postgres, run.folder)
        bench = Bench(run.stack.enter_context(Workers()), run.say)

        def note(what: str, figures: Figures) -> None:
            run.results.setdefault(what, []).append(figures)
            run.say(f"{what}: {figures['per_s']:,.0f} a second")

        for _ in range(options.rounds):
            for what, command in SENDING.items() if "sending" in options.only else ():
                contender.reset()
                note(what, bench.child(contender.spec, command, options.tasks))
            for limit in (None, 100, 2, 1) if "lanes" in options.only else ():
                jobs = options.tasks if limit is None or limit > 2 else options.tasks // 4
                what = "without a limit" if limit is None else f"limit {limit}"
                note(f"lane, {what}", lane(bench, contender, limit, jobs))
            for limit in SLOTS if "fair" in options.only else ():
                jobs = options.tasks if limit > 2 else options.tasks // 4
                for line, settings in LINES.items():
                    for kind in ("plain", "fair"):
                        figures = lane(
                            bench, contender, limit, jobs, is_fair=kind == "fair", **settings
                        )
                        note(f"{kind} lane, limit {limit}, {line}", figures)
    table = Table(
        "", "a second", "CPU of the client, us", "of the server, us", title="Jobs: medians"
    )
    for what, rounds in run.results.items():
        keys = ("per_s", "client_us", "server_us")
        table.add_row(what, *(_median(rounds, key) for key in keys))
    run.console.print(table)
    return run.finish()


def _median(rounds: list[Figures], key: str) -> str:
    values = [each[key] for each in rounds if key in each]
    return f"{median(values):,.0f}" if values else "–"


if __name__ == "__main__":
    sys.exit(main())
