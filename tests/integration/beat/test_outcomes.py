"""Three outcomes: what each does to a schedule, a tick, a job and a message."""

import json
import threading
from base64 import b64decode
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from pgbeat import Context
from pgbeat.config import postgres_url
from tests.support.launchers import register
from tests.support.processes import until
from tests.support.rows import Sql, make_schedule
from tests.support.schedulers import Beat

DUE = "now() - interval '1 second'"


#: Adds a schedule that is due since a second, by its timetable.
add = partial(make_schedule, due="-1 second", in_turn=True)


def make_due(sql: Sql, name: str = "s") -> None:
    sql(f"UPDATE pgbeat.schedules SET next_run = {DUE} WHERE name = %s", name)


def ticks(sql: Sql) -> list[tuple[Any, ...]]:
    return sql("SELECT outcome, coalesce(reason, error), trigger FROM pgbeat.ticks ORDER BY id")


def messages(sql: Sql) -> list[dict[str, Any]]:
    return [json.loads(row[0]) for row in sql("SELECT payload FROM kombu_message ORDER BY id")]


def test_launched(beat: Beat, sql: Sql) -> None:
    add(sql, kwargs='{"x": 40}', args="[]")
    assert beat().run_due() == 1
    [(outcome, reason, trigger)] = ticks(sql)
    assert (outcome, reason, trigger) == ("launched", None, "timetable")
    [(job_id, state, source, creator, is_system, queue)] = sql(
        "SELECT id, state, job_source, created_by, is_system_job, queue FROM pgbeat.jobs"
    )
    assert (state, source, is_system, queue) == ("pending", "scheduled_task", True, "celery")
    assert creator == "system:scheduler:GenericLauncher"
    [message] = messages(sql)
    assert message["headers"]["id"] == str(job_id)
    assert message["headers"]["task"] == "tests.add"
    assert message["headers"]["celery_beat_task"] is True
    assert json.loads(b64decode(message["body"]))[:2] == [[], {"x": 40}]
    [row] = sql(
        "SELECT retry_count, last_run = last_success, last_failure IS NULL, next_run > now(), "
        "next_run - now() <= interval '1 hour' FROM pgbeat.schedules"
    )
    assert row == (0, True, True, True, True)


def test_a_beat_that_closes_leaves_no_thread(beat: Beat, sql: Sql) -> None:
    """A program may make many, as tests do."""
    before = set(threading.enumerate())
    add(sql, condition_sql="SELECT true")
    closing = beat()
    assert closing.run_due() == 1
    evaluating = [thread.name for thread in threading.enumerate() if thread not in before]
    assert "pgbeat-condition" in evaluating
    closing.close()
    until(lambda: set(threading.enumerate()) <= before)


def test_skipped_by_condition(beat: Beat, sql: Sql) -> None:
    add(sql, condition_sql="SELECT count(*) FROM pgbeat.jobs")
    beat().run_due()
    assert ticks(sql) == [("skipped", "condition_sql is 0", "timetable")]
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]
    assert messages(sql) == []
    [row] = sql(
        "SELECT retry_count, last_run IS NOT NULL, last_success, last_failure, next_run > now() "
        "FROM pgbeat.schedules"
    )
    assert row == (0, True, None, None, True)


def test_what_counts_as_met(beat: Beat, sql: Sql) -> None:
    reasons = {
        "SELECT false": "condition_sql is false",
        "SELECT NULL": "condition_sql is null",
        "SELECT ''": "condition_sql is ''",
        "SELECT 1 WHERE false": "condition_sql found no row",
        "SELECT true": None,
        "SELECT 'x'": None,
        "SELECT i FROM generate_series(1, 10000000) i": None,
        "WITH a AS (SELECT 1 AS n) SELECT n FROM a; ": None,
        "SELECT 'a:b' LIKE '%:%' -- 100 % :literal": None,
    }
    for number, condition in enumerate(reasons):
        add(sql, f"s{number}", condition_sql=condition)
    beat().run_due()
    found = sql(
        "SELECT s.condition_sql, t.outcome, t.reason FROM pgbeat.ticks t "
        "JOIN pgbeat.schedules s ON s.id = t.schedule_id"
    )
    assert {condition: reason for condition, _, reason in found} == reasons
    assert all((outcome == "launched") == (reason is None) for _, outcome, reason in found)


def test_skips_do_not_disable(beat: Beat, sql: Sql) -> None:
    add(sql, condition_sql="SELECT false")
    scheduler = beat()
    for _ in range(7):
        make_due(sql)
        scheduler.run_due()
    assert len(ticks(sql)) == 7
    assert sql("SELECT enabled, retry_count FROM pgbeat.schedules") == [(True, 0)]


