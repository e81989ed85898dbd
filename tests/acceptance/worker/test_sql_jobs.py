"""Jobs of the task `pgbeat.sql`: what their statements do, and what they can't."""

import json
import os
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy.engine import make_url

from pgbeat.config import postgres_url
from tests.support.pgbouncer import needs_pgbouncer, pooler
from tests.support.processes import Process, until
from tests.support.recorded_workers import Seen, TrackedWorkers
from tests.support.rows import make_schedule

Sql = Callable[..., list[tuple[Any, ...]]]

POOLS = ("prefork", "solo", "threads", "gevent")
pools = pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(p, marks=pytest.mark.slow) for p in POOLS[1:])]
)


class SqlWorkers(NamedTuple):
    """Workers with a login for statements, and the roles that there are."""

    tracked: TrackedWorkers
    settings: dict[str, Any]
    login: str
    #: As which a statement may run, and another.
    role: str
    other: str

    def start(self, pool: str = "threads", **settings: Any) -> Process:
        if pool == "gevent":
            pytest.importorskip("gevent")
        return self.tracked.start("-P", pool, "-c", "4", settings=self.settings | settings)

    def one(self, statement: str, **fields: Any) -> str:
        kwargs = fields.pop("kwargs", {})
        return self.tracked.one("pgbeat.sql", statement, kwargs=kwargs, **fields)

    def ends(self, *statements: str, **fields: Any) -> list[Seen]:
        ids = [self.one(statement, **fields) for statement in statements]
        return self.tracked.ended(*ids)


@pytest.fixture
def sql_workers(tracked_workers: TrackedWorkers, database: str, sql: Sql) -> Iterator[SqlWorkers]:
    """Workers of an app in which statements may run as one role."""
    suffix = uuid4().hex[:8]
    login, role, other = (f"{name}_{suffix}" for name in ("login", "reports", "billing"))
    sql(f"CREATE ROLE {login} LOGIN NOINHERIT PASSWORD 'pass'")
    sql(f"CREATE ROLE {role}; CREATE ROLE {other}; GRANT {role} TO {login}")
    sql(f"CREATE SCHEMA own AUTHORIZATION {role}; CREATE TABLE salaries (id int)")
    sql("CREATE TABLE orders (id int); INSERT INTO orders SELECT generate_series(1, 3)")
    sql(f"GRANT ALL ON orders TO {role}; GRANT ALL ON salaries TO {other}")
    url = postgres_url(database).set(username=login, password="pass")
    settings = {
        "pgbeat_sql_roles": [role],
        "pgbeat_sql_url": url.render_as_string(hide_password=False),
    }
    yield SqlWorkers(tracked_workers, settings, login, role, other)
    sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{login}'")
    sql(f"DROP OWNED BY {role}, {other}, {login} CASCADE; DROP ROLE {login}, {role}, {other}")


@pools
def test_a_statement_runs_and_its_rows_are_the_result(
    sql_workers: SqlWorkers, pool: str, sql: Sql
) -> None:
    sql_workers.start(pool)
    statements = {
        "INSERT INTO orders VALUES (4), (5)": "2",
        "UPDATE orders SET id = id + 10 WHERE id < 3": "2",
        "SELECT generate_series(1, 5000)": "5000",
        "DELETE FROM orders WHERE id = 3 RETURNING id": "1",
        "CREATE TABLE own.made AS SELECT 1 AS n": "1",
        "CREATE TABLE own.empty (n int)": "0",
        "SELECT": "1",
        "DO $$BEGIN PERFORM 1; END$$": "0",
        "SELECT '%s', '%(a)s', ':a', '{{ due_at }}', $a$'; ROLLBACK$a$": "1",
        "SAVEPOINT mine": "0",
        "LISTEN pgbeat_schedules": "0",
    }
    for statement, rows in statements.items():
        [seen] = sql_workers.ends(statement)
        assert (seen.job.state, seen.runs[0].result) == ("completed", rows), (statement, seen)
    assert sorted(sql("SELECT id FROM orders")) == [(4,), (5,), (11,), (12,)]
    assert sql("SELECT versions ->> 'sql_roles' FROM pgbeat.workers") == [(sql_workers.role,)]


