"""Errors of failed jobs by pattern, from rollups and from jobs that are not counted yet."""

from datetime import UTC, datetime, timedelta

import pytest

from pgbeat.errors import InvalidInput
from pgbeat.monitoring.rollups import error_rollups
from pgbeat.monitoring.rollups import errors as reading
from pgbeat.monitoring.rollups.error_patterns import NO_ERROR
from pgbeat.monitoring.rollups.errors import ErrorPattern, ErrorReport
from tests.support.problems import raises
from tests.support.rollups import Rollups
from tests.support.rows import Sql, make_job

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def failed(sql: Sql, at: datetime, error: str | None = "Boom: 1", **values: object) -> str:
    given = {"task": "a", "created_at": at, "finished_at": at, "error": error}
    return make_job(sql, "failed", **(given | values))


def counted(found: ErrorReport) -> dict[str, int]:
    assert sum(sum(group.counts) for group in found.groups) <= found.jobs
    return {group.pattern: group.jobs for group in found.groups}


@pytest.mark.parametrize("is_kept", [True, False])
def test_jobs_are_grouped_by_pattern(
    rollups: Rollups, sql: Sql, now: datetime, is_kept: bool
) -> None:
    """The same is said of jobs that a beat has counted and of those that it hasn't."""
    first = now - 90 * MINUTE
    failed(sql, first, "Boom: order 1\nDETAIL", schedule="nightly")
    failed(sql, now - 8 * MINUTE, "Boom: order 22", task="b", schedule="hourly")
    last = failed(sql, now - 7 * MINUTE, "Boom: order 3", schedule="nightly")
    failed(sql, now - 6 * MINUTE, None)
    failed(sql, now - 6 * MINUTE, namespace="shop")
    make_job(sql, "cancelled", error="Boom: order 4", finished_at=now - 5 * MINUTE)
    if is_kept:
        rollups.keep()
    found = rollups.errors("default", since=2 * HOUR)
    assert counted(found) == {"Boom: order *": 3, NO_ERROR: 1}
    assert (found.jobs, found.is_lower_bound, found.has_more) == (4, False, False)
    boom = found.groups[0]
    assert (boom.tasks, boom.schedules, boom.has_more_schedules) == (
        ["a", "b"],
        ["nightly", "hourly"],
        False,
    )
    assert (boom.since, boom.last_at, str(boom.job_id)) == (first, now - 7 * MINUTE, last)
    steps = [number for number, count in enumerate(boom.counts) if count]
    assert [found.since + number * found.step for number in steps] == sorted(
        {now - ago * MINUTE - (now - ago * MINUTE - found.since) % found.step for ago in (90, 8, 7)}
    )
    assert counted(rollups.errors("default", task="b")) == {"Boom: order *": 1}
    assert counted(rollups.errors("default", since=HOUR)) == {"Boom: order *": 2, NO_ERROR: 1}
    assert counted(rollups.errors("shop")) == {"Boom: *": 1}


def test_a_job_is_counted_once(rollups: Rollups, sql: Sql, now: datetime) -> None:
    failed(sql, now - 30 * MINUTE)
    rollups.keep()
    failed(sql, now + MINUTE - timedelta(seconds=1))  # its minute is not over
    rollups.keep()
    found = rollups.errors("default", since=HOUR)
    assert counted(found) == {"Boom: *": 2}
    assert sum(found.groups[0].counts) == 2
    sql("DELETE FROM pgbeat.jobs")  # what is counted outlives it
    assert counted(rollups.errors("default", since=HOUR)) == {"Boom: *": 1}


def test_days_are_read_by_hours(rollups: Rollups, sql: Sql, now: datetime) -> None:
    for hours in (1, 5, 20, 47, 60):
        failed(sql, now - hours * HOUR, schedule=f"s{hours}")
    sql(
        "INSERT INTO pgbeat.rollup_progress SELECT 'default', since, since "
        "FROM date_trunc('hour', now() - interval '3 days', 'UTC') AS since"
    )
    rollups.keep()
    assert sql(
        "SELECT count(*) FROM pgbeat.error_rollups WHERE step = 60 AND at < now() - "
        "interval '26 hours'"
    ) == [(0,)]
    found = rollups.errors("default", since=timedelta(days=2))
    assert found.step == HOUR
    assert counted(found) == {"Boom: *": 4}
    assert sum(found.groups[0].counts) == 4
    assert found.groups[0].since == now - 60 * HOUR
    assert set(found.groups[0].schedules) == {"s1", "s5", "s20", "s47"}
    found = rollups.errors("default", since=timedelta(days=92))
    assert (found.step, counted(found)) == (24 * HOUR, {"Boom: *": 5})
    assert sum(found.groups[0].counts) == 5


def test_what_is_rare_is_added_up(
    rollups: Rollups, sql: Sql, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute with more kinds of errors than are kept is counted all the same."""
    monkeypatch.setattr(error_rollups, "MOST", 2)
    for error, count in (("A", 3), ("B", 2), ("C", 1), ("D", 1)):
        for _ in range(count):
            failed(sql, now - 5 * MINUTE, error, schedule=error)
    rollups.keep()
    found = rollups.errors("default")
    assert counted(found) == {"A": 3, "B": 2, error_rollups.OTHERS[0]: 2}
    assert (found.jobs, found.is_lower_bound) == (7, True)
    assert found.groups[2].tasks == []
    of_task = rollups.errors("default", task="a")
    assert (counted(of_task), of_task.jobs, of_task.is_lower_bound) == ({"A": 3, "B": 2}, 5, True)


def test_more_jobs_than_are_read_are_a_lower_bound(
    rollups: Rollups, sql: Sql, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "NEWEST", 3)
    for minutes in range(5):
        failed(sql, now - minutes * MINUTE)
    found = rollups.errors("default")
    assert (found.jobs, found.is_lower_bound) == (3, True)
    assert rollups.errors("default", since=2 * MINUTE).is_lower_bound
    assert not rollups.errors("default", since=timedelta(seconds=1)).is_lower_bound


def test_many_schedules_are_said_to_be_more(rollups: Rollups, sql: Sql, now: datetime) -> None:
    for number in range(13):
        failed(sql, now - 5 * MINUTE, schedule=f"s{number}")
    rollups.keep()
    group: ErrorPattern = rollups.errors("default").groups[0]
    assert (len(group.schedules), group.has_more_schedules) == (10, True)


def test_what_is_masked_alike_is_one_group(rollups: Rollups, sql: Sql, now: datetime) -> None:
    failed(sql, now - 5 * MINUTE, "Declined: 'card'", task="pay")
    failed(sql, now - 4 * MINUTE, "Declined: 'name'", task="pay")
    failed(sql, now - 4 * MINUTE, "Declined: 'name'", task="refund")
    rollups.keep()

    def mask(task: str | None, error: str) -> str:
        return "Declined: masked" if task == "pay" else error

    found = rollups.errors("default", mask=mask)
    assert counted(found) == {"Declined: masked": 2, "Declined: 'name'": 1}
    assert [sum(group.counts) for group in found.groups] == [2, 1]
    assert rollups.errors("default", mask=mask, limit=1).has_more


def test_what_can_not_be_answered_is_refused(rollups: Rollups) -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"since": timedelta(0)}, "since"),
        ({"since": timedelta(days=93)}, "since"),
        ({"since": datetime(2100, 1, 1, tzinfo=UTC)}, "since"),
    ]
    for given, field in cases:
        with raises(InvalidInput, (field, "out_of_range")):
            rollups.errors("default", **given)  # type: ignore[arg-type]