def test_failures_back_off_and_disable_at_the_fifth(beat: Beat, sql: Sql) -> None:
    add(sql, condition_sql="SELECT 1/0")
    scheduler = beat()
    for n in range(1, 6):
        make_due(sql)
        scheduler.run_due()
        [(count, enabled, minutes, failed)] = sql(
            "SELECT retry_count, enabled, extract(epoch FROM next_run - last_run)::int / 60, "
            "last_failure = last_run FROM pgbeat.schedules"
        )
        assert (count, failed) == (n, True)
        assert enabled == (n < 5)
        assert minutes == min(2**n, 60)
    [(reason,)] = sql("SELECT disabled_reason FROM pgbeat.schedules")
    assert reason == "failed 5 times in a row; last: DivisionByZero: division by zero"
    outcomes = ticks(sql)
    assert [row[0] for row in outcomes] == ["failed"] * 5
    assert [row[2] for row in outcomes] == ["manual"] + ["retry"] * 4
    make_due(sql)
    assert scheduler.run_due() == 0


def test_a_launch_ends_the_run_of_failures(beat: Beat, sql: Sql) -> None:
    add(sql, retry_count=3)
    beat().run_due()
    assert ticks(sql) == [("launched", None, "retry")]
    assert sql("SELECT retry_count FROM pgbeat.schedules") == [(0,)]


def test_a_condition_beyond_its_temp_file_limit_fails(beat: Beat, sql: Sql) -> None:
    """That error is its own, though the class of it (53) is the server's."""
    sql(
        "CREATE FUNCTION ask() RETURNS boolean LANGUAGE plpgsql STABLE AS "
        "'BEGIN RAISE EXCEPTION ''temporary files'' USING ERRCODE = ''53400''; END'"
    )
    add(sql, condition_sql="SELECT ask()")
    assert beat().run_due() == 1
    assert [row[0] for row in ticks(sql)] == ["failed"]


def test_enabling_starts_afresh(beat: Beat, sql: Sql) -> None:
    add(sql, condition_sql="SELECT 1/0", max_retries=1)
    scheduler = beat()
    scheduler.run_due()
    sql("UPDATE pgbeat.schedules SET enabled = true, condition_sql = NULL")
    assert sql("SELECT retry_count, disabled_reason, next_run FROM pgbeat.schedules") == [
        (0, None, None)
    ]
    assert scheduler.run_due() == 0
    assert sql("SELECT next_run > now() FROM pgbeat.schedules") == [(True,)]


def test_one_due_time_is_decided_once(beat: Beat, sql: Sql) -> None:
    add(sql, due=None, next_run="now")
    scheduler = beat()
    scheduler.run_due()
    sql("UPDATE pgbeat.schedules SET next_run = (SELECT due_at FROM pgbeat.ticks)")
    assert scheduler.run_due() == 0
    assert len(ticks(sql)) == len(messages(sql)) == 1
    assert sql("SELECT next_run > now() FROM pgbeat.schedules") == [(True,)]
    counted = "SELECT run_count, last_success < last_run FROM pgbeat.schedules"
    assert sql(counted) == [(1, True)]


def test_the_job_id_is_the_schedules_and_the_due_times(beat: Beat, sql: Sql) -> None:
    import uuid
    from datetime import UTC

    add(sql)
    beat().run_due()
    [(uid, due_at, job_id)] = sql(
        "SELECT s.uid, t.due_at, t.job_id FROM pgbeat.ticks t JOIN pgbeat.schedules s "
        "ON s.id = t.schedule_id"
    )
    assert job_id == uuid.uuid5(uid, due_at.astimezone(UTC).isoformat())


def test_failed_says_why_and_the_neighbour_is_launched(beat: Beat, sql: Sql, app: Any) -> None:
    delete = "DELETE FROM pgbeat.schedules RETURNING 1"
    bad = {
        "'tests.ad'": {"task": "tests.ad"},
        "'GenericLauncer'": {"launcher": "GenericLauncer"},
        "TypeError:": {"kwargs": '{"z": 1}'},
        "'producer'": {"options": '{"producer": 1}'},
        "SyntaxError:": {"condition_sql": "SELEC 1"},
        "one SELECT": {"condition_sql": "SELECT 1; SELECT 2"},
        "condition_sql is not one SELECT": {"condition_sql": "COMMIT"},
        "ReadOnlySqlTransaction:": {"condition_sql": delete},
        "cannot execute SELECT": {"condition_sql": f"WITH d AS ({delete}) SELECT 1 FROM d"},
        "0.2 s": {"condition_sql": "SELECT pg_sleep(60)"},
    }
    app.conf.pgbeat_condition_timeout = 0.2
    for error, values in bad.items():
        add(sql, error, **values)
    add(sql, "good")
    assert beat().run_due() == len(bad) + 1
    said: dict[str, str] = dict(sql("SELECT schedule, error FROM pgbeat.ticks WHERE error <> ''"))
    assert said.keys() == bad.keys()
    for expected, error in said.items():
        assert expected in error
    assert sql("SELECT outcome FROM pgbeat.ticks WHERE schedule = 'good'") == [("launched",)]
    assert len(messages(sql)) == 1


