"""Timetables: when a cron expression, an interval or a duration says."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest

from pgbeat import timetables
from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import Cron, Interval, Timetable, cron, parse_cron, parse_duration, zone

START = datetime(2025, 1, 1, 12, 30, 15, 500_000, tzinfo=UTC)


def times(timetable: Timetable, after: datetime = START) -> Iterator[datetime]:
    """The times after a moment, one after another, until there is none."""
    moment: datetime | None = after
    while moment and (moment := timetable.next_after(moment)):
        yield moment


def shown(expression: str, after: datetime = START, timezone: str = "UTC", n: int = 3) -> list[str]:
    """The next times of a cron expression, as its zone's clock shows them."""
    found = islice(times(cron(expression, timezone), after), n)
    return [f"{moment.astimezone(zone(timezone)):%a %Y-%m-%d %H:%M}" for moment in found]


# -- cron --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("* * * * *", ["Wed 2025-01-01 12:31", "Wed 2025-01-01 12:32", "Wed 2025-01-01 12:33"]),
        ("*/20 * * * *", ["Wed 2025-01-01 12:40", "Wed 2025-01-01 13:00", "Wed 2025-01-01 13:20"]),
        ("0 2 * * mon,1", ["Mon 2025-01-06 02:00", "Mon 2025-01-13 02:00", "Mon 2025-01-20 02:00"]),
        ("0 22-1 * * *", ["Wed 2025-01-01 22:00", "Wed 2025-01-01 23:00", "Thu 2025-01-02 00:00"]),
        ("0 0 29 2 *", ["Tue 2028-02-29 00:00", "Sun 2032-02-29 00:00", "Fri 2036-02-29 00:00"]),
        ("0 0 L * *", ["Fri 2025-01-31 00:00", "Fri 2025-02-28 00:00", "Mon 2025-03-31 00:00"]),
        ("0 9 * * tue#1", ["Tue 2025-01-07 09:00", "Tue 2025-02-04 09:00", "Tue 2025-03-04 09:00"]),
        ("0 9 * * L5", ["Fri 2025-01-31 09:00", "Fri 2025-02-28 09:00", "Fri 2025-03-28 09:00"]),
        ("0 0 * * 7", ["Sun 2025-01-05 00:00", "Sun 2025-01-12 00:00", "Sun 2025-01-19 00:00"]),
        ("05 02 01 01 *", ["Thu 2026-01-01 02:05", "Fri 2027-01-01 02:05", "Sat 2028-01-01 02:05"]),
        ("@hourly", ["Wed 2025-01-01 13:00", "Wed 2025-01-01 14:00", "Wed 2025-01-01 15:00"]),
        (" @Daily ", ["Thu 2025-01-02 00:00", "Fri 2025-01-03 00:00", "Sat 2025-01-04 00:00"]),
    ],
)  # fmt: skip
def test_cron(expression: str, expected: list[str]) -> None:
    assert shown(expression) == expected


def test_day_and_weekday_match_when_either_does() -> None:
    assert shown("0 0 3 * mon") == [
        "Fri 2025-01-03 00:00", "Mon 2025-01-06 00:00", "Mon 2025-01-13 00:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("0 9-9 * * *", "0 9 * * *"),
        ("0 09-9 * * *", "0 9 * * *"),
        ("5-5/10 0-0 1-1 jan-jan *", "5 0 1 1 *"),
        ("0 0 * * 7-7", "0 0 * * sun"),
        ("1-11 10-10,1-10 * * *", "1-11 1-10 * * *"),
    ],
)
def test_a_range_of_one_is_that_one(expression: str, same: str) -> None:
    assert shown(expression, n=30) == shown(same, n=30)


@pytest.mark.parametrize("expression", ["* * * * *", "59 23 * * *", "0 0 1 1 *", "@weekly"])
def test_the_next_time_is_strictly_later(expression: str) -> None:
    moments = list(islice(times(cron(expression, "America/New_York")), 40))
    assert moments[0] > START
    assert all(earlier < later for earlier, later in pairwise(moments))
    assert {(moment.second, moment.microsecond, moment.tzinfo) for moment in moments} == {
        (0, 0, UTC)
    }


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31 feb *"])
def test_what_never_matches_has_no_next_time(expression: str) -> None:
    assert cron(expression, "UTC").next_after(START) is None


