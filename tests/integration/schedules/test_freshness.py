"""Schedules none of whose jobs completes within `fresh_within`: stale, once, until one does."""

from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection

from pgbeat.beat.maintenance import freshness
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.monitoring import schedule_health
from pgbeat.monitoring.schedule_health import Health
from pgbeat.schedules import control
from pgbeat.schedules import model as schedules
from pgbeat.webhooks.incidents import alerts
from pgbeat.webhooks.incidents.recovery import Recovery
from tests.support.command_line import Sql, read, run
from tests.support.rows import make_job, make_schedule, make_tick, make_webhook, unit_on
from tests.support.schedulers import Beat, row
from tests.support.scrapes import scraped, value
from tests.support.threads import waiting

PATIENCE = timedelta(seconds=30)
HOUR = timedelta(hours=1)
END = "UPDATE pgbeat.jobs SET state = %s, finished_at = clock_timestamp() WHERE id = %s"
#: Adds a schedule of which a job must complete each hour.
add = partial(make_schedule, fresh_within="1 hour", next_run="2100-01-01")


@pytest.fixture(autouse=True)
def hook(sql: Sql) -> None:
    make_webhook(sql, events=["schedule.stale", "schedule.recovered"])


def pass_by(sql: Sql, length: str) -> None:
    """Makes all that happened to schedules and jobs have happened so much earlier."""
    for table, columns in {
        "schedules": ("created_at", "failures_from", "starts_at", "stale_at", "stale_since"),
        "ended_jobs": ("created_at", "started_at", "finished_at"),
    }.items():
        changed = ", ".join(f"{name} = {name} - interval '{length}'" for name in columns)
        sql(f"SET session_replication_role = replica; UPDATE pgbeat.{table} SET {changed}")
    sql("SET session_replication_role = origin")


def ends(sql: Sql, key: int, state: str = "completed", **columns: Any) -> str:
    job_id = make_job(sql, "running", schedule_id=key, **columns)
    sql(END, state, job_id)
    return job_id


def events(sql: Sql, connection: Connection) -> list[str]:
    with connections.transaction(connection):
        alerts.take(connection, "default")
    Recovery("default").look(connection)
    return [event for (event,) in sql("SELECT event FROM pgbeat.deliveries ORDER BY created_at")]


def look(connection: Connection) -> None:
    freshness.look(connection, "default")


def health(connection: Connection, name: str = "s") -> Health:
    return schedule_health.of_schedule(connection, schedules.get(connection, name), PATIENCE)


def test_it_is_stale_once_until_a_job_completes(connection: Connection, sql: Sql) -> None:
    key = add(sql, labels={"team": "billing"})
    look(connection)
    ends(sql, key)
    pass_by(sql, "59 minutes")
    look(connection)
    assert (events(sql, connection), health(connection).code) == ([], "ok")
    pass_by(sql, "2 minutes")
    assert health(connection).code == "stale"  # whether beat has looked or not
    look(connection)
    for _ in range(3):
        pass_by(sql, "3 hours")
        look(connection)
    assert events(sql, connection) == ["schedule.stale"]
    ends(sql, key, "failed")
    assert events(sql, connection) == ["schedule.stale"]
    ends(sql, key)
    assert events(sql, connection) == ["schedule.stale", "schedule.recovered"]
    assert row(sql, "stale_since") == (None,)
    assert health(connection).code == "ok"
    [(stale,), (recovered,)] = sql(
        "SELECT payload -> 'data' FROM pgbeat.deliveries ORDER BY created_at"
    )
    assert (stale["name"], stale["labels"]) == ("s", {"team": "billing"})
    assert (stale["fresh_within"], recovered["failed"]) == (3600, ["schedule.stale"])
    assert stale["last_completed_at"] < stale["stale_since"] < recovered["last_completed_at"]
    pass_by(sql, "61 minutes")
    look(connection)
    assert events(sql, connection)[2:] == ["schedule.stale"]


def test_completed_jobs_write_nothing_while_it_is_fresh(connection: Connection, sql: Sql) -> None:
    key = add(sql)
    look(connection)
    before = row(sql, "xmin::text, stale_at")
    ends(sql, key)
    assert row(sql, "xmin::text, stale_at") == before


def test_one_that_only_skips_is_stale(connection: Connection, sql: Sql) -> None:
    key = add(sql)
    pass_by(sql, "2 hours")
    sql("UPDATE pgbeat.schedules SET last_run = now()")
    make_tick(sql, key, reason="no orders")
    look(connection)
    found = health(connection)
    assert (found.code, found.severity, found.reason) == ("stale", "fail", "no orders")
    assert found.summary == (
        "none of its jobs has completed, and fresh_within is 1 h; last: no orders"
    )
    assert events(sql, connection) == ["schedule.stale"]


def test_a_retry_that_completes_keeps_it_fresh(connection: Connection, sql: Sql) -> None:
    key = add(sql)
    look(connection)
    pass_by(sql, "50 minutes")
    first = ends(sql, key, "failed")
    again = make_job(sql, "running", schedule_id=key, retry_of=first, attempt=2)
    sql("UPDATE pgbeat.jobs SET retried_by = %s WHERE id = %s", again, first)
    sql(END, "completed", again)
    pass_by(sql, "50 minutes")
    look(connection)
    assert events(sql, connection) == []
    pass_by(sql, "11 minutes")
    look(connection)
    assert events(sql, connection) == ["schedule.stale"]


def test_a_failed_job_is_named_with_its_error(connection: Connection, sql: Sql) -> None:
    key = add(sql)
    pass_by(sql, "2 hours")
    ends(sql, key, "failed", error="ValueError: no")
    look(connection)
    found = health(connection)
    assert (found.code, found.failures, found.error) == ("stale", 1, "ValueError: no")


