"""Measures submitting and lanes: `python benchmarks/jobs.py --help`."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from beats.machine import description
from beats.measures import Figures
from beats.processes import ProcessError
from beats.spec import TASK
from brokers.contenders import Pgbeat
from brokers.measures import PREFORK, Bench, rates
from brokers.processes import Workers
from rich.console import Console
from rich.table import Table
from servers import Postgres

#: Seconds that a measure may take.
LIMIT = 180.0
#: What is measured of one process that sends, by the command of `brokers.child`.
SENDING = {
    "apply_async": "publish",
    "pgbeat.submit, a transaction each": "submit",
    "pgbeat.submit, all in one transaction": "submit_bulk",
}

MAKE = """
    INSERT INTO pgbeat.jobs (id, task, args, kwargs, job_source, created_by, is_system_job, lane)
    SELECT gen_random_uuid(), %(task)s, '[]', '{}', 'system', 'benchmark', true, %(lane)s
      FROM generate_series(1, %(count)s)
"""


@contextmanager
def beating(bench: Bench, contender: Pgbeat) -> Iterator[None]:
    """A real beat, which hands jobs out."""
    process = bench.processes.celery(
        contender.spec.within("beat"),
        "-A", "brokers.app", "beat", "-S", "pgbeat.Scheduler", "-l", "ERROR", "--pidfile=",
    )  # fmt: skip
    try:
        yield
    finally:
        bench.processes.kill(process)


def lane(bench: Bench, contender: Pgbeat, limit: int | None, tasks: int) -> Figures:
    """Returns the no-ops a second of a worker of two processes.

    `tasks` jobs wait in a lane with this limit, or without a limit.
    """
    contender.reset()
    bench.child(contender.spec, "send", 1)  # makes the queue
    with contender.connect() as connection:
        connection.execute(
            "INSERT INTO pgbeat.lanes (name, max_running) VALUES ('bench', %s)", (limit,)
        )
        connection.execute(MAKE, {"task": TASK, "lane": "bench", "count": tasks})
        connection.execute("VACUUM ANALYZE pgbeat.jobs")
    with bench.workers(contender, *PREFORK) as crew:
        crew.wait_for_first()
        before = crew.executions.count()
        with beating(bench, contender):
            if not crew.wait(before + tasks, LIMIT):
                raise ProcessError(f"{tasks} jobs took more than {LIMIT:g} s")
        done = crew.executions.read()[before + tasks // 10 :]
    return {**rates(done), "tasks": len(done)}


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=4000, help="jobs of a measure; 4,000")
    parser.add_argument("--rounds", type=int, default=3, help="times that all take turns; 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    return parser.parse_args(arguments)


def main() -> int:
    """Runs the benchmark."""
    options = parse(sys.argv[1:])
    console = Console(width=None if sys.stdout.isatty() else 120)
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    results: dict[str, list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgbeat-bench-")))
        postgres = stack.enter_context(Postgres(os.environ.get("PGBEAT_TEST_URL")))
        processes = stack.enter_context(Workers())
        contender = Pgbeat(postgres, folder)
        bench = Bench(processes, progress.print)

        def note(what: str, per_s: float) -> None:
            results.setdefault(what, []).append(per_s)
            progress.print(f"{what}: {per_s:,.0f} a second")

        for _ in range(options.rounds):
            for what, command in SENDING.items():
                contender.reset()
                note(what, bench.child(contender.spec, command, options.tasks)["per_s"])
            for limit in (None, 100, 2, 1):
                jobs = options.tasks if limit is None or limit > 2 else options.tasks // 4
                what = "without a limit" if limit is None else f"limit {limit}"
                note(f"lane, {what}", lane(bench, contender, limit, jobs)["per_s"])
        machine = description(["pgbeat", "celery"], postgres.settings)
    table = Table(title="Jobs: medians", show_header=False)
    for what, figures_of in results.items():
        table.add_row(what, f"{median(figures_of):,.0f} a second")
    console.print(table)
    if options.json:
        document = {"environment": machine, "results": results}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
