"""`pgbeat doctor`: what it finds, and what it advises."""

import socket

import psycopg
import pytest
from celery import Celery
from psycopg.types.json import Jsonb
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool, StaticPool

from pgbeat.broker.transport.consuming import consumers
from pgbeat.config import postgres_url
from pgbeat.database import poolers
from pgbeat.database.tables import metadata
from pgbeat.monitoring import runbook
from pgbeat.monitoring.checks.server_checks import Check
from tests.support.broker_sessions import Sessions, put, queue_id
from tests.support.command_line import Sql, read, run, run_with
from tests.support.databases import Role, broker_url
from tests.support.partitions import make_partitions
from tests.support.rows import make_job, make_lane, make_schedule, make_template
from tests.support.schedulers import Beat

#: What is looked at where all is there, in its order.
CHECKS = (
    *("server", "connection", "clock", "role", "permissions", "schema", "fence", "apps", "beat"),
    *("lag", "history", "decisions", "jobs", "workers", "tasks", "broker", "queues"),
)


def checked(database: str) -> dict[str, Check]:
    """Returns the doctor's results by check."""
    found = read(database, "doctor")
    linked = {check["check"]: check.pop("runbook") for check in found["checks"]}
    checks = [Check(**check) for check in found["checks"]]
    for check in checks:
        assert linked[check.check] == runbook.of_check(check.check, check.result)
    assert found["ok"] is all(check.result != "fail" for check in checks)
    return {check.check: check for check in checks}


def test_all_is_well(database: str, app: Celery, beat: Beat) -> None:
    """Who consumes from queues on the stock transport is not known."""
    app.conf.broker_url = broker_url(database)
    beat().run_due()
    shown = run_with(app, "doctor")
    assert shown.exit_code == 0
    lines = (text.split()[:2] for text in shown.stdout.splitlines() if text[:1].strip())
    head, *checks = lines
    assert (head, tuple(name for name, _ in checks)) == (["check", "result"], CHECKS)
    assert {name: result for name, result in checks if result != "ok"} == {
        "role": "warn",
        "workers": "unknown",
        "tasks": "unknown",
        "queues": "unknown",
    }
    assert "leads, no other stands by" in shown.stdout
    assert "its tables are here; 0 messages wait" in shown.stdout


def test_no_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"postgresql://u:secret@127.0.0.1:{taken.getsockname()[1]}/d"
        shown = run(url, "doctor")
        assert shown.exit_code == 1
        assert "Connection refused" in shown.stdout
        assert "secret" not in shown.output
        assert checked(url)["server"].advice == "Is it running, and is the URL right?"


def test_no_schema(empty_database: str) -> None:
    assert run(empty_database, "doctor").exit_code == 1
    found = checked(empty_database)
    assert found["schema"] == Check(
        "schema", "fail", "the database has no pgbeat schema", "Run `pgbeat migrate`."
    )
    assert "beat" not in found


def test_another_schema(database: str, sql: Sql) -> None:
    sql("UPDATE pgbeat.migrations SET version_num = '9999', oldest_program = '9999'")
    assert checked(database)["schema"].advice == "Upgrade pgbeat."
    sql("UPDATE pgbeat.migrations SET oldest_program = '0001'")
    assert checked(database)["schema contents"].result == "unknown"


def test_a_schema_that_lost_a_trigger(database: str, sql: Sql) -> None:
    sql("DROP TRIGGER announce_change ON pgbeat.schedules")
    found = checked(database)["schema contents"]
    assert (found.result, "announce_change" in found.detail) == ("fail", True)


def test_two_apps_in_one_namespace(database: str, app: Celery, beat: Beat, sql: Sql) -> None:
    app.conf.beat_schedule = {"s": {"task": "tests.add", "schedule": 3600.0}}
    beat().run_due()
    assert checked(database)["apps"].result == "ok"
    make_schedule(sql, "theirs", source="code", app="blog")
    found = checked(database)["apps"]
    assert (found.result, found.detail) == (
        "warn",
        "Other apps use the namespace 'default' too: 'blog' (1 schedule), 'tests' (1 schedule)",
    )
    assert "pgbeat_namespace" in found.advice
    shown = run_with(app, "doctor")
    assert "too: 'blog' (1 schedule)" in shown.stdout and "'tests'" not in shown.stdout