@pytest.mark.parametrize(
    ("off", "on"), [(control.pause, control.resume), (control.disable, control.enable)]
)
def test_out_of_service_it_is_not_stale_and_then_has_its_time_again(
    connection: Connection, sql: Sql, off: Any, on: Any
) -> None:
    add(sql)
    off(unit_on(connection), "s")
    pass_by(sql, "2 hours")
    look(connection)
    assert (events(sql, connection), health(connection).code) == ([], "new")
    on(unit_on(connection), "s")
    look(connection)
    pass_by(sql, "59 minutes")
    look(connection)
    assert (events(sql, connection), health(connection).code) == ([], "new")
    pass_by(sql, "2 minutes")
    look(connection)
    assert (events(sql, connection), health(connection).code) == (["schedule.stale"], "stale")
    # Being out of service doesn't make it fresh, and is no second event.
    off(unit_on(connection), "s")
    assert health(connection).code != "stale"
    assert schedule_health.stale(connection, "default") == []
    on(unit_on(connection), "s")
    look(connection)
    assert (events(sql, connection), health(connection).code) == (["schedule.stale"], "stale")


def test_a_job_that_completes_while_it_is_paused_counts(connection: Connection, sql: Sql) -> None:
    key = add(sql)
    pass_by(sql, "2 hours")
    look(connection)
    control.pause(unit_on(connection), "s")
    ends(sql, key)
    assert events(sql, connection) == ["schedule.stale", "schedule.recovered"]
    assert row(sql, "stale_at") == (None,)


def test_a_new_limit_judges_it_anew(connection: Connection, sql: Sql) -> None:
    add(sql)
    pass_by(sql, "2 hours")
    look(connection)
    assert events(sql, connection) == ["schedule.stale"]
    for limit, expected in (("1 day", []), ("30 minutes", ["schedule.stale"]), (None, [])):
        sql("DELETE FROM pgbeat.deliveries WHERE event = 'schedule.stale'")
        sql("UPDATE pgbeat.schedules SET fresh_within = %s::interval", limit)
        look(connection)
        assert [
            event for event in events(sql, connection) if event != "schedule.recovered"
        ] == expected
    assert events(sql, connection) == ["schedule.recovered"] * 2


def test_it_counts_from_when_it_starts(connection: Connection, sql: Sql) -> None:
    add(sql, starts_at="9999-12-01")  # beyond which the limit would be no time of the calendar
    add(sql, "far", starts_at="9999-12-01", fresh_within="36500 days")
    pass_by(sql, "2 hours")
    look(connection)
    assert events(sql, connection) == []


def test_beats_look_at_the_database_s_clock_and_only_the_leader_does(
    beat: Beat, connection: Connection, sql: Sql
) -> None:
    key = add(sql)
    first, second = beat(), beat(max_interval=0.1)
    first.run_due()
    assert row(sql, "stale_at - created_at") == (HOUR,)
    pass_by(sql, "61 minutes")
    first.run_due()
    second.run_due()
    assert events(sql, connection) == ["schedule.stale"]
    first.close()  # what is known is in the row
    assert second.run_due() == 0
    pass_by(sql, "2 minutes")
    second.run_due()
    assert events(sql, connection) == ["schedule.stale"]
    ends(sql, key)
    assert events(sql, connection) == ["schedule.stale", "schedule.recovered"]


def test_an_end_that_commits_as_beat_looks_is_seen_later(
    connection: Connection, sql: Sql, database: str
) -> None:
    """The end of the job has not seen that the schedule is stale, since it was not yet."""
    key = add(sql)
    look(connection)
    job_id = make_job(sql, "running", schedule_id=key)
    pass_by(sql, "61 minutes")
    with psycopg.connect(database) as worker:
        worker.execute(END, ["completed", job_id])
        look(connection)
    assert events(sql, connection) == ["schedule.stale"]
    pass_by(sql, "61 seconds")
    look(connection)
    assert events(sql, connection) == ["schedule.stale", "schedule.recovered"]


def test_an_end_that_waits_for_beats_look_ends_it(
    connection: Connection, sql: Sql, database: str
) -> None:
    job_id = make_job(sql, "running", schedule_id=add(sql))
    pass_by(sql, "2 hours")
    look(connection)
    with psycopg.connect(database) as beat, psycopg.connect(database, autocommit=True) as worker:
        beat.execute("SELECT FROM pgbeat.schedules FOR NO KEY UPDATE")
        with waiting(sql, lambda: worker.execute(END, ["completed", job_id])):
            beat.commit()
    assert events(sql, connection) == ["schedule.stale", "schedule.recovered"]


def test_doctor_and_metrics_show_it(connection: Connection, sql: Sql, database: str) -> None:
    add(sql)
    add(sql, "fresh", fresh_within="1 day")
    add(sql, "paused", paused_at="now")
    pass_by(sql, "2 hours")
    look(connection)
    settings = Settings(postgres_url(database))
    assert value(scraped(connection, settings), "pgbeat_schedules_stale") == 1
    checks = {check["check"]: check for check in read(database, "doctor")["checks"]}
    [(since,)] = sql("SELECT stale_since FROM pgbeat.schedules WHERE name = 's'")
    assert checks["freshness"]["result"] == "warn"
    assert checks["freshness"]["detail"] == (
        f"1 schedule completed no job in time: s (since {since:%F %T} UTC)"
    )
    assert checks["freshness"]["runbook"]
    assert "none of its jobs has completed" in run(database, "explain", "s").stdout
    [listed] = [each for each in read(database, "list") if each["name"] == "s"]
    assert listed["health"]["code"] == "stale"
