"""Rollups of ended jobs, and the load that is read from them."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

from pgbeat.errors import InvalidInput
from pgbeat.monitoring.rollups import load_rollups
from pgbeat.monitoring.rollups.load import Load
from tests.support.databases import connected
from tests.support.problems import raises
from tests.support.processes import until
from tests.support.rollups import Rollups, route
from tests.support.rows import Sql, make_job
from tests.support.threads import together

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def now(rollups: Rollups, sql: Sql) -> datetime:
    """The beginning of this minute, once the one before it is counted as over."""

    def minute() -> datetime | None:
        is_over = "SELECT now() >= date_trunc('minute', now()) + %s"
        return rollups.minute if sql(is_over, load_rollups.FRESH) == [(True,)] else None

    return until(minute)


def ended(
    sql: Sql,
    at: datetime,
    state: str = "completed",
    waited: float = 1,
    ran: float = 2,
    **values: object,
) -> str:
    began = at - timedelta(seconds=ran)
    given = {"created_at": began - timedelta(seconds=waited), "started_at": began}
    return make_job(sql, state, **(given | {"finished_at": at} | values))


def counts(found: Load) -> tuple[int, int, int, int]:
    total = found.total
    assert sum(point.ended for point in found.points) == total.ended
    return total.completed, total.failed, total.cancelled, total.skipped


def test_ends_are_counted_by_task_lane_and_queue(rollups: Rollups, sql: Sql, now: datetime) -> None:
    at = now - 5 * MINUTE
    ended(sql, at, task="a", lane="gpu", waited=0.1, ran=4)
    ended(sql, at, "failed", task="a", waited=0.1, ran=4)
    ended(sql, at, "cancelled", task="b", lane="gpu", queue="slow", started_at=None)
    ended(sql, at, "skipped", task="elsewhere", namespace="default")
    ended(sql, at, task="a", namespace="shop")
    rollups.keep()
    found = rollups.load("default")
    assert counts(found) == (1, 1, 1, 1)
    assert [point.at for point in found.points if point.ended] == [at]
    assert counts(rollups.load("default", task="a")) == (1, 1, 0, 0)
    assert counts(rollups.load("default", lane="gpu")) == (1, 0, 1, 0)
    assert counts(rollups.load("default", queue="slow")) == (0, 0, 1, 0)
    assert counts(rollups.load("default", queue="celery")) == (1, 1, 0, 0)
    assert counts(rollups.load("default", task="c")) == (0, 0, 0, 0)
    total = rollups.load("default", task="a").total
    assert total.waiting_p50 == pytest.approx(0.1, rel=0.42)
    assert total.running_p95 == pytest.approx(4, rel=0.42)
    assert rollups.load("default", queue="slow").total.running_p50 is None


def test_of_very_many_names_the_most_frequent_are_kept(
    rollups: Rollups, sql: Sql, now: datetime, monkeypatch: Any
) -> None:
    monkeypatch.setattr(load_rollups, "NAMES", 2)
    for task in ("c", "b", "b", "a", "a", "a"):
        ended(sql, now - MINUTE, task=task)
    rollups.keep()
    kept = sql("SELECT name FROM pgbeat.rollups WHERE kind = 'task' AND completed > 0 ORDER BY 1")
    assert kept == [("a",), ("b",)]
    assert counts(rollups.load("default")) == (6, 0, 0, 0)


def test_a_job_waits_from_when_it_may_run(rollups: Rollups, sql: Sql, now: datetime) -> None:
    at = now - 5 * MINUTE
    ended(sql, at, waited=3000, run_at=at - timedelta(seconds=10), ran=2)
    rollups.keep()
    assert rollups.load("default").total.waiting_p95 == pytest.approx(8, rel=0.42)


def test_a_minute_is_counted_when_it_is_over(rollups: Rollups, sql: Sql, now: datetime) -> None:
    ended(sql, now + MINUTE)
    rollups.keep()
    found = rollups.load("default")
    assert counts(found) == (0, 0, 0, 0)
    assert found.until <= now + MINUTE


def test_ends_that_are_written_late_are_counted(
    rollups: Rollups, sql: Sql, database: str, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted with the minute for good, fifteen minutes later; and only then."""
    ended(sql, now - 5 * MINUTE)
    with psycopg.connect(database) as late:
        late.execute(
            "INSERT INTO pgbeat.jobs (id, task, state, job_source, created_by, is_system_job, "
            "finished_at) VALUES (gen_random_uuid(), 't', 'completed', 'system', 'me', true, %s)",
            (now - 5 * MINUTE,),
        )
        rollups.keep()
        assert counts(rollups.load("default")) == (1, 0, 0, 0)
    rollups.keep()
    assert counts(rollups.load("default")) == (1, 0, 0, 0)
    sql("UPDATE pgbeat.rollup_progress SET settled_until = settled_until - interval '20 minutes'")
    monkeypatch.setattr(load_rollups, "SETTLED", timedelta(seconds=2))
    rollups.keep()
    assert counts(rollups.load("default")) == (2, 0, 0, 0)


