"""What is made up for after a beat was down, or a clock stepped."""

from itertools import groupby

import pytest

from tests.support.rows import Sql
from tests.support.schedulers import HOUR, START, At, add, down, hours, row, said


def test_latest_launches_once_and_tells_how_many_were_missed(sql: Sql, at: At) -> None:
    add(sql)
    [tick] = down(at(), "5h 30m")
    assert (tick.outcome, tick.missed, hours([tick])) == ("launched", 4, [5])
    assert tick.note == (
        "4 due times before it, since 2030-01-07 13:00:00 UTC, missed (catch_up latest)"
    )
    assert row(sql, "next_run") == (START + 6 * HOUR,)


def test_latest_is_skipped_when_even_the_last_is_later_than_its_grace(sql: Sql, at: At) -> None:
    add(sql, grace="10 minutes")
    scheduler = at()
    [tick] = down(scheduler, "5h 30m")
    assert (tick.outcome, tick.missed, hours([tick])) == ("skipped", 4, [5])
    assert tick.reason == "30 min late, more than its grace of 10 min"
    assert said(down(scheduler, "40 minutes")) == [("launched", 0)]


def test_none_makes_up_for_nothing_older_than_a_minute(sql: Sql, at: At) -> None:
    add(sql, catch_up="none")
    scheduler = at()
    assert said(down(scheduler, "5h 2m")) == [("skipped", 4)]
    assert said(down(scheduler, "58m 30s")) == [("launched", 0)]


def test_all_launches_each_missed_time_oldest_first(sql: Sql, at: At) -> None:
    add(sql, catch_up="all")
    ticks = down(at(), "5h 30m")
    assert hours(ticks) == [1, 2, 3, 4, 5]
    assert said(ticks) == [("launched", 0)] * 5
    assert len({tick.job_id for tick in ticks}) == 5


def test_all_leaves_out_those_beyond_its_limit_in_one_tick(sql: Sql, at: At) -> None:
    add(sql, catch_up="all", catch_up_limit=3)
    ticks = down(at(), "10h 30m")
    assert said(ticks) == [("skipped", 6), *[("launched", 0)] * 3]
    assert hours(ticks) == [7, 8, 9, 10]
    assert ticks[0].reason == "more than 3 times are missed (catch_up all)"


def test_all_leaves_out_those_older_than_its_grace_in_one_tick(sql: Sql, at: At) -> None:
    add(sql, catch_up="all", grace="2 hours")
    ticks = down(at(), "5h 30m")
    assert said(ticks) == [("skipped", 2), *[("launched", 0)] * 2]
    assert hours(ticks) == [3, 4, 5]


def test_every_missed_time_is_accounted_for(sql: Sql, at: At) -> None:
    for catch_up in ("latest", "none", "all"):
        for grace in (None, "0", "90 minutes", "100 days"):
            add(sql, f"{catch_up} {grace}", catch_up=catch_up, grace=grace, every="10 minutes")
    ticks = sorted(down(at(), "1 day 5 minutes"), key=lambda tick: tick.schedule)
    found = {name: list(some) for name, some in groupby(ticks, lambda tick: tick.schedule)}
    assert len(found) == 12
    for name, some in found.items():
        assert sum(1 + tick.missed for tick in some) == 24 * 6, name
        assert len({tick.due_at for tick in some}) == len(some), name


@pytest.mark.parametrize("cron", ["* * * * * *", "* 0-11 * * * 0-59\n* 12-23 * * * 0-59"])
def test_a_year_of_seconds_is_counted_at_once(sql: Sql, at: At, cron: str) -> None:
    add(sql, cron=cron, starts_at=None)
    [tick] = down(at(), "365 days")
    assert tick.missed == 365 * 86_400 - 1


def test_a_clock_that_goes_back_launches_nothing_twice(sql: Sql, at: At) -> None:
    add(sql)
    scheduler = at()
    scheduler.run_until(START + 3 * HOUR)
    scheduler.now = START
    assert scheduler.run_until(START + 4 * HOUR)[-1].due_at == START + 4 * HOUR
    assert hours(scheduler.ticks) == [1, 2, 3, 4]


def test_a_clock_that_leaps_forward_is_a_beat_that_was_down(sql: Sql, at: At) -> None:
    add(sql)
    scheduler = at()
    assert said(down(scheduler, "1000 days")) == [("launched", 23_999)]