def test_a_role_that_may_not(database: str, ordinary_role: Role, sql: Sql) -> None:
    sql(f"GRANT SELECT ON pgbeat.jobs, pgbeat.migrations TO {ordinary_role.name}")
    found = checked(ordinary_role.dsn)
    assert found["role"] == Check("role", "ok", f"{ordinary_role.name} is an ordinary role")
    lacking = found["permissions"]
    assert lacking.result == "fail"
    parts = {"unfinished_jobs", "ended_jobs", "running_executions", "ended_executions"}
    hidden = {"tokens", "sign_in_links", "audit"}
    others = {t.name for t in metadata.tables.values()} - hidden | parts
    each = {name: f"SELECT, INSERT, UPDATE, DELETE on pgbeat.{name}" for name in others}
    each["jobs"] = "INSERT, UPDATE, DELETE on pgbeat.jobs"
    each |= {name: f"SELECT on pgbeat.{name}" for name in ("partitions", "queue_load")}
    told = ["USAGE on schema pgbeat", *(each[name] for name in sorted(each))]
    assert lacking.detail == f"the role lacks {', '.join(told)}"
    # What it advises helps.
    command = lacking.advice.removeprefix("As the owner: pgbeat ").split()
    assert run(database, *command).exit_code == 0
    assert checked(ordinary_role.dsn)["permissions"].result == "ok"
    assert checked(ordinary_role.dsn)["schema"].result == "ok"
    # A period that was replaced is nobody's to write, until it is dropped.
    sql("SELECT pgbeat.add_partition('ticks', now() + interval '1 day')")
    sql(
        "SELECT pgbeat.keep_partition(ARRAY['ticks_kept'], name, '{}') FROM pgbeat.partitions "
        "WHERE history = 'ticks' AND NOT is_kept AND ends_at IS NOT NULL"
    )
    for (gone,) in sql("SELECT relname FROM pg_class WHERE relname ~ '^ticks_gone_[0-9]+$'"):
        sql(f"REVOKE ALL ON pgbeat.{gone} FROM {ordinary_role.name}")  # a later one has no grants
    assert checked(ordinary_role.dsn)["permissions"].result == "ok"


def test_rows_that_row_level_security_hides(database: str, ordinary_role: Role, sql: Sql) -> None:
    """Without a policy all tables look empty to the role, and no statement fails."""
    make_schedule(sql)
    grant = ("grant", "--role", ordinary_role.name, "--profile", "beat", "--apply")
    assert run(database, *grant).exit_code == 0
    sql("ALTER TABLE pgbeat.schedules ENABLE ROW LEVEL SECURITY")
    found = checked(ordinary_role.dsn)["permissions"]
    hidden = "row-level security hides the rows of pgbeat.schedules from the role"
    assert (found.result, found.detail) == ("fail", hidden)
    assert checked(database)["permissions"].result == "ok"
    sql("CREATE POLICY all_rows ON pgbeat.schedules USING (true)")
    assert checked(ordinary_role.dsn)["permissions"].result == "ok"


def without_broker_tables(sql: Sql) -> None:
    sql("DROP TABLE IF EXISTS kombu_message, kombu_queue")
    sql("DROP SEQUENCE IF EXISTS message_id_sequence, queue_id_sequence")


def test_a_role_that_may_not_publish(
    ordinary_role: Role, app: Celery, beat: Beat, sql: Sql
) -> None:
    app.conf.pgbeat_url = ordinary_role.dsn
    without_broker_tables(sql)
    sql("REVOKE CREATE ON SCHEMA public FROM public")
    shown = run_with(app, "doctor")
    assert "its tables are not there, and the role may not make them" in shown.stdout
    app.conf.pgbeat_url = None
    beat().run_due()
    app.conf.pgbeat_url = ordinary_role.dsn
    sql(f"GRANT SELECT ON kombu_queue TO {ordinary_role.name}")
    shown = run_with(app, "doctor")
    assert (
        "the role lacks INSERT on kombu_queue, SELECT on kombu_message, INSERT on kombu_message, "
        "SELECT on kombu_queue_exchange, INSERT on kombu_queue_exchange, "
        "SELECT on kombu_queue_binding, INSERT on kombu_queue_binding, "
        "USAGE on queue_id_sequence, USAGE on message_id_sequence" in shown.stdout
    )
    assert shown.exit_code == 1


