"""Entries: what Celery's own schedules become, without a database."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import crontab, schedule, solar

from pgbeat.schedules import entries
from pgbeat.schedules.sync import CodeEntry
from pgbeat.timetables import cron

TASK = "tests.add"


@pytest.fixture(scope="module")
def plain() -> Celery:
    """An app that is never connected."""
    return Celery("tests", broker="memory://", set_as_current=False)


def made(app: Celery, timetable: Any, **fields: Any) -> CodeEntry:
    """What an entry of `beat_schedule` becomes."""
    return entries.code_entry(app, "s", {"task": TASK, "schedule": timetable, **fields})


FIELDS: dict[str, list[Any]] = {
    "minute": [
        "*", 0, 59, "7", "05", "0,30", "1, 2 ,3", "10-20", "50-10", "5-5", "10-20/3", "*/15", "*/7",
        "*/7,3", "*/100", "50-10/4", "1-59/2", "0-59", {0, 17, 45}, [59, 1], (3,), "*/1", "00-09",
    ],
    "hour": [
        "*", 0, 23, "8-18", "22-2", "*/3", "8-17/2", "9,12,15-17", "*/5,1", {6, 18}, "22-6/3",
        "9-9", "0-23", "00,12",
    ],
    "day_of_month": [
        "*", 1, 31, "29", "1-7", "1-7,15-21", "*/2", "*/10", "28-3", "2-30/7", {1, 15}, "1-31",
        "31-31",
    ],
    "month_of_year": [
        "*", 1, 12, "2", "jan", "jan,jul", "mar-may", "nov-feb", "*/3", "2-12/5", {3, 9}, "1-12",
        "feb-feb",
    ],
    "day_of_week": [
        "*", 0, 6, "sun", "Mon", "mon-fri", "1-5", "sat-mon", "5-1", "mon,wed,5", "*/2", "sunday",
        "tue-thursday", "1-5/2", "sat,sun", {0, 6}, "0-6", "fri-fri", "sat-wed/2",
    ],
}  # fmt: skip

SURROUNDINGS: list[dict[str, Any]] = [
    {"minute": "*", "hour": "*"},
    {"minute": "13", "hour": "*/5"},
    {"minute": "0,59", "hour": "0,23", "month_of_year": "2-8"},
]

MOMENTS = [
    datetime(2024, 2, 28, 23, 59, 59, tzinfo=UTC),
    datetime(2024, 12, 31, 23, 0, tzinfo=UTC),
    datetime(2025, 6, 14, 12, 30, 30, 500_000, tzinfo=UTC),
    datetime(2026, 2, 1, tzinfo=UTC),
    datetime(2027, 3, 31, 7, 45, 1, tzinfo=UTC),
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in FIELDS.items() for value in values]
)
def test_a_crontab_is_due_when_celery_says(plain: Celery, name: str, value: Any) -> None:
    """The next times of the row's expression are those of Celery's own class."""
    for surroundings in SURROUNDINGS:
        spec = {**surroundings, name: value}
        entry = made(plain, crontab(**spec))
        assert entry.cron is not None
        timetable = cron(entry.cron, entry.timezone or "")
        for moment in MOMENTS:
            asked = crontab(**spec, app=plain, nowfun=lambda moment=moment: moment)
            expected = moment + asked.remaining_estimate(moment)
            assert timetable.next_after(moment) == expected, (entry.cron, moment)


@pytest.mark.parametrize(
    ("spec", "written"),
    [
        ({}, "* * * * *"),
        ({"minute": "*/15"}, "*/15 * * * *"),
        ({"minute": 0, "hour": "8-18", "day_of_week": "Mon-Fri"}, "0 8-18 * * mon-fri"),
        ({"minute": 30, "hour": 4, "day_of_month": "1, 15"}, "30 4 1,15 * *"),
        ({"minute": {30, 0}, "hour": "5-5", "day_of_week": "sunday"}, "0,30 5-5 * * 0"),
        ({"minute": "0-59", "hour": "22-2/3"}, "* 22-2/3 * * *"),
    ],
)
def test_a_crontab_reads_as_it_was_written_where_cron_has_the_words(
    plain: Celery, spec: dict[str, Any], written: str
) -> None:
    assert made(plain, crontab(**spec)).cron == written


@pytest.mark.parametrize("zone", ["Europe/Oslo", "Asia/Kathmandu", "UTC"])
def test_a_crontab_is_in_the_apps_zone(zone: str) -> None:
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.timezone = zone
    entry = made(app, crontab(minute=0, hour=2))
    assert entry.timezone == zone
    moment = datetime(2025, 1, 10, 12, tzinfo=UTC)
    asked = crontab(minute=0, hour=2, app=app, nowfun=lambda: moment.astimezone(app.timezone))
    expected = moment + asked.remaining_estimate(moment.astimezone(app.timezone))
    assert cron(entry.cron or "", zone).next_after(moment) == expected


def test_an_interval_has_no_zone(plain: Celery) -> None:
    assert made(plain, 30).timezone is None


@pytest.mark.parametrize(
    ("timetable", "every"),
    [
        (30, timedelta(seconds=30)),
        (0.25, timedelta(milliseconds=250)),
        (timedelta(hours=2), timedelta(hours=2)),
        (schedule(90), timedelta(seconds=90)),
        (schedule(timedelta(days=36_500)), timedelta(days=36_500)),
    ],
)
def test_an_interval_goes_into_the_row(plain: Celery, timetable: Any, every: timedelta) -> None:
    entry = made(plain, timetable)
    assert (entry.every, entry.cron) == (every, None)


class Fridays(schedule):
    """A timetable of somebody's own."""


