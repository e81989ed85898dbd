"""Measures what the load over time costs: `python benchmarks/load.py --help`.

Counting ended jobs, reading a chart of a full quarter, and ending jobs with and without the index
by which they are counted.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, text

from pgbeat.database import connections
from pgbeat.database.migrations import migrate
from pgbeat.monitoring.rollups import load_rollups
from pgbeat.monitoring.rollups.load import load
from pgbeat.testing import embedded

# One in twenty failed; what they waited and how long they ran varies by a factor of thousands.
_END = text(
    """
    INSERT INTO pgbeat.ended_jobs (id, task, args, kwargs, state, job_source, created_by,
           is_system_job, lane, queue, created_at, dispatched_at, started_at, finished_at, worker)
    SELECT gen_random_uuid(), 'shop.task' || i % :tasks, '[1]', '{}',
           CASE WHEN i % 20 = 0 THEN 'failed' ELSE 'completed' END, 'user_cli', 'user:alice', false,
           CASE WHEN i % 4 = 0 THEN 'lane' || i % 20 END, 'celery', began - waited, began,
           began, began + ran, 'w1'
      FROM generate_series(1, :count) AS i, LATERAL (
           SELECT exp(random() * 7 - 5) * interval '1 second' AS waited,
                  exp(random() * 7 - 3) * interval '1 second' AS ran,
                  CAST(:at AS timestamptz) + i * interval '50 seconds' / :count AS ended) AS l,
           LATERAL (SELECT ended - ran AS began) AS b
    """
)
_HOURS = text(
    """
    INSERT INTO pgbeat.rollups (namespace, step, kind, name, at, completed, failed, waiting,
           running, depth)
    SELECT 'default', :step, CASE WHEN t = 0 THEN 'all' ELSE 'task' END,
           CASE WHEN t = 0 THEN '' ELSE 'shop.task' || t END,
           date_trunc('hour', now(), 'UTC') + interval '1 hour' - h * :step * interval '1 second',
           900, 50,
           (SELECT array_agg(ARRAY[b, 100]) FROM generate_series(4, 13) AS b),
           (SELECT array_agg(ARRAY[b, 100]) FROM generate_series(20, 29) AS b), t
      FROM generate_series(0, :tasks) AS t, generate_series(1, :hours) AS h
    """
)


def main() -> None:
    """Measures everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=10_000, help="Ended in a minute.")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # Postgres runs as another user than root
        _measure(Path(folder), given.tasks, given.jobs, given.rounds)


def _measure(folder: Path, tasks: int, jobs: int, rounds: int) -> None:
    """Measures in a new server in the folder."""
    with embedded.server(folder) as server:
        url = server.create_database("load")
        migrate.upgrade(url)
        engine = connections.engine(url, "bench").execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            _count(connection, tasks, jobs, rounds)
            _end(connection, tasks, jobs, rounds)
            _read(connection, tasks, rounds)


def _route(task: str) -> str:
    return "celery"


def _ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _told(what: str, found: list[float]) -> None:
    print(f"{what}: {statistics.median(found):.1f} ms ({min(found):.1f} to {max(found):.1f})")


def _count(connection: Connection, tasks: int, jobs: int, rounds: int) -> None:
    """Counts a minute with so many ends, at the end of a history of an hour of such minutes."""
    now = connections.now(connection).replace(second=0, microsecond=0)
    for minute in range(60, 0, -1):
        at = now - timedelta(hours=3, minutes=minute)
        connection.execute(_END, {"tasks": tasks, "count": jobs, "at": at})
    connection.execute(text("VACUUM ANALYZE pgbeat.ended_jobs"))
    took = []
    for number in range(rounds):
        at = now - timedelta(hours=3, minutes=rounds - number)
        connection.execute(
            text(
                "INSERT INTO pgbeat.rollup_progress VALUES ('default', :at, :at) "
                "ON CONFLICT (namespace) DO UPDATE SET counted_until = :at, settled_until = :at"
            ),
            {"at": at},
        )
        took.append(
            _ms(partial(load_rollups.advance, connection, "default", _route, load_rollups.MINUTE))
        )
    _told(f"counting a minute in which {jobs:,} jobs of {tasks} tasks ended", took)


def _end(connection: Connection, tasks: int, jobs: int, rounds: int) -> None:
    """Ends jobs with the index and without it, in turns."""
    values = {"tasks": tasks, "count": jobs, "at": connections.now(connection)}
    took: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(2 * rounds):
        for which in took:
            connection.execute(text("BEGIN"))
            if which == "without":
                connection.execute(text("DROP INDEX pgbeat.ended_jobs_by_time"))
            took[which].append(_ms(lambda: connection.execute(_END, values)))
            connection.execute(text("ROLLBACK"))
    for which, found in took.items():
        _told(f"writing {jobs:,} ended jobs {which} the index", found)


def _read(connection: Connection, tasks: int, rounds: int) -> None:
    """Reads charts when all hours of a quarter and all minutes of a day are there."""
    connection.execute(text("TRUNCATE pgbeat.rollups"))
    connection.execute(
        text(
            "UPDATE pgbeat.rollup_progress SET counted_until = now(), "
            "settled_until = now() - interval '15 minutes'"
        )
    )
    for step, hours in ((3600, 92 * 24), (60, 26 * 60)):
        connection.execute(_HOURS, {"tasks": tasks, "hours": hours, "step": step})
    connection.execute(text("VACUUM ANALYZE pgbeat.rollups"))
    size = connection.scalar(text("SELECT pg_total_relation_size('pgbeat.rollups') / 1000000"))
    print(f"rollups of {tasks} tasks: {size} MB")
    for days in (1 / 24, 1, 7, 92):
        since = timedelta(days=days)
        for task in (None, "shop.task7"):
            read = partial(load, connection, "default", task=task, since=since)
            took = [_ms(read) for _ in range(3 * rounds)]
            _told(f"reading {since} of {task or 'all jobs'}", took)
    _told("deleting what is old", [_ms(lambda: load_rollups.prune(connection, "default"))])


if __name__ == "__main__":
    main()
