"""Measures pages and lists of the web side with many rows: `python benchmarks/web.py --help`.

Each is asked for within the process, so that what is measured is the server's time. Rows are those
of `history.py`, and more schedules: run it with pgbeat's extras `test` and `web`. Postgres is an
embedded one, or the one that `PGBEAT_TEST_URL` names; there, the database stays for another call.
"""

import argparse
import gc
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from beats.machine import description
from beats.measures import Figures, percentiles
from celery import Celery
from rich.table import Table
from runner import Run

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import filling

from pgbeat.config import postgres_url
from pgbeat.testing import embedded
from pgbeat.testing.databases import in_database
from pgbeat.web.recent import Recent
from tests.support.web import Web

#: The database.
NAME = "pgbeat_pages"
#: Milliseconds that a page or a list may take.
GOAL = 200.0
#: Kilobytes, uncompressed, that a page may have.
SIZE_GOAL = 150.0
#: What is asked for; `{job}`, `{group}`, `{execution}` … are rows that there are.
PATHS = (
    "/admin/scheduled-jobs", "/admin/scheduled-jobs?limit=200",
    "/admin/scheduled-jobs?sort=health", "/admin/scheduled-jobs?state=disabled",
    "/admin/scheduled-jobs?search=s99", "/admin/scheduled-jobs?search=nothing",
    "/admin/scheduled-jobs/{schedule}", "/admin/scheduled-jobs/{schedule}/history",
    "/admin/scheduled-jobs/{schedule}/forecast",
    "/jobs", "/jobs?limit=200", "/jobs?state=failed", "/jobs?state=running",
    "/jobs?task=shop.task7", "/jobs?schedule={schedule}", "/jobs?lane=lane1&state=pending",
    "/jobs?created_by=user:3",
    "/jobs?state=skipped&task=shop.task7&created_by=user:3", "/jobs/{job}",
    "/jobs/{job}/executions", "/jobs/{job}/stats", "/jobs/{job}/trace", "/jobs/{job}/logs",
    "/executions/{execution}", "/groups",
    "/groups?state=running",
    "/groups/{group}", "/templates", "/lanes", "/lanes/lane1", "/queues", "/dead", "/webhooks",
    "/webhooks/w1", "/webhooks/w1/deliveries", "/webhooks/w1/deliveries?state=failed",
    "/scheduler/status", "/scheduler/metrics", "/healthz", "/metrics", "/audit",
    "/audit?kind=schedule&subject={schedule}",
    "/console/schedules", "/console/schedules?search=x9", "/console/schedules?search=nothing",
    "/console/schedules?state=disabled", "/console/schedules/{schedule}", "/console/new/schedule",
    "/console/backfill/{schedule}", "/console/jobs", "/console/jobs?state=failed",
    "/console/jobs?schedule={schedule}", "/console/jobs?lane=lane1&state=pending",
    "/console/jobs?by=user:3", "/console/jobs/{job}", "/console/new/job",
    "/console/new/job?like={job}", "/console/groups",
    "/console/groups/{group}", "/console/templates", "/console/lanes", "/console/lanes/lane1",
    "/console/queues", "/console/queues/celery", "/console/webhooks", "/console/webhooks/w1",
    "/console/beats",
    "/console/audit", "/console/errors", "/console/errors?span=90d", "/console/tasks/shop.task7",
    "/errors", "/errors?since=7d", "/docs", "/docs/jobs",
    "/console/overview", "/console/overview?span=1d", "/console/overview?span=1w",
    "/console/overview?search=x9", "/timeline", "/timeline?span=1w", "/console/workers",
    "/workers",
    "/console/tasks", "/tasks", "/console/find?text=x9", "/find?text=nothing",
    "/jobs?q=error:5", "/jobs?q=error:nothing", "/jobs?q=task:shop.task7*",
    "/jobs?q=arg.site=nothing", "/jobs?q=task7 since:30d", "/console/jobs?q=error:5",
    "/console/jobs?q=error:nothing", "/console/jobs?q=arg.site=nothing",
    "/console/jobs?q=task:shop.task7* state:completed",
)  # fmt: skip

