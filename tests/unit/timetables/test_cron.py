"""Cron expressions: their fields, and what is refused."""

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

import pytest
from croniter import croniter

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import Cron, cron, crons, parse_cron, zone
from tests.support.problems import raises
from tests.unit.timetables.test_timetables import START, times


def shown(expression: str, after: datetime = START, timezone: str = "UTC", n: int = 3) -> list[str]:
    """The next times of a cron expression, as its zone's clock shows them."""
    found = islice(times(cron(expression, timezone), after), n)
    return [f"{moment.astimezone(zone(timezone)):%a %Y-%m-%d %H:%M}" for moment in found]


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
        ("05 02 01 01 *", ["Thu 2026-01-01 02:05", "Fri 2027-01-01 02:05", "Sat 2028-01-01 02:05"]),
        (" @Daily ", ["Thu 2025-01-02 00:00", "Fri 2025-01-03 00:00", "Sat 2025-01-04 00:00"]),
    ],
)
def test_cron(expression: str, expected: list[str]) -> None:
    assert shown(expression) == expected


@pytest.mark.parametrize(
    ("expression", "times_"),
    [
        ("30 4 12 * * 0-59", ["04:30:00", "04:30:01", "04:30:02"]),
        ("0 9 * * * */20", ["09:00:00", "09:00:20", "09:00:40"]),
        ("59 23 * * * 59", ["23:59:59"] * 3),
        ("* * * * * 15,16", ["12:30:16", "12:31:15", "12:31:16"]),
    ],
)
def test_six_fields_have_the_seconds_last(expression: str, times_: list[str]) -> None:
    found = islice(times(cron(expression, "UTC")), 3)
    assert [f"{moment:%H:%M:%S}" for moment in found] == times_


def test_several_lines_are_due_together_once() -> None:
    offices = "0 9,12 * * 1-5\n\n0 12 * * *\r\n0 12 * * sat"
    assert shown(offices, n=5) == [
        "Thu 2025-01-02 09:00",
        "Thu 2025-01-02 12:00",
        "Fri 2025-01-03 09:00",
        "Fri 2025-01-03 12:00",
        "Sat 2025-01-04 12:00",
    ]
    assert cron(offices, "UTC").count(START, START + timedelta(weeks=52)) == 52 * 12
    assert cron("\n @daily \n", "UTC") == cron("@daily", "UTC")


@pytest.mark.parametrize("expression", ["0 0 1-31/2 * 1", "0 0 1 * mon#1", "0 0 L * L5"])
def test_either_day_or_weekday_with_neither_a_star(expression: str) -> None:
    day, weekday = expression.split()[2], expression.split()[4]
    either = set(islice(times(cron(f"0 0 {day} * *", "UTC")), 40))
    either |= set(islice(times(cron(f"0 0 * * {weekday}", "UTC")), 40))
    found = list(islice(times(cron(expression, "UTC")), 30))
    assert found == sorted(either)[:30]


def test_a_day_or_weekday_that_begins_with_a_star_must_match_as_well() -> None:
    assert shown("0 0 */2 * mon") == [
        "Mon 2025-01-13 00:00",
        "Mon 2025-01-27 00:00",
        "Mon 2025-02-03 00:00",
    ]
    assert shown("0 0 1,2 * */6") == [
        "Sat 2025-02-01 00:00",
        "Sun 2025-02-02 00:00",
        "Sat 2025-03-01 00:00",
    ]
    assert shown("0 0 ? * fri#2") == shown("0 0 * * fri#2")


@pytest.mark.parametrize(
    ("expression", "field", "numbers"),
    [
        ("43-7/7 * * * *", "minutes", (4, 43, 50, 57)),
        ("* 22-2/2 * * *", "hours", (0, 2, 22)),
        ("* * 28-3/2 * *", "days", (1, 3, 28, 30)),
        ("* * * nov-mar/2 *", "months", (1, 3, 11)),
        ("* * * * fri-mon/2", "weekdays", (0, 5)),
        ("* * * * * 58-1", "seconds", (0, 1, 58, 59)),
        ("* * * * 7-2", "weekdays", (0, 1, 2)),
        ("* * * * 6-7", "weekdays", (0, 6)),
        ("* * * * 0-7/7", "weekdays", (0,)),
        ("50/4 * * * *", "minutes", (50, 54, 58)),
        ("* * * oct/2 *", "months", (10, 12)),
        ("*/40 * * * *", "minutes", (0, 40)),
        ("*/100 * * * *", "minutes", (0,)),
        (f"*/{'9' * 5000} * * * *", "minutes", (0,)),
        (f"{'0' * 5000}7 * * * *", "minutes", (7,)),
        ("*/30,5-6 * * * *", "minutes", (0, 5, 6, 30)),
        ("* * 15,L,31 * *", "days", (15, 31, 32)),
        ("* * * * L5,sun#2", "nth_weekdays", ((0, 2), (5, 0))),
        ("* * * * *", "seconds", (0,)),
    ],
)
def test_a_field_means_these_numbers(expression: str, field: str, numbers: tuple[int, ...]) -> None:
    assert getattr(parse_cron(expression), field) == numbers


