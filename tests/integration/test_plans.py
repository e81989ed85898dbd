"""What is sent all the time reads a bounded number of rows, however many jobs there are."""

import json
import re
from uuid import UUID, uuid4

import psycopg
import pytest

from pgbeat.beat.maintenance.planner_statistics import PlannerStatistics
from pgbeat.database import connections
from pgbeat.database.tables import JOB_STATES
from pgbeat.jobs.running import executions
from pgbeat.monitoring.metrics import gauges
from pgbeat.testing.databases import Databases
from pgbeat.worker.recording import recorder_session
from tests.support.databases import connected
from tests.support.explained_plans import most, pages
from tests.support.many_rows import fill, fill_newest, leave_pages
from tests.support.partitions import make_partitions, turn_off_autovacuum
from tests.support.processes import until
from tests.support.query_plans import QUERIES, explained, pruned


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rows", [60_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_no_plan_goes_through_a_table(pgbeat_databases: Databases, rows: int) -> None:
    """Each statement is explained with the very parameters that it was sent with, and without any,
    should Postgres keep a plan like that; its statistics know nothing of what has not ended.
    """
    with pgbeat_databases.lent() as dsn:
        fill(dsn, rows)
        problems = []
        with explained(dsn, rows) as (world, plans):
            for name, query in QUERIES.items():
                found = plans.of(query.call, world)
                assert found, name
                for problem in query.problems(found):
                    details = "\n".join(map(str, (each for plan in found for each in plan.scans)))
                    problems.append(f"{name}: {problem}\n{details}\n{found[-1].statement}")
        assert not problems, "\n\n".join(problems)


def test_pages_without_rows_mislead_no_plan(pgbeat_databases: Databases) -> None:
    """After a vacuum that left them, the planner expects one row, until the leader analyzes."""
    rows = 40_000
    with pgbeat_databases.lent() as dsn:
        leave_pages(dsn, rows)
        with psycopg.connect(dsn, autocommit=True) as connection:
            fill_newest(connection, 100, rows)
        with connected(dsn) as connection:
            until(lambda: "unfinished_jobs" in PlannerStatistics().renew(connection))
        with explained(dsn, rows) as (world, plans):
            for name in ("beat: jobs whose time has come", "people: 50 jobs are cancelled"):
                query = QUERIES[name]
                assert not query.problems(plans.of(query.call, world))


_UNGROUPED = """
    INSERT INTO pgbeat.jobs (id, task, args, kwargs, job_source, created_by, is_system_job)
    SELECT gen_random_uuid(), 'shop.task', '[]', '{}', 'user_api', 'test', false
      FROM generate_series(1, 300)
"""
_GROUPED = """
    WITH made AS (
        INSERT INTO pgbeat.groups (id, mode, job_source, created_by, created_at, state, finished_at)
        SELECT gen_random_uuid(), 'parallel', 'user_api', 'test', now() - interval '99 days',
               CASE WHEN i = 0 THEN 'running' ELSE 'completed' END,
               CASE WHEN i > 0 THEN now() - interval '99 days' END FROM generate_series(0, 100) AS i
        RETURNING id, state)
    INSERT INTO pgbeat.jobs (id, task, args, kwargs, job_source, created_by, is_system_job,
                             group_id, group_position)
    SELECT gen_random_uuid(), 'shop.task', '[]', '{}', 'user_api', 'test', false, id, i
      FROM made, generate_series(1, 1000) AS i WHERE state = 'running'
"""


def test_old_groups_are_pruned_by_key(pgbeat_databases: Databases) -> None:
    """By statistics of a time when no group was running, too."""
    with pgbeat_databases.lent() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        turn_off_autovacuum(connection)
        connection.execute(_UNGROUPED)
        connection.execute("VACUUM ANALYZE pgbeat.jobs")
        connection.execute(_GROUPED)
        with explained(dsn, 0) as (world, plans):
            found = plans.of(lambda w, c: pruned(w, c, "groups"), world)
        rows = {scan.by: scan.rows for plan in found for scan in plan.scans}
        assert rows["unfinished_jobs_group_id_state_group_position_idx"] == 0


_ALIKE = """
    INSERT INTO pgbeat.lanes (name, max_running)
    SELECT 'lane' || i, 10 FROM generate_series(0, 9) AS i;
    INSERT INTO pgbeat.webhooks (id, name, url, secret, events)
    SELECT i, 'w' || i, 'http://127.0.0.1:9/', 's', '{job.run.failed}'
      FROM generate_series(1, 2) AS i;
    INSERT INTO pgbeat.unfinished_jobs
           (id, task, args, kwargs, job_source, created_by, is_system_job, lane, dispatched_at)
    SELECT gen_random_uuid(), 't', '[]', '{}', 'system', 'test', true,
           CASE WHEN i % 5000 = 0 THEN 'lane2' ELSE 'lane1' END, CASE WHEN i % 2 = 0 THEN now() END
      FROM generate_series(1, 30000) AS i;
    INSERT INTO pgbeat.deliveries (webhook_id, event, payload, state, next_at, finished_at)
    SELECT CASE WHEN i % 5000 = 0 THEN 2 ELSE 1 END, 'job.run.failed', '{}',
           CASE WHEN i % 2 = 0 THEN 'pending' ELSE 'failed' END,
           CASE WHEN i % 2 = 0 THEN now() END, CASE WHEN i % 2 = 1 THEN now() END
      FROM generate_series(1, 30000) AS i;
    ANALYZE pgbeat.unfinished_jobs, pgbeat.deliveries
"""


