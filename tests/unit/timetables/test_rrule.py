"""Recurrence rules: against dateutil's own, where clocks change, and what is refused."""

import re
from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from random import Random

import pytest
from dateutil import rrule as dateutil

from pgbeat.errors import InvalidTimetable
from pgbeat.timetables import RRule, cron, parse_rrule, rrule, zone
from pgbeat.timetables.rrule_parts import FREQUENCIES, WEEKDAYS
from tests.support.problems import raises
from tests.unit.timetables.test_timetables import OSLO, TICK, times, utc

ANCHOR = utc("2025-01-01 12:34:56")


def shown(text: str, after: str, n: int = 3, timezone: str = "UTC") -> list[str]:
    """The next times of a rule after a time in UTC, as its zone's clock shows them."""
    found = islice(times(RRule(text, ANCHOR, timezone), utc(after)), n)
    return [f"{moment.astimezone(zone(timezone)):%a %Y-%m-%d %H:%M:%S}" for moment in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9;BYMINUTE=0",
         ["Fri 2025-01-03 09:00:00", "Mon 2025-01-06 09:00:00", "Fri 2025-01-10 09:00:00"]),
        ("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17",
         ["Fri 2025-01-31 17:00:00", "Fri 2025-02-28 17:00:00", "Fri 2025-03-28 17:00:00"]),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;BYHOUR=9",
         ["Fri 2025-01-31 09:00:00", "Fri 2025-02-28 09:00:00", "Mon 2025-03-31 09:00:00"]),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=0",
         ["Tue 2028-02-29 00:00:00", "Sun 2032-02-29 00:00:00", "Fri 2036-02-29 00:00:00"]),
        ("FREQ=YEARLY;BYWEEKNO=1;BYDAY=MO;BYHOUR=0",
         ["Mon 2025-12-29 00:00:00", "Mon 2027-01-04 00:00:00", "Mon 2028-01-03 00:00:00"]),
        ("FREQ=HOURLY;INTERVAL=8;BYMINUTE=0",
         ["Wed 2025-01-01 20:00:00", "Thu 2025-01-02 04:00:00", "Thu 2025-01-02 12:00:00"]),
        ("FREQ=MINUTELY;INTERVAL=15;BYHOUR=9;BYDAY=TH",
         ["Thu 2025-01-02 09:04:00", "Thu 2025-01-02 09:19:00", "Thu 2025-01-02 09:34:00"]),
        ("FREQ=DAILY;INTERVAL=10",
         ["Wed 2025-01-01 12:34:56", "Sat 2025-01-11 12:34:56", "Tue 2025-01-21 12:34:56"]),
        ("FREQ=MONTHLY;BYDAY=1MO,TU;BYHOUR=0",
         ["Mon 2025-01-06 00:00:00", "Tue 2025-01-07 00:00:00", "Tue 2025-01-14 00:00:00"]),
        ("DTSTART:20250103T083000\nRRULE:FREQ=DAILY",
         ["Fri 2025-01-03 08:30:00", "Sat 2025-01-04 08:30:00", "Sun 2025-01-05 08:30:00"]),
        ("freq=daily;dtstart=20250103;byhour=5;",
         ["Fri 2025-01-03 05:00:00", "Sat 2025-01-04 05:00:00", "Sun 2025-01-05 05:00:00"]),
    ],
)  # fmt: skip
def test_rules(text: str, expected: list[str]) -> None:
    assert shown(text, "2025-01-01 12:00") == expected