@pytest.mark.parametrize(
    ("days", "weekdays"),
    [
        ("*", "*"),
        ("31", "*"),
        ("1,15,L", "*"),
        ("*", "L0,L3"),
        ("*", "2#1,5#5"),
        ("13", "5"),
        ("30-31", "1-5"),
    ],
)
def test_the_days_are_those_that_croniter_finds(days: str, weekdays: str) -> None:
    """Of four years, a leap year among them."""
    start, end = START - timedelta(hours=13), START + timedelta(days=4 * 366)
    given = f"0 0 {days} * {weekdays}"
    expected = list(takewhile(lambda moment: moment < end, croniter(given, start, datetime)))
    found = takewhile(lambda moment: moment < end, times(cron(given, "UTC"), start))
    assert list(found) == expected


def test_most_days_and_the_last_are_not_every_day() -> None:
    assert shown("0 0 3-1,L * *", START + timedelta(days=29)) == [
        "Fri 2025-01-31 00:00",
        "Sat 2025-02-01 00:00",
        "Mon 2025-02-03 00:00",
    ]


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


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31 feb *"])
def test_what_never_matches_has_no_next_time(expression: str) -> None:
    assert cron(expression, "UTC").next_after(START) is None


def test_a_zone_has_its_own_clock() -> None:
    [moment] = islice(times(cron("0 2 * * *", "Asia/Kathmandu")), 1)
    assert moment == datetime(2025, 1, 1, 20, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "x",
        "* * * * * * *",
        "* * * * * 60",
        "@fortnightly",
        "60 * * * *",
        "1,,2 * * * *",
        "*/0 * * * *",
        "r * * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * funday",
        "* * * * mon#1,3",
    ],
)
def test_a_bad_cron_expression_is_refused(expression: str) -> None:
    for read in (parse_cron, lambda text: cron(text, "UTC")):
        with raises(InvalidTimetable, ("cron", "malformed")):
            read(expression)
    with pytest.raises(InvalidTimetable, match=r"line 2: |not 5 \(or 6"):
        cron(f"@daily\n{expression or 'x'}\n", "UTC")


@pytest.mark.parametrize(
    ("expression", "in_order"),
    [
        ("0 5 2 * * mon-fri", "'5 2 * * mon-fri'"),
        ("5 45 9 ? * 1", "'45 9 ? * 1 05'"),
        ("0 45 23 ? * funday", ""),  # wrong either way
    ],
)
def test_seconds_that_come_first_are_told_where_they_belong(expression: str, in_order: str) -> None:
    with pytest.raises(InvalidTimetable) as raised:
        parse_cron(expression)
    assert in_order in str(raised.value)
    assert ("come last" in str(raised.value)) is bool(in_order)


def test_the_same_question_is_answered_once() -> None:
    """Ten thousand schedules of one expression, due together, are one question."""
    crons._next.cache_clear()
    answers = {Cron("*/7 * * * *", "UTC").next_after(START) for _ in range(10_000)}
    assert len(answers) == 1
    assert crons._next.cache_info().misses == 1
    assert cron("*/7 * * * *", "UTC") is cron("*/7 * * * *", "UTC")


def test_croniter_walks_through_a_month_of_each_kind_once() -> None:
    """Whatever the time of day, month and zone: 28 kinds of month, by length and first weekday."""
    crons._found.cache_clear()
    for hour in range(24):
        for zone_name in ("UTC", "Europe/Oslo", "Asia/Tokyo"):
            list(islice(times(cron(f"0 {hour} * * mon-fri", zone_name)), 70))
    assert crons._found.cache_info().misses <= 28


def test_what_happens_in_a_year_is_counted_not_walked_through() -> None:
    year = START + timedelta(days=365)
    assert cron("* * * * * *", "Europe/Oslo").count(START, year) == 365 * 86_400
    assert cron("*/5 * * * *", "Europe/Oslo").count(START, year) == 365 * 288
    assert cron("0 9 * * mon-fri", "Europe/Oslo").count(START, year) == 261
    assert cron("30 2 * * * 0-59", "Europe/Oslo").count(START, year) == 364 * 60 + 1
    halves = cron("* 0-11 * * * *\n* 6-23 * * * 0-59\n30 2 * * *", "Europe/Oslo")
    assert halves.count(START, year) == 365 * 86_400