def test_few_of_a_kind_are_counted_among_many(pgbeat_databases: Databases) -> None:
    """Most are alike, which the planner knows, and no vacuum has seen their pages."""
    with pgbeat_databases.lent() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        turn_off_autovacuum(connection)
        connection.execute(_ALIKE)
        with explained(dsn, 0) as (world, plans):
            connections.configure(plans.connection, gauges.PLANS)
            for count, most in ((gauges.lanes, 21_000), (gauges.webhooks, 42_000)):
                found = plans.of(lambda _, c, count=count: count(c, "default"), world)
                assert sum(scan.rows for plan in found for scan in plan.scans) <= most
            newest = "SELECT FROM pgbeat.newest_jobs('default', %s, 1000)"
            read = [pages(plans.connection, newest, state) for state in ("failed", *JOB_STATES)]
            assert sum(read[1:]) <= 1300, read  # in the first are those of planning


#: What the planner knows of the tables.
_STATISTICS = {
    "none": (),
    "of empty tables": ("VACUUM ANALYZE pgbeat.jobs, pgbeat.executions",),
    "of full tables": (),
}


@pytest.mark.parametrize("known", _STATISTICS)
def test_what_workers_tell_is_written_by_keys(pgbeat_databases: Databases, known: str) -> None:
    """Whatever the planner knows of the tables, an attempt is as much work among many as among few:
    a worker's plan is kept, and may have been made when there was nothing.
    """
    batch, many = 100, 5_000
    with pgbeat_databases.lent() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        make_partitions(connection, 10)
        turn_off_autovacuum(connection)
        for script in _STATISTICS[known]:
            connection.execute(script.encode())
        connection.execute(_MANY, {"many": many})
        if known == "of full tables":
            connection.execute("VACUUM ANALYZE pgbeat.jobs, pgbeat.executions")
        for name, value in recorder_session.PLANS.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        for statement in (executions.BEGIN, executions.GO_ON):
            connection.execute(f"PREPARE {statement.name}(json) AS {statement.sql}".encode())
        ids = [str(uuid4()) for _ in range(2 * batch)]
        jobs = [str(UUID(f"{number:032x}")) for number in range(1, 2 * batch + 1)]
        told = [
            {"id": id, "job_id": job, "state": "running", "job_state": "running", "began": 0.1}
            for id, job in zip(ids, jobs, strict=True)
        ]
        ended = [{**each, "state": "completed", "job_state": "completed"} for each in told]
        for statement, documents in (
            (executions.BEGIN, told[:batch]),
            (executions.GO_ON, ended[:batch]),
            (executions.BEGIN, ended[batch:]),
        ):
            text = json.dumps(documents).replace("'", "''")
            explain = f"EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON) EXECUTE {statement.name}('{text}')"
            [(plan,)] = connection.execute(explain.encode()).fetchall()
            assert 0 < most(plan[0]["Plan"]) <= 10 * batch, json.dumps(plan, indent=1)
            # The rules of what becomes of a job are inlined: a call for each row is slow.
            assert not re.search(r"(next_state|end_error|retry_id)\(", json.dumps(plan))
        left = connection.execute(
            "SELECT count(*) FROM pgbeat.executions e JOIN pgbeat.jobs j ON j.id = e.job_id "
            "WHERE e.state = 'completed' AND j.state = 'completed' AND e.id = ANY (%s::uuid[])",
            [ids],
        ).fetchone()
        assert left == (2 * batch,)


_MANY = """
    WITH made AS (
        INSERT INTO pgbeat.jobs (id, task, args, kwargs, job_source, created_by, is_system_job,
                                 state, started_at, finished_at, dispatched_at)
        SELECT lpad(to_hex(i), 32, '0')::uuid, 'shop.task', '[]', '{}', 'system', 'test', true,
               CASE WHEN i <= 500 THEN 'pending' ELSE 'completed' END, now(),
               CASE WHEN i > 500 THEN now() END, now() FROM generate_series(1, %(many)s) AS i
        RETURNING id, state)
    INSERT INTO pgbeat.executions (job_id, number, state, worker, finished_at)
    SELECT id, 1, 'completed', 'w', now() FROM made WHERE state = 'completed'
"""