def test_positions_of_a_week_are_of_the_whole_week() -> None:
    """Wherever in it the rule starts."""
    text = "DTSTART=20250101;FREQ=WEEKLY;BYDAY=MO,TU,TH,FR;BYSETPOS=2,-1"
    assert shown(text, "2024-12-25 00:00", 4) == [
        "Fri 2025-01-03 00:00:00",
        "Tue 2025-01-07 00:00:00",
        "Fri 2025-01-10 00:00:00",
        "Tue 2025-01-14 00:00:00",
    ]


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("FREQ=DAILY", "12:34:56"),
        ("FREQ=DAILY;BYHOUR=9", "09:00:00"),
        ("FREQ=DAILY;BYHOUR=9;BYMINUTE=30", "09:30:00"),
        ("FREQ=DAILY;BYMINUTE=30", "12:30:00"),
        ("FREQ=DAILY;BYSECOND=1", "12:34:01"),
        ("FREQ=HOURLY", "13:34:56"),
        ("FREQ=HOURLY;BYMINUTE=30", "13:30:00"),
        ("FREQ=MINUTELY", "12:35:56"),
        ("DTSTART=20250101T123456;FREQ=DAILY;BYHOUR=9", "09:34:56"),
    ],
)
def test_an_anchor_gives_a_rule_its_time_of_day_unless_it_has_its_own(
    text: str, clock: str
) -> None:
    assert shown(text, "2025-01-01 12:34:57", 1)[0].endswith(clock)


def test_a_start_in_utc_is_wall_time_of_the_zone_from_then_on() -> None:
    assert shown("DTSTART:20250301T080000Z FREQ=DAILY", "2025-03-29 00:00", 3, OSLO) == [
        "Sat 2025-03-29 09:00:00",
        "Sun 2025-03-30 09:00:00",
        "Mon 2025-03-31 09:00:00",
    ]


def test_nothing_is_due_before_the_start() -> None:
    rule = RRule("FREQ=DAILY;BYHOUR=9", ANCHOR)
    assert rule.next_after(utc("2000-01-01 00:00")) == utc("2025-01-02 09:00")
    assert rule.previous(utc("2025-01-02 09:00")) is None
    assert rule.count(utc("2000-01-01 00:00"), utc("2025-01-03 09:00")) == 2


@pytest.mark.parametrize(
    ("until", "last"),
    [
        ("20250105T090000", "2025-01-05 08:00"),
        ("20250105T085959", "2025-01-04 08:00"),
        ("20250105T080000Z", "2025-01-05 08:00"),
        ("20250105T075959Z", "2025-01-04 08:00"),
        ("20250105", "2025-01-05 08:00"),
    ],
)
def test_until_belongs_to_the_rule(until: str, last: str) -> None:
    rule = RRule(f"FREQ=DAILY;BYHOUR=9;UNTIL={until}", ANCHOR, OSLO)
    *_, final = times(rule, ANCHOR)
    assert final == utc(last) == rule.previous(utc("2030-01-01 00:00"))
    assert rule.next_after(final) is None
    assert rule.count(final, utc("2030-01-01 00:00")) == 0


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=DAILY;COUNT=5",
        "FREQ=SECONDLY;COUNT=100000",
        "FREQ=MONTHLY;BYDAY=1MO,3WE;BYHOUR=2,9;COUNT=77",
        "FREQ=YEARLY;INTERVAL=3;COUNT=4",
        "FREQ=MINUTELY;INTERVAL=7;BYHOUR=2,3;COUNT=1000",
    ],
)
def test_a_rule_with_a_count_ends_with_it(text: str) -> None:
    rule = RRule(text, ANCHOR, OSLO)
    number = parse_rrule(text).count
    far = utc("2500-01-01 00:00")
    final = rule.previous(far)
    assert final
    assert rule.count(ANCHOR - TICK, far) == rule.count(ANCHOR - TICK, final) == number
    assert rule.next_after(final) is None
    assert rule.next_after(final - TICK) == final
    start = rule.next_after(ANCHOR - TICK)
    assert start and start - ANCHOR < timedelta(days=40)


def test_the_count_is_of_wall_times_so_that_a_gap_does_not_make_up_for_them() -> None:
    rule = RRule("FREQ=HOURLY;BYMINUTE=0;COUNT=26", utc("2025-03-29 11:00"), OSLO)
    assert rule.previous(utc("2030-01-01 00:00")) == utc("2025-03-30 11:00")


