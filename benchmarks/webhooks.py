"""Measures deliveries of webhooks by a beat: `python benchmarks/webhooks.py --help`."""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
from beats.machine import description
from beats.measures import Figures, micros, percentiles
from beats.processes import BENCHMARKS, ProcessError, wait_until
from brokers.contenders import Pgbeat
from brokers.measures import Bench
from brokers.processes import Workers
from rich.table import Table
from runner import Run
from usage import Usage

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
#: Columns of the table.
ROWS = {
    "per_s": "a second",
    "beat_us": "CPU of beat, us",
    "server_us": "of the server, us",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
}

_ADD = """
    INSERT INTO pgbeat.webhooks (name, url, secret, events)
    VALUES (%s, %s, 'whsec_' || encode(sha256('bench'), 'base64'), '{job.run.completed}')
"""
# As the database inserts an event of an execution, with the same fields.
_HAPPEN = """
    INSERT INTO pgbeat.deliveries (webhook_id, event, payload)
    SELECT w.id, 'job.run.completed', jsonb_build_object('type', 'job.run.completed',
               'timestamp', now(), 'data', jsonb_build_object('id', gen_random_uuid(), 'job_id',
               gen_random_uuid(), 'number', 1, 'status', 'completed', 'worker', 'bench',
               'started_at', now(), 'finished_at', now(), 'duration_ms', 12, 'artifacts', '[]',
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
            with bench.beat(contender) as beat:
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
        "per_s": float(row[0]),
        **micros(spent, total - already),
        "deliveries": total,
        "attempts": int(row[1]),
    }


def beside(bench: Bench, contender: Pgbeat, hanging: int) -> Figures:
    """How long events of one webhook take while as many others hang: 20, one each 0.2 s."""
    with receiving(1 + hanging, 0.02, hanging) as urls:
        prepare(bench, contender, urls, hanging)
        with contender.connect() as connection, bench.beat(contender):
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
    """Runs the benchmark; 130 after Ctrl-C, with the table of what was measured until then."""
    options = parse(sys.argv[1:])
    with Run(options) as run:
        postgres = run.stack.enter_context(run.postgres())
        run.environment = description(["pgbeat"], postgres.settings)
        contender = Pgbeat(postgres, run.folder)
        contender.spec = replace(contender.spec, settings={"pgbeat_webhook_private": True})
        bench = Bench(run.stack.enter_context(Workers()), run.say)
        for what, (receivers, seconds) in CASES.items():
            count = options.deliveries if receivers > 1 else options.deliveries // 10
            run.results[what] = rate(bench, contender, receivers, seconds, count)
            run.say(f"{what}: {run.results[what]['per_s']:,.0f} a second")
        for hanging in HANGING:
            what = f"an event beside {hanging} receivers that hang"
            run.results[what] = beside(bench, contender, hanging)
            run.say(f"{what}: {run.results[what]['p50_ms']:,.0f} ms")
    table = Table("", *ROWS.values(), title="Webhooks")
    for what, figures in run.results.items():
        cells = [f"{figures[key]:,.0f}" if key in figures else "–" for key in ROWS]
        table.add_row(what, *cells)
    run.console.print(table)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