def test_no_beat(database: str, sql: Sql) -> None:
    found = checked(database)
    assert (found["beat"].result, found["lag"].result) == ("warn", "ok")
    make_schedule(sql, due="-1 hour")
    found = checked(database)
    assert found["beat"].result == "fail"
    assert found["beat"].advice == "Start one: celery -A APP beat -S pgbeat.Scheduler"
    assert found["lag"].result == "fail"
    assert found["lag"].detail.startswith("1 of 1 schedule due, the oldest for 36")
    shown = run(database, "doctor")
    assert shown.exit_code == 1
    assert shown.stdout.count(runbook.link(runbook.LATE)) == 2


def test_lag(database: str, sql: Sql) -> None:
    make_schedule(sql)
    for seconds, result in ((1, "ok"), (20, "warn"), (60, "fail")):
        sql("UPDATE pgbeat.schedules SET next_run = now() - %s * interval '1 second'", seconds)
        assert checked(database)["lag"].result == result


def test_somebody_elses_lock(database: str, sql: Sql) -> None:
    sql("SET application_name = 'a report'")
    sql("SELECT pg_advisory_lock(1050)")
    found = checked(database)["beat"]
    assert found.result == "fail"
    assert found.detail.startswith("lock 1050 is held by session ")
    assert found.detail.endswith(" (a report), which is no beat")
    assert found.advice == "Let beat use another lock: set pgbeat_lock_key."
    sql("SET application_name = ''")
    assert checked(database)["beat"].result == "unknown"


def test_a_broker_elsewhere(database: str, app: Celery) -> None:
    app.conf.pgbeat_url = database
    app.conf.broker_url = "memory://"
    shown = run_with(app, "doctor")
    assert "memory://" in shown.stdout
    assert ", another server: each launch is sent at least once" in shown.stdout
    app.conf.broker_url = "nosuch://"
    assert (
        "the broker can't be reached: 'No such transport: nosuch'" in run_with(app, "doctor").stdout
    )
    app.conf.broker_url = "amqp://u:secret@127.0.0.1:1//"
    shown = run_with(app, "doctor")
    assert shown.exit_code == 1
    assert "amqp://u:**@127.0.0.1:1// can't be reached: [Errno 111] Connection refused" in (
        shown.stdout
    )


def test_messages_that_wait(database: str, app: Celery, sql: Sql) -> None:
    make_schedule(sql)
    for _ in range(2):
        assert run_with(app, "trigger", "s").exit_code == 0
    assert checked(database)["broker"].detail == ("its tables are here; 2 messages wait (celery 2)")


def test_a_broker_not_looked_at(database: str, sql: Sql) -> None:
    without_broker_tables(sql)
    assert checked(database)["broker"] == Check(
        "broker", "unknown", "not looked at; give the app with -A APP"
    )


@pytest.mark.parametrize(
    ("setting", "trouble"),
    [
        ("default_transaction_read_only = on", ", is read-only"),
        ("session_replication_role = replica", ", fires no triggers"),
    ],
)
def test_a_server_on_which_nothing_works(
    database: str, sql: Sql, setting: str, trouble: str
) -> None:
    assert checked(database)["server"].result == "ok"
    [(name,)] = sql("SELECT current_database()")
    sql(f"ALTER DATABASE {name} SET {setting}")
    found = checked(database)["server"]
    assert found.result == "fail" and found.detail.endswith(trouble)


def test_queues_that_nobody_alive_consumes(opened: Sessions, database: str) -> None:
    """A message that a dead consumer has claimed counts: nobody is left to put it back."""
    assert checked(database)["queues"].result == "warn"
    living, dead = opened.consumer(), opened.consumer()
    for queue in ("kept", "forgotten", "claimed"):
        put(living.connection, queue, "message")
    for consumer, queue in ((living, "kept"), (dead, "claimed")):
        consumers.subscribe(
            consumer.connection, consumer.id, [queue_id(consumer.connection, queue)]
        )
    dead.claim("claimed")
    assert checked(database)["queues"].detail == "messages, but no living consumer: forgotten"
    dead.die(living.connection)
    found = checked(database)["queues"]
    assert found.result == "fail"
    assert found.detail == "messages, but no living consumer: claimed; forgotten"
    assert found.advice.endswith("-Q claimed,forgotten")