def test_a_rule_of_never_has_no_time() -> None:
    for text in (
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=HOURLY;INTERVAL=2;BYHOUR=9",
        "FREQ=DAILY;UNTIL=20200101",
        "FREQ=MONTHLY;BYMONTHDAY=15;BYSETPOS=2",
    ):
        rule = RRule(text, ANCHOR)
        assert rule.next_after(ANCHOR) is None, text
        assert rule.previous(utc("2400-01-01 00:00")) is None, text
        assert rule.count(ANCHOR, utc("2100-01-01 00:00")) == 0, text


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("FREQ=DAILY;BYHOUR=2;BYMINUTE=30", "30 2 * * *"),
        ("FREQ=DAILY;BYHOUR=2,3;BYMINUTE=0,30", "0,30 2,3 * * *"),
        ("FREQ=HOURLY;BYHOUR=2;BYMINUTE=30", "30 2 * * *"),
        ("FREQ=HOURLY;BYMINUTE=30", "30 * * * *"),
        ("FREQ=MINUTELY;BYSECOND=0", "* * * * *"),
        ("FREQ=MINUTELY;BYHOUR=2;BYSECOND=0", "* 2 * * *"),
        ("DTSTART:20250101 FREQ=MINUTELY;INTERVAL=15", "*/15 * * * *"),
        ("DTSTART:20250101 FREQ=HOURLY;INTERVAL=2", "0 */2 * * *"),
        ("FREQ=SECONDLY;BYMINUTE=30;BYSECOND=0,20", "30 * * * * 0,20"),
        ("FREQ=WEEKLY;BYDAY=SU,MO;BYHOUR=2;BYMINUTE=30", "30 2 * * sun,mon"),
        ("FREQ=MONTHLY;BYDAY=-1SU;BYHOUR=2", "0 2 * * L7"),
        ("FREQ=MONTHLY;BYMONTHDAY=26,30;BYDAY=SU;BYHOUR=2", "0 2 1-31 * *"),
    ],
)
@pytest.mark.parametrize("day", ["2025-03-29 12:00", "2025-10-25 12:00"])
def test_a_rule_does_what_cron_does(text: str, expression: str, day: str) -> None:
    rule, same = RRule(text, ANCHOR, OSLO), cron(expression, OSLO)
    start, end = utc(day), utc(day) + timedelta(hours=20)
    found = [moment for moment in islice(times(rule, start), 3000) if moment <= end]
    expected = [moment for moment in islice(times(same, start), 3000) if moment <= end]
    assert found == expected
    assert rule.count(start, end) == len(expected)
    assert rule.previous(end) == same.previous(end)


def numbers(random: Random, low: int, high: int, most: int = 4) -> str:
    return ",".join(str(random.randint(low, high)) for _ in range(random.randint(1, most)))


def signed(random: Random, high: int, most: int = 4) -> str:
    return ",".join(
        str(random.choice([1, -1]) * random.randint(1, high))
        for _ in range(random.randint(1, most))
    )


def days(random: Random, numbered: int) -> str:
    names = random.sample(["MO", "TU", "WE", "TH", "FR", "SA", "SU"], random.randint(1, 4))
    if numbered and random.random() < 0.5:
        return ",".join(f"{random.choice([-1, 1]) * random.randint(1, numbered)}{n}" for n in names)
    return ",".join(names)


