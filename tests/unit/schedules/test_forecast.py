"""The forecast: rows and a period in, due times and counts out; and what beat makes of it."""

import random
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from pgbeat.errors import InvalidTimetable
from pgbeat.schedules.calendars.model import Calendar
from pgbeat.schedules.forecast import Forecast, MinuteLoad, forecast, upcoming
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import Timetable

#: A Monday.
NOW = datetime(2030, 1, 7, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

DEFAULTS: dict[str, Any] = {
    "namespace": "default",
    "launcher": "GenericLauncher",
    "task": "tests.add",
    "args": [],
    "kwargs": {},
    "options": {},
    "after_outcome": "completed",
    "run_count": 0,
    "jitter": timedelta(0),
    "catch_up": "latest",
    "catch_up_limit": 100,
    "overlap": "allow",
    "enabled": True,
    "max_retries": 5,
    "retry_base": MINUTE,
    "retry_factor": 2.0,
    "retry_cap": HOUR,
    "retry_count": 0,
    "upstream_ended": 0,
    "source": "sql",
    "created_at": NOW - DAY,
    "updated_at": NOW - DAY,
    "version": 1,
}


def row(name: str = "s", **values: Any) -> Schedule:
    """A row that was never due: each hour, on the hour, unless told otherwise."""
    if not {"cron", "every", "once_at", "solar", "rrule", "after"} & set(values):
        values["every"] = HOUR
    uid = uuid.uuid5(uuid.NAMESPACE_DNS, name)
    known: dict[str, Any] = dict.fromkeys(Schedule._fields)
    known |= DEFAULTS | {"id": 1, "uid": uid, "name": name}
    return Schedule(**known | values)


def calendar(name: str, definition: dict[str, Any]) -> Calendar:
    return Calendar("default", name, definition, NOW, NOW)


WEEKENDS = {"weekends": calendar("weekends", {"weekdays": ["sat", "sun"]})}


def expect(
    *rows: Schedule,
    length: timedelta = DAY,
    known: dict[str, Calendar] | None = None,
    timetable: Callable[[Schedule], Timetable] | None = None,
    **options: Any,
) -> Forecast:
    """The forecast of rows, for so long."""

    def own(row: Schedule) -> Timetable:
        found = row.timetable(options.get("timezone", "UTC"))
        assert found is not None
        return found

    end = (options.get("start") or NOW) + length
    return forecast(rows, timetable or own, known or {}, NOW, end, **options)


def hours(found: Forecast) -> list[float]:
    """When it is decided, in hours from now."""
    return [(due.at - NOW) / HOUR for due in found.times]


def test_an_hour_that_begins_now_is_not_due_any_more() -> None:
    assert hours(expect(row(), length=4 * HOUR)) == [1, 2, 3]


def test_schedules_are_in_the_order_of_time() -> None:
    found = expect(row("a", every=2 * HOUR), row("b", cron="30 12-14 * * *"), length=3 * HOUR)
    assert [due.schedule.name for due in found.times] == ["b", "b", "a", "b"]
    assert hours(found) == [0.5, 1.5, 2, 2.5]


def test_only_the_first_are_listed_and_all_are_counted() -> None:
    found = expect(*(row(str(n)) for n in range(7)), limit=10)
    assert (len(found.times), found.launches, found.total) == (10, 7 * 23, 7 * 23)
    assert hours(found) == [1] * 7 + [2] * 3
    assert expect(row(), limit=0).times == []


def test_a_window() -> None:
    found = expect(row(starts_at=NOW + 90 * MINUTE, ends_at=NOW + 210 * MINUTE))
    assert hours(found) == [1.5, 2.5, 3.5]


def test_wall_times_are_those_of_the_zone() -> None:
    due = row(cron="0 14 * * *")
    assert hours(expect(due)) == [2]
    assert hours(expect(due, timezone="Europe/Oslo")) == [1]
    assert hours(expect(due._replace(timezone="Asia/Tokyo"))) == [17]


def test_jitter_puts_off_each_time_by_its_own_part() -> None:
    found = expect(row(jitter=30 * MINUTE))
    assert [due.due_at for due in found.times] == [NOW + n * HOUR for n in range(1, 24)]
    assert [due.at for due in found.times] == [
        due.schedule.jittered(due.due_at) for due in found.times
    ]
    assert len({due.at - due.due_at for due in found.times}) == 23


def test_what_jitter_puts_off_beyond_the_end_is_not_counted() -> None:
    late = row(jitter=HOUR)
    assert late.jittered(NOW + HOUR) > NOW + HOUR
    assert expect(late, length=HOUR + timedelta(microseconds=1)).total == 0


def test_a_jitter_longer_than_the_interval_keeps_the_order() -> None:
    times = expect(row(jitter=5 * HOUR), length=3 * DAY).times
    assert [due.at for due in times] == sorted(due.at for due in times)
    assert [due.due_at for due in times] == [NOW + n * HOUR for n in range(1, len(times) + 1)]


def test_once() -> None:
    assert hours(expect(row(once_at=NOW + HOUR))) == [1]
    assert hours(expect(row(once_at=NOW - HOUR))) == [0]
    assert hours(expect(row(once_at=NOW - HOUR, last_run=NOW - 2 * HOUR))) == [0]
    assert hours(expect(row(once_at=NOW - HOUR, last_run=NOW))) == []


def test_max_runs() -> None:
    """Of what may be launched it bounds nothing."""
    assert hours(expect(row(max_runs=5, run_count=2))) == [1, 2, 3]
    assert hours(expect(row(max_runs=2, run_count=2))) == []
    found = expect(row(max_runs=5, condition_sql="SELECT true"))
    assert (found.launches, found.uncertain) == (0, 23)


def test_min_interval() -> None:
    """Of what may be launched it counts from what was."""
    found = expect(row(min_interval=150 * MINUTE, last_success=NOW - HOUR), length=6 * HOUR)
    assert [due.skip is None for due in found.times] == [False, True, False, False, True]
    assert found.times[0].skip == "launched 2 h ago, and min_interval is 2 h 30 min"
    assert (found.launches, found.skipped) == (2, 3)
    found = expect(row(min_interval=150 * MINUTE, last_success=NOW, launcher="Own"))
    assert (found.skipped, found.uncertain) == (2, 21)


def test_a_calendar_skips_with_its_reason() -> None:
    found = expect(row(every=DAY, calendar="weekends"), known=WEEKENDS, length=7 * DAY)
    weekend = ["calendar 'weekends': Saturday", "calendar 'weekends': Sunday"]
    assert [due.skip for due in found.times] == [None] * 4 + weekend
    assert (found.launches, found.skipped) == (4, 2)


def test_a_calendar_looks_at_the_timetables_time() -> None:
    friday = row(cron="59 23 * * fri", jitter=4 * HOUR, calendar="weekends")
    [due] = expect(friday, known=WEEKENDS, length=6 * DAY).times
    assert due.skip is None
    assert due.at.weekday() == 5


def test_what_is_overdue_comes_now_by_its_catch_up() -> None:
    late: dict[str, Any] = {"next_run": NOW - 3 * HOUR}
    [due] = expect(row(**late), length=HOUR).times
    assert (due.at, due.due_at, due.note) == (
        NOW,
        NOW,
        "3 due times before it, since 2030-01-07 09:00:00 UTC, missed (catch_up latest)",
    )
    found = expect(row(catch_up="all", **late), length=2 * HOUR)
    assert hours(found) == [0, 0, 0, 0, 1]
    assert [(due.due_at - NOW) / HOUR for due in found.times] == [-3, -2, -1, 0, 1]
    found = expect(
        row(catch_up="none", starts_at=NOW - DAY + 10 * MINUTE, next_run=NOW - 170 * MINUTE),
        length=HOUR,
    )
    assert [due.skip for due in found.times] == ["50 min late, more than its grace of 1 min", None]


def test_a_retry_comes_first_and_the_timetable_goes_on_after_it() -> None:
    found = expect(row(retry_count=2, next_run=NOW + 90 * MINUTE), length=4 * HOUR)
    assert hours(found) == [1.5, 2, 3]


def test_what_was_put_off_has_its_nominal_time() -> None:
    found = expect(row(next_run=NOW + MINUTE, due_at=NOW, jitter=2 * MINUTE), length=10 * MINUTE)
    assert [(due.at, due.due_at) for due in found.times] == [(NOW + MINUTE, NOW)]


def test_a_next_run_set_by_hand() -> None:
    assert hours(expect(row(next_run=NOW + 5 * MINUTE), length=3 * HOUR)) == [1 / 12, 1, 2]


def test_out_of_service_and_after_another_there_is_no_time() -> None:
    found = expect(row(enabled=False), row(paused_at=NOW))
    assert (found.total, found.after, found.unknown) == (0, [], {})
    found = expect(row("b", after="a"), row("c", after="a", enabled=False))
    assert ([due.name for due in found.after], found.total) == (["b"], 0)


def test_what_comes_after_another_is_due_when_that_has_ended() -> None:
    [due] = expect(row(after="a", next_run=NOW - MINUTE, upstream_ended=3)).times
    assert (due.at, due.note) == (NOW, "2 more jobs of 'a' ended meanwhile")


def test_of_some_nothing_can_be_told() -> None:
    def timetable(row: Schedule) -> Timetable:
        if row.name == "b":
            raise InvalidTimetable("no such thing")
        found = row.timetable("UTC")
        assert found is not None
        return found

    rows = row("a"), row("b"), row("c", calendar="gone")
    found = expect(*rows, timetable=timetable)
    assert found.unknown.keys() == {"b", "c"}
    assert found.unknown["c"].startswith("there is no calendar 'gone'")
    assert {due.schedule.name for due in found.times} == {"a"}


@pytest.mark.parametrize("values", [{"jitter": MINUTE}, {"calendar": "weekends"}])
def test_what_is_due_too_often_to_be_followed(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    monkeypatch.setattr("pgbeat.schedules.forecast.MOST", 100)
    often, few = row("often", every=MINUTE, **values), row("few", **values)
    found = expect(often, few, row("plain", every=MINUTE), known=WEEKENDS, length=3 * HOUR)
    assert found.unknown == {"often": "it is due more than 100 times; give a shorter period"}
    assert Counter(due.schedule.name for due in found.times)["few"] in (2, 3)
    assert expect(row(every=MINUTE, max_runs=3, **values), known=WEEKENDS).launches == 3


def test_from_later_on() -> None:
    start = NOW + 5 * HOUR
    later: dict[str, Any] = {"start": start, "length": 3 * HOUR}
    assert hours(expect(row(), **later)) == [5, 6, 7]
    assert hours(expect(row(jitter=MINUTE), **later)) == pytest.approx([5, 6, 7], abs=1 / 60)
    assert hours(expect(row(next_run=NOW - HOUR), **later)) == [5, 6, 7]
    assert hours(expect(row(max_runs=6), **later)) == [5, 6]
    assert hours(expect(row(max_runs=4), **later)) == []
    assert hours(expect(row(once_at=NOW + HOUR), **later)) == []
    assert hours(expect(row(retry_count=1, next_run=start + MINUTE), **later)) == [5 + 1 / 60, 6, 7]


@pytest.mark.parametrize(
    "values",
    [
        {"min_interval": 150 * MINUTE},
        {"min_interval": 150 * MINUTE, "max_runs": 5},
        {"max_runs": 12, "calendar": "nights"},
    ],
)
def test_later_on_it_is_as_from_now(values: dict[str, Any]) -> None:
    """What is skipped before does not count as a launch."""
    start, due = NOW + 12 * HOUR, row(**values)
    wanted = [due for due in expect(due, known=NIGHTS).times if due.at >= start]
    later = expect(due, known=NIGHTS, start=start, length=12 * HOUR)
    assert later.times == wanted


def test_what_jitter_puts_off_into_the_period_counts() -> None:
    late = row(jitter=HOUR)
    start = late.jittered(NOW + 5 * HOUR)
    assert start > NOW + 5 * HOUR
    assert [due.due_at for due in expect(late, start=start, length=MINUTE).times] == [
        NOW + 5 * HOUR
    ]


def test_the_load_by_minute() -> None:
    found = expect(
        row("a", cron="*/30 * * * *"),
        row("b", cron="0 * * * *", condition_sql="SELECT true"),
        row("c", cron="0 13 * * *"),
        length=90 * MINUTE,
    )
    assert found.minutes == [MinuteLoad(NOW + 30 * MINUTE, 1, 0), MinuteLoad(NOW + HOUR, 2, 1)]
    assert found.peak == MinuteLoad(NOW + HOUR, 2, 1)
    found = expect(row(), length=MINUTE)
    assert (found.minutes, found.peak) == ([], None)


def mixed(seed: int, number: int = 30) -> list[Schedule]:
    """Rows of all kinds, each way of counting among them."""
    dice = random.Random(seed)  # noqa: S311
    made = []
    timetable: dict[str, Any]
    policy: dict[str, Any]
    for index in range(number):
        seconds = dice.choice([7, 30, 60, 61, 90, 900, 3600, 5400, 86_400, 2 * 86_400])
        timetable = dice.choice(
            [
                {"cron": "*/7 * * * *"},
                {"cron": f"{dice.randrange(60)} * * * *"},
                {"cron": "* * * * * */20"},
                {"every": timedelta(seconds=seconds)},
                {"rrule": "FREQ=HOURLY;INTERVAL=3;BYMINUTE=5,25"},
                {"once_at": NOW + 7 * HOUR},
            ]
        )
        timetable["starts_at"] = NOW - DAY + timedelta(seconds=dice.randrange(2 * 86_400))
        policy = dice.choice(
            [
                {},
                {},
                {"jitter": 10 * MINUTE},
                {"max_runs": 20},
                {"min_interval": 45 * MINUTE},
                {"calendar": "nights"},
                {"calendar": "nights", "jitter": 10 * MINUTE},
                {"ends_at": NOW + 20 * HOUR + DAY},
                {"next_run": NOW - 30 * MINUTE},
            ]
        )
        condition = dice.choice([None, "SELECT true"])
        made.append(row(f"s{index}", **timetable | policy, condition_sql=condition))
    return made


NIGHTS = {"nights": calendar("nights", {"windows": [{"from": "22:00", "to": "06:00"}]})}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("start", [None, NOW + timedelta(hours=3, seconds=20)])
def test_what_is_counted_is_what_is_listed(seed: int, start: datetime | None) -> None:
    found = expect(*mixed(seed), known=NIGHTS, start=start, length=timedelta(hours=11, seconds=31))
    assert found.total == len(found.times)
    assert found.skipped == sum(due.skip is not None for due in found.times)
    minutes = Counter(
        (due.at.replace(second=0, microsecond=0), due.schedule.condition_sql is None)
        for due in found.times
        if due.skip is None
    )
    wanted = {(load.minute, True): load.launches for load in found.minutes} | {
        (load.minute, False): load.uncertain for load in found.minutes
    }
    assert minutes == {key: number for key, number in wanted.items() if number}
    few = expect(
        *mixed(seed), known=NIGHTS, start=start, length=timedelta(hours=11, seconds=31), limit=25
    )
    assert [due[:3] for due in few.times] == [due[:3] for due in found.times[:25]]
    assert few.minutes == found.minutes


def test_upcoming_goes_on_without_end() -> None:
    due = upcoming(row(), row().timetable("UTC") or pytest.fail(), NOW)
    assert next(islice(due, 99_999, None)).at == NOW + 100_000 * HOUR
