"""Metrics: what Prometheus reads, from a real database; counters that outlive what they count."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest
from celery import Celery
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection

from pgbeat.broker.messages import BrokerTables
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections, migrate
from pgbeat.jobs import executions
from pgbeat.jobs.executions import ExecutionRecord
from pgbeat.monitoring import counters, gauges, prometheus
from pgbeat.monitoring.collector import metrics_collector
from pgbeat.monitoring.counters import CounterValue
from tests.support.command_line import run, run_with
from tests.support.databases import rows_of
from tests.support.rows import Sql, make_job, make_lane, make_schedule

Sample = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def settings(database: str) -> Settings:
    return Settings(url=postgres_url(database))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written just now counts."""
    monkeypatch.setattr(counters, "LAG", 0.0)


def read(text: bytes) -> Sample:
    """The samples of an answer; it must be what Prometheus understands."""
    found: Sample = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation and family.type != "unknown", family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def scrape(connection: Connection, settings: Settings) -> Sample:
    return read(prometheus.render(connection, settings, BrokerTables())[0])


def value(found: Sample, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


schedule = partial(make_schedule, task="t")


def tick(sql: Sql, key: int, name: str = "s", outcome: str = "skipped", late: float = 0,
         trigger: str = "timetable") -> None:  # fmt: skip
    """A tick, so many seconds late; each of another due time."""
    sql(
        """
        INSERT INTO pgbeat.ticks (schedule_id, schedule, trigger, due_at, decided_at, outcome,
                                  reason, error, job_id)
        SELECT %(key)s, %(name)s, %(trigger)s, at, at + %(late)s * interval '1 second',
               %(outcome)s, CASE %(outcome)s WHEN 'skipped' THEN 'no' END,
               CASE %(outcome)s WHEN 'failed' THEN 'no' END,
               CASE %(outcome)s WHEN 'launched' THEN gen_random_uuid() END
          FROM (SELECT now() - interval '1 day' + count(*) * interval '1 second' AS at
                  FROM pgbeat.ticks) AS t
        """,
        {"key": key, "name": name, "outcome": outcome, "late": late, "trigger": trigger},
    )


@pytest.fixture
def sql(database: str) -> Iterator[Sql]:
    with psycopg.connect(database, autocommit=True) as connection:

        def run(statement: str, *given: Any) -> list[tuple[Any, ...]]:
            named = given[0] if given and isinstance(given[0], dict) else given or None
            cursor = connection.execute(statement.encode(), named)
            return rows_of(cursor)

        yield run


# -- counters


def test_ticks_are_counted_by_schedule_and_outcome(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    one, two = schedule(sql, "one"), schedule(sql, 'two "quoted"\\')
    for outcome in ("launched", "skipped", "skipped"):
        tick(sql, one, "one", outcome)
    tick(sql, two, 'two "quoted"\\', "failed")
    found = scrape(connection, settings)
    assert value(found, "pgbeat_ticks_total", schedule="one", outcome="skipped") == 2
    assert value(found, "pgbeat_ticks_total", schedule="one", outcome="launched") == 1
    assert value(found, "pgbeat_ticks_total", schedule='two "quoted"\\', outcome="failed") == 1


def test_a_counter_does_not_go_down_when_rows_are_pruned(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    key = schedule(sql)
    for _ in range(3):
        tick(sql, key)
    before = scrape(connection, settings)
    sql("DELETE FROM pgbeat.ticks")
    assert scrape(connection, settings) | _clocks(before) == before | _clocks(before)
    tick(sql, key)
    found = scrape(connection, settings)
    assert value(found, "pgbeat_ticks_total", schedule="s", outcome="skipped") == 4


def _clocks(found: Sample) -> Sample:
    """What differs from scrape to scrape."""
    names = ("pgbeat_scrape_duration_seconds", "pgbeat_last_tick_timestamp_seconds")
    return {key: 0 for key in found if key[0] in names}


def test_a_tick_is_counted_once_whoever_scrapes(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    scrape(connection, settings)
    key = schedule(sql)
    for _ in range(50):
        tick(sql, key)

    def other(_: int) -> None:
        engine = connections.engine(settings.url, "tests").execution_options(
            isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as mine:
            prometheus.render(mine, settings)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(other, range(24)))
    found = scrape(connection, settings)
    assert value(found, "pgbeat_ticks_total", schedule="s", outcome="skipped") == 50


def test_young_rows_wait_for_those_before_them(
    connection: Connection, settings: Settings, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    key = schedule(sql)
    tick(sql, key)
    sql("UPDATE pgbeat.ticks SET decided_at = now()")
    assert not _ticks(scrape(connection, settings))
    sql("UPDATE pgbeat.ticks SET decided_at = now() - interval '6 seconds'")
    assert len(_ticks(scrape(connection, settings))) == 1


def _ticks(found: Sample) -> dict[str, float]:
    return {
        dict(labels)["schedule"]: number
        for (name, labels), number in found.items() if name == "pgbeat_ticks_total"
    }  # fmt: skip


def test_only_so_many_schedules_have_a_counter_of_their_own(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    keys = {f"s{number:04}": schedule(sql, f"s{number:04}") for number in range(counters.NAMED + 5)}
    for name in list(keys)[5:]:
        tick(sql, keys[name], name)
    assert len(_ticks(scrape(connection, settings))) == counters.NAMED
    for name, key in keys.items():
        tick(sql, key, name)
    found = _ticks(scrape(connection, settings))
    assert found["other"] == 5  # nobody who has a name loses it to one before it
    assert "s0000" not in found and found["s0104"] == 2
    assert len(found) == counters.NAMED + 1

    sql("DELETE FROM pgbeat.schedules WHERE name IN ('s0103', 's0104')")
    scrape(connection, settings)
    tick(sql, keys["s0000"], "s0000")
    found = _ticks(scrape(connection, settings))
    assert found["s0000"] == 1 and found["other"] == 5 and "s0104" not in found


def test_more_than_is_added_up_at_a_time_is_for_the_next(connection: Connection, sql: Sql) -> None:
    key = schedule(sql)
    assert counters.count_up(connection)
    for _ in range(5):
        tick(sql, key)
    assert not counters.count_up(connection, most=3)
    assert CounterValue("ticks", "s", "skipped", 3) in counters.read(connection, "default")
    assert counters.count_up(connection, most=3)
    assert CounterValue("ticks", "s", "skipped", 5) in counters.read(connection, "default")


def test_namespaces_have_counters_of_their_own(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    tick(sql, schedule(sql, "here"), "here")
    tick(sql, schedule(sql, "there", namespace="shop"), "there")
    assert _ticks(scrape(connection, settings)) == {"here": 1}
    shop = Settings(url=settings.url, namespace="shop")
    assert _ticks(scrape(connection, shop)) == {"there": 1}


# -- histograms


def test_lateness_is_that_of_timetables(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    key = schedule(sql)
    for late in (0.02, 0.2, 2, 20_000):
        tick(sql, key, late=late)
    tick(sql, key, late=700, trigger="retry")
    found = scrape(connection, settings)
    buckets = [
        value(found, "pgbeat_tick_lateness_seconds_bucket", le=edge)
        for edge in ("0.01", "0.025", "0.25", "1.0", "2.5", "3600.0", "+Inf")
    ]
    assert buckets == [0, 1, 2, 2, 3, 3, 4]
    assert value(found, "pgbeat_tick_lateness_seconds_count") == 4
    assert value(found, "pgbeat_tick_lateness_seconds_sum") == pytest.approx(20_002.22)


def test_executions_are_counted_when_their_end_is_told(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    ids = [make_job(sql, dispatched_at="now") for _ in range(4)]
    runs = [ExecutionRecord(_run(n), job, True, worker="w", began=60) for n, job in enumerate(ids)]
    executions.record(connection, runs)
    assert not _executions(scrape(connection, settings))
    # Told late: it ended long before what was counted just now.
    executions.record(connection, [
        ExecutionRecord(_run(0), ids[0], False, state="completed", job_state="completed", ended=50,
            duration_ms=10_000),
        ExecutionRecord(_run(1), ids[1], False, state="failed", job_state="failed", duration_ms=40),
        ExecutionRecord(_run(2), ids[2], False, state="failed", job_state="failed", lost=True),
    ])  # fmt: skip
    found = scrape(connection, settings)
    assert _executions(found) == {"completed": 1, "failed": 1, "lost": 1}
    name = "pgbeat_execution_duration_seconds"
    assert value(found, f"{name}_count", task="jobs.add") == 2
    assert value(found, f"{name}_sum", task="jobs.add") == pytest.approx(10.04)
    assert value(found, f"{name}_bucket", task="jobs.add", le="0.05") == 1
    # One that was given up and was alive is not counted again.
    for number in (2, 3):
        late = ExecutionRecord(
            _run(number), ids[number], False, state="completed", job_state="completed",
            duration_ms=1,
        )  # fmt: skip
        executions.record(connection, [late])
    assert _executions(scrape(connection, settings)) == {"completed": 2, "failed": 1, "lost": 1}


def _run(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def _executions(found: Sample) -> dict[str, float]:
    return {
        dict(labels)["state"]: number
        for (name, labels), number in found.items() if name == "pgbeat_executions_total"
    }  # fmt: skip


def test_a_beat_tells_of_its_ticks_and_of_taking_over(
    connection: Connection, settings: Settings, beat: Any, sql: Sql
) -> None:
    schedule(sql, next_run="2026-01-01", task="tests.add")
    first = beat()
    assert first.run_due() == 1
    found = scrape(connection, settings)
    assert value(found, "pgbeat_leader") == 1
    assert value(found, "pgbeat_take_overs_total") == 1
    assert value(found, "pgbeat_ticks_total", schedule="s", outcome="launched") == 1
    first._counters._write_at = 0.0
    sql("UPDATE pgbeat.schedules SET next_run = now()")
    first.run_due()
    ticked = value(scrape(connection, settings), "pgbeat_tick_duration_seconds_count")
    assert ticked is not None and ticked >= 1
    first.close()
    assert value(scrape(connection, settings), "pgbeat_leader") == 0
    beat().run_due()
    assert value(scrape(connection, settings), "pgbeat_take_overs_total") == 2


# -- gauges


def test_what_is_due_and_nobody_decides(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    for number in range(3):
        key = schedule(sql, f"s{number}")
        sql("UPDATE pgbeat.schedules SET next_run = now() - interval '90 s' WHERE id = %s", key)
    schedule(sql, "paused", paused_at="now")
    schedule(sql, "off", enabled=False, disabled_reason="failed 5 times in a row; last: no")
    schedule(sql, "over", enabled=False, completed_at="now")
    found = scrape(connection, settings)
    assert value(found, "pgbeat_due_schedules") == 3
    assert value(found, "pgbeat_due_oldest_age_seconds") == pytest.approx(90, abs=20)
    states = {s: value(found, "pgbeat_schedules", state=s)
              for s in ("active", "paused", "disabled", "completed")}  # fmt: skip
    assert states == {"active": 3, "paused": 1, "disabled": 1, "completed": 1}


def test_queues_jobs_lanes_and_webhooks(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
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
    sql(
        "INSERT INTO kombu_message_dead (id, queue, payload, priority, deliveries, reason) "
        "VALUES (1, 'q', '{}', 0, 1, 'rejected')"
    )
    make_lane(sql, "gpu", 2, paused_at="now")
    make_lane(sql, "free", None)
    make_job(sql, "running", lane="gpu", dispatched_at="now")
    for _ in range(3):
        make_job(sql, lane="gpu")
    sql(
        "INSERT INTO pgbeat.webhooks (name, url, secret, events) "
        "VALUES ('w', 'https://example.org', 's', '{job.failed}')"
    )
    sql(
        "INSERT INTO pgbeat.deliveries (webhook_id, event, payload, state, next_at, finished_at) "
        "SELECT id, 'job.failed', '{}', s, CASE s WHEN 'pending' THEN now() END, "
        "CASE WHEN s <> 'pending' THEN now() END FROM pgbeat.webhooks, "
        "unnest('{pending,failed,failed,delivered,delivered,delivered}'::text[]) AS s"
    )
    found = scrape(connection, settings)

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
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    """Those of schedules apart from those that people make."""
    ids = [make_job(sql, dispatched_at="now", job_source=source)
           for source in ("scheduled_task", "scheduled_task", "user_api")]  # fmt: skip
    make_job(sql, job_source="system")
    found = scrape(connection, settings)
    assert value(found, "pgbeat_jobs", state="pending", job_source="scheduled_task") == 2
    assert value(found, "pgbeat_jobs", state="pending", job_source="system") == 1
    runs = [
        ExecutionRecord(
            _run(n), job, True, worker="w", state="completed", job_state="completed", ended=0,
            duration_ms=1,
        )
        for n, job in enumerate(ids)
    ]  # fmt: skip
    executions.record(connection, runs)
    # Counted by a program of the version before, which knows no source.
    counters.add(connection, "default", [CounterValue("executions", "jobs.add", "completed", 5)])
    found = scrape(connection, settings)
    by_source = {
        dict(labels)["job_source"]: number
        for (name, labels), number in found.items() if name == "pgbeat_executions_total"
    }  # fmt: skip
    assert by_source == {"scheduled_task": 2, "user_api": 1, "": 5}


def test_schedules_whose_jobs_fail_and_when_they_launched(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
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
    found = scrape(connection, settings)
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
    names = {name for name, _ in read(prometheus.render(connection, settings, None)[0])}
    assert "pgbeat_leader" in names and "pgbeat_queue_messages" not in names


def test_a_server_that_is_read_only_is_read(
    connection: Connection, settings: Settings, sql: Sql
) -> None:
    key = schedule(sql)
    tick(sql, key)
    scrape(connection, settings)
    tick(sql, key)
    connection.exec_driver_sql("SET default_transaction_read_only = on")
    assert _ticks(scrape(connection, settings)) == {"s": 1}


# -- how it is shown


def test_a_collector_goes_with_a_teams_own_metrics(database: str, settings: Settings) -> None:
    app = Celery(broker=f"pgbeat+{database}", set_as_current=False)
    registry = CollectorRegistry()
    registry.register(metrics_collector(app))
    assert registry.get_sample_value("pgbeat_leader") == 0
    version = registry.get_sample_value(
        "pgbeat_info", {"version": _version(), "namespace": "default"}
    )
    assert version == 1


def _version() -> str:
    import pgbeat

    return pgbeat.__version__


def test_names_keep_to_prometheus_conventions(connection: Connection, settings: Settings) -> None:
    text = prometheus.render(connection, settings, BrokerTables())[0].decode()
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
