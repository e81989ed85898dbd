"""Timetables: what they have in common; windows, durations."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from random import Random

import pytest

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import (
    NEVER,
    Interval,
    Once,
    RRule,
    Solar,
    Timetable,
    bounded,
    cron,
    parse_cron,
    parse_duration,
    parse_rrule,
    parse_solar,
    zone,
)
from tests.support.problems import raises

START = datetime(2025, 1, 1, 12, 30, 15, 500_000, tzinfo=UTC)
TICK = timedelta(microseconds=1)


def times(timetable: Timetable, after: datetime = START) -> Iterator[datetime]:
    """The times after a moment, one after another, until there is none."""
    moment: datetime | None = after
    while moment and (moment := timetable.next_after(moment)):
        yield moment


def utc(text: str) -> datetime:
    """A time as people write it, `2025-03-30 01:00`, in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def shown(timetable: Timetable, timezone: str, after: str, like: str) -> str:
    """The next times after a time in UTC, as the zone's clock has them; as many as in `like`."""
    found = islice(times(timetable, utc(after)), len(like.split(", ")))
    return ", ".join(f"{moment.astimezone(zone(timezone)):%d %H:%M%z}" for moment in found)


OSLO = "Europe/Oslo"
KINDS = {
    "cron of days": cron("30 2 * * mon-fri", OSLO),
    "cron of hours": cron("*/20 1-3 * * *", OSLO),
    "cron of seconds": cron("59 23 * * sun,fri */9", "America/Santiago"),
    "cron of years": cron("0 0 29 2 *", "Pacific/Apia"),
    "cron of several lines": cron("*/20 1-3 * * *\n30 2 * * *\n0 * * * sun */9", OSLO),
    "cron of never": cron("0 0 31 11 *", OSLO),
    "hours": Interval(timedelta(hours=7), START, OSLO),
    "days": Interval(timedelta(days=3), datetime(2025, 3, 27, 1, 30, tzinfo=UTC), OSLO),
    "once": Once(datetime(2025, 3, 30, 1, tzinfo=UTC)),
    "never": NEVER,
    "sunset": Solar("sunset", 59.91, 10.75),
    "sunrise in the north": Solar("sunrise", 69.65, 18.96),
    "rule": RRule("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=2;BYMINUTE=30", START, OSLO),
    "rule of hours": RRule("FREQ=HOURLY;INTERVAL=5;BYDAY=SU,MO", START, OSLO),
    "rule with an end": RRule("FREQ=DAILY;BYHOUR=2,9;COUNT=200", START, "America/New_York"),
    "window": bounded(cron("0 */6 * * *", OSLO), utc("2025-03-01 05:00"), utc("2025-10-31 05:00")),
}


@pytest.mark.parametrize("timetable", KINDS.values(), ids=KINDS)
def test_next_previous_and_count_say_the_same(timetable: Timetable) -> None:
    random = Random(7)  # noqa: S311
    for _ in range(12):
        after = START + random.random() * timedelta(days=400)
        found = list(islice(times(timetable, after), 12))
        assert all(moment.tzinfo is UTC for moment in found)
        assert all(earlier < later for earlier, later in pairwise([after, *found]))
        for number, moment in enumerate(found, 1):
            assert timetable.next_after(moment - TICK) == moment
            assert timetable.previous(moment + TICK) == moment
            assert timetable.count(after, moment) == number
            assert timetable.count(after, moment - TICK) == number - 1
            assert timetable.count(moment, after) == 0
        for earlier, later in pairwise(found):
            assert timetable.previous(later) == earlier
        if found:
            assert timetable.previous(found[0]) == timetable.previous(after + TICK)


@pytest.mark.parametrize("timetable", KINDS.values(), ids=KINDS)
def test_the_ends_of_the_calendar_are_ends_of_every_timetable(timetable: Timetable) -> None:
    first = datetime.min.replace(tzinfo=UTC)
    last = datetime.max.replace(tzinfo=UTC)
    assert timetable.next_after(last) is None
    assert timetable.previous(first) is None
    assert (timetable.next_after(first) is None) == (timetable.previous(last) is None)
    assert timetable.count(last, first) == timetable.count(first, first) == 0