def test_what_the_checks_were_evaded_for_fails_with_their_sentence(beat: Beat, sql: Sql) -> None:
    sql("ALTER TABLE pgbeat.schedules DISABLE TRIGGER check_schedule")
    add(sql, "zone", timezone="Mars/Olympus")
    add(sql, "cron", cron="61 * * * *", every=None)
    make_schedule(sql, "new", cron="x y")
    add(sql, "good")
    assert beat().run_due() == 4
    errors: dict[str, str] = dict(
        sql("SELECT schedule, error FROM pgbeat.ticks WHERE outcome = 'failed'")
    )
    assert errors.keys() == {"zone", "cron", "new"}
    assert "'Mars/Olympus'" in errors["zone"]
    assert "'61 * * * *'" in errors["cron"]
    assert "'x y'" in errors["new"]
    assert sql("SELECT outcome FROM pgbeat.ticks WHERE schedule = 'good'") == [("launched",)]


def test_the_database_refuses_one_of_a_batch(beat: Beat, sql: Sql) -> None:
    """A row that can't be written fails alone; the rest of its batch commits."""
    for n in range(20):
        add(sql, f"s{n}")
    sql("ALTER TABLE pgbeat.jobs ADD CHECK (schedule <> 's7')")
    assert beat().run_due() == 20
    [(failed, error)] = sql("SELECT schedule, error FROM pgbeat.ticks WHERE outcome = 'failed'")
    assert failed == "s7" and "CheckViolation" in error
    assert len(messages(sql)) == 19
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(19,)]


def test_conditions_asked_together_are_answered_apart(beat: Beat, sql: Sql) -> None:
    said = {
        "SELECT 1": ("launched", None),
        "SELECT 0": ("skipped", "condition_sql is 0"),
        "SELECT 1/0": ("failed", "DivisionByZero: division by zero"),
        "SELECT 1; SELECT 2": ("failed", "condition_sql is not one SELECT"),
        "SELECT true FROM pg_sleep(1)": ("launched", None),
        "SELECT": ("skipped", "condition_sql is null"),
        "SELECT 1 -- not the end": ("launched", None),
        "SELECT false) q, (SELECT 1": ("failed", 'SyntaxError: syntax error at or near ")"'),
    }
    for n, condition in enumerate(3 * list(said)):
        add(sql, f"{n}", condition_sql=condition)
    beat().run_due()
    found = sql(
        "SELECT s.condition_sql, t.outcome, coalesce(t.reason, t.error) FROM pgbeat.ticks t "
        "JOIN pgbeat.schedules s ON s.id = t.schedule_id"
    )
    assert len(found) == 3 * len(said)
    assert {condition: (outcome, why) for condition, outcome, why in found} == said
    # Those that had to wait for a slow one were asked again.
    [(behind,)] = sql(
        "SELECT count(*) FROM pgbeat.ticks t JOIN pgbeat.schedules s ON s.id = t.schedule_id "
        "WHERE condition_sql NOT LIKE '%%sleep%%' AND t.decided_at > (SELECT min(decided_at) "
        "FROM pgbeat.ticks u JOIN pgbeat.schedules v ON v.id = u.schedule_id "
        "WHERE v.condition_sql LIKE '%%sleep%%')"
    )
    assert behind == 0


