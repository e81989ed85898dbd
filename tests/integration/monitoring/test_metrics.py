"""Metrics: gauges, and what Prometheus reads."""

from typing import Any

import pytest
from celery import Celery
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection

import pgbeat
from pgbeat.config import Settings, postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.monitoring.metrics import counters, gauges, prometheus
from pgbeat.monitoring.metrics.collector import metrics_collector
from pgbeat.monitoring.metrics.counters import CounterValue
from tests.support.command_line import run, run_with
from tests.support.rows import (
    Sql,
    make_dead_letter,
    make_delivery,
    make_job,
    make_lane,
    make_webhook,
)
from tests.support.scrapes import Scrape, read, run_id, schedule, tick, ticks, value

pytestmark = pytest.mark.usefixtures("at_once")


def test_what_is_due_and_nobody_decides(scrape: Scrape, sql: Sql) -> None:
    for number in range(3):
        key = schedule(sql, f"s{number}")
        sql("UPDATE pgbeat.schedules SET next_run = now() - interval '90 s' WHERE id = %s", key)
    schedule(sql, "paused", paused_at="now")
    schedule(sql, "off", enabled=False, disabled_reason="failed 5 times in a row; last: no")
    schedule(sql, "over", enabled=False, completed_at="now")
    found = scrape()
    assert value(found, "pgbeat_due_schedules") == 3
    assert value(found, "pgbeat_due_oldest_age_seconds") == pytest.approx(90, abs=20)
    states = {
        s: value(found, "pgbeat_schedules", state=s)
        for s in ("active", "paused", "disabled", "completed")
    }
    assert states == {"active": 3, "paused": 1, "disabled": 1, "completed": 1}


def test_queues_jobs_lanes_and_webhooks(scrape: Scrape, sql: Sql) -> None:
    sql("SELECT pgbeat.adopt_broker()")
    sql("INSERT INTO kombu_queue (name, paused_at) VALUES ('q', now()), ('empty', NULL)")
    sql("INSERT INTO kombu_queue (name, auto_delete) VALUES ('celeryev.1', true)")
    sql(
        "INSERT INTO kombu_message (visible, payload, queue_id, priority, enqueued_at, "
        "available_at, claimed_by) SELECT v, '{}', q.id, p, now() - a::interval, t, c "
        "FROM kombu_queue q, (VALUES (true, 9, '1 s', NULL::timestamptz, NULL::integer), "
        "(true, 0, '1 h', NULL, NULL), (false, 0, '1 d', now() + interval '1 h', NULL), "
        "(false, 0, '1 d', NULL, 7)) AS d (v, p, a, t, c) WHERE name = 'q'"
    )
    make_dead_letter(sql, "q")
    make_lane(sql, "gpu", 2, paused_at="now")
    make_lane(sql, "free", None)
    make_job(sql, "running", lane="gpu", dispatched_at="now")
    for _ in range(3):
        make_job(sql, lane="gpu")
    hook = make_webhook(sql)
    for state in ("pending", *2 * ["failed"], *3 * ["delivered"]):
        make_delivery(sql, hook, state)
    found = scrape()

    def of(name: str, label: str, key: str, *states: str) -> list[float | None]:
        if not states:
            return [value(found, f"pgbeat_{name}", **{label: key})]
        return [value(found, f"pgbeat_{name}", **{label: key}, state=s) for s in states]

    assert of("queue_messages", "queue", "q", "waiting", "delayed", "claimed") == [2, 1, 1]
    assert of("queue_oldest_age_seconds", "queue", "q") == [pytest.approx(3600, abs=20)]
    assert of("queue_oldest_age_seconds", "queue", "empty") == [0]
    assert of("queue_paused", "queue", "q") == [1] and of("queue_paused", "queue", "empty") == [0]
    assert of("dead_letters", "queue", "q") == [1]
    assert of("queue_messages", "queue", "celeryev.1", "waiting") == [None]
    assert of("lane_slots_used", "lane", "gpu") + of("lane_waiting", "lane", "gpu") == [1, 3]
    assert of("lane_slots_limit", "lane", "gpu") + of("lane_paused", "lane", "gpu") == [2, 1]
    assert of("lane_slots_limit", "lane", "free") == [None]
    states = ("pending", "delivered", "failed")
    assert of("webhook_deliveries", "webhook", "w", *states) == [1, 3, 2]
    assert of("webhook_enabled", "webhook", "w") == [1]
    assert value(found, "pgbeat_jobs", state="pending", job_source="user_cli") == 3
    assert value(found, "pgbeat_jobs", state="running", job_source="user_cli") == 1
    assert value(found, "pgbeat_jobs", state="running", job_source="scheduled_task") == 0