#: What a statement can write in its own session that runs when its transaction commits.
DEFERRED = """DO $do$BEGIN
    CREATE TEMP TABLE t (n int);
    CREATE FUNCTION pg_temp.late() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
        PERFORM set_config('role', 'none', false); %s RETURN NULL; END$$;
    CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION pg_temp.late();
    INSERT INTO t VALUES (1);
    INSERT INTO orders VALUES (9);
END$do$"""
DENIED, NOT_ALLOWED = "(42501)", "must not end its transaction, nor change its role"


def test_a_statement_can_do_no_more_than_its_role(sql_workers: SqlWorkers, sql: Sql) -> None:
    [(owner,)] = sql("SELECT current_user")
    sql("""CREATE PROCEDURE commits() LANGUAGE plpgsql AS
           $$BEGIN INSERT INTO orders VALUES (9); COMMIT; END$$""")
    worker = sql_workers.start()
    set_role = "SELECT set_config('role', 'none', false)"
    attacks = {
        # It leaves its role, or its transaction.
        "RESET ROLE": NOT_ALLOWED,
        "SET SESSION AUTHORIZATION DEFAULT": NOT_ALLOWED,
        f"SET SESSION AUTHORIZATION {owner}": DENIED,
        f"SET ROLE {owner}": DENIED,
        f"SET ROLE {sql_workers.other}": DENIED,
        f"SET ROLE {sql_workers.login}": NOT_ALLOWED,
        set_role: NOT_ALLOWED,
        "COMMIT": NOT_ALLOWED,
        "ROLLBACK": NOT_ALLOWED,
        "COMMIT AND CHAIN": NOT_ALLOWED,
        "ROLLBACK AND CHAIN": NOT_ALLOWED,
        "DO $$BEGIN INSERT INTO orders VALUES (9); COMMIT; END$$": "(2D000)",
        "CALL commits()": "(2D000)",
        "PREPARE TRANSACTION 'mine'": "(55000)",
        # It is several.
        "INSERT INTO orders VALUES (9); SELECT 1": "(42601)",
        "COMMIT; INSERT INTO orders VALUES (9)": "(42601)",
        "": "statement must be",
        "-- nothing": "must be one statement",
        # It gets its login's rights, which are none.
        f"{set_role}, query_to_xml('SELECT * FROM salaries', true, true, '')": DENIED,
        f"{set_role}, query_to_xml('SELECT * FROM pgbeat.jobs', true, true, '')": DENIED,
        "DO $$BEGIN RESET ROLE; DELETE FROM pgbeat.jobs; END$$": DENIED,
        "DO $$BEGIN RESET ROLE; DELETE FROM kombu_message; END$$": DENIED,
        "DO $$BEGIN RESET ROLE; INSERT INTO orders VALUES (9); END$$": DENIED,
        DEFERRED % "DELETE FROM pgbeat.jobs;": DENIED,
        f"CREATE FUNCTION own.f() RETURNS int SET role = {owner} RETURN 1": DENIED,
        # It reaches for more.
        "SELECT * FROM salaries": DENIED,
        "TABLE pgbeat.tokens": DENIED,
        "SELECT pgbeat.submit('tests.add')": DENIED,
        "SELECT pg_read_file('/etc/passwd')": DENIED,
        "SELECT lo_import('/etc/passwd')": DENIED,
        "COPY orders TO PROGRAM 'true'": DENIED,
        "COPY orders TO STDOUT": "no COPY",
        "COPY orders FROM STDIN": "no COPY",
        "CREATE ROLE mine SUPERUSER": DENIED,
        "ALTER SYSTEM SET work_mem = '1MB'": "(25001)",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE usename = '{owner}' AND datname = current_database()": DENIED,
        "SELECT pg_terminate_backend(pg_backend_pid())": DENIED,
        "DO $$BEGIN RESET ROLE; PERFORM pg_terminate_backend(pg_backend_pid()); END$$": "(57P01)",
    }
    for (statement, error), seen in zip(attacks.items(), sql_workers.ends(*attacks), strict=True):
        assert seen.job.state == "failed", (statement, seen.runs)
        assert error in (seen.job.error or ""), (statement, seen.job.error)
    assert sql("SELECT count(*) FROM orders") == [(3,)]
    assert worker.poll() is None