@pytest.mark.parametrize("timetable", KINDS.values(), ids=KINDS)
def test_a_moment_may_be_of_any_zone(timetable: Timetable) -> None:
    moment = utc("2025-06-01 12:00")
    there = moment.astimezone(zone("Pacific/Auckland"))
    assert timetable.next_after(there) == timetable.next_after(moment)
    assert timetable.previous(there) == timetable.previous(moment)
    assert timetable.count(START, there) == timetable.count(START, moment)


def test_once_is_once() -> None:
    at = utc("2025-01-01 12:00")
    once = Once(at.astimezone(zone("Asia/Tokyo")))
    assert (once.next_after(at - TICK), once.next_after(at)) == (at, None)
    assert (once.previous(at + TICK), once.previous(at)) == (at, None)
    assert [once.count(at - TICK, at), once.count(at, at + TICK)] == [1, 0]


def test_never_is_never() -> None:
    assert NEVER.next_after(START) is None
    assert NEVER.previous(START) is None
    assert NEVER.count(START, START + timedelta(days=1)) == 0


def test_both_ends_of_a_window_belong_to_it() -> None:
    hourly = cron("@hourly", "UTC")
    window = bounded(hourly, utc("2025-01-01 10:00"), utc("2025-01-01 13:00"))
    assert [moment.hour for moment in times(window, utc("2024-01-01 00:00"))] == [10, 11, 12, 13]
    assert window.previous(utc("2026-01-01 00:00")) == utc("2025-01-01 13:00")
    assert window.previous(utc("2025-01-01 10:00")) is None
    assert window.count(utc("2024-01-01 00:00"), utc("2026-01-01 00:00")) == 4
    assert window.count(utc("2025-01-01 10:00"), utc("2025-01-01 12:59")) == 2


def test_a_window_may_have_one_end() -> None:
    hourly = cron("@hourly", "UTC")
    assert bounded(hourly, None, None) is hourly
    begun = bounded(hourly, utc("2025-01-01 10:30"), None)
    assert begun.next_after(utc("2000-01-01 00:00")) == utc("2025-01-01 11:00")
    assert begun.previous(utc("2025-01-01 11:00")) is None
    ended = bounded(hourly, None, utc("2025-01-01 10:30"))
    assert ended.next_after(utc("2025-01-01 10:00")) is None
    assert ended.previous(utc("2030-01-01 00:00")) == utc("2025-01-01 10:00")


def test_a_window_between_two_times_has_none() -> None:
    window = bounded(cron("@daily", "UTC"), utc("2025-01-01 10:00"), utc("2025-01-01 13:00"))
    assert window.next_after(utc("2024-01-01 00:00")) is None
    assert window.previous(utc("2026-01-01 00:00")) is None
    assert window.count(utc("2024-01-01 00:00"), utc("2026-01-01 00:00")) == 0


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Europe/Olso", "Europe/Oslo"),
        ("oslo", "Europe/Oslo"),
        ("new york", "America/New_York"),
        ("europe/oslo2", "Europe/Oslo"),
    ],
)
def test_a_zone_is_suggested(written: str, meant: str) -> None:
    with pytest.raises(InvalidTimetable, match=f"did you mean '{meant}'"):
        zone(written)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "/etc", "a\0b"])
def test_an_unknown_zone_is_refused(name: str) -> None:
    for make in (
        lambda: zone(name),
        lambda: cron("* * * * *", name),
        lambda: Interval(timedelta(days=1), START, name),
        lambda: RRule("FREQ=DAILY", START, name),
    ):
        with raises(InvalidTimetable, ("timezone", "unknown")):
            make()


@pytest.mark.parametrize(
    ("read", "text", "wrong"),
    [
        (zone, "Mars/Olympus", "'Mars/Olympus' is not known"),
        (parse_cron, "* 24 * * *", "hour '24' is not valid: numbers are 0-23"),
        (parse_rrule, "FREQ=DAILY;BYHOUR=24", "BYHOUR '24' is not a number of 0 to 23"),
        (parse_solar, "sunset 91 0", "latitude '91' is not a number of degrees from -90 to 90"),
        (parse_duration, "soon", "it is not a length of time"),
        (parse_duration, "5 parsecs", "'parsecs' is no unit of time"),
        (parse_duration, "2 years", "months and years have no fixed length, use cron"),
    ],
)
def test_a_mistake_is_told_with_what_would_be_right(
    read: Callable[[str], object], text: str, wrong: str
) -> None:
    with pytest.raises(InvalidTimetable, match=f"{re.escape(wrong)}.* for example "):
        read(text)