#: Schedules beside those of the tests, disabled and paused ones among them; changes; messages.
MORE = """
    INSERT INTO pgbeat.schedules (name, task, every, next_run, enabled, paused_at)
    SELECT 'x' || i, 'shop.task' || i % 40, '1 hour', now() + interval '1 hour', i % 50 > 0,
           CASE WHEN i % 50 = 1 THEN now() END
      FROM generate_series(1, {schedules}) AS i;
    INSERT INTO pgbeat.audit (actor, origin, verb, kind, subject)
    SELECT 'user:' || i % 50, 'api', 'pause', 'schedule', 's' || i % 1000
      FROM generate_series(1, 100000) AS i;
    INSERT INTO kombu_message (visible, payload, queue_id)
    SELECT true, '{{}}', min(id) FROM kombu_queue, generate_series(1, {messages}) AS i GROUP BY i
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="1,000,000")
    parser.add_argument("--schedules", type=int, default=100_000, help="100,000")
    parser.add_argument("--messages", type=int, default=20_000, help="waiting ones; 20,000")
    parser.add_argument("--times", type=int, default=20, help="that each is asked for; 20")
    parser.add_argument(
        "--folder", type=Path, help="where the database is, and stays: another call goes on there"
    )
    parser.add_argument("--path", default="", help="only paths with this in them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    return parser.parse_args(arguments)


def place(options: argparse.Namespace, run: Run) -> str:
    """Returns the DSN of the database, filled, on the given or an embedded server."""
    if given := os.environ.get("PGBEAT_TEST_URL"):
        with psycopg.connect(given, autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [NAME])
            if not found.fetchone():
                connection.execute(f"CREATE DATABASE {NAME}".encode())
        dsn = in_database(given, NAME)
        fill(dsn, options, run)
        return dsn
    folder = options.folder or run.folder / "server"
    run.folder.chmod(0o755)  # Postgres runs as another user, where this is root's
    with embedded.server(folder, filling.SETTINGS) as server:
        server.create_database(NAME)
        fill(server.dsn(NAME), options, run)
    return run.stack.enter_context(embedded.server(folder)).dsn(NAME)


def fill(dsn: str, options: argparse.Namespace, run: Run) -> None:
    """Makes the rows that are not there yet."""
    filling.fill(dsn, options.jobs, run.say, float("inf"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute("SELECT count(*) FROM pgbeat.schedules").fetchone()
        more = options.schedules - found[0] if found else 0
        if more > 0:
            add_more(connection, schedules=more, messages=options.messages)
            connection.execute("VACUUM (ANALYZE)")


def add_more(connection: "psycopg.Connection[Any]", **numbers: int) -> None:
    """Makes the rows that the tests of plans don't need."""
    for statement in MORE.format(**numbers).split(";"):
        connection.execute(statement.encode())


def names(connection: "psycopg.Connection[Any]") -> dict[str, str]:
    """Returns the rows that paths name."""

    def one(query: str) -> str:
        row = connection.execute(query.encode()).fetchone()
        return str(row[0]) if row else str(uuid4())

    return {
        "schedule": "s1",
        "job": one("SELECT id FROM pgbeat.jobs WHERE state = 'failed' LIMIT 1"),
        "execution": one("SELECT id FROM pgbeat.executions LIMIT 1"),
        "group": one("SELECT id FROM pgbeat.groups WHERE state = 'running' LIMIT 1"),
    }


def measure(web: Web, names: dict[str, str], options: argparse.Namespace) -> dict[str, Figures]:
    """Of each path: milliseconds, statements and kilobytes."""
    web.app.state.pgbeat.recent = Recent(0)  # nothing is shared with who asked before
    token = web.token("root", "admin")
    api, browser = web.client(token), web.browser(token)
    gc.collect()
    gc.freeze()  # as `pgbeat web` does
    found: dict[str, Figures] = {}
    for pattern in PATHS:
        path = pattern.format(**names)
        if options.path not in path:
            continue
        client = browser if path.startswith("/console") else api
        took = []
        for _ in range(options.times + 1):
            begun = time.perf_counter()
            answer = client.get(path)
            took.append(1000 * (time.perf_counter() - begun))
        with web.counted() as statements:
            client.get(path)
        took = took[1:]  # the first compiles templates and statements
        found[pattern] = {
            "status": answer.status_code,
            "ms": statistics.median(took),
            "worst_ms": max(took),
            "p95_ms": percentiles(took)["p95_ms"],
            "statements": len(statements),
            "kb": len(answer.content) / 1000,
        }
    return found


def main() -> int:
    """Runs the benchmark."""
    options = parse(sys.argv[1:])
    with Run(options) as run:
        begun = time.perf_counter()
        dsn = place(options, run)
        run.say(f"filled in {time.perf_counter() - begun:.0f} s")
        with psycopg.connect(dsn, autocommit=True) as connection:
            named = names(connection)
        url = postgres_url(dsn).render_as_string(hide_password=False)
        web = Web(Celery("bench", broker=f"pgbeat+{url}", set_as_current=False))
        run.stack.callback(web.close)
        with psycopg.connect(dsn) as connection:
            settings = {"server_version": str(connection.info.server_version)}
        run.environment = description(["pgbeat", "fastapi"], settings)
        run.results = measure(web, named, options)
    table = Table(title=f"{options.schedules:,} schedules, {options.jobs:,} jobs")
    for title in ("path", "status", "ms", "p95", "worst", "statements", "kB"):
        table.add_column(title, justify="left" if title == "path" else "right")
    for path, each in sorted(run.results.items(), key=lambda item: -item[1]["ms"]):
        mark = " *" if each["p95_ms"] > GOAL else ""
        big = " *" if each["kb"] > SIZE_GOAL and path.startswith("/console") else ""
        table.add_row(
            path,
            str(each["status"]),
            f"{each['ms']:.0f}",
            f"{each['p95_ms']:.0f}{mark}",
            f"{each['worst_ms']:.0f}",
            str(each["statements"]),
            f"{each['kb']:.0f}{big}",
        )
    run.console.print(table)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
