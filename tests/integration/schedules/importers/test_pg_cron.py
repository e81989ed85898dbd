"""`pgbeat import pg-cron`: tables in the shape of several versions of pg_cron."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.command_line import Sql, read, refused, run

COMMAND = ("import", "pg-cron", "--task", "shop.tasks.sql")
OLD = """
    CREATE SCHEMA cron;
    CREATE TABLE cron.job (
        jobid bigint PRIMARY KEY, schedule text NOT NULL, command text NOT NULL,
        nodename text NOT NULL DEFAULT 'localhost', nodeport int NOT NULL DEFAULT 5432,
        database text NOT NULL DEFAULT 'shop', username text NOT NULL DEFAULT 'alice');
"""
NEW = f"""
    {OLD}
    ALTER TABLE cron.job ADD active boolean NOT NULL DEFAULT true, ADD jobname name;
    CREATE UNIQUE INDEX ON cron.job (jobname, username);
    CREATE TABLE cron.job_run_details (
        jobid bigint, runid bigint PRIMARY KEY, job_pid integer, database text, username text,
        command text, status text, return_message text, start_time timestamptz,
        end_time timestamptz);
"""
RAN = datetime.now(UTC).replace(microsecond=7) - timedelta(minutes=10)


def rows(database: str) -> dict[str, Any]:
    return {row["name"]: row for row in read(database, "list")}


def test_each_job_becomes_a_row(database: str, sql: Sql) -> None:
    sql(NEW)
    sql("INSERT INTO cron.job VALUES (1, '0 3 $ * *', 'VACUUM {{ x')")
    sql(
        "INSERT INTO cron.job (jobid, jobname, schedule, command, active, username) VALUES "
        "(2, 'often', ' 30 Seconds', 'SELECT 1', true, 'alice'),"
        "(3, 'off', '@hourly', 'SELECT 2', false, 'alice'),"
        "(4, 'same', '*/2 * * * *', 'SELECT 3', true, 'alice'),"
        "(5, 'same', '0 4 */2 * 1', 'SELECT 3', true, 'bob'),"
        "(6, 'boot', '@reboot', 'SELECT 4', true, 'bob')"
    )
    sql(
        "INSERT INTO cron.job_run_details (jobid, runid, start_time) VALUES "
        "(2, 1, %s), (2, 2, %s::timestamptz - interval '1 hour'), (4, 3, NULL)",
        RAN,
        RAN,
    )
    result = run(database, *COMMAND)
    assert "Added 5 schedules:" in result.stdout
    assert "it runs when the server starts (@reboot)" in result.stdout
    found = rows(database)
    assert {name: row["cron"] for name, row in found.items()} == {
        "job 1": "0 3 L * *",
        "often": None,
        "off": "@hourly",
        "alice-same": "*/2 * * * *",
        "bob-same": "0 4 */2 * 1",
    }
    row = found["job 1"]
    assert (row["timezone"], row["args"]) == ("GMT", ["VACUUM {{ '{{' }} x"])
    assert row["kwargs"] == {"database": "shop", "username": "alice"}
    row = found["often"]
    assert (row["every"], datetime.fromisoformat(row["last_run"])) == (30, RAN)
    assert datetime.fromisoformat(row["next_run"]) == RAN + timedelta(seconds=30)
    assert found["off"]["disabled_reason"] == "disabled in pg_cron"
    assert "5 schedules here" in run(database, *COMMAND).stdout
    later = RAN + timedelta(minutes=1)
    sql("INSERT INTO cron.job_run_details (jobid, runid, start_time) VALUES (4, 4, %s)", later)
    assert "Carried the last run over to 1 schedule" in run(database, *COMMAND).stdout
    assert datetime.fromisoformat(rows(database)["alice-same"]["last_run"]) == later


def test_the_first_version_has_fewer_columns_and_the_zone_may_be_set(
    database: str, sql: Sql
) -> None:
    sql(OLD)
    sql("INSERT INTO cron.job VALUES (7, '@daily', 'SELECT 1')")
    name = sql("SELECT current_database()")[0][0]
    sql(f"""ALTER DATABASE "{name}" SET cron.timezone = 'Europe/Oslo'""")
    run(database, *COMMAND)
    row = rows(database)["job 7"]
    assert (row["cron"], row["timezone"], row["enabled"]) == ("@daily", "Europe/Oslo", True)
    run(database, *COMMAND, "--overwrite", "--timezone", "Asia/Tokyo")
    assert rows(database)["job 7"]["timezone"] == "Asia/Tokyo"


def test_who_sees_only_some_jobs_is_told(database: str, sql: Sql) -> None:
    """pg_cron's policies show each role its own jobs."""
    sql(OLD)
    sql("INSERT INTO cron.job VALUES (1, '@daily', 'SELECT 1')")
    sql(
        "ALTER TABLE cron.job ENABLE ROW LEVEL SECURITY; GRANT USAGE ON SCHEMA cron TO pg_monitor;"
        "CREATE POLICY own ON cron.job USING (username = current_user);"
        "GRANT SELECT ON cron.job TO pg_monitor"
    )
    joined = "&" if "?" in database else "?"
    source = f"{database}{joined}options=-c%20role%3Dpg_monitor"
    result = run(database, *COMMAND, "--from", source)
    assert result.stdout.startswith("0 schedules of pg_cron")
    assert "pg_monitor sees only its own jobs" in result.stderr


def test_databases_that_are_not_right(database: str, sql: Sql) -> None:
    said = refused(run(database, *COMMAND), 1)
    assert "there is no table cron.job" in said and "cron.database_name" in said
    assert "is no Postgres" in refused(run(database, *COMMAND, "--from", "sqlite://"))
    assert "can't be parsed" in refused(run(database, *COMMAND, "--from", "what is this"))
    sql(OLD)
    sql("INSERT INTO cron.job VALUES (1, 'at noon', 'SELECT 1')")
    assert "at noon" in run(database, *COMMAND).stdout
    assert rows(database) == {}