def test_what_a_statement_leaves_in_its_session_is_gone(sql_workers: SqlWorkers, sql: Sql) -> None:
    sql_workers.start()
    for statement in (
        "SELECT set_config('search_path', 'own', false), set_config('mine.own', 'left', false)",
        "CREATE TEMP TABLE kombu_message AS SELECT 1 AS id",
        "PREPARE mine AS SELECT 1",
        "SELECT 1 / (coalesce(current_setting('mine.own', true), '') = ''"
        " AND to_regclass('pg_temp.kombu_message') IS NULL"
        " AND NOT EXISTS (TABLE pg_prepared_statements))::int",
    ):
        [seen] = sql_workers.ends(statement)
        assert seen.job.state == "completed", seen.job.error


def test_roles_that_are_not_allowed(sql_workers: SqlWorkers, sql: Sql) -> None:
    """Nor may the login become one, or one that could change what pgbeat does."""
    worker, insert = sql_workers.start(), "INSERT INTO orders VALUES (9)"
    other, role, login = sql_workers.other, sql_workers.role, sql_workers.login
    [seen] = sql_workers.ends(insert, kwargs={"role": other})
    assert "InvalidSchedule: role" in (seen.job.error or "")
    for grant, revoke in (
        (f"GRANT {other} TO {login}", f"REVOKE {other} FROM {login}"),
        (f"GRANT pg_read_all_data TO {role}", f"REVOKE pg_read_all_data FROM {role}"),
        (f"GRANT UPDATE ON pgbeat.lanes TO {role}", f"REVOKE ALL ON pgbeat.lanes FROM {role}"),
        (f"GRANT DELETE ON pgbeat.jobs TO {login}", f"REVOKE ALL ON pgbeat.jobs FROM {login}"),
        (f"ALTER ROLE {login} SUPERUSER", f"ALTER ROLE {login} NOSUPERUSER"),
        (f"ALTER ROLE {role} CREATEROLE", f"ALTER ROLE {role} NOCREATEROLE"),
        (f"GRANT pg_write_server_files TO {role}", f"REVOKE pg_write_server_files FROM {role}"),
    ):
        sql(grant)
        [seen] = sql_workers.ends(insert)
        if "pg_read_all_data" in grant:  # reading is the role's own matter
            assert seen.job.state == "completed", seen.job.error
        else:
            assert "pgbeat_sql_url: its login may act as" in (seen.job.error or ""), grant
        sql(revoke)
    worker.terminate()
    own = postgres_url(sql_workers.tracked.database).render_as_string(hide_password=False)
    sql_workers.start(pgbeat_sql_url=own)
    [seen] = sql_workers.ends(insert)
    assert "pgbeat_sql_url: its login may act as" in (seen.job.error or "")


def test_a_role_that_was_dropped_meanwhile(sql_workers: SqlWorkers, sql: Sql) -> None:
    sql_workers.start(pgbeat_sql_roles=[sql_workers.role, "dropped"])
    [seen] = sql_workers.ends("SELECT 1", kwargs={"role": "dropped"})
    assert 'SqlFailed: the statement failed (22023): role "dropped" does not exist' in (
        seen.job.error or ""
    )
    [seen] = sql_workers.ends("SELECT 1", kwargs={"role": sql_workers.role})
    assert seen.job.state == "completed", seen.job.error


@needs_pgbouncer
def test_no_session_that_a_pooler_gives_to_others(
    sql_workers: SqlWorkers, database: str, tmp_path: Path
) -> None:
    """A statement could leave it a `search_path`, or tables, for statements of other roles."""
    with pooler(database, tmp_path) as shared:
        url = make_url(shared.url).set(drivername="postgresql", username=sql_workers.login)
        sql_workers.start(pgbeat_sql_url=url.render_as_string(hide_password=False))
        [seen] = sql_workers.ends("SELECT set_config('search_path', 'own', false)")
    assert "pgbeat_sql_url: a transaction-mode pooler answers there" in (seen.job.error or "")