class Nightly(crontab):
    """A crontab of somebody's own."""


def clock() -> datetime:
    return datetime(2025, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "timetable",
    [
        crontab(day_of_month="13", day_of_week="fri"),
        crontab(nowfun=clock),
        Nightly(minute=0, hour=2),
        schedule(30, relative=True),
        schedule(30, nowfun=clock),
        schedule(timedelta(0)),
        schedule(timedelta(days=36_501)),
        Fridays(30),
        solar("sunset", 59.9, 10.7),
    ],
)
def test_what_a_row_can_not_say_stays_in_the_code(plain: Celery, timetable: Any) -> None:
    entry = made(plain, timetable)
    assert (entry.cron, entry.every, entry.timezone) == (None, None, None)
    assert (entry.task, entry.args) == (TASK, [])


def test_a_relative_entry_stays_in_the_code(plain: Celery) -> None:
    assert made(plain, 30, relative=True).every is None


def test_a_zone_without_a_name_stays_in_the_code() -> None:
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.timezone = timezone(timedelta(hours=5))
    assert made(app, crontab(minute=0)).cron is None


def test_a_celery_timetable_is_asked_with_the_databases_clock(plain: Celery) -> None:
    friday = crontab(minute=0, hour=0, day_of_month="13", day_of_week="fri")
    timetable = entries.CodeTimetable(plain, friday)
    now = datetime(2025, 6, 13, tzinfo=UTC)
    later = datetime(2026, 2, 13, tzinfo=UTC)
    assert timetable.due(now - timedelta(days=1), now) == (True, later)
    assert timetable.due(now, now + timedelta(days=1)) == (False, later)
    assert timetable.next_after(now) == later
    assert timetable.due(now, later) == (True, datetime(2026, 3, 13, tzinfo=UTC))


def test_the_sun_sets_when_celery_says(plain: Celery) -> None:
    timetable = entries.CodeTimetable(plain, solar("sunset", 59.9, 10.7))
    noon = datetime(2025, 6, 21, 12, 0, tzinfo=UTC)
    sunset = timetable.next_after(noon)
    assert sunset is not None
    assert (
        datetime(2025, 6, 21, 20, 30, tzinfo=UTC) < sunset < datetime(2025, 6, 21, 21, tzinfo=UTC)
    )
    assert not timetable.due(noon, sunset - timedelta(minutes=1))[0]
    assert timetable.due(noon, sunset + timedelta(seconds=1))[0]


def test_json_arguments_go_into_the_row(plain: Celery) -> None:
    entry = made(
        plain, 30, args=(1, (2, "x")), kwargs={"y": {"z": None}}, options={"queue": "slow"}
    )
    assert (entry.args, entry.kwargs) == ([1, [2, "x"]], {"y": {"z": None}})
    assert entry.options == {"queue": "slow"}


@pytest.mark.parametrize(
    "fields",
    [
        {"args": (BeatLazyFunc(clock),)},
        {"kwargs": {"x": BeatLazyFunc(clock)}},
        {"args": (clock(),)},
        {"args": ({1, 2},)},
        {"kwargs": {"x": {1: "a"}}},
        {"args": ("a\0b",)},
        {"options": {"eta": clock()}},
    ],
    ids=["lazy", "lazy keyword", "time", "set", "number as key", "NUL", "option"],
)
def test_other_arguments_stay_in_the_code_all_together(
    plain: Celery, fields: dict[str, Any]
) -> None:
    entry = made(plain, 30, **{"args": (), "kwargs": {"y": 1}, "options": {"queue": "q"}, **fields})
    assert (entry.args, entry.kwargs, entry.options) == (None, {}, {})
    assert entry.every == timedelta(seconds=30)


def test_a_schedule_entry_is_as_good_as_a_mapping(plain: Celery) -> None:
    entry = ScheduleEntry(
        name="s", task=TASK, schedule=schedule(30), args=(1,), kwargs={"y": 2}, app=plain
    )
    assert entries.code_entry(plain, "s", entry) == made(plain, 30, args=(1,), kwargs={"y": 2})


@pytest.mark.parametrize("name", ["s", "fetch('http://example.com/')", "x" * 200, "ünïcode"])
def test_a_name_that_a_row_can_have_is_kept(name: str) -> None:
    assert entries.row_name(name) == name


def test_celerys_own_entry_is_there_where_results_are_kept(plain: Celery) -> None:
    assert entries.built_in(plain)["celery.backend_cleanup"]["task"] == "celery.backend_cleanup"
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.result_expires = None
    assert entries.built_in(app) == {}


def test_the_app_wins_over_celerys_own_entry() -> None:
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.beat_schedule = {"celery.backend_cleanup": {"task": TASK, "schedule": 5}}
    [entry] = entries.from_app(app, entries.built_in(app))
    assert (entry.task, entry.every) == (TASK, timedelta(seconds=5))
