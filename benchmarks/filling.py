"""Fills a database with a month of ended jobs, a day's partition at a time.

A partition is filled while it is detached and has no index: attaching it makes them, as fast as
Postgres can. Each day is one transaction, so that a run that was interrupted goes on after it.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg
from celery import Celery
from psycopg import sql

from pgbeat.broker.publishing.publisher import TransactionPublisher
from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.database.migrations import migrate
from tests.support import many_rows
from tests.support.partitions import make_partitions

Connection = psycopg.Connection[Any]
#: Days that are filled: the oldest is older than the retention of 30.
DAYS = 31
#: Schedules that launch all the time, and those that launch once a day, whose history is kept.
BUSY, DAILY = 1_000, 1_000
#: Jobs that have not ended, with their groups.
LIVE = 20_000
#: The server's settings while it is filled: nothing is lost but the time that it took.
SETTINGS = {
    "fsync": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
    "max_wal_size": "8GB",
    "maintenance_work_mem": "512MB",
    "checkpoint_timeout": "1h",
}

#: One day's rows. Jobs are spread over the day; every tenth is a person's.
_JOBS = """
    INSERT INTO pgbeat.{partition}
           (id, schedule_id, schedule, due_at, task, args, kwargs, queue, state, job_source,
            created_by, is_system_job, created_at, started_at, finished_at, dispatched_at, worker,
            error, lane, trigger)
    SELECT gen_random_uuid(), s, 's' || s, CASE WHEN s IS NOT NULL THEN at END,
           'shop.task' || i %% 40, '[]', '{{}}', 'celery',
           CASE WHEN i %% 25 = 2 THEN 'failed' WHEN i %% 100 = 1 THEN 'cancelled'
                WHEN i %% 100 = 3 THEN 'skipped' ELSE 'completed' END,
           CASE WHEN s IS NULL THEN 'user_api' ELSE 'scheduled_task' END,
           CASE WHEN s IS NULL THEN 'user:' || i / 10 %% 50
                ELSE 'system:scheduler:GenericLauncher' END,
           s IS NOT NULL, at, at, at + interval '5 ms', at, 'w' || i %% 10,
           CASE WHEN i %% 25 = 2 THEN 'ValueError: no' END,
           CASE WHEN i %% 16 = 0 THEN 'lane' || i / 16 %% 10 END,
           CASE WHEN s IS NOT NULL THEN 'timetable' END
      FROM generate_series(0, %(jobs)s - 1) AS i, LATERAL (
           SELECT %(day)s + i * interval '86399 s' / %(jobs)s AS at,
                  CASE WHEN i %% 10 = 1 AND i / 10 < %(daily)s THEN 1 + %(busy)s + i / 10
                       WHEN i %% 10 > 0 THEN 1 + i %% %(busy)s END AS s) AS l
"""
_EXECUTIONS = """
    INSERT INTO pgbeat.{partition}
           (id, job_id, schedule_id, number, state, worker, worker_id, started_at, finished_at,
            recorded_at, duration_ms)
    SELECT gen_random_uuid(), id, schedule_id, 1, state, worker, 1, started_at, finished_at,
           finished_at, 5
      FROM pgbeat.{jobs}
"""
_TICKS = """
    INSERT INTO pgbeat.{partition} (id, schedule_id, schedule, due_at, decided_at, outcome, job_id)
    SELECT nextval(pg_get_serial_sequence('pgbeat.ticks', 'id')), schedule_id, schedule, due_at,
           created_at, 'launched', id
      FROM pgbeat.{jobs} WHERE schedule_id IS NOT NULL
"""
_INSERTS = {"ended_jobs": _JOBS, "ended_executions": _EXECUTIONS, "ticks": _TICKS}
_TO_FILL = """
    SELECT p.history, p.name, p.starts_at, p.ends_at, j.name
      FROM pgbeat.partitions p
      JOIN pgbeat.partitions j ON j.history = 'ended_jobs' AND j.starts_at = p.starts_at
      JOIN pg_class c ON c.oid = format('pgbeat.%%I', p.name)::regclass
     WHERE p.ends_at <= now() AND c.relallvisible = 0
     ORDER BY array_position(%(histories)s, p.history), p.starts_at
"""
_INDEXES = """
    SELECT indexrelid::regclass::text, conname
      FROM pg_index LEFT JOIN pg_constraint ON conindid = indexrelid AND contype IN ('p', 'u')
     WHERE indrelid = format('pgbeat.%%I', %(name)s::text)::regclass
"""


class _Partition(NamedTuple):
    """A day of a history that has no rows yet."""

    history: str
    name: str
    starts_at: Any
    ends_at: Any
    #: The partition of the jobs of that day.
    jobs: str


def prepare(dsn: str) -> None:
    """Makes pgbeat's schema and the broker's tables, where they are not there yet."""
    url = postgres_url(dsn)
    migrate.upgrade(url)
    engine = connections.engine(url, "benchmark")
    with engine.begin() as connection:
        TransactionPublisher(Celery(set_as_current=False)).prepare(connection)
    engine.dispose()


def fill(dsn: str, jobs: int, say: Callable[[str], None], seconds: float) -> bool:
    """Fills an empty database, or goes on; returns whether all is there after so many seconds."""
    end = time.monotonic() + seconds
    prepare(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pgbeat.schedules LIMIT 1").fetchone():
            with connection.transaction():
                make_partitions(connection, DAYS)
                many_rows.fill_newest(connection, BUSY + DAILY, LIVE)
        values = {"histories": list(_INSERTS)}
        while row := connection.execute(_TO_FILL, values).fetchone():
            if time.monotonic() > end:
                return False
            begun = time.monotonic()
            partition = _Partition(*row)
            with connection.transaction():
                _fill(connection, partition, jobs // DAYS)
            connection.execute(_named("VACUUM (FREEZE, ANALYZE) pgbeat.{}", partition.name))
            say(f"{partition.name}: {time.monotonic() - begun:.1f} s")
    return True


def _fill(connection: Connection, partition: _Partition, jobs: int) -> None:
    """Fills a partition without its indexes, and has them made."""
    history, name = partition.history, partition.name
    connection.execute(_named("ALTER TABLE pgbeat.{} DETACH PARTITION pgbeat.{}", history, name))
    for index, constraint in connection.execute(_INDEXES, {"name": name}).fetchall():
        connection.execute(
            _named("ALTER TABLE pgbeat.{} DROP CONSTRAINT {}", name, constraint)
            if constraint
            else f"DROP INDEX {index}".encode()
        )
    # A table that is made or emptied in the transaction writes no WAL.
    connection.execute(_named("TRUNCATE pgbeat.{}", name))
    connection.execute(
        _INSERTS[history].format(partition=name, jobs=partition.jobs).encode(),
        {"jobs": jobs, "day": partition.starts_at, "busy": BUSY, "daily": DAILY}
        if history == "ended_jobs"
        else None,
    )
    connection.execute(
        sql.SQL(
            "ALTER TABLE pgbeat.{} ATTACH PARTITION pgbeat.{} FOR VALUES FROM ({}) TO ({})"
        ).format(
            sql.Identifier(history),
            sql.Identifier(name),
            partition.starts_at.isoformat(),
            partition.ends_at.isoformat(),
        )
    )


def _named(statement: str, *names: str) -> sql.Composed:
    return sql.SQL(statement).format(*map(sql.Identifier, names))
