"""The leader analyzes tables that have outgrown what the planner knows of them."""

import psycopg
import pytest
from celery import Celery
from sqlalchemy import Connection

from pgbeat.beat.maintenance.leader_maintenance import LeaderMaintenance
from pgbeat.beat.maintenance.planner_statistics import PlannerStatistics
from pgbeat.broker.publishing.publisher import publisher
from pgbeat.config import Settings, postgres_url
from tests.support import roles
from tests.support.databases import connected
from tests.support.processes import until
from tests.support.rows import Sql

#: Two tables, and what gives them so many rows.
_FILL = {
    "message_ends": "INSERT INTO pgbeat.message_ends (job_id, how) "
    "SELECT gen_random_uuid(), 'purged' FROM generate_series(1, {rows})",
    "untracked_tasks": "INSERT INTO pgbeat.untracked_tasks (namespace, at, task, number) "
    "SELECT 'default', now(), gen_random_uuid(), 1 FROM generate_series(1, {rows})",
}


def fill(dsn: str, table: str, rows: int) -> None:
    """Gives a table rows, and waits until the server's statistics count them."""
    inserted = f"SELECT pg_stat_get_tuples_inserted('pgbeat.{table}'::regclass)".encode()
    with psycopg.connect(dsn, autocommit=True) as watcher:
        before = watcher.execute(inserted).fetchone()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(_FILL[table].format(rows=rows).encode())
        # A session reports what it wrote when it ends, which nobody waits for.
        until(lambda: watcher.execute(inserted).fetchone() != before)


@pytest.fixture
def outgrown(database: str, sql: Sql) -> None:
    """The tables were vacuumed when they had one row, and have 2,001."""
    for table in _FILL:
        sql(f"ALTER TABLE pgbeat.{table} SET (autovacuum_enabled = off)")
        fill(database, table, 1)
        sql(f"VACUUM pgbeat.{table}")
        fill(database, table, 2_000)


def known(sql: Sql, table: str) -> int:
    """Returns how many rows the planner expects."""
    [(rows,)] = sql("SELECT reltuples FROM pg_class WHERE oid = to_regclass(%s)", f"pgbeat.{table}")
    return int(rows)


@pytest.mark.usefixtures("outgrown")
def test_outgrown_tables_are_analyzed_once(connection: Connection, sql: Sql, database: str) -> None:
    assert [known(sql, table) for table in _FILL] == [1, 1]
    statistics = PlannerStatistics()
    assert sorted(statistics.renew(connection)) == sorted(_FILL)
    assert [known(sql, table) for table in _FILL] == [2_001, 2_001]
    fill(database, "message_ends", 5_000)  # not yet ten times as many
    assert PlannerStatistics().renew(connection) == []
    fill(database, "message_ends", 20_000)
    assert statistics.renew(connection) == []  # it was analyzed just now
    assert PlannerStatistics().renew(connection) == ["message_ends"]


@pytest.mark.usefixtures("outgrown")
def test_a_table_that_is_being_vacuumed_is_left_out(
    connection: Connection, sql: Sql, database: str
) -> None:
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE pgbeat.message_ends IN SHARE UPDATE EXCLUSIVE MODE")
        assert PlannerStatistics().renew(connection) == ["untracked_tasks"]
    assert PlannerStatistics().renew(connection) == ["message_ends"]


@pytest.mark.usefixtures("outgrown")
def test_a_beat_that_owns_no_table_analyzes_them(database: str, sql: Sql) -> None:
    role = roles.make(database, "beat")
    with connected(role.dsn) as connection:
        assert sorted(PlannerStatistics().renew(connection)) == sorted(_FILL)
    assert known(sql, "message_ends") == 2_001
    roles.drop(database, role)


@pytest.mark.usefixtures("outgrown")
def test_the_leader_does_that(app: Celery, connection: Connection, database: str, sql: Sql) -> None:
    settings = Settings(postgres_url(database))
    maintenance = LeaderMaintenance(app, settings, publisher(app, settings, lambda: None))
    for each in maintenance._background:
        each._next_at = 0.0
    maintenance.step(connection, is_due=False, is_idle=False)
    until(lambda: known(sql, "untracked_tasks") == 2_001)
    maintenance.close(10)