def test_what_is_pruned_stays_counted(rollups: Rollups, sql: Sql, now: datetime) -> None:
    ended(sql, now - 20 * MINUTE)
    rollups.keep()
    sql("DELETE FROM pgbeat.jobs")
    rollups.keep()
    assert counts(rollups.load("default")) == (1, 0, 0, 0)


def test_a_gap_is_caught_up_in_steps(rollups: Rollups, sql: Sql, now: datetime) -> None:
    rollups.keep()
    sql(
        "UPDATE pgbeat.rollup_progress SET counted_until = counted_until - interval '3 days', "
        "settled_until = settled_until - interval '3 days'"
    )
    for hours in range(0, 70, 7):
        ended(sql, now - hours * HOUR - 30 * MINUTE)
    steps = 0
    while load_rollups.advance(rollups.connection, "default", route, 5 * HOUR):
        steps += 1
    assert steps >= 15
    found = rollups.load("default", since=timedelta(days=3))
    assert counts(found) == (10, 0, 0, 0)
    load_rollups.prune(rollups.connection, "default")
    assert sql(
        "SELECT count(*) FROM pgbeat.rollups WHERE step = 60 AND at < now() - interval '26 hours'"
    ) == [(0,)]
    assert counts(rollups.load("default", since=timedelta(days=3))) == (10, 0, 0, 0)


def test_hours_go_on_in_minutes(rollups: Rollups, sql: Sql, now: datetime) -> None:
    for minutes in (3, 30, 90, 600, 1500):
        ended(sql, now - minutes * MINUTE, ran=minutes)
    sql(
        "INSERT INTO pgbeat.rollup_progress SELECT 'default', since, since "
        "FROM date_trunc('hour', now() - interval '2 days', 'UTC') AS since"
    )
    rollups.keep()
    found = rollups.load("default", since=timedelta(days=7), step=HOUR)
    assert counts(found) == (5, 0, 0, 0)
    assert found.total.running_p50 == pytest.approx(90, rel=0.42)


def test_two_maintainers_at_once_count_once(
    rollups: Rollups, sql: Sql, database: str, now: datetime
) -> None:
    for minutes in range(1, 60):
        ended(sql, now - minutes * MINUTE)

    def maintain() -> None:
        with connected(database) as own:
            rollups.keep(own)

    together([maintain] * 4)
    with connected(database) as own:
        rollups.keep(own)
        assert counts(rollups.load("default", since=2 * HOUR)) == (59, 0, 0, 0)


