"""The health of schedules, and pausing those whose jobs fail."""

from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection

from pgbeat.monitoring import schedule_health
from pgbeat.monitoring.schedule_health import Health
from pgbeat.schedules import control
from pgbeat.schedules import model as schedules
from tests.support.command_line import Sql
from tests.support.explained_plans import explained
from tests.support.rows import make_job, make_schedule, make_tick, make_webhook, unit_on
from tests.support.threads import waiting

PATIENCE = timedelta(seconds=30)


#: Adds a schedule that is not due.
add = partial(make_schedule, task="jobs.add")


def job(sql: Sql, key: int, state: str = "completed", **columns: Any) -> str:
    """A job of the schedule, which has been through its states as a worker leads it."""
    made_id = make_job(
        sql, columns.pop("begin", "running"), schedule_id=key, dispatched_at="now", **columns
    )
    if state not in ("running", "pending", "scheduled"):
        end(sql, made_id, state)
    return made_id


def end(sql: Sql, job_id: str, state: str, error: str = "ValueError: no") -> None:
    sql(
        "UPDATE pgbeat.jobs SET state = %s, finished_at = clock_timestamp(), "
        "error = CASE %s WHEN 'failed' THEN %s END WHERE id = %s",
        state,
        state,
        error,
        job_id,
    )


def launched(sql: Sql) -> None:
    sql("UPDATE pgbeat.schedules SET last_run = now(), last_success = now()")


def health(connection: Connection, name: str = "s") -> Health:
    row = schedules.get(connection, name)
    return schedule_health.of_schedule(connection, row, PATIENCE)


def test_before_anything_was_launched(connection: Connection, sql: Sql) -> None:
    add(sql)
    found = health(connection)
    assert (found.code, found.severity, found.failures) == ("new", "ok", 0)
    sql("UPDATE pgbeat.schedules SET last_run = now()")
    assert (health(connection).code, health(connection).severity) == ("never_launched", "warn")


def test_every_job_fails(connection: Connection, sql: Sql) -> None:
    key = add(sql)
    launched(sql)
    job(sql, key)
    assert health(connection).code == "ok"
    ids = [job(sql, key, "failed") for _ in range(6)]
    ((since,),) = sql("SELECT finished_at FROM pgbeat.jobs WHERE id = %s", ids[0])
    found = health(connection)
    assert (found.code, found.severity, found.failures) == ("failing", "fail", 6)
    assert (found.since, found.error) == (since, "ValueError: no")
    assert str(found.job_id) == ids[-1]
    assert found.summary == (
        f"6 jobs in a row failed, since {since:%Y-%m-%d %H:%M:%S} UTC; last: ValueError: no"
    )


def test_one_that_completes_ends_it_and_skips_and_cancels_say_nothing(
    connection: Connection, sql: Sql
) -> None:
    key = add(sql)
    job(sql, key, "failed")
    job(sql, key, "cancelled")
    job(sql, key, "skipped")
    assert health(connection).failures == 1
    job(sql, key, "completed")
    assert health(connection).code == "ok"


def test_of_a_retried_job_the_last_attempt_counts(connection: Connection, sql: Sql) -> None:
    key = add(sql)
    first = job(sql, key, "running", max_attempts=2)
    again = make_job(sql, "scheduled", schedule_id=key, retry_of=first, attempt=2, max_attempts=2)
    sql(
        "UPDATE pgbeat.jobs SET state = 'failed', finished_at = now(), retried_by = %s "
        "WHERE id = %s",
        again,
        first,
    )
    found = health(connection)
    assert (found.code, found.severity, str(found.job_id)) == ("retrying", "warn", again)
    end(sql, again, "failed")
    assert (health(connection).code, health(connection).failures) == ("failing", 1)


def test_a_job_that_no_worker_takes(connection: Connection, sql: Sql) -> None:
    key = add(sql)
    launched(sql)
    job(sql, key, "pending", begin="pending")
    assert health(connection).code == "no_outcome"
    sql("UPDATE pgbeat.jobs SET dispatched_at = now() - interval '6 minutes'")
    found = health(connection)
    assert (found.code, found.severity) == ("waiting", "warn")


def test_decisions_that_fail_and_those_that_do_not_come(connection: Connection, sql: Sql) -> None:
    add(sql, retry_count=2, last_error="DivisionByZero: division by zero")
    found = health(connection)
    assert (found.code, found.failures) == ("launch_failing", 2)
    assert found.error == "DivisionByZero: division by zero"
    sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 minute'")
    assert health(connection).code == "late"
    sql("UPDATE pgbeat.schedules SET paused_at = now()")
    assert health(connection).code == "new"
    add(sql, "without retries", enabled=False, max_retries=0, retry_count=1)
    found = health(connection, "without retries")
    assert found.code == "launch_failing" and "1 of 1 times" in found.summary