def test_workers_that_died(database: str, sql: Sql) -> None:
    """Nobody has noticed, but their locks are gone."""
    worker = "INSERT INTO pgbeat.workers (name, pid, alive_until) VALUES (%s, 1, %s)"
    sql(worker, "w1", None)
    found = checked(database)["workers"]
    assert (found.result, found.detail) == ("fail", "0 workers alive; died: w1")
    assert [each["missing_since"] is None for each in read(database, "workers")] == [False]
    sql(worker, "w2", "infinity")
    assert checked(database)["workers"].result == "warn"
    sql(worker, "w1", "infinity")  # it was started again
    found = checked(database)["workers"]
    assert (found.result, found.detail) == ("ok", "2 workers alive")
    assert checked(database)["tasks"].result == "unknown"
    sql("UPDATE pgbeat.workers SET tasks = '{tests.add}' WHERE name = 'w1'")
    assert checked(database)["tasks"].result == "unknown"
    sql("UPDATE pgbeat.workers SET tasks = '{tests.add}'")
    assert checked(database)["tasks"].result == "ok"


def test_a_worker_needs_no_tasks_of_queues_that_it_does_not_consume(
    database: str, sql: Sql
) -> None:
    make_schedule(sql, "plain", task="tests.add")
    make_schedule(sql, "monthly", task="tests.report", queue="reports")
    worker = (
        "INSERT INTO pgbeat.workers (name, pid, alive_until, queues, tasks) "
        "VALUES (%s, 1, 'infinity', %s, %s)"
    )
    sql(worker, "w1", ["celery"], ["tests.add"])
    found = checked(database)["tasks"]
    assert found.detail == "no worker has task 'tests.report' of schedule 'monthly'"
    sql(worker, "w2", ["reports"], ["tests.add", "tests.report"])
    assert checked(database)["tasks"].result == "ok"
    sql(worker, "w3", ["celery", "reports"], ["tests.add"])
    found = checked(database)["tasks"]
    assert found.detail == "w3 lacks task 'tests.report' of schedule 'monthly'"


def test_roles_for_sql_that_no_worker_allows(database: str, sql: Sql) -> None:
    """Of schedules, as their templates complete them, and of templates."""
    assert "SQL roles" not in checked(database)
    make_schedule(sql, "any", task="pgbeat.sql", args=Jsonb(["SELECT 1"]))
    make_schedule(sql, "billing", task="pgbeat.sql", kwargs={"role": "billing"})
    make_template(sql, "old", task="pgbeat.sql", args=Jsonb(["SELECT 1", "dropped"]))
    make_template(sql, "open", task="pgbeat.sql")
    make_schedule(sql, "of-old", task="pgbeat.sql", job_policy={"template": "old"})
    assert "SQL roles" not in checked(database)
    worker = "INSERT INTO pgbeat.workers (name, pid, alive_until) VALUES (%s, 1, 'infinity')"
    sql(worker, "w1")
    assert checked(database)["SQL roles"].result == "unknown"
    report = "UPDATE pgbeat.workers SET versions = %s"
    sql(report, Jsonb({"sql_roles": "reports, billing"}))
    found = checked(database)["SQL roles"]
    assert (found.result, found.detail) == (
        "warn",
        "schedule 'any' names no role; schedule 'of-old' names role 'dropped'; template 'old' "
        "names role 'dropped'; living workers allow billing, reports",
    )
    sql(report, Jsonb({"pgbeat": "1"}))
    assert checked(database)["SQL roles"].detail.endswith("living workers allow none")
    sql("DELETE FROM pgbeat.schedules WHERE name <> 'any'")
    sql("DELETE FROM pgbeat.templates")
    sql(report, Jsonb({"sql_roles": "reports"}))
    assert checked(database)["SQL roles"].result == "ok"


def test_schedules_that_no_beat_has_planned(database: str, sql: Sql) -> None:
    make_schedule(sql)
    assert checked(database)["lag"].result == "unknown"


def test_sessions_of_our_own_are_not_shared(database: str) -> None:
    engine = create_engine(postgres_url(database), poolclass=NullPool)
    with engine.connect() as one, engine.connect() as other:
        assert poolers.is_shared(one, other) is False