def test_one_that_is_killed_has_counted_nothing_twice(
    rollups: Rollups, sql: Sql, database: str, now: datetime
) -> None:
    """Its server process ends after the counts are written, before they are committed."""
    ended(sql, now - 20 * MINUTE)
    sql(
        "CREATE FUNCTION pg_temp_wait() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$"
    )
    sql(
        "CREATE TRIGGER wait BEFORE UPDATE ON pgbeat.rollup_progress FOR EACH ROW "
        "WHEN (NEW.settled_until > now() - interval '20 minutes') "
        "EXECUTE FUNCTION pg_temp_wait()"
    )

    def maintain() -> None:
        with connected(database) as own:
            rollups.keep(own)

    asleep = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid IN ("
        "SELECT pid FROM pg_locks WHERE relation = 'pgbeat.rollup_progress'::regclass)"
    )
    with ThreadPoolExecutor(1) as pool:
        maintained = pool.submit(maintain)
        [(pid,)] = until(lambda: sql(asleep) or None)
        rollups.keep()  # another one has the row: nothing is done meanwhile
        assert counts(rollups.load("default")) == (0, 0, 0, 0)
        sql("SELECT pg_terminate_backend(%s)", pid)
    assert maintained.exception()
    sql("DROP TRIGGER wait ON pgbeat.rollup_progress")
    rollups.keep()
    assert counts(rollups.load("default")) == (1, 0, 0, 0)


def test_depth_is_of_jobs_that_wait(rollups: Rollups, sql: Sql, now: datetime) -> None:
    for _ in range(3):
        make_job(sql, task="a", lane="gpu")
    make_job(sql, task="b", queue="slow")
    make_job(sql, "scheduled", task="a", run_at=now + HOUR)
    make_job(sql, "running", task="a")
    rollups.keep()
    sql("UPDATE pgbeat.rollups SET at = at - interval '5 minutes'")
    ended(sql, now - 5 * MINUTE, task="a")
    sql(
        "UPDATE pgbeat.rollup_progress SET counted_until = counted_until - interval '10 minutes', "
        "settled_until = settled_until - interval '10 minutes'"
    )
    rollups.keep()
    found = rollups.load("default", task="a")
    assert (found.total.depth, found.total.completed) == (3, 1)
    assert rollups.load("default").total.depth == 4
    assert rollups.load("default", lane="gpu").total.depth == 3
    assert rollups.load("default", queue="slow").total.depth == 1


def test_without_a_beat_there_is_nothing(rollups: Rollups) -> None:
    found = rollups.load("default")
    assert found.points == [] and found.total.ended == 0 and found.since == found.until


def test_steps_begin_on_round_times(rollups: Rollups) -> None:
    rollups.keep()
    for since, step, least in (
        (HOUR, MINUTE, 60),
        (24 * HOUR, timedelta(minutes=15), 95),
        (timedelta(days=7), 2 * HOUR, 84),
        (timedelta(days=90), timedelta(days=1), 90),
    ):
        found = rollups.load("default", since=since)
        assert found.step == step
        assert least - 2 <= len(found.points) <= least + 2
        assert found.since.timestamp() % step.total_seconds() == 0


def test_what_can_not_be_answered_is_refused(rollups: Rollups) -> None:
    cases: list[tuple[dict[str, object], str, str]] = [
        ({"task": "a", "lane": "b"}, "lane", "conflict"),
        ({"since": timedelta(0)}, "since", "out_of_range"),
        ({"since": timedelta(days=93)}, "since", "out_of_range"),
        ({"since": datetime(2100, 1, 1, tzinfo=UTC)}, "since", "out_of_range"),
        ({"since": datetime.max.replace(tzinfo=timezone(-HOUR))}, "since", "out_of_range"),
        ({"since": timedelta.max}, "since", "out_of_range"),
        ({"step": timedelta(seconds=90)}, "step", "out_of_range"),
        ({"since": timedelta(days=2), "step": MINUTE}, "step", "out_of_range"),
    ]
    for given, field, code in cases:
        with raises(InvalidInput, (field, code)):
            rollups.load("default", **given)  # type: ignore[arg-type]
