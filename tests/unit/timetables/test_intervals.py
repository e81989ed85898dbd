"""Intervals: elapsed time, and days that are true to the calendar."""

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import Interval, cron, zone
from tests.support.problems import raises
from tests.unit.timetables.test_timetables import OSLO, START, TICK, shown, times, utc

DAY = timedelta(days=1)


def test_an_interval_is_counted_from_its_anchor_and_does_not_drift() -> None:
    interval = Interval(timedelta(minutes=10), START)
    late = START + timedelta(minutes=31, seconds=17)
    assert interval.next_after(late) == START + timedelta(minutes=40)
    assert interval.previous(late) == START + timedelta(minutes=30)
    assert interval.count(START, late) == 3
    found = list(islice(times(interval, late), 1000))
    assert found[-1] == START + timedelta(minutes=10) * 1003


@pytest.mark.parametrize("every", [timedelta(seconds=1), timedelta(hours=36), DAY, 7 * DAY])
def test_the_first_time_is_the_anchor(every: timedelta) -> None:
    interval = Interval(every, START, OSLO)
    assert interval.next_after(START - 1000 * DAY) == interval.next_after(START - TICK) == START
    assert interval.next_after(START) == START + every
    assert interval.previous(START + TICK) == START
    assert interval.previous(START) is None
    assert interval.count(START - DAY, START) == 1
    assert interval.count(START - DAY, START - TICK) == 0
    assert interval.count(START - DAY, START + every) == 2


def test_a_short_interval_of_long_ago_costs_nothing() -> None:
    interval = Interval(timedelta(microseconds=1), datetime(1, 1, 1, tzinfo=UTC))
    assert interval.next_after(START) == START + TICK
    assert interval.previous(START) == START - TICK
    assert interval.count(START, START + DAY) == 86_400_000_000


@pytest.mark.parametrize("days", [900_000_000, 3_000_000])
def test_an_interval_beyond_the_calendar_has_no_next_time(days: int) -> None:
    interval = Interval(timedelta(days=days, seconds=1), START)
    assert interval.next_after(START) is None
    assert Interval(timedelta(days=days), START).next_after(START) is None
    assert Interval(timedelta(days=days), START).count(START, START + 1000 * DAY) == 0


@pytest.mark.parametrize("every", [timedelta(0), timedelta(seconds=-1)])
def test_an_interval_is_longer_than_nothing(every: timedelta) -> None:
    with raises(InvalidTimetable, ("every", "out_of_range")):
        Interval(every, START)


HOURS = timedelta(hours=12)
#: Of each rule: an interval, its anchor, a time (both in UTC), and the next times in Oslo.
SHOWN = {
    "hours go by elapsed time": [
        (HOURS, "2025-03-29 07:00", "2025-03-29 12:00",
         "29 20:00+0100, 30 09:00+0200, 30 21:00+0200"),
    ],
    "days keep the time of day": [
        (DAY, "2025-01-01 07:00", "2025-03-29 12:00", "30 08:00+0200, 31 08:00+0200"),
        (DAY, "2025-01-01 07:00", "2025-10-25 12:00", "26 08:00+0100, 27 08:00+0100"),
    ],
    "weeks are days": [
        (14 * DAY, "2025-03-20 08:00", "2025-03-20 08:00",
         "03 09:00+0200, 17 09:00+0200, 01 09:00+0200"),
    ],
    "a time that is left out comes right after the gap": [
        (DAY, "2025-03-28 01:30", "2025-03-29 12:00", "30 03:00+0200, 31 02:30+0200"),
        (7 * DAY, "2025-03-23 01:30", "2025-03-29 12:00", "30 03:00+0200, 06 02:30+0200"),
    ],
    "a time that comes twice comes the first time": [
        (DAY, "2025-10-24 00:30", "2025-10-25 12:00", "26 02:30+0200, 27 02:30+0100"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("rule", SHOWN)
def test_the_next_times_are_by_the_rule(rule: str) -> None:
    for every, anchor, after, expected in SHOWN[rule]:
        interval = Interval(every, utc(anchor), OSLO)
        assert shown(interval, OSLO, after, expected) == expected, (every, after)


def test_days_are_counted_whatever_the_clock_does() -> None:
    interval = Interval(DAY, utc("2025-01-01 07:00"), OSLO)
    assert interval.count(utc("2025-01-01 07:00"), utc("2026-01-01 07:00")) == 365
    twice = Interval(DAY, utc("2025-10-24 00:30"), OSLO)
    assert twice.count(utc("2025-10-25 12:00"), utc("2025-10-26 12:00")) == 1


def test_an_anchor_in_the_second_of_two_hours_is_the_first_time() -> None:
    anchor = utc("2025-10-26 01:30")
    interval = Interval(DAY, anchor, OSLO)
    assert interval.next_after(utc("2025-10-26 00:00")) == anchor
    assert interval.next_after(anchor) == utc("2025-10-27 01:30")
    assert interval.previous(utc("2025-10-27 00:00")) == anchor
    assert interval.count(utc("2025-10-01 00:00"), utc("2025-10-27 01:30")) == 2


@pytest.mark.parametrize("timezone", [OSLO, "America/Santiago", "Pacific/Apia", "UTC"])
@pytest.mark.parametrize("hour", [0, 2, 23])
def test_every_day_is_what_cron_does_daily(timezone: str, hour: int) -> None:
    anchor = datetime(2011, 1, 1, hour, 30, tzinfo=zone(timezone))
    interval, daily = Interval(DAY, anchor, timezone), cron(f"30 {hour} * * *", timezone)
    assert list(islice(times(interval, anchor), 400)) == list(islice(times(daily, anchor), 400))
    end = anchor + 400 * DAY
    assert interval.count(anchor, end) == daily.count(anchor, end)


def test_the_anchor_is_kept_to_the_microsecond() -> None:
    interval = Interval(DAY, START, OSLO)
    assert interval.next_after(START + 200 * DAY) == START + 201 * DAY - timedelta(hours=1)
    moment = interval.previous(START + 2 * DAY)
    assert moment and moment.microsecond == START.microsecond


def test_the_zone_is_utc_unless_it_is_given() -> None:
    assert Interval(DAY, START) == Interval(DAY, START, "UTC")
    assert Interval(DAY, START).next_after(START + 200 * DAY) == START + 201 * DAY