def random_rule(random: Random) -> tuple[str, timedelta]:
    """A rule, and after how long it ends: dateutil walks there step by step."""
    frequency = random.choice(FREQUENCIES)
    is_long, is_short = (
        frequency in ("YEARLY", "MONTHLY"),
        frequency.endswith(("RLY", "TELY", "NDLY")),
    )
    parts = {"FREQ": frequency}
    if random.random() < 0.5:
        parts["INTERVAL"] = str(random.choice([1, 2, 3, 4, 5, 7, 12, 15, 36, 90]))
    if random.random() < 0.3:
        parts["WKST"] = random.choice(["MO", "SU", "WE"])
    if random.random() < 0.3:
        parts["BYMONTH"] = numbers(random, 1, 12, 6)
    if frequency == "YEARLY" and random.random() < 0.2:
        parts["BYWEEKNO"] = signed(random, 53)
    if frequency not in ("DAILY", "WEEKLY", "MONTHLY") and random.random() < 0.15:
        parts["BYYEARDAY"] = signed(random, 366, 30)
    if frequency != "WEEKLY" and random.random() < 0.3:
        parts["BYMONTHDAY"] = signed(random, 31, 10)
    if random.random() < 0.4:
        has_number = is_long and "BYWEEKNO" not in parts
        parts["BYDAY"] = days(random, 5 if has_number else 0)
    if random.random() < 0.3:
        parts["BYHOUR"] = numbers(random, 0, 23, 8)
    if random.random() < 0.3:
        parts["BYMINUTE"] = numbers(random, 0, 59, 8)
    if random.random() < 0.2 or frequency == "SECONDLY":
        parts["BYSECOND"] = numbers(random, 0, 59)
    if not is_short and len(set(parts) - {"FREQ", "INTERVAL", "WKST"}) and random.random() < 0.3:
        parts["BYSETPOS"] = signed(random, 5)
    length = {
        "YEARLY": 12_000,
        "MONTHLY": 3000,
        "WEEKLY": 900,
        "DAILY": 700,
        "HOURLY": 60,
        "MINUTELY": 3,
    }
    return ";".join(f"{k}={v}" for k, v in parts.items()), timedelta(days=length.get(frequency, 1))


def in_dateutil(text: str, start: datetime, until: datetime) -> list[datetime]:
    """The times of a rule, 2000 at most, by dateutil alone."""
    with pytest.MonkeyPatch.context() as patched:
        # It looks at UNTIL only where it finds a time, and where there is none walks on to here.
        patched.setattr("datetime.MAXYEAR", until.year)
        try:
            rule = dateutil.rrulestr(f"{text};UNTIL={until:%Y%m%dT%H%M%S}", dtstart=start)
            return [moment.replace(tzinfo=UTC) for moment in islice(rule, 2000)]
        except ValueError:  # an interval that never meets a list
            return []


def compare(random: Random) -> None:
    """A random rule, from a random start, in both."""
    text, length = random_rule(random)
    start = datetime(2020, 1, 1) + random.randint(0, 6 * 365 * 86_400) * timedelta(seconds=1)  # noqa: DTZ001
    if "WEEKLY" in text and "BYSETPOS" in text:
        # dateutil counts the positions of the first week from the start, not from the week's.
        first = re.search("WKST=(..)", text)
        weekday = WEEKDAYS.index(first[1]) if first else 0
        start -= timedelta(days=(start.weekday() - weekday) % 7)
    until = start + length
    expected = in_dateutil(text, start, until)
    written = f"DTSTART={start:%Y%m%dT%H%M%S};{text};UNTIL={until:%Y%m%dT%H%M%S}"
    rule = RRule(written, ANCHOR)
    begin = start.replace(tzinfo=UTC)
    asked = [begin - TICK, *expected[:20]]
    asked += [begin + random.random() * length for _ in range(6)]
    for moment in asked:
        is_whole = len(expected) < 2000
        index = bisect_right(expected, moment)
        if index < len(expected):
            assert rule.next_after(moment) == expected[index], (written, moment)
        elif is_whole:
            assert rule.next_after(moment) is None, (written, moment)
        index = bisect_left(expected, moment)
        if is_whole or moment <= expected[-1]:
            before = expected[index - 1] if index else None
            assert rule.previous(moment) == before, (written, moment)
            count = bisect_right(expected, moment)
            assert rule.count(begin - TICK, moment) == count, (written, moment)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_any_rule_is_due_when_dateutil_has_it(seed: int) -> None:
    random = Random(seed)  # noqa: S311
    for _ in range(200):
        compare(random)