def test_a_soft_time_limit_in_the_midst_of_a_commit(sql_workers: SqlWorkers, sql: Sql) -> None:
    """What has committed is no failure of its job; what was cut off has not committed."""
    sql_workers.start("prefork")
    unwatched = "PERFORM set_config('client_connection_check_interval', '0', false);"
    for what, state, rows in (("", "failed", 3), (unwatched, "completed", 4)):
        job_id = sql_workers.one(
            DEFERRED % f"{what} PERFORM pg_sleep(4);", options={"soft_time_limit": 2}
        )
        [seen] = sql_workers.tracked.ended(job_id)
        assert seen.job.state == state, seen.job.error
        until(lambda: sessions(sql, sql_workers.login) == [])
        assert sql("SELECT count(*) FROM orders") == [(rows,)]


def test_it_is_off_by_default(sql_workers: SqlWorkers) -> None:
    sql_workers.start(pgbeat_sql_roles=[])
    [seen] = sql_workers.ends("SELECT 1", kwargs={"role": sql_workers.role})
    assert "SQL jobs are off" in (seen.job.error or "")


def test_the_statement_is_the_rows_not_the_messages(sql_workers: SqlWorkers, sql: Sql) -> None:
    """A producer can send the task's message, or change a job's, but not what a job runs."""
    insert = "INSERT INTO orders VALUES (%s)"
    job_id = sql_workers.one(insert % 5)
    [(payload,)] = sql("SELECT payload FROM kombu_message WHERE job_id = %s", job_id)
    message = json.loads(payload)
    forged: list[Any] = [[insert % 9], {}, {}]
    message["body"] = b64encode(json.dumps(forged).encode()).decode()
    sql("UPDATE kombu_message SET payload = %s WHERE job_id = %s", json.dumps(message), job_id)
    worker = sql_workers.start()
    [seen] = sql_workers.tracked.ended(job_id)
    assert seen.job.state == "completed", seen.job.error
    unapproved = sql_workers.one(
        insert % 8, state="paused", requires_approval=True, is_dispatched=False
    )
    sql_workers.tracked.app.send_task(
        "pgbeat.sql", [insert % 8], task_id=unapproved, headers={"pgbeat_job": True}
    )
    for headers in ({}, {"pgbeat_job": True}):
        sql_workers.tracked.app.send_task("pgbeat.sql", [insert % 9], headers=headers)
        task_id = sql_workers.tracked.app.send_task("pgbeat.sql", [insert % 9]).id
        worker.says(f"{task_id}] raised unexpected: Forbidden")
    assert sql("SELECT id FROM orders WHERE id > 3") == [(5,)]


CATCHES = """DO $$BEGIN LOOP
    BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END;
END LOOP; END$$"""
NEVER_ENDS = {
    "sleeps": "INSERT INTO orders SELECT 9 FROM pg_sleep(600)",
    "lifts its limit": "SELECT set_config('statement_timeout', '0', false), pg_sleep(600)",
    "catches it": CATCHES,
    "at its commit": DEFERRED % "SET statement_timeout = 0; PERFORM pg_sleep(600);",
}


def sessions(sql: Sql, login: str) -> list[tuple[Any, ...]]:
    return sql("SELECT query FROM pg_stat_activity WHERE usename = %s", login)


def waiting(sql: Sql, login: str, event: str) -> list[tuple[Any, ...]]:
    """Its sessions that wait so, once there are some."""
    query = "SELECT query FROM pg_stat_activity WHERE usename = %s AND wait_event = %s"
    return until(lambda: sql(query, login, event))


def test_a_statement_that_never_ends_is_ended_and_retried(
    sql_workers: SqlWorkers, sql: Sql
) -> None:
    sql_workers.start()
    retried = {"max_attempts": 2, "retry_base": timedelta(seconds=0.1)}
    for what, statement in NEVER_ENDS.items():
        first = sql_workers.one(statement, kwargs={"timeout": 0.5}, **retried)
        [seen] = sql_workers.tracked.ended(first)
        assert seen.job.error is not None and seen.job.error.startswith("SqlTimeout:"), what
        assert seen.job.retried_by is not None
        [seen] = sql_workers.tracked.ended(str(seen.job.retried_by))
        assert (seen.job.attempt, seen.job.error[:11] if seen.job.error else "") == (
            2,
            "SqlTimeout:",
        )
    until(lambda: sessions(sql, sql_workers.login) == [])
    assert sql("SELECT count(*) FROM orders") == [(3,)]