def test_what_made_a_job_is_told_beside_its_state(
    scrape: Scrape, connection: Connection, sql: Sql
) -> None:
    """Those of schedules apart from those that people make."""
    ids = [
        make_job(sql, dispatched_at="now", job_source=source)
        for source in ("scheduled_task", "scheduled_task", "user_api")
    ]
    make_job(sql, job_source="system")
    found = scrape()
    assert value(found, "pgbeat_jobs", state="pending", job_source="scheduled_task") == 2
    assert value(found, "pgbeat_jobs", state="pending", job_source="system") == 1
    done: Any = {"state": "completed", "job_state": "completed", "ended": 0, "duration_ms": 1}
    for number, job in enumerate(ids):
        run = ExecutionRecord(run_id(number), job, True, worker="w", **done)
        executions.record(connection, [run])
    # Counted by a program of the version before, which knows no source.
    counters.add(connection, "default", [CounterValue("executions", "jobs.add", "completed", 5)])
    found = scrape()
    by_source = {
        dict(labels)["job_source"]: number
        for (name, labels), number in found.items()
        if name == "pgbeat_executions_total"
    }
    assert by_source == {"scheduled_task": 2, "user_api": 1, "": 5}


def test_schedules_whose_jobs_fail_and_when_they_launched(scrape: Scrape, sql: Sql) -> None:
    key, off = schedule(sql, "bad"), schedule(sql, "off", enabled=False)
    good = schedule(sql, "good")
    for number in range(3):
        make_job(sql, "failed", schedule_id=key, finished_at=f"2026-01-01 00:0{number}Z")
    make_job(sql, "completed", schedule_id=key, finished_at="2026-01-01 00:00:30Z")
    make_job(sql, "failed", schedule_id=off)
    make_job(sql, "completed", schedule_id=good)
    sql("UPDATE pgbeat.schedules SET last_success = '1970-01-01 01:00Z'")
    for each, name in ((key, "bad"), (good, "good"), (off, "off")):
        tick(sql, each, name)
    found = scrape()
    assert value(found, "pgbeat_schedules_failing") == 1
    assert value(found, "pgbeat_schedule_failed_jobs", schedule="bad") == 2
    assert value(found, "pgbeat_schedule_failed_jobs", schedule="good") is None
    name = "pgbeat_schedule_last_launch_timestamp_seconds"
    assert [value(found, name, schedule=s) for s in ("bad", "good", "off")] == [3600, 3600, None]


def test_counts_have_an_end(
    connection: Connection, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "MOST", 3)
    monkeypatch.setattr(gauges, "OVER", 2)
    for _ in range(4):
        make_job(sql, "completed")
        make_job(sql)
    found = gauges.jobs(connection, "default")
    counts = [found[state, "user_cli"] for state in ("completed", "pending", "failed")]
    assert counts == [2, 3, 0]


def test_without_the_broker_here_there_are_no_queues(
    connection: Connection, settings: Settings
) -> None:
    names = {name for name, _ in read(prometheus.render(connection, settings)[0])}
    assert "pgbeat_leader" in names and "pgbeat_queue_messages" not in names


def test_a_server_that_is_read_only_is_read(
    scrape: Scrape, connection: Connection, sql: Sql
) -> None:
    key = schedule(sql)
    tick(sql, key)
    scrape()
    tick(sql, key)
    connection.exec_driver_sql("SET default_transaction_read_only = on")
    assert ticks(scrape()) == {"s": 1}


def test_a_collector_goes_with_a_teams_own_metrics(database: str) -> None:
    app = Celery(broker=f"pgbeat+{database}", set_as_current=False)
    registry = CollectorRegistry()
    registry.register(metrics_collector(app))
    assert registry.get_sample_value("pgbeat_leader") == 0
    labels = {"version": pgbeat.__version__, "namespace": "default"}
    assert registry.get_sample_value("pgbeat_info", labels) == 1


def test_names_keep_to_prometheus_conventions(connection: Connection, settings: Settings) -> None:
    text = prometheus.render(connection, settings, has_broker=True)[0].decode()
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("pgbeat_")
        assert not family.name.endswith(("_ms", "_minutes", "_count"))
        if family.type == "counter":
            assert all(s.name.endswith("_total") for s in family.samples)
        if family.type == "histogram":
            assert family.name.endswith("_seconds")


def test_the_command_prints_them(database: str, app: Celery) -> None:
    result = run(database, "metrics")
    assert result.exit_code == 0 and read(result.stdout_bytes)
    migrate.upgrade(postgres_url(database))
    assert run_with(app, "migrate").exit_code == 0
    found = read(run_with(app, "metrics").stdout_bytes)
    assert value(found, "pgbeat_queue_messages", queue="celery", state="waiting") == 0