def test_a_rule_of_long_ago_is_not_walked_through() -> None:
    """A hundred years of seconds."""
    start, now = utc("1925-01-01 00:00"), utc("2025-06-01 00:00:00")
    rule = RRule("FREQ=SECONDLY", start)
    assert rule.next_after(now) == now + timedelta(seconds=1)
    assert rule.count(start - TICK, now) == (now - start) // timedelta(seconds=1) + 1
    rule = RRule("FREQ=SECONDLY;INTERVAL=7;BYDAY=MO;COUNT=100000000", start)
    found = list(islice(times(rule, now), 100))
    assert all((moment - start).total_seconds() % 7 == 0 for moment in found)
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(seconds=7)}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("text", "is_due"),
    [
        ("FREQ=SECONDLY;INTERVAL=999999998;BYSECOND=1", False),
        ("FREQ=MINUTELY;INTERVAL=100001;BYYEARDAY=1;BYHOUR=5", False),
        ("FREQ=SECONDLY;INTERVAL=67;BYDAY=MO,TU,WE,TH,FR,SA;BYHOUR=0,23;COUNT=999999999", True),
    ],
)
def test_a_rule_that_is_seldom_due_or_never_ends_is_not_searched_for_long(
    text: str, is_due: bool
) -> None:
    """Beat computes its times between launches."""
    rule = RRule(text, utc("2025-06-01 00:00"))
    due_at = rule.next_after(utc("2025-06-02 00:00"))
    assert (due_at is not None) == is_due
    assert due_at is None or rule.previous(due_at + TICK) == due_at


def test_rules_of_one_text_and_start_are_one() -> None:
    assert rrule("FREQ=DAILY", ANCHOR, OSLO) is rrule("FREQ=DAILY", ANCHOR, OSLO)


BAD = [
    "",
    "every day",
    "FREQ=DAILY;;COUNT=3",
    "FREQ=DAILY EXDATE:20250101",
    "COUNT=3",
    "FREQ=FORTNIGHTLY",
    "FREQ=DAILY;FREQ=DAILY",
    "FREQ=DAILY;BYEASTER=0",
    "DTSTART;TZID=Europe/Oslo:20250101T090000 RRULE:FREQ=DAILY",
    "FREQ=DAILY;INTERVAL=0",
    "FREQ=DAILY;COUNT=-1",
    "FREQ=DAILY;COUNT=3;UNTIL=20300101",
    "FREQ=DAILY;UNTIL=20301301",
    "FREQ=DAILY;UNTIL=99991231T240000",
    "FREQ=DAILY;DTSTART=TOMORROW",
    "FREQ=DAILY;BYHOUR=24",
    "FREQ=DAILY;BYHOUR=-1",
    "FREQ=DAILY;BYSECOND=60",
    "FREQ=MONTHLY;BYMONTHDAY=0",
    "FREQ=MONTHLY;BYMONTHDAY=1,32",
    "FREQ=WEEKLY;BYDAY=MON",
    "FREQ=MONTHLY;BYDAY=0MO",
    "FREQ=WEEKLY;WKST=1",
    "FREQ=WEEKLY;BYDAY=1MO",
    "FREQ=YEARLY;BYWEEKNO=2;BYDAY=1MO",
    "FREQ=WEEKLY;BYMONTHDAY=1",
    "FREQ=DAILY;BYYEARDAY=1",
    "FREQ=MONTHLY;BYWEEKNO=1",
    "FREQ=HOURLY;BYMINUTE=1,2;BYSETPOS=1",
    "FREQ=MONTHLY;BYSETPOS=1",
]


@pytest.mark.parametrize("text", BAD)
def test_a_bad_rule_is_refused(text: str) -> None:
    for read in (parse_rrule, lambda rule: RRule(rule, ANCHOR)):
        with raises(InvalidTimetable, ("rrule", "malformed")):
            read(text)
