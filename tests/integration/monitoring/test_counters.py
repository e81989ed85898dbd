"""Counters and histograms, which outlive what they count."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import pytest
from sqlalchemy import Connection

from pgbeat.config import Settings
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.monitoring.metrics import counters, families, prometheus
from pgbeat.monitoring.metrics.counters import CounterValue
from tests.support.databases import connected
from tests.support.rows import Sql, make_job
from tests.support.scrapes import Sample, Scrape, run_id, schedule, scraped, tick, ticks, value

pytestmark = pytest.mark.usefixtures("at_once")


def test_ticks_are_counted_by_schedule_and_outcome(scrape: Scrape, sql: Sql) -> None:
    one, two = schedule(sql, "one"), schedule(sql, 'two "quoted"\\')
    for outcome in ("launched", "skipped", "skipped"):
        tick(sql, one, "one", outcome)
    tick(sql, two, 'two "quoted"\\', "failed")
    found = scrape()
    assert value(found, "pgbeat_ticks_total", schedule="one", outcome="skipped") == 2
    assert value(found, "pgbeat_ticks_total", schedule="one", outcome="launched") == 1
    assert value(found, "pgbeat_ticks_total", schedule='two "quoted"\\', outcome="failed") == 1


def test_a_counter_does_not_go_down_when_rows_are_pruned(scrape: Scrape, sql: Sql) -> None:
    key = schedule(sql)
    for _ in range(3):
        tick(sql, key)
    before = scrape()
    sql("DELETE FROM pgbeat.ticks")
    assert scrape() | _clocks(before) == before | _clocks(before)
    tick(sql, key)
    found = scrape()
    assert value(found, "pgbeat_ticks_total", schedule="s", outcome="skipped") == 4


def _clocks(found: Sample) -> Sample:
    """What differs from scrape to scrape."""
    names = ("pgbeat_scrape_duration_seconds", "pgbeat_last_tick_timestamp_seconds")
    return {key: 0 for key in found if key[0] in names}


def test_a_tick_is_counted_once_whoever_scrapes(
    scrape: Scrape, settings: Settings, sql: Sql, database: str
) -> None:
    scrape()
    key = schedule(sql)
    for _ in range(50):
        tick(sql, key)

    def other(_: int) -> None:
        with connected(database) as mine:
            prometheus.render(mine, settings)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(other, range(24)))
    found = scrape()
    assert value(found, "pgbeat_ticks_total", schedule="s", outcome="skipped") == 50


def test_young_rows_wait_for_those_before_them(
    scrape: Scrape, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    key = schedule(sql)
    tick(sql, key)
    sql("UPDATE pgbeat.ticks SET decided_at = now()")
    assert not ticks(scrape())
    sql("UPDATE pgbeat.ticks SET decided_at = now() - interval '6 seconds'")
    assert len(ticks(scrape())) == 1


def test_only_so_many_schedules_have_a_counter_of_their_own(scrape: Scrape, sql: Sql) -> None:
    keys = {f"s{number:04}": schedule(sql, f"s{number:04}") for number in range(counters.NAMED + 5)}
    for name in list(keys)[5:]:
        tick(sql, keys[name], name)
    assert len(ticks(scrape())) == counters.NAMED
    for name, key in keys.items():
        tick(sql, key, name)
    found = ticks(scrape())
    assert found["other"] == 5  # nobody who has a name loses it to one before it
    assert "s0000" not in found and found["s0104"] == 2
    assert len(found) == counters.NAMED + 1

    sql("DELETE FROM pgbeat.schedules WHERE name IN ('s0103', 's0104')")
    scrape()
    tick(sql, keys["s0000"], "s0000")
    found = ticks(scrape())
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
    scrape: Scrape, connection: Connection, settings: Settings, sql: Sql
) -> None:
    tick(sql, schedule(sql, "here"), "here")
    tick(sql, schedule(sql, "there", namespace="shop"), "there")
    assert ticks(scrape()) == {"here": 1}
    shop = Settings(url=settings.url, namespace="shop")
    assert ticks(scraped(connection, shop)) == {"there": 1}


def test_lateness_is_that_of_timetables(scrape: Scrape, sql: Sql) -> None:
    key = schedule(sql)
    for late in (0.02, 0.2, 2, 20_000):
        tick(sql, key, late=late)
    tick(sql, key, late=700, trigger="retry")
    found = scrape()
    buckets = [
        value(found, "pgbeat_tick_lateness_seconds_bucket", le=edge)
        for edge in ("0.01", "0.025", "0.25", "1.0", "2.5", "3600.0", "+Inf")
    ]
    assert buckets == [0, 1, 2, 2, 3, 3, 4]
    assert value(found, "pgbeat_tick_lateness_seconds_count") == 4
    assert value(found, "pgbeat_tick_lateness_seconds_sum") == pytest.approx(20_002.22)


def test_executions_are_counted_when_their_end_is_told(
    scrape: Scrape, connection: Connection, sql: Sql
) -> None:
    ids = [make_job(sql, dispatched_at="now") for _ in range(4)]
    runs = [
        ExecutionRecord(run_id(n), job, True, worker="w", began=60) for n, job in enumerate(ids)
    ]
    executions.record(connection, runs)
    assert not _executions(scrape())

    def end(n: int, state: executions.State, **more: Any) -> None:
        run = ExecutionRecord(run_id(n), ids[n], False, state=state, job_state=state, **more)
        executions.record(connection, [run])

    # Told late: it ended long before what was counted just now.
    end(0, "completed", ended=50, duration_ms=10_000)
    end(1, "failed", duration_ms=40)
    end(2, "failed", lost=True)
    found = scrape()
    assert _executions(found) == {"completed": 1, "failed": 1, "lost": 1}
    name = "pgbeat_execution_duration_seconds"
    assert value(found, f"{name}_count", task="jobs.add") == 2
    assert value(found, f"{name}_sum", task="jobs.add") == pytest.approx(10.04)
    assert value(found, f"{name}_bucket", task="jobs.add", le="0.05") == 1
    # The help text names each state.
    states = {*get_args(executions.State)} - {"running"} | {"lost"}
    assert all(state in families.FAMILIES["pgbeat_executions"].about for state in states)
    # One that was given up and was alive is not counted again.
    for number in (2, 3):
        end(number, "completed", duration_ms=1)
    assert _executions(scrape()) == {"completed": 2, "failed": 1, "lost": 1}


def _executions(found: Sample) -> dict[str, float]:
    return {
        dict(labels)["state"]: number
        for (name, labels), number in found.items()
        if name == "pgbeat_executions_total"
    }


def test_a_beat_tells_of_its_ticks_and_of_taking_over(scrape: Scrape, beat: Any, sql: Sql) -> None:
    schedule(sql, next_run="2026-01-01", task="tests.add")
    first = beat()
    assert first.run_due() == 1
    found = scrape()
    assert value(found, "pgbeat_leader") == 1
    assert value(found, "pgbeat_take_overs_total") == 1
    assert value(found, "pgbeat_ticks_total", schedule="s", outcome="launched") == 1
    first._counters._write_at = 0.0
    sql("UPDATE pgbeat.schedules SET next_run = now()")
    first.run_due()
    ticked = value(scrape(), "pgbeat_tick_duration_seconds_count")
    assert ticked is not None and ticked >= 1
    first.close()
    assert value(scrape(), "pgbeat_leader") == 0
    beat().run_due()
    assert value(scrape(), "pgbeat_take_overs_total") == 2