def test_a_pooler_is_noticed(database: str) -> None:
    """Two clients share one session, as behind an idle pooler in transaction mode."""
    engine = create_engine(postgres_url(database), poolclass=StaticPool)
    with engine.connect() as one, engine.connect() as other:
        assert poolers.is_shared(one, other) is True
    engine.dispose()


def test_a_transaction_left_open_with_locks(
    database: str, beat: Beat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgbeat.monitoring.checks.open_transactions._IDLE", 0.0)
    beat().run_due()
    with psycopg.connect(database, application_name="shop") as reader:
        reader.execute("SELECT count(*) FROM pgbeat.jobs")
        assert "transactions" not in checked(database)
        reader.execute("UPDATE pgbeat.lanes SET max_running = 1")
        found = checked(database)["transactions"]
    assert (found.check, found.result) == ("transactions", "warn")
    assert "(shop)" in found.detail
    assert "locks in lanes" in found.detail


def test_policies_of_tasks(app: Celery, sql: Sql) -> None:
    """Checked with their lanes, which must be there before the tasks are sent."""
    app.conf.broker_url = f"pgbeat+{app.conf.broker_url.partition('+')[2]}"
    app.conf.pgbeat_task_policies = {"tests.add": {"lane": "narrow"}}

    def line() -> str:
        shown = run_with(app, "doctor").stdout
        return next(line for line in shown.splitlines() if line.startswith("task policies"))

    assert "fail" in line()
    assert "tasks can't be sent (1: tests.add): there is no lane 'narrow'; `pgbeat lanes" in line()
    make_lane(sql, "narrow")
    assert line().split()[2:] == ["ok", "1:", "tests.add"]
    app.conf.pgbeat_task_policies = {"tests.*": {"lanes": "narrow"}}
    assert "fail" in line()


@pytest.mark.parametrize("ahead", [-3, 3])
def test_periods_that_no_beat_added(database: str, ahead: int) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        make_partitions(connection, 5, ahead=ahead)
    found = checked(database)["history"]
    assert found.result == ("warn" if ahead < 0 else "ok")
    assert ("go to pgbeat.ticks_to_come" in found.detail) is (ahead < 0)


def test_periods_that_no_beat_dropped(database: str, sql: Sql) -> None:
    """A day after they were due to be dropped; all apps of the database count."""
    with psycopg.connect(database, autocommit=True) as connection:
        make_partitions(connection, 40)
    sql("INSERT INTO pgbeat.namespaces (name, timezone, retention_days) VALUES ('a', 'UTC', 7)")
    sql("INSERT INTO pgbeat.namespaces (name, timezone, retention_days) VALUES ('b', 'UTC', 30)")
    for keeps, is_overdue in ((30, True), (39, False), (0, False)):
        sql("UPDATE pgbeat.namespaces SET retention_days = %s WHERE name = 'b'", keeps)
        found = checked(database)["history"]
        assert found.result == ("warn" if is_overdue else "ok")
        assert ("is 9 days older than the retention" in found.detail) is is_overdue


def test_schedules_that_achieve_nothing(database: str, sql: Sql) -> None:
    """Beat runs on time, but schedules fail."""
    make_schedule(sql, "broken", due="1 hour", retry_count=2, last_error="DivisionByZero: x")
    key = make_schedule(sql, "fails", due="1 hour")
    make_job(sql, "failed", schedule_id=key, error="KeyError: 'x'\nmore")
    found = checked(database)
    assert (found["decisions"].result, found["jobs"].result) == ("warn", "warn")
    assert found["decisions"].detail == (
        "1 schedule could not be launched: broken (2 of 5 times in a row; last: DivisionByZero: x)"
    )
    assert found["jobs"].detail == (
        "the newest jobs of 1 schedule failed: fails (1 in a row; last: KeyError: 'x')"
    )
    sql("UPDATE pgbeat.schedules SET enabled = false, retry_count = 5 WHERE name = 'broken'")
    assert "broken (5 of 5 times" in checked(database)["decisions"].detail
    sql("UPDATE pgbeat.schedules SET max_retries = 0, retry_count = 1 WHERE name = 'broken'")
    assert "broken (1 of 1 times" in checked(database)["decisions"].detail