def test_time_ends_with_the_calendar() -> None:
    assert cron("0 0 1 1 *", "UTC").next_after(datetime(9999, 12, 31, tzinfo=UTC)) is None


def test_a_zone_has_its_own_clock() -> None:
    [moment] = islice(times(cron("0 2 * * *", "Asia/Kathmandu")), 1)
    assert moment == datetime(2025, 1, 1, 20, 15, tzinfo=UTC)


def test_the_same_zone_may_be_asked_from_another() -> None:
    elsewhere = START.astimezone(zone("Pacific/Auckland"))
    assert cron("0 2 * * *", "Europe/Oslo").next_after(elsewhere) == cron(
        "0 2 * * *", "Europe/Oslo"
    ).next_after(START)


# -- clocks that change: in Oslo at 02:00 on 30 March, back at 03:00 on 26 October ----------------

SPRING = datetime(2025, 3, 29, 12, tzinfo=UTC)
AUTUMN = datetime(2025, 10, 25, 12, tzinfo=UTC)


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 2 * * *"])
def test_what_falls_into_the_gap_comes_right_after_it(expression: str) -> None:
    at = expression.split()
    assert shown(expression, SPRING, "Europe/Oslo") == [
        "Sun 2025-03-30 03:00",
        f"Mon 2025-03-31 02:{at[0]:>02}",
        f"Tue 2025-04-01 02:{at[0]:>02}",
    ]


def test_a_fixed_time_comes_once_where_the_clocks_go_back() -> None:
    moments = list(islice(times(cron("30 2 * * *", "Europe/Oslo"), AUTUMN), 3))
    assert moments == [
        datetime(2025, 10, 26, 0, 30, tzinfo=UTC),  # the first 02:30
        datetime(2025, 10, 27, 1, 30, tzinfo=UTC),
        datetime(2025, 10, 28, 1, 30, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    ("expression", "step"),
    [("*/15 * * * *", 15), ("0 * * * *", 60), ("*/30 0-5 * * *", 30), ("@hourly", 60)],
)
def test_a_repeating_time_comes_in_both_hours(expression: str, step: int) -> None:
    after = datetime(2025, 10, 25, 23, 59, tzinfo=UTC)
    moments = list(islice(times(cron(expression, "Europe/Oslo"), after), 4))
    assert moments[0] == datetime(2025, 10, 26, tzinfo=UTC)
    assert {later - earlier for earlier, later in pairwise(moments)} == {timedelta(minutes=step)}


@pytest.mark.parametrize(
    "timezone",
    ["America/New_York", "Australia/Lord_Howe", "America/Santiago", "Atlantic/Azores", "UTC"],
)
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 0 * * *", "30 1 * * *", "30 23 * * *"])
def test_a_daily_time_comes_once_on_every_day_of_a_year(expression: str, timezone: str) -> None:
    start = datetime(2025, 1, 1, tzinfo=zone(timezone)) - timedelta(microseconds=1)
    days = [
        moment.astimezone(zone(timezone)).date()
        for moment in islice(times(cron(expression, timezone), start), 365)
    ]
    assert len(set(days)) == 365
    assert (days[0].isoformat(), days[-1].isoformat()) == ("2025-01-01", "2025-12-31")


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "it has 0 fields, not 5"),
        ("x y", "it has 2 fields, not 5"),
        ("* * * * * *", "it has 6 fields, not 5"),
        ("@fortnightly", "no such name; there are @hourly, @daily,"),
        ("60 * * * *", "minute '60' is not valid: numbers are 0-59,"),
        ("1,,2 * * * *", "minute '' is not valid"),
        ("*/0 * * * *", "minute '*/0' is not valid"),
        ("r * * * *", "minute 'r' is not valid"),
        ("* 24 * * *", "hour '24' is not valid: numbers are 0-23,"),
        ("* * 0 * *", "day of month '0' is not valid: numbers are 1-31,"),
        ("* * * 13 *", "month '13' is not valid: numbers are 1-12 or jan-dec,"),
        ("* * * * funday", "weekday 'funday' is not valid: numbers are 0-7 or sun-sat,"),
        ("* * * * mon#1,3", "weekday 'mon#1,3' mixes weeks of the month (mon#1, l5) with every"),
    ],
)
def test_a_bad_cron_expression_is_told_what_is_wrong_and_what_is_right(
    expression: str, problem: str
) -> None:
    with pytest.raises(InvalidTimetable) as raised:
        parse_cron(expression)
    assert str(raised.value).startswith(f"cron {expression!r}: {problem}")
    assert str(raised.value).endswith('for example "*/15 * * * *" or "0 2 * * mon-fri"')
    with pytest.raises(InvalidTimetable):
        cron(expression, "UTC")


