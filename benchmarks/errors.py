"""Measures what grouping errors costs: `python benchmarks/errors.py --help`.

Counting the failed jobs of a minute, and reading the groups, above a history of failed jobs that
no beat has counted and with the rollups of a full quarter.
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
from pgbeat.monitoring.rollups.errors import errors
from pgbeat.testing import embedded

# All failed, with an id, a number and a time in the error, over a day.
_FAIL = text(
    """
    INSERT INTO pgbeat.ended_jobs (id, task, args, kwargs, state, job_source, created_by,
           is_system_job, schedule, created_at, started_at, finished_at, error)
    SELECT gen_random_uuid(), 'shop.task' || i % 50, '[1]', '{}', 'failed', 'user_cli',
           'user:alice', false, 'schedule ' || i % 1000, at - interval '2 seconds',
           at - interval '1 second', at,
           format('HTTPError: 503 Server Error %s for order %s (%s) at %s',
                  translate((i % :kinds)::text, '0123456789', 'abcdefghij'), i,
                  gen_random_uuid(), at)
      FROM generate_series(1, :count) AS i,
           LATERAL (SELECT CAST(:at AS timestamptz) + i * CAST(:span AS interval) / :count
               ) AS l (at)
    """
)
_ROWS = text(
    """
    INSERT INTO pgbeat.error_rollups (namespace, step, at, place, error, task, number, first_at,
           last_at, job_id, schedules)
    SELECT 'default', :step, at, place,
           format('HTTPError: * Server Error %s for order * (*) at *',
                  translate(kind::text, '0123456789', 'abcdefghij')),
           'shop.task' || place % 50, 9, at, at + interval '50 seconds', gen_random_uuid(),
           ARRAY['schedule ' || place, 'schedule ' || h % 20]
      FROM generate_series(1, :steps) AS h, generate_series(0, :rows - 1) AS place,
           LATERAL (SELECT date_trunc('hour', now(), 'UTC') + interval '1 hour'
                           - h * :step * interval '1 second',
                           place + :rows * (h % :varied)) AS l (at, kind)
    """
)


def main() -> None:
    """Measures everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failed", type=int, default=1_000_000, help="Failed jobs of a day.")
    parser.add_argument("--minute", type=int, default=10_000, help="Failed jobs of a minute.")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # Postgres runs as another user than root
        with embedded.server(Path(folder)) as server:
            url = server.create_database("errors")
            migrate.upgrade(url)
            engine = connections.engine(url, "bench").execution_options(
                isolation_level="AUTOCOMMIT"
            )
            with engine.connect() as connection:
                _measure(connection, given.failed, given.minute, given.rounds)


def _measure(connection: Connection, failed: int, minute: int, rounds: int) -> None:
    now = connections.now(connection).replace(second=0, microsecond=0)
    day = timedelta(days=1)
    connection.execute(_FAIL, {"kinds": 40, "count": failed, "at": now - day, "span": day})
    connection.execute(text("VACUUM ANALYZE pgbeat.ended_jobs"))
    _read(connection, f"{failed:,} failed jobs, none counted", rounds)
    for kinds in (40, minute):
        _count(connection, minute, kinds, rounds)
    # What is usual: twenty kinds a step. What is worst: as many as are kept, other ones each time.
    for rows, varied in ((20, 1), (100, 3), (100, 1000)):
        connection.execute(text("TRUNCATE pgbeat.error_rollups"))
        for step, steps in ((86400, 92), (3600, 8 * 24), (60, 26 * 60)):
            values = {"step": step, "steps": steps, "rows": rows, "varied": varied}
            connection.execute(_ROWS, values)
        connection.execute(
            text(
                "UPDATE pgbeat.rollup_progress SET counted_until = now(), "
                "settled_until = now() - interval '15 minutes'"
            )
        )
        connection.execute(text("VACUUM ANALYZE pgbeat.error_rollups"))
        size = connection.scalar(
            text("SELECT pg_total_relation_size('pgbeat.error_rollups') / 1000000")
        )
        _read(connection, f"{rows} kinds a step, {rows * varied:,} in all ({size} MB)", rounds)


def _count(connection: Connection, minute: int, kinds: int, rounds: int) -> None:
    """Counts a minute in which so many jobs failed."""
    took = []
    for number in range(rounds):
        at = (connections.now(connection) - timedelta(hours=number + 2)).replace(
            second=0, microsecond=0
        )
        values = {"kinds": kinds, "count": minute, "at": at, "span": timedelta(seconds=50)}
        connection.execute(_FAIL, values)
        connection.execute(
            text(
                "INSERT INTO pgbeat.rollup_progress VALUES ('default', :at, :at) "
                "ON CONFLICT (namespace) DO UPDATE SET counted_until = :at, settled_until = :at"
            ),
            {"at": at},
        )
        advance = partial(
            load_rollups.advance, connection, "default", lambda task: "celery", load_rollups.MINUTE
        )
        took.append(_ms(advance))
    _told(f"counting a minute in which {minute:,} jobs failed, with {kinds:,} kinds", took)


def _read(connection: Connection, what: str, rounds: int) -> None:
    for days in (1 / 24, 1, 7, 91):
        since = timedelta(days=days)
        for task in (None, "shop.task7"):
            read = partial(errors, connection, "default", task=task, since=since)
            took = [_ms(read) for _ in range(2 * rounds)]
            _told(f"{what}: {since} of {task or 'all jobs'}", took)


def _ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _told(what: str, found: list[float]) -> None:
    print(f"{what}: {statistics.median(found):.1f} ms ({min(found):.1f} to {max(found):.1f})")


if __name__ == "__main__":
    main()
