"""Measures deliveries of webhooks by a beat: `python benchmarks/webhooks.py --help`."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
from beats.machine import description
from beats.measures import Figures, percentiles
from beats.processes import BENCHMARKS, ProcessError, wait_until
from brokers.contenders import Pgbeat
from brokers.measures import Bench, micros
from brokers.processes import Workers
from brokers.usage import Usage
from rich.console import Console
from rich.table import Table
from servers import Postgres

#: Seconds that a measure may take.
LIMIT = 120.0
#: Webhooks, and seconds until their receivers answer.
CASES = {
    "32 receivers that answer in 20 ms": (32, 0.02),
    "32 receivers that answer at once": (32, 0.0),
    "1 receiver that answers in 20 ms": (1, 0.02),
}
#: Webhooks that begin to hang at the same moment, beside one that answers in 20 ms.
HANGING = (8, 60)

_ADD = """
    INSERT INTO pgbeat.webhooks (name, url, secret, events)
    VALUES (%s, %s, 'whsec_' || encode(sha256('bench'), 'base64'), '{job.run.completed}')
"""
# As the database inserts an event of an execution, with the same fields.
_HAPPEN = """
    INSERT INTO pgbeat.deliveries (webhook_id, event, payload)
    SELECT w.id, 'job.run.completed', jsonb_build_object('type', 'job.run.completed',
               'timestamp', now(), 'data', jsonb_build_object('id', gen_random_uuid(), 'job_id',
               gen_random_uuid(), 'execution_number', 1, 'status', 'completed', 'worker', 'bench',
               'started_at', now(), 'completed_at', now(), 'duration_ms', 12, 'artifacts', '[]',
               'metadata', '{}', 'job', jsonb_build_object('id', gen_random_uuid(), 'task', 'bench',
               'queue', 'celery', 'priority', 0, 'tags', '[]', 'created_by', 'bench', 'text', n)))
      FROM pgbeat.webhooks w, generate_series(1, %s) n
     WHERE w.name LIKE %s
