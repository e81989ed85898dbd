"""Timetables where clocks change: each rule, and cron against one that runs minute by minute."""

from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from random import Random
from zoneinfo import ZoneInfo, available_timezones

import pytest

from pgbeat.timetables import cron, zone
from pgbeat.timetables.cron_fields import _second
from pgbeat.timetables.zones import changes
from tests.unit.timetables.test_timetables import OSLO, TICK, shown, times, utc

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)

# -- the rules, one by one: Oslo's clocks go forward at 02:00 on 30 March 2025, and back at 03:00
# -- on 26 October -----------------------------------------------------------------------------


LORD_HOWE, APIA, SANTIAGO = "Australia/Lord_Howe", "Pacific/Apia", "America/Santiago"
#: Of each rule: expressions, a zone, a time in UTC, and the next times by that zone's clock.
SHOWN = {
    "several fixed times in the gap come once, together": [
        ("0,15,30 2,3 * * *", OSLO, "2025-03-29 23:00",
         "30 03:00+0200, 30 03:15+0200, 30 03:30+0200"),
    ],
    "a fixed time in the repeated hour comes the first time": [
        ("30 2 * * *", OSLO, "2025-10-25 12:00", "26 02:30+0200, 27 02:30+0100"),
    ],
    "a repeating time has nothing in the gap": [
        ("*/30 2 * * *", OSLO, "2025-03-29 00:00", "29 02:00+0100, 29 02:30+0100, 31 02:00+0200"),
        ("30 */2 * * *", OSLO, "2025-03-29 23:00", "30 00:30+0100, 30 04:30+0200"),
    ],
    "half an hour is left out and repeated": [
        ("15 2 * * *", LORD_HOWE, "2025-10-04 12:00", "05 02:30+1100, 06 02:15+1100"),
        ("45 1 * * *", LORD_HOWE, "2025-04-05 12:00", "06 01:45+1100, 07 01:45+1030"),
        ("*/15 1-2 * * *", LORD_HOWE, "2025-04-05 14:29",
         "06 01:30+1100, 06 01:45+1100, 06 01:30+1030, 06 01:45+1030, 06 02:00+1030"),
    ],
    "a day that is left out, 30 December 2011, comes at its end": [
        ("30 9 * * *", APIA, "2011-12-29 12:00",
         "29 09:30-1000, 31 00:00+1400, 31 09:30+1400, 01 09:30+1400"),
        ("0 0 * * *", APIA, "2011-12-29 12:00", "31 00:00+1400, 01 00:00+1400"),
        ("0 9 30 12 *", APIA, "2011-12-01 12:00", "31 00:00+1400"),
        ("0 */12 * * *", APIA, "2011-12-29 21:00", "29 12:00-1000, 31 00:00+1400, 31 12:00+1400"),
    ],
    "a midnight that is left out comes at one": [
        ("0 0 * * *", SANTIAGO, "2025-09-06 12:00", "07 01:00-0300"),
        ("@daily", SANTIAGO, "2025-09-06 12:00", "07 01:00-0300"),
        ("0 0 * * *", "Asia/Beirut", "2025-03-29 12:00", "30 01:00+0300"),
        ("@daily", "Asia/Beirut", "2025-03-29 12:00", "30 01:00+0300"),
    ],
    "a midnight that comes twice is the first": [
        ("30 23 * * *", SANTIAGO, "2025-04-05 12:00", "05 23:30-0300, 06 23:30-0400"),
        ("0 0 * * *", SANTIAGO, "2025-04-05 12:00", "06 00:00-0400"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("rule", SHOWN)
def test_the_next_times_are_by_the_rule(rule: str) -> None:
    for expression, timezone, after, expected in SHOWN[rule]:
        assert shown(cron(expression, timezone), timezone, after, expected) == expected, expression


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 2 * * *", "59 2 30 3 *"])
def test_a_fixed_time_in_the_gap_comes_once_right_after_it(expression: str) -> None:
    timetable = cron(expression, OSLO)
    assert timetable.next_after(utc("2025-03-29 12:00")) == utc("2025-03-30 01:00")
    following = timetable.next_after(utc("2025-03-30 01:00"))
    assert following and following >= utc("2025-03-31 00:00")


def test_what_comes_once_is_counted_once() -> None:
    in_gap = cron("30 2 * * * 0-59", OSLO)
    assert in_gap.count(utc("2025-03-29 12:00"), utc("2025-03-30 12:00")) == 1
    daily = cron("30 2 * * *", OSLO)
    assert daily.next_after(utc("2025-10-26 01:15")) == utc("2025-10-27 01:30")
    assert daily.previous(utc("2025-10-26 01:45")) == utc("2025-10-26 00:30")
    assert daily.count(utc("2025-10-25 12:00"), utc("2025-10-26 12:00")) == 1


@pytest.mark.parametrize(
    ("expression", "step"),
    [("*/15 * * * *", 15), ("0 * * * *", 60), ("*/30 0-5 * * *", 30), ("@hourly", 60)],
)
def test_a_repeating_time_goes_by_elapsed_time_in_both_hours(expression: str, step: int) -> None:
    found = list(islice(times(cron(expression, OSLO), utc("2025-10-25 23:59")), 4))
    assert found[0] == utc("2025-10-26 00:00")
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=step)}


def test_what_repeats_has_a_star_at_the_head_of_minute_or_hour() -> None:
    """`0 0-23` and `0 *` are the same hours; only the second of them repeats, as in Debian's."""
    night = utc("2025-10-25 22:30"), utc("2025-10-26 03:30")
    assert cron("0 * * * *", OSLO).count(*night) == 5
    assert cron("0 0-23 * * *", OSLO).count(*night) == 4
    assert cron("0-59/30 2 * * *", OSLO).count(*night) == 2
    assert cron("*/30 2 * * *", OSLO).count(*night) == 4
    assert cron("0 2 * * * 0-59", OSLO).count(*night) == 60  # each second, and no star before it


def test_seconds_come_in_both_hours_and_not_in_the_gap() -> None:
    seconds = cron("* * * * * *", OSLO)
    assert seconds.count(utc("2025-10-25 22:00"), utc("2025-10-26 23:00")) == 25 * 3600
    assert seconds.count(utc("2025-03-29 23:00"), utc("2025-03-30 22:00")) == 23 * 3600
    assert seconds.next_after(utc("2025-03-30 00:59:59")) == utc("2025-03-30 01:00")


@pytest.mark.parametrize(
    ("text", "in_spring", "in_autumn"),
    [
        ("30 2 * * *\n0 * * * *", 24, 25),
        ("30 2 * * *\n*/30 4 * * *", 3, 3),
        ("15,30 2 * * *\n*/30 * * * *", 48, 49),
    ],
)
def test_fixed_and_repeating_times_are_counted_together(
    text: str, in_spring: int, in_autumn: int
) -> None:
    for day, expected in (("2025-03-29 12:00", in_spring), ("2025-10-25 12:00", in_autumn)):
        assert cron(text, OSLO).count(utc(day), utc(day) + timedelta(days=1)) == expected


@pytest.mark.parametrize("timezone", ["America/New_York", "Atlantic/Azores", "UTC"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 0 * * *", "30 1 * * *", "30 23 * * *"])
def test_a_daily_time_comes_once_on_every_day_of_a_year(expression: str, timezone: str) -> None:
    start = datetime(2025, 1, 1, tzinfo=zone(timezone)) - TICK
    days = [
        moment.astimezone(zone(timezone)).date()
        for moment in islice(times(cron(expression, timezone), start), 365)
    ]
    assert len(set(days)) == 365
    assert (days[0].isoformat(), days[-1].isoformat()) == ("2025-01-01", "2025-12-31")


# -- a cron of the tests' own ----------------------------------------------------------------------
#
# It asks of each number whether it is meant, never which numbers are, and runs through time: it
# shares no idea with what it is to check.


def is_meant(number: int, item: str, low: int, high: int, top: int = 0) -> bool:
    """Whether one item of a list means that number; `top` is what `5/2` goes up to."""
    span, _, step = item.partition("/")
    start, _, end = span.partition("-")
    size = high - low + 1
    if span == "*":
        start, end = str(low), str(high)
    elif not end:
        end = str(top or high) if step else start
    distance, length = (number - int(start)) % size, int(end) - int(start)
    return distance <= (length if length > 0 else length % size) and distance % int(step or 1) == 0


def means(text: str, low: int, high: int) -> frozenset[int]:
    """The numbers of a field that are meant."""
    items = text.split(",")
    return frozenset(
        number
        for number in range(low, high + 1)
        if any(is_meant(number, item, low, high) for item in items)
    )


def is_day(day: date, fields: list[str]) -> bool:
    """Whether day, month and weekday of an expression mean that day."""
    last = monthrange(day.year, day.month)[1]
    by_day = any(
        day.day == last if item == "L" else is_meant(day.day, item, 1, 31)
        for item in fields[2].split(",")
    )
    by_weekday = False
    for item in fields[4].split(","):
        name, _, nth = item.removeprefix("L").partition("#")
        if item.startswith("L"):
            ok = day.isoweekday() % 7 == int(name) and day.day + 7 > last
        elif nth:
            ok = day.isoweekday() % 7 == int(name) and (day.day - 1) // 7 + 1 == int(nth)
        else:
            ok = is_meant(day.isoweekday() % 7, item, 0, 6, top=7)
        by_weekday = by_weekday or ok
    if not is_meant_by_any(day.month, fields[3]):
        return False
    if fields[2].startswith("*") or fields[4].startswith("*"):
        return by_day and by_weekday
    return by_day or by_weekday


def is_meant_by_any(month: int, text: str) -> bool:
    return any(is_meant(month, item, 1, 12) for item in text.split(","))


@dataclass
class Stretch:
    """A stretch of time as a zone's clock shows it, step by step."""

    timezone: str
    moments: list[datetime]
    walls: list[datetime]

    @classmethod
    def of(cls, timezone: str, start: datetime, hours: float, step: timedelta) -> "Stretch":
        where = ZoneInfo(timezone)
        moments = [start + n * step for n in range(int(timedelta(hours=hours) / step))]
        walls = [moment.astimezone(where).replace(tzinfo=None) for moment in moments]
        return cls(timezone, moments, walls)

    def fired(self, expression: str) -> list[datetime]:
        """When cron starts the job, in the stretch."""
        fields = expression.split()
        minutes, hours = means(fields[0], 0, 59), means(fields[1], 0, 23)
        seconds = means(fields[5], 0, 59) if len(fields) == 6 else frozenset({0})
        days: dict[date, bool] = {}

        def is_due(wall: datetime) -> bool:
            if wall.second not in seconds or wall.microsecond:
                return False
            day = wall.date()
            if day not in days:
                days[day] = is_day(day, fields)
            return days[day]

        if fields[0].startswith("*") or fields[1].startswith("*"):
            return [
                moment
                for moment, wall in zip(self.moments, self.walls, strict=True)
                if wall.minute in minutes and wall.hour in hours and is_due(wall)
            ]
        return list(
            self._caught_up(lambda w: w.minute in minutes and w.hour in hours and is_due(w))
        )

    def _caught_up(self, is_due: Callable[[datetime], bool]) -> Iterator[datetime]:
        """What Debian's cron does with fixed times: it looks at every wall time just once.

        It catches up on those that the clock jumped over, and repeats none when it goes back.
        """
        step = self.moments[1] - self.moments[0]
        reached = self.walls[0] - step
        for moment, wall in zip(self.moments, self.walls, strict=True):
            missed = []
            while reached < wall:
                reached = wall if wall - reached < step else reached + step
                missed.append(reached)
            if any(map(is_due, missed)):
                yield moment


def item(random: Random, low: int, high: int) -> str:
    first, last = random.randint(low, high), random.randint(low, high)
    step = random.choice([2, 3, 5, 7, 10, 15])
    return random.choice(
        [f"{first}", f"{first}", f"{first}-{last}", f"{first}-{last}/{step}", f"{first}/{step}"]
    )


def field(random: Random, low: int, high: int, stars: float, most: int = 3) -> str:
    if random.random() < stars:
        return random.choice(["*", "*", f"*/{random.choice([2, 3, 4, 5, 7, 15, 30, 40])}"])
    return ",".join(item(random, low, high) for _ in range(random.randint(1, most)))


def expression(random: Random, with_seconds: bool = False) -> str:
    """A random expression, most of whose hours are those in which clocks change."""
    hours = random.choice([(0, 4), (0, 4), (0, 23), (22, 23)])
    day = random.choice(["*"] * 4 + [field(random, 1, 31, 0.4), "L", "L," + item(random, 1, 31)])
    weekday = random.choice(
        ["*"] * 4
        + [
            field(random, 0, 6, 0.3),
            f"{random.randint(0, 6)}#{random.randint(1, 5)}",
            f"L{random.randint(0, 6)},{random.randint(0, 6)}#{random.randint(1, 5)}",
        ]
    )
    fields = [
        field(random, 0, 59, 0.3),
        field(random, *hours, 0.3),
        day,
        random.choice(["*", "*", "*", field(random, 1, 12, 0.3)]),
        weekday,
    ]
    if with_seconds:
        fields.append(_second(field(random, 0, 59, 0.3)))
    return " ".join(fields)


def lines(random: Random, with_seconds: bool = False) -> str:
    """One to three random expressions."""
    number = random.choice([1, 1, 2, 3])
    return "\n".join(expression(random, with_seconds) for _ in range(number))


def check(stretch: Stretch, text: str, random: Random, questions: int = 12) -> None:
    """Asks the timetable at random moments, and around the changes, what cron did."""
    fired = sorted({moment for line in text.splitlines() for moment in stretch.fired(line)})
    timetable = cron(text, stretch.timezone)
    # The first hours tell cron what the clock has shown, and the last day is left to be found.
    first, last = stretch.moments[0] + timedelta(hours=3), stretch.moments[-1]
    step = stretch.moments[1] - stretch.moments[0]
    near = [change.at for change in changes(zone(stretch.timezone), first, last)]
    span = (last - first) / step
    asked = [first + random.randint(0, int(span)) * step for _ in range(questions)]
    asked += [moment + n * step for moment in near for n in (-61, -31, -1, 0, 1, 29, 30, 59, 60)]
    asked += random.sample(fired, min(len(fired), 6))
    asked = [moment for moment in asked if first <= moment <= last]
    about = f"{text} in {stretch.timezone}"
    for moment in asked:
        for now in (moment, moment + TICK, moment - TICK):
            following = timetable.next_after(now)
            index = bisect_right(fired, now)
            if index < len(fired):
                assert following == fired[index], f"{about} after {now}"
            else:
                assert following is None or following > last, f"{about} after {now}"
            before = timetable.previous(now)
            index = bisect_left(fired, now)
            if index and fired[index - 1] >= first:
                assert before == fired[index - 1], f"{about} before {now}"
            else:
                assert before is None or before < first, f"{about} before {now}"
    for _ in range(questions):
        after, until = sorted(random.sample(asked, 2))
        expected = bisect_right(fired, until) - bisect_right(fired, after)
        assert timetable.count(after, until) == expected, f"{about} in {after} to {until}"


#: Where clocks have been awkward: half an hour (Lord Howe), three quarters' zones (Chatham), two
#: hours (Troll), midnight (Santiago, Beirut, Azores), a month of Ramadan (Casablanca), a day left
#: out (Apia, Kwajalein), new rules (Caracas, Pyongyang, Kathmandu), the last hour of a day (Nuuk).
AWKWARD = [
    ("Europe/Oslo", "2025-03-29"),
    ("Europe/Oslo", "2025-10-25"),
    ("America/New_York", "2025-03-08"),
    ("America/New_York", "2025-11-01"),
    ("Australia/Lord_Howe", "2025-04-04"),
    ("Australia/Lord_Howe", "2025-10-04"),
    ("Pacific/Chatham", "2025-04-04"),
    ("Pacific/Chatham", "2025-09-26"),
    ("America/Santiago", "2025-04-05"),
    ("America/Santiago", "2025-09-06"),
    ("Asia/Beirut", "2025-03-29"),
    ("Asia/Beirut", "2025-10-25"),
    ("Atlantic/Azores", "2025-03-29"),
    ("Africa/Casablanca", "2025-02-22"),
    ("Africa/Casablanca", "2025-04-05"),
    ("Antarctica/Troll", "2025-03-29"),
    ("Antarctica/Troll", "2025-10-25"),
    ("America/Nuuk", "2025-03-29"),
    ("America/Nuuk", "2025-10-25"),
    ("Pacific/Apia", "2011-12-29"),
    ("Pacific/Kwajalein", "1993-08-20"),
    ("America/Caracas", "2007-12-08"),
    ("America/Caracas", "2016-04-30"),
    ("Asia/Pyongyang", "2015-08-14"),
    ("Asia/Kathmandu", "1985-12-31"),
    ("Europe/Lisbon", "1992-09-26"),
    ("Europe/Dublin", "1971-10-30"),
    ("UTC", "2024-02-28"),
]


@pytest.mark.parametrize(("timezone", "day"), AWKWARD)
def test_cron_does_what_a_cron_does_that_runs_minute_by_minute(timezone: str, day: str) -> None:
    random = Random(f"{timezone} {day}")  # noqa: S311
    stretch = Stretch.of(timezone, utc(day) - timedelta(hours=8), 64, MINUTE)
    for _ in range(7):
        check(stretch, lines(random), random)


@pytest.mark.parametrize(
    ("timezone", "hour"),
    [
        ("Europe/Oslo", "2025-03-29T21:00"),
        ("Europe/Oslo", "2025-10-25T21:00"),
        ("Australia/Lord_Howe", "2025-04-05T11:00"),
        ("America/Santiago", "2025-09-06T23:59:30"),
        ("Pacific/Apia", "2011-12-30T06:30"),
        # Their clocks were half a minute, and a few seconds, beside the others'.
        ("Africa/Monrovia", "1972-01-06T21:00"),
        ("Europe/Amsterdam", "1937-06-30T20:00"),
    ],
)
def test_with_seconds_cron_does_what_a_cron_does_that_runs_second_by_second(
    timezone: str, hour: str
) -> None:
    random = Random(f"{timezone} {hour}")  # noqa: S311
    stretch = Stretch.of(timezone, utc(hour), 6, SECOND)
    for _ in range(3):
        check(stretch, lines(random, with_seconds=True), random)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_cron_in_any_zone_and_year(seed: int) -> None:
    random = Random(seed)  # noqa: S311
    for _ in range(12):
        timezone = random.choice(sorted(available_timezones() - {"localtime", "Factory"}))
        day = datetime(random.randint(1900, 2060), 1, 1, tzinfo=UTC)
        changing = list(changes(zone(timezone), day, day + timedelta(days=2000)))
        is_even = True
        if changing:
            change = random.choice(changing)
            day = change.at.replace(minute=0, second=0)
            is_even = not (change.before % MINUTE or change.after % MINUTE)
        is_even = is_even and day.astimezone(zone(timezone)).second == 0
        step, hours = (MINUTE, 80) if is_even and random.random() < 0.7 else (SECOND, 9)
        stretch = Stretch.of(timezone, day - timedelta(hours=5), hours, step)
        for _ in range(8):
            check(stretch, lines(random, with_seconds=step == SECOND), random)