@pools
def test_a_cancel_ends_the_running_statement(sql_workers: SqlWorkers, pool: str, sql: Sql) -> None:
    sql_workers.start(pool)
    # A killed process can't end what catches the cancel of its statement: the server does.
    statements = [NEVER_ENDS["sleeps"], NEVER_ENDS["at its commit"], CATCHES]
    for statement in statements:
        job_id = sql_workers.one(statement)
        assert waiting(sql, sql_workers.login, "PgSleep")
        sql_workers.tracked.cancel(job_id)
        [seen] = sql_workers.tracked.ended(job_id)
        assert seen.job.state == "cancelled"
        until(lambda: sessions(sql, sql_workers.login) == [])
    assert sql("SELECT count(*) FROM orders") == [(3,)]


@pytest.mark.parametrize("when", ["before", "after", "child", "frozen"])
def test_a_statement_takes_effect_once_though_its_worker_is_killed(
    sql_workers: SqlWorkers, sql: Sql, database: str, when: str
) -> None:
    """Before it has committed, or after that and before its job has ended; then, a child, too.

    Or it is frozen and cut off, and another worker runs the job before its statement has committed.
    """
    sql("""CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
           $$BEGIN PERFORM pg_advisory_xact_lock(17); RETURN NULL; END$$;
           CREATE CONSTRAINT TRIGGER late AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION wait()""")
    worker = sql_workers.start("prefork")
    policy = {"max_attempts": 2, "retry_base": timedelta(seconds=0.1)}
    with psycopg.connect(database) as blocker:
        blocker.execute("SELECT pg_advisory_xact_lock(17)")
        job_id = sql_workers.one("INSERT INTO orders VALUES (9), (9)", **policy)
        assert waiting(sql, sql_workers.login, "advisory") == [("COMMIT",)]
        [run] = sql_workers.tracked.runs(job_id)
        assert run.pid is not None
        if when == "before":
            worker.kill_group()
            until(lambda: sessions(sql, sql_workers.login) == [])
        elif when == "after":
            worker.signal_group(signal.SIGSTOP)
        elif when == "child":
            os.kill(run.pid, signal.SIGSTOP)
        else:
            worker.signal_group(signal.SIGSTOP)
            sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name ~ '^pgbeat (transport|worker)' "
                "AND datname = current_database()"
            )
            sql_workers.start("prefork")
            until(lambda: len(waiting(sql, sql_workers.login, "advisory")) == 2)
        blocker.rollback()
    if when != "before":
        until(lambda: sql("SELECT count(*) FROM orders") == [(5,)])
    if when == "after":
        worker.kill_group()
    elif when == "child":
        os.kill(run.pid, signal.SIGKILL)
    if when in ("before", "after"):
        sql_workers.start("prefork")
    [seen] = sql_workers.tracked.ended(job_id)
    if seen.job.retried_by is not None:
        [seen] = sql_workers.tracked.ended(str(seen.job.retried_by))
    assert (seen.job.state, seen.runs[-1].result) == ("completed", "2"), seen.job.error
    assert sql("SELECT count(*) FROM orders") == [(5,)]


def test_a_schedule_and_sql_make_such_jobs(sql_workers: SqlWorkers, sql: Sql) -> None:
    sql_workers.start()
    tracked = sql_workers.tracked
    tracked.beat(app=tracked.module, TESTS_SETTINGS=json.dumps(sql_workers.settings))
    for name, role in (("allowed", sql_workers.role), ("refused", sql_workers.other)):
        kwargs = {"statement": "INSERT INTO orders VALUES (5)", "role": role}
        make_schedule(sql, name, due="0", task="pgbeat.sql", kwargs=kwargs)
    statement = json.dumps(["INSERT INTO orders VALUES (6)"])
    [(submitted,)] = sql("SELECT pgbeat.submit('pgbeat.sql', %s::jsonb)::text", statement)
    until(lambda: len(sql("SELECT FROM pgbeat.ticks")) == 2)
    ticks: dict[str, str] = dict(sql("SELECT schedule, job_id::text FROM pgbeat.ticks"))
    allowed, refused, by_sql = tracked.ended(ticks["allowed"], ticks["refused"], submitted)
    assert (allowed.job.state, by_sql.job.state) == ("completed", "completed")
    assert "is none of pgbeat_sql_roles" in (refused.job.error or "")
    assert sql("SELECT id FROM orders WHERE id > 3 ORDER BY 1") == [(5,), (6,)]