"""


@contextmanager
def receiving(count: int, seconds: float, hanging: int = 0) -> Iterator[list[str]]:
    """URLs of receivers in a process of their own."""
    argv = [sys.executable, "-m", "receiver", str(count), str(seconds), str(hanging)]
    with subprocess.Popen(argv, cwd=BENCHMARKS, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield [f"http://127.0.0.1:{int(process.stdout.readline())}/" for _ in range(count)]
        finally:
            process.kill()


def prepare(bench: Bench, contender: Pgbeat, urls: list[str], hanging: int = 0) -> None:
    """A fresh database with a webhook for each URL. The last ones are `bad-…`, others `good-…`."""
    contender.reset()
    bench.child(contender.spec, "send", 1)
    with contender.connect() as connection:
        for number, url in enumerate(urls):
            place = number - (len(urls) - hanging)
            name = f"good-{number}" if place < 0 else f"bad-{place}"
            connection.execute(_ADD, (name, url))


@contextmanager
def beating(bench: Bench, contender: Pgbeat) -> Iterator[int]:
    """The process of a beat that leads."""
    process = bench.processes.celery(
        contender.spec.within("beat"),
        "-A", "brokers.app", "beat", "-S", "pgbeat.Scheduler", "-l", "ERROR", "--pidfile=",
    )  # fmt: skip
    try:
        yield process.pid
    finally:
        bench.processes.kill(process)


def delivered(connection: psycopg.Connection, name: str) -> int:
    """How many deliveries of the webhooks are done."""
    row = connection.execute(
        "SELECT count(*) FROM pgbeat.deliveries d JOIN pgbeat.webhooks w ON w.id = d.webhook_id "
        "WHERE d.state = 'delivered' AND w.name LIKE %s",
        (name,),
    ).fetchone()
    return int(row[0]) if row else 0


def rate(bench: Bench, contender: Pgbeat, receivers: int, seconds: float, count: int) -> Figures:
    """Deliveries a second, from the first tenth's outcome in the database to the last one's."""
    with receiving(receivers, seconds) as urls:
        prepare(bench, contender, urls)
        with contender.connect() as connection:
            connection.execute(_HAPPEN, (count // receivers, "good-%"))
            connection.execute("VACUUM ANALYZE pgbeat.deliveries")
            total = count // receivers * receivers
            with beating(bench, contender) as beat:
                if not wait_until(lambda: delivered(connection, "%"), LIMIT, 0.05):
                    raise ProcessError("nothing was delivered")
                already = delivered(connection, "%")
                usage = {"beat_us": Usage(beat), "server_us": Usage(contender.spec.server)}
                if not wait_until(lambda: delivered(connection, "%") >= total, LIMIT, 0.25):
                    raise ProcessError(f"{delivered(connection, '%')} of {total} were delivered")
                spent = {name: each.seconds() for name, each in usage.items()}
            [row] = connection.execute(
                """
                SELECT count(*) / extract(epoch FROM max(finished_at) - min(finished_at)),
                       (SELECT sum(attempts) FROM pgbeat.deliveries)
                  FROM (SELECT finished_at, ntile(10) OVER (ORDER BY finished_at) AS tenth
                          FROM pgbeat.deliveries) each WHERE tenth > 1
                """
            ).fetchall()
    return {
        "per_s": float(row[0]), **micros(spent, total - already),
        "deliveries": total, "attempts": row[1],
    }  # fmt: skip


def beside(bench: Bench, contender: Pgbeat, hanging: int) -> Figures:
    """How long events of one webhook take while as many others hang: 20, one each 0.2 s."""
    with receiving(1 + hanging, 0.02, hanging) as urls:
        prepare(bench, contender, urls, hanging)
        with contender.connect() as connection, beating(bench, contender):
            connection.execute(_HAPPEN, (1, "good-%"))
            if not wait_until(lambda: delivered(connection, "good-%"), LIMIT):
                raise ProcessError("nothing was delivered")
            connection.execute(_HAPPEN, (20, "bad-%"))
            for _ in range(20):
                time.sleep(0.2)
                connection.execute(_HAPPEN, (1, "good-%"))
            if not wait_until(lambda: delivered(connection, "good-%") > 20, LIMIT):
                raise ProcessError("not all were delivered")
            rows = connection.execute(
                "SELECT 1000 * extract(epoch FROM d.finished_at - d.created_at) "
                "FROM pgbeat.deliveries d JOIN pgbeat.webhooks w ON w.id = d.webhook_id "
                "WHERE w.name LIKE 'good-%' ORDER BY d.created_at OFFSET 1"
            ).fetchall()
    return percentiles([float(ms) for (ms,) in rows])


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deliveries", type=int, default=20_000, help="of a case; 20,000")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    return parser.parse_args(arguments)


def main() -> int:
    """Runs the benchmark."""
    options = parse(sys.argv[1:])
    console = Console(width=None if sys.stdout.isatty() else 120)
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    results: dict[str, Figures] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgbeat-bench-")))
        postgres = stack.enter_context(Postgres(os.environ.get("PGBEAT_TEST_URL")))
        processes = stack.enter_context(Workers())
        contender = Pgbeat(postgres, folder)
        contender.spec = replace(contender.spec, settings={"pgbeat_webhook_private": True})
        bench = Bench(processes, progress.print)
        for what, (receivers, seconds) in CASES.items():
            count = options.deliveries if receivers > 1 else options.deliveries // 10
            results[what] = rate(bench, contender, receivers, seconds, count)
            progress.print(f"{what}: {results[what]}")
        for hanging in HANGING:
            what = f"beside {hanging} that hang"
            results[what] = beside(bench, contender, hanging)
            progress.print(f"{what}: {results[what]}")
        machine = description(["pgbeat", "celery"], postgres.settings)
    table = Table(title="Webhooks", show_header=False)
    for what, figures in results.items():
        table.add_row(what, str(figures))
    console.print(table)
    if options.json:
        document = {"environment": machine, "results": results}
        options.json.write_text(json.dumps(document, indent=1, default=str) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
