"""Imports: what schedules of other beats become."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import celery
import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar

from pgbeat.schedules.importers import imported, plan, timetables
from pgbeat.schedules.importers.imported import Arrival, Inventory, Unimportable
from pgbeat.schedules.importers.plan import Action, Circumstances, ImportStep
from pgbeat.schedules.importers.timetables import Unmovable, When
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import Timetable

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

TASK = "tests.add"


def timetable(when: When, base: datetime | None = None) -> Timetable:
    """The timetable of a row with these columns, which ran at `base`."""
    columns = {**when.columns, "starts_at": when.starts_at(base)}
    blank: dict[str, Any] = dict.fromkeys(Schedule._fields)
    found = Schedule(**{**blank, "created_at": NOW, **columns}).timetable("UTC")
    assert found is not None
    return found


MOMENTS = [
    datetime(2024, 2, 28, 23, 59, 59, tzinfo=UTC),
    datetime(2025, 6, 13, 0, 0, tzinfo=UTC),
    datetime(2026, 3, 31, 7, 45, 1, tzinfo=UTC),
]


@pytest.mark.parametrize(
    "fields",
    [
        {"minute": "0", "hour": "0", "day_of_month": "13", "day_of_week": "fri"},
        {"minute": "*/20", "hour": "8-9", "day_of_month": "1-7", "day_of_week": "mon,wed"},
        {"minute": "5", "hour": "*", "day_of_month": "*/2", "day_of_week": "*/2"},
        {"hour": "4", "day_of_month": "29", "month_of_year": "feb", "day_of_week": "0"},
        {"minute": "59", "hour": "23", "day_of_month": "31", "day_of_week": "sat,sun"},
        {"minute": [0, 30], "hour": 6, "day_of_month": "15-21", "day_of_week": 4},
    ],
)
def test_a_crontab_of_day_and_weekday_wants_both(fields: dict[str, Any]) -> None:
    """Cron would want either, Celery wants both: it becomes a recurrence rule."""
    when = timetables.of_crontab("UTC", fields)
    assert when.columns["rrule"].startswith("FREQ=MONTHLY;")
    app = Celery("tests", broker="memory://", set_as_current=False)
    for moment in MOMENTS:
        ours: datetime | None = moment
        theirs = moment
        for _ in range(5):
            asked = crontab(**fields, app=app, nowfun=lambda theirs=theirs: theirs)
            theirs = theirs + asked.remaining_estimate(theirs)
            assert ours is not None
            ours = timetable(when, moment).next_after(ours)
            assert ours == theirs, when.columns


def test_other_crontabs_are_crons_in_their_zone() -> None:
    when = timetables.of_crontab("Europe/Oslo", {"minute": "*/15", "hour": " 8 - 18 "})
    assert when == When({"cron": "*/15 8-18 * * *", "timezone": "Europe/Oslo"})


@pytest.mark.parametrize(
    ("fields", "zone", "named"),
    [
        ({"minute": "61"}, "UTC", "61"),
        ({"minute": "*/0"}, "UTC", "step"),
        ({"minute": ""}, "UTC", "empty"),
        ({"second": "1"}, "UTC", "second"),
        pytest.param(
            {"day_of_month": "30", "month_of_year": "2"},
            "UTC",
            "day_of_month '30'",
            marks=pytest.mark.skipif(celery.VERSION < (5, 7), reason="Celery reads it"),
        ),
        ({}, "Mars/Phobos", "'Mars/Phobos'"),
    ],
)
def test_a_crontab_that_is_none(fields: dict[str, Any], zone: str, named: str) -> None:
    with pytest.raises(Unmovable, match=named):
        timetables.of_crontab(zone, fields)


def test_an_interval_counts_from_the_last_run() -> None:
    when = timetables.of_interval(HOUR)
    ran = NOW - timedelta(minutes=20, microseconds=7)
    assert timetable(when, ran).next_after(ran) == ran + HOUR


@pytest.mark.parametrize("zone", ["UTC", "Europe/Oslo", "Asia/Kathmandu"])
@pytest.mark.parametrize(
    "every", [timedelta(seconds=90) * 2, 5 * HOUR, DAY, 2 * DAY, timedelta(seconds=20)]
)
def test_a_relative_interval_is_rounded_as_celery_rounds_it(every: timedelta, zone: str) -> None:
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.timezone = zone
    if every % timedelta(minutes=1) and every > timedelta(minutes=1):
        every = timedelta(minutes=3)
    ran = datetime(2026, 6, 14, 9, 47, 31, 250_000, tzinfo=UTC).astimezone(app.timezone)
    asked = schedule(every, relative=True, app=app, nowfun=lambda: ran)
    when = timetables.of_interval(every, relative=True, timezone=zone)
    assert timetable(when, ran).next_after(ran) == ran + asked.remaining_estimate(ran)


@pytest.mark.parametrize(
    ("every", "relative", "zone", "reason"),
    [
        (timedelta(0), False, None, "longer than 0"),
        (-HOUR, False, None, "longer than 0"),
        (timedelta(days=36_501), False, None, "at most 36500 days"),
        (1.5 * HOUR, True, "UTC", "1:30:00"),
        (HOUR, True, None, "time zone"),
    ],
)
def test_an_interval_that_no_row_can_say(
    every: timedelta, relative: bool, zone: str | None, reason: str
) -> None:
    with pytest.raises(Unmovable, match=reason):
        timetables.of_interval(every, relative=relative, timezone=zone)


def test_a_start_to_come_is_kept_and_one_that_is_over_is_not() -> None:
    start = NOW + HOUR
    when = When({"every": DAY, "starts_at": start}, from_last_run=True)
    assert when.starts_at(NOW) == when.starts_at(None) == start
    assert when.starts_at(start + HOUR) == start + HOUR
    fixed = When({"cron": "0 0 * * *", "starts_at": start})
    assert fixed.starts_at(start + HOUR) == start


@pytest.mark.parametrize("event", ["sunrise", "sunset", "dawn_civil", "solar_noon"])
def test_the_sun_is_where_celery_says(event: str) -> None:
    app = Celery("tests", broker="memory://", set_as_current=False)
    asked = solar(event, 59.9139, 10.7522, app=app, nowfun=lambda: NOW)
    when = timetables.of_solar(event, Decimal("59.913900"), Decimal("10.752200"))
    assert when.columns == {"solar": f"{event} 59.9139 10.7522"}
    moment = timetable(when).next_after(NOW)
    assert moment is not None
    assert abs(moment - NOW - asked.remaining_estimate(NOW)) < timedelta(seconds=1)


@pytest.mark.parametrize("given", [("eclipse", 1, 2), ("sunset", "north", 2), ("sunset", 1, None)])
def test_a_sun_that_is_none(given: tuple[Any, Any, Any]) -> None:
    with pytest.raises(Unmovable, match=r"its (solar event|place) is "):
        timetables.of_solar(*given)


def test_a_name_is_kept_as_far_as_a_row_may_have_it() -> None:
    origins = ["plain", "shop/daily", " padded\t", "tests.note('http://a')", "x" * 250, "ünï"]
    named = imported.names(origins)
    assert named["plain"] == "plain" and named["ünï"] == "ünï"
    assert named["shop/daily"] == "shop-daily"
    assert named[" padded\t"] == "padded-"
    assert named["tests.note('http://a')"] == "tests.note('http:--a')"
    assert named["x" * 250].startswith("x" * 180 + "…") and len(named["x" * 250]) < 200


def test_names_that_would_become_one_are_told_apart() -> None:
    named = imported.names(["a/b", "a-b", "a\tb", "/", "//"])
    assert named["a-b"] == "a-b"
    assert len(set(named.values())) == 5
    assert named["a/b"].startswith("a-b…")
    assert imported.names(["a/b", "a-b"])["a/b"] == named["a/b"]


def test_arguments_are_said_as_celery_sends_them() -> None:
    moment, key = datetime(2026, 1, 2, 3, tzinfo=UTC), UUID(int=7)
    found = imported.arguments((1, ("x", moment)), {"id": key, "price": Decimal("1.50"), 2: None})
    assert found["args"] == [
        1,
        ["x", {"__type__": "datetime", "__value__": "2026-01-02T03:00:00Z"}],
    ] or found["args"][1][1]["__value__"].startswith("2026-01-02T03:00:00")
    assert found["kwargs"]["id"]["__type__"] == "uuid"
    assert found["kwargs"]["price"] == {"__type__": "decimal", "__value__": "1.50"}
    assert found["kwargs"]["2"] is None


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ({"a": 1}, {}, "args"),
        ([], [1], "kwargs"),
        ([object()], {}, "args"),
        ([float("nan")], {}, "args"),
        ([], {"x": "a\0b"}, "kwargs"),
        (["half \ud83c"], {}, "args"),
    ],
)
def test_arguments_that_no_row_can_hold(args: Any, kwargs: Any, reason: str) -> None:
    with pytest.raises(Unmovable, match=reason):
        imported.arguments(args, kwargs)


def test_options_are_publish_options_and_the_queue_has_its_column() -> None:
    ends = datetime(2026, 12, 1, 1, tzinfo=UTC)
    found = imported.publishing({"queue": "slow", "priority": 3, "shadow": None, "expires": ends})
    assert found == {
        "queue": "slow",
        "options": {"priority": 3, "expires": "2026-12-01T01:00:00+00:00"},
    }
    assert imported.publishing({"queue": " "}) == {"queue": None, "options": {}}
    with pytest.raises(Unmovable, match="'prio'"):
        imported.publishing({"prio": 1})


def arrival(origin: str = "s", when: When | None = None, **fields: Any) -> Arrival:
    """A task every hour, unless `when` says otherwise."""
    what: dict[str, Any] = {"task": TASK, "args": [], "kwargs": {}, "options": {}, "queue": None}
    what |= fields.pop("what", {})
    return Arrival(origin, what, when or timetables.of_interval(HOUR), **fields)


def inventory(*found: Arrival) -> Inventory:
    return Inventory("Old", "somewhere", list(found))


def steps(*found: Arrival, **now: Any) -> list[ImportStep]:
    return plan.plan(inventory(*found), Circumstances(**{"now": NOW, **now}))


CRON = When({"cron": "0 * * * *", "timezone": "UTC"})


@pytest.mark.parametrize(
    ("when", "ran", "next_run"),
    [
        (CRON, NOW - timedelta(minutes=59), NOW),
        (CRON, NOW + timedelta(microseconds=20), NOW + HOUR),
        (CRON, NOW - 10 * HOUR, NOW - 9 * HOUR),
        (CRON, None, None),
        (timetables.of_interval(HOUR), NOW - 20 * timedelta(minutes=1), NOW + 40 * HOUR / 60),
        (timetables.of_interval(HOUR), NOW - 5 * HOUR, NOW - 4 * HOUR),
        (timetables.of_interval(HOUR), None, None),
    ],
    ids=[
        "due now",
        "has run for this hour",
        "missed: the policy decides",
        "never ran",
        "interval in the middle",
        "interval missed",
        "interval never ran",
    ],
)
def test_the_next_time_counts_from_the_last_run(
    when: When, ran: datetime | None, next_run: datetime | None
) -> None:
    [step] = steps(arrival(when=when, last_run=ran, run_count=3))
    assert step.action is Action.ADD
    values = step.values
    assert (values["last_run"], values["run_count"], values["next_run"]) == (ran, 3, next_run)
    assert values["enabled"] is True


def test_what_never_ran_is_due_as_it_was_there() -> None:
    [step] = steps(arrival(since=NOW - 3 * HOUR))
    assert step.values["next_run"] == step.values["starts_at"] + HOUR == NOW - 2 * HOUR
    assert step.values["last_run"] is None


def test_a_start_is_the_first_time_that_may_be() -> None:
    start = NOW + timedelta(minutes=30)
    interval = When({"every": DAY, "starts_at": start}, from_last_run=True)
    cron = When({**CRON.columns, "starts_at": start})
    first, second = steps(arrival("a", interval), arrival("b", cron))
    assert first.values["next_run"] == start
    assert second.values["next_run"] == NOW + HOUR


def test_what_is_over_comes_as_done() -> None:
    ended = arrival("ended", CRON, last_run=NOW - DAY, what={"ends_at": NOW - DAY})
    once = arrival("once", CRON, last_run=NOW - DAY, run_count=1, what={"max_runs": 1})
    clocked = arrival("clocked", When({"once_at": NOW - DAY}), last_run=NOW - DAY)
    reasons = [
        (step.values["enabled"], step.values["next_run"], step.values["disabled_reason"])
        for step in steps(ended, once, clocked)
    ]
    assert reasons == [
        (False, None, "done: it ended at 2026-11-20 12:00:00 UTC"),
        (False, None, "done: its timetable has no time left"),
        (False, None, "done: its timetable has no time left"),
    ]


def test_a_missed_time_of_a_clock_is_left_to_the_policy() -> None:
    once_at = NOW - DAY
    [step] = steps(arrival(when=When({"once_at": once_at}), since=imported.before(once_at)))
    assert (step.values["next_run"], step.values["enabled"]) == (once_at, True)


def test_disabled_comes_with_its_reason_and_no_time() -> None:
    [step] = steps(arrival(last_run=NOW, disabled_reason="disabled in Old"))
    assert step.values["enabled"] is False
    assert (step.values["next_run"], step.values["disabled_reason"]) == (None, "disabled in Old")


def test_what_can_not_come_is_listed() -> None:
    found = Inventory("Old", "x", [], [Unimportable("odd", "because")])
    [step] = plan.plan(found, Circumstances(NOW))
    assert (step.action, step.origin, step.reason) == (Action.REFUSE, "odd", "because")


def test_a_timetable_that_is_none_is_refused() -> None:
    [step] = steps(arrival(when=When({"cron": "61 * * * *"})))
    assert step.action is Action.REFUSE
    assert "'61'" in (step.reason or "")


def test_a_task_that_the_app_has_not_is_remarked() -> None:
    [step] = steps(arrival(), code=frozenset(), tasks=frozenset({"tests.other"}))
    assert step.action is Action.ADD
    assert step.remarks == ("task 'tests.add' is not registered in the app: its ticks will fail",)


def test_what_came_from_code_stays_with_it() -> None:
    static = arrival("static", from_code=True)
    cleanup = arrival(
        "celery.backend_cleanup", from_code=True, what={"task": "celery.backend_cleanup"}
    )
    without, own = steps(static, cleanup)
    assert without.action is own.action is Action.REFUSE
    assert "with -A APP its last run is carried over" in (without.reason or "")
    assert "pgbeat's beat makes it" in (own.reason or "")
    [gone] = steps(static, code=frozenset())
    assert gone.reason == "the app's beat_schedule has it no longer"