@pytest.mark.parametrize(
    "condition",
    [
        "SELECT pg_terminate_backend(pg_backend_pid())",
        "SELECT pg_terminate_backend(pg_backend_pid()) FROM pg_sleep(0.1)",
        "SELECT set_config('transaction_timeout', '20', true), pg_sleep(0.2)",
    ],
)
def test_a_condition_that_ends_its_session_fails_alone(
    beat: Beat, sql: Sql, condition: str
) -> None:
    [(version,)] = sql("SELECT current_setting('server_version_num')::integer")
    if "transaction_timeout" in condition and version < 170000:
        pytest.skip("transaction_timeout came with Postgres 17")
    for n in range(20):
        add(sql, f"healthy {n}", condition_sql=f"SELECT {n + 1}")
    add(sql, "guilty", condition_sql=condition, max_retries=3)
    scheduler = beat()
    for _ in range(3):
        scheduler.run_due()
        sql("UPDATE pgbeat.schedules SET next_run = now() WHERE enabled")
    assert sql(
        "SELECT schedule LIKE 'healthy%', outcome, count(*) FROM pgbeat.ticks GROUP BY 1, 2 "
        "ORDER BY 1"
    ) == [(False, "failed", 3), (True, "launched", 60)]
    assert sql("SELECT name FROM pgbeat.schedules WHERE NOT enabled") == [("guilty",)]


def test_conditions_have_a_role_of_their_own_that_they_cant_leave(
    app: Celery, beat: Beat, sql: Sql, database: str
) -> None:
    role = f"conditions_{uuid4().hex[:8]}"
    [(owner,)] = sql("SELECT current_user")
    sql(f"CREATE ROLE {role} LOGIN PASSWORD 'pass'")
    sql(f"GRANT {role} TO {owner}")
    sql("CREATE TABLE orders (id int); INSERT INTO orders VALUES (1)")
    sql("CREATE TABLE salaries (id int)")
    sql(f"GRANT USAGE ON SCHEMA pgbeat TO {role}; GRANT SELECT ON orders TO {role}")
    allowed = ["SELECT id FROM orders", f"SELECT session_user = '{role}'"]
    refused = [
        "SELECT count(*) >= 0 FROM salaries",
        "SELECT count(*) >= 0 FROM pgbeat.tokens",
        "SELECT count(*) >= 0 FROM kombu_message",
        f"SELECT set_config('role', '{owner}', true) <> ''",
        f"SELECT set_config('session_authorization', '{owner}', true) <> ''",
        "SELECT set_config('role', 'none', true) <> '' AND "
        "query_to_xml('SELECT * FROM salaries', true, true, '') IS NOT NULL",
        "RESET ROLE",
        "SELECT bool_or(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND usename <> current_user",
    ]
    try:
        for n, condition in enumerate([*allowed, *refused]):
            add(sql, f"{n}", condition_sql=condition)
        url = postgres_url(database).set(username=role, password="pass")
        app.conf.pgbeat_condition_url = url.render_as_string(hide_password=False)
        beat().run_due()
        rows = sql("SELECT schedule::integer, outcome FROM pgbeat.ticks")
        found: dict[int, str] = dict(rows)
        wanted = ["launched"] * len(allowed) + ["failed"] * len(refused)
        assert [found[n] for n in range(len(found))] == wanted
    finally:
        sql(f"DROP OWNED BY {role}")
        sql(f"DROP ROLE {role}")


def test_what_a_condition_sets_is_not_there_for_the_next(beat: Beat, sql: Sql) -> None:
    for n, condition in enumerate(
        [
            "SELECT set_config('search_path', 'nowhere', true) <> ''",
            "SELECT set_config('mine.own', 'left behind', false) <> ''",
            "SELECT coalesce(current_setting('mine.own', true), '') = '' "
            "AND current_setting('search_path') <> 'nowhere'",
        ]
    ):
        add(sql, f"{n}", condition_sql=condition)
    beat().run_due()
    assert [outcome for outcome, *_ in ticks(sql)] == ["launched"] * 3


def test_a_launcher_whose_session_ends_fails_alone(beat: Beat, sql: Sql) -> None:
    """Launchers have connections of their own, one after the other from a pool."""

    def asks(query: str) -> Callable[[Context], bool]:
        return lambda ctx: bool(ctx.connection.exec_driver_sql(query).scalar())

    register("tests.Guilty", asks("SELECT pg_terminate_backend(pg_backend_pid())"))
    register("tests.Healthy", asks("SELECT true"))
    for n in range(4):
        add(sql, f"healthy {n}", launcher="tests.Healthy", task=None)
    add(sql, "guilty", launcher="tests.Guilty", task=None)
    scheduler = beat()
    for _ in range(2):
        scheduler.run_due()
        sql("UPDATE pgbeat.schedules SET next_run = now()")
    assert sql(
        "SELECT schedule LIKE 'healthy%', outcome, count(*) FROM pgbeat.ticks GROUP BY 1, 2 "
        "ORDER BY 1"
    ) == [(False, "failed", 2), (True, "launched", 8)]