@pytest.mark.parametrize(
    "name", ["Mars/Olympus", "", "europe/oslo2", "../etc/passwd", "/etc", "a\0b"]
)
def test_an_unknown_zone_is_told_an_example(name: str) -> None:
    with pytest.raises(InvalidTimetable) as raised:
        cron("* * * * *", name)
    assert str(raised.value) == (
        f"timezone {name!r} is not known; use an IANA name, for example 'Europe/Oslo' or 'UTC'"
    )


def test_the_same_question_is_answered_once() -> None:
    """Ten thousand schedules of one expression, due together, ask croniter once."""
    timetables._cron_next.cache_clear()
    answers = {Cron("*/7 * * * *", "UTC").next_after(START) for _ in range(10_000)}
    assert len(answers) == 1
    assert timetables._cron_next.cache_info().misses == 1
    assert cron("*/7 * * * *", "UTC") is cron("*/7 * * * *", "UTC")


# -- intervals ---------------------------------------------------------------------------------


def test_an_interval_is_counted_from_its_anchor_and_does_not_drift() -> None:
    interval = Interval(timedelta(minutes=10), START)
    late = START + timedelta(minutes=31, seconds=17)
    assert interval.next_after(late) == START + timedelta(minutes=40)
    found = list(islice(times(interval, late), 1000))
    assert found[-1] == START + timedelta(minutes=10) * 1003


def test_the_next_time_of_an_interval_is_strictly_later() -> None:
    interval = Interval(timedelta(seconds=1), START)
    assert interval.next_after(START) == START + timedelta(seconds=1)
    assert interval.next_after(START - timedelta(microseconds=1)) == START
    assert interval.next_after(START + timedelta(microseconds=999_999)) == START + timedelta(
        seconds=1
    )


def test_a_short_interval_of_long_ago_costs_nothing() -> None:
    interval = Interval(timedelta(microseconds=1), datetime(1, 1, 1, tzinfo=UTC))
    assert interval.next_after(START) == START + timedelta(microseconds=1)


def test_an_interval_beyond_the_calendar_has_no_next_time() -> None:
    assert Interval(timedelta(days=900_000_000), START).next_after(START) is None


@pytest.mark.parametrize("every", [timedelta(0), timedelta(seconds=-1)])
def test_an_interval_is_longer_than_nothing(every: timedelta) -> None:
    with pytest.raises(InvalidTimetable, match=r"^every is .*; it must be longer than nothing$"):
        Interval(every, START)


# -- durations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), (" 1.5 ", 1.5), ("15 minutes", 900), ("1h 30m", 5400), ("1h30m", 5400),
        ("2 Days", 172_800), ("1 week, 1 day", 691_200), ("10 secs", 10), ("5 mins", 300),
        ("500 ms", 0.5), ("500ms", 0.5), ("1 s 500 milliseconds", 1.5),
    ],
)  # fmt: skip
def test_a_duration_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is no length of time"),
        ("soon", "it is no length of time"),
        ("-5", "it is no length of time"),
        ("1:30", "it is no length of time"),
        ("5 fortnights", "'fortnights' is no unit of time"),
        ("1 hour 5", "'5' is no unit of time"),
        ("1 month", "months and years have no fixed length, use cron"),
        ("2 years", "months and years have no fixed length, use cron"),
        ("9" * 400, "it is too long"),
        ("999999999999 days", "it is too long"),
    ],
)
def test_what_is_no_duration_is_told_examples(text: str, problem: str) -> None:
    with pytest.raises(InvalidTimetable) as raised:
        parse_duration(text)
    assert str(raised.value).startswith(f"{text!r}: {problem}")
    assert str(raised.value).endswith("for example '15 minutes', '1h 30m' or '2 days'")