def test_skipping_says_since_when_and_why(connection: Connection, sql: Sql) -> None:
    key = add(sql)
    job(sql, key)
    sql("UPDATE pgbeat.schedules SET last_success = now() - interval '1 hour', last_run = now()")
    sql(
        "INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, outcome, reason, job_id) "
        "SELECT %s, 's', now() - n * interval '20 minutes', "
        "CASE n WHEN 3 THEN 'launched' ELSE 'skipped' END, "
        "CASE n WHEN 3 THEN NULL ELSE 'reason ' || n END, "
        "CASE n WHEN 3 THEN gen_random_uuid() END FROM generate_series(0, 4) n",
        key,
    )
    ((since,),) = sql("SELECT due_at FROM pgbeat.ticks WHERE reason = 'reason 2'")
    found = health(connection)
    assert (found.code, found.severity, found.failures) == ("skipping", "ok", 0)
    assert (found.since, found.reason, found.error) == (since, "reason 0", None)
    assert found.summary == f"skipping since {since:%Y-%m-%d %H:%M:%S} UTC: reason 0"
    job(sql, key, "failed")  # worse than doing nothing
    assert (health(connection).code, health(connection).reason) == ("failing", None)


def test_skipping_without_kept_ticks(connection: Connection, sql: Sql) -> None:
    add(sql)
    sql("UPDATE pgbeat.schedules SET last_success = now() - interval '1 hour', last_run = now()")
    found, last_run = health(connection), schedules.get(connection, "s").last_run
    assert (found.code, found.since, found.reason) == ("skipping", last_run, None)


def test_a_launch_or_a_failure_is_no_skip(connection: Connection, sql: Sql) -> None:
    add(sql)
    launched(sql)
    assert health(connection).code == "no_outcome"
    sql(
        "UPDATE pgbeat.schedules SET last_success = now() - interval '1 hour', "
        "last_run = now(), last_failure = now()"
    )
    assert health(connection).code == "no_outcome"


def test_the_worst_sorts_first() -> None:
    kinds: list[tuple[Any, int]] = [
        ("late", 0),
        ("failing", 6),
        ("failing", 2),
        ("skipping", 0),
        ("ok", 0),
    ]
    found = [Health(code, "", failures) for code, failures in sorted(kinds)]
    found.sort(key=lambda each: each.rank)
    assert [(each.code, each.failures) for each in found] == kinds


def test_those_that_fail_are_found_among_the_others(
    connection: Connection, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, states in enumerate(
        (("completed", "failed"), ("failed", "completed"), ("failed", "failed"), ("completed",), ())
    ):
        key = add(sql, f"s{number}")
        for state in states:
            job(sql, key, state)
    other = add(sql, "elsewhere", namespace="other")
    job(sql, other, "failed")
    found = schedule_health.failing(connection, "default")
    assert [(each.name, each.failures) for each in found] == [("s2", 2), ("s0", 1)]
    monkeypatch.setattr(schedule_health, "MOST_FAILURES", 1)
    assert [each.failures for each in schedule_health.failing(connection, "default")] == [1, 1]


def test_it_is_looked_up_not_counted(connection: Connection, sql: Sql) -> None:
    """Among many jobs, a schedule's health reads a few rows of an index."""
    keys = [add(sql, f"s{number}") for number in range(20)]
    sql(
        "INSERT INTO pgbeat.jobs (id, schedule_id, task, state, job_source, created_by, "
        "is_system_job, started_at, finished_at) SELECT gen_random_uuid(), k, 't', "
        "CASE WHEN n %% 2 = 0 THEN 'completed' ELSE 'failed' END, 'system', 'x', true, now(), "
        "now() - n * interval '1 second' FROM unnest(%s::bigint[]) k, generate_series(1, 1000) n",
        keys,
    )
    sql("ANALYZE pgbeat.jobs")
    with explained(connection) as found:
        schedule_health.of_schedules(connection, schedules.listing(connection), PATIENCE)
    scans = [scan for plan in found.plans for scan in plan.scans if scan.table == "jobs"]
    assert scans and all(scan.kind != "Seq Scan" for scan in scans if scan.rows)
    assert sum(scan.rows for scan in scans) < 20 * 10


def paused(sql: Sql) -> tuple[bool, str | None]:
    [(at, reason)] = sql("SELECT paused_at, paused_reason FROM pgbeat.schedules WHERE name = 's'")
    return at is not None, reason


def test_failures_in_a_row_pause_it(connection: Connection, sql: Sql) -> None:
    key = add(sql, pause_after_failures=3)
    for state in ("failed", "failed", "completed", "failed", "failed"):
        job(sql, key, state)
    assert paused(sql) == (False, None)
    job(sql, key, "failed")
    assert paused(sql) == (True, "3 jobs in a row failed; last: ValueError: no")
    assert health(connection).code == "failing"
    # Somebody lets it go on: that many have to fail again.
    control.resume(unit_on(connection), "s")
    for is_paused in (False, False, True):
        assert paused(sql)[0] is False
        job(sql, key, "failed")
        assert paused(sql)[0] is is_paused


@pytest.mark.parametrize("values", [{}, {"pause_after_failures": 1, "enabled": False}])
def test_by_default_and_if_it_is_disabled_nothing_pauses_it(
    sql: Sql, values: dict[str, Any]
) -> None:
    key = add(sql, **values)
    for _ in range(5):
        job(sql, key, "failed")
    assert paused(sql) == (False, None)


def test_a_failure_that_is_tried_again_does_not_count(sql: Sql) -> None:
    key = add(sql, pause_after_failures=1)
    first = job(sql, key, "running")
    again = make_job(sql, "scheduled", schedule_id=key, retry_of=first, attempt=2)
    sql(
        "UPDATE pgbeat.jobs SET state = 'failed', finished_at = now(), retried_by = %s "
        "WHERE id = %s",
        again,
        first,
    )
    assert paused(sql) == (False, None)
    end(sql, again, "failed")
    assert paused(sql)[0]


def test_it_is_decided_in_the_transaction_that_ends_the_job(database: str, sql: Sql) -> None:
    """The second of two jobs that fail at once sees the first; a rollback pauses nothing."""
    key = add(sql, pause_after_failures=2)
    ids = [job(sql, key, "running") for _ in range(2)]
    failed = "UPDATE pgbeat.jobs SET state = 'failed', finished_at = now() WHERE id = %s"
    with psycopg.connect(database) as one, psycopg.connect(database, autocommit=True) as two:
        one.execute(failed, [ids[0]])
        with waiting(sql, lambda: two.execute(failed, [ids[1]])):
            one.commit()
    assert paused(sql) == (True, "2 jobs in a row failed; last: no error was recorded")
    sql("UPDATE pgbeat.schedules SET paused_at = NULL, pause_after_failures = 1")
    last = job(sql, key, "running")
    with psycopg.connect(database) as one:
        one.execute(failed, [last])
        one.rollback()
    assert not paused(sql)[0]


def hook(sql: Sql, *events: str) -> None:
    make_webhook(sql, events=list(events))


def told(sql: Sql) -> list[dict[str, Any]]:
    rows = sql("SELECT payload -> 'data' FROM pgbeat.deliveries ORDER BY created_at, id")
    return [row[0] for row in rows]


def test_a_pause_is_an_event(connection: Connection, sql: Sql) -> None:
    hook(sql, "schedule.paused")
    key = add(sql, pause_after_failures=1)
    last = job(sql, key, "failed")
    [event] = told(sql)
    assert (event["name"], event["task"], event["pause_after_failures"]) == ("s", "jobs.add", 1)
    assert event["paused_reason"] == "1 job in a row failed; last: ValueError: no"
    assert (event["last_job_id"], event["last_job_state"]) == (last, "failed")
    assert event["last_job_error"] == "ValueError: no"
    control.resume(unit_on(connection), "s")
    control.pause(unit_on(connection), "s", "for the migration")
    assert [each["paused_reason"] for each in told(sql)][1:] == ["for the migration"]


def test_skips_are_an_event_an_hour_at_most(sql: Sql) -> None:
    key, other = add(sql), add(sql, "other")
    make_tick(sql, key, reason="nobody listened")
    hook(sql, "tick.skipped", "job.failed")
    for number in (*[key] * 5, other):
        make_tick(sql, number, reason="no")
    first, second = told(sql)
    assert [first[key] for key in ("schedule", "reason", "skips", "since")] == ["s", "no", 1, None]
    assert second["skips"] == 1
    sql("UPDATE pgbeat.skip_notices SET sent_at = sent_at - interval '61 minutes'")
    make_tick(sql, key, reason="still no")
    assert (told(sql)[-1]["reason"], told(sql)[-1]["skips"]) == ("still no", 5)
    sql("DELETE FROM pgbeat.schedules")
    assert sql("SELECT count(*) FROM pgbeat.skip_notices") == [(0,)]


def test_nobody_waits_to_tell_of_a_skip(database: str, sql: Sql) -> None:
    hook(sql, "tick.skipped")
    key = add(sql)
    with psycopg.connect(database) as one:
        one.execute(
            "INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, outcome, reason) "
            "VALUES (%s, 's', now(), 'skipped', 'first')",
            [key],
        )
        sql("SET lock_timeout = '2s'")
        make_tick(sql, key, reason="second")  # would wait for the row of the first
        one.commit()
    assert [each["reason"] for each in told(sql)] == ["first"]
