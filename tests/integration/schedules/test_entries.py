"""Entries: what Celery's own schedules become in a row, and what stays in the code."""

import json
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab, schedule
from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.errors import ConfigError, InvalidSchedule
from pgbeat.schedules import entries, sync, writes
from pgbeat.schedules import model as schedules
from pgbeat.schedules.sync import CodeEntry
from tests.support.command_line import Sql, run_with
from tests.support.schedulers import Beat
from tests.unit.schedules.test_entries import FIELDS, SURROUNDINGS
from tests.unit.schedules.test_entries import plain as plain

apply = partial(sync.apply, app="tests")

TASK = "tests.add"


def test_every_crontab_is_taken_by_the_database(connection: Connection, plain: Celery) -> None:
    written = []
    for name, values in FIELDS.items():
        for number, value in enumerate(values):
            timetable = crontab(**{**SURROUNDINGS[1], name: value})
            entry = {"task": TASK, "schedule": timetable}
            written.append(entries.code_entry(plain, f"{name} {number}", entry))
    assert len(apply(connection, written).added) == len(written) > 70


def test_lazy_arguments_are_called_at_each_launch(app: Celery, connection: Connection) -> None:
    calls: list[int] = []

    def count() -> int:
        calls.append(1)
        return len(calls)

    app.conf.beat_schedule = {
        "s": {
            "task": TASK,
            "schedule": 30,
            "args": (BeatLazyFunc(count),),
            "kwargs": {"y": BeatLazyFunc(count)},
            "options": {"priority": 3},
        }
    }
    apply(connection, entries.from_app(app, {}))
    row = schedules.get(connection, "s")
    assert row.args is None and not calls
    assert entries.code_arguments(app, row, {}) == ([1], {"y": 2}, {"priority": 3})
    assert entries.code_arguments(app, row, {}) == ([3], {"y": 4}, {"priority": 3})


@pytest.mark.parametrize(("deadline", "launched"), [(None, 1), (600, 0), (6 * 3600, 1)])
def test_a_crontab_has_celerys_starting_deadline(
    app: Celery, beat: Beat, sql: Sql, deadline: int | None, launched: int
) -> None:
    """A run missed two hours ago is made up for, unless `beat_cron_starting_deadline` is over."""
    hour = (datetime.now(app.timezone) - timedelta(hours=2)).hour
    app.conf.beat_cron_starting_deadline = deadline
    app.conf.beat_schedule = {"s": {"task": TASK, "schedule": crontab(minute=0, hour=hour)}}
    scheduler = beat()
    scheduler.run_due()
    sql(
        "UPDATE pgbeat.schedules SET next_run = now() - interval '2 hours', "
        "last_run = now() - interval '2 days', created_at = now() - interval '3 days'"
    )
    scheduler.run_due()
    assert sql("SELECT count(*) FROM pgbeat.ticks WHERE outcome = 'launched'") == [(launched,)]
    assert sql("SELECT next_run > now() FROM pgbeat.schedules WHERE source = 'code'") == [(True,)]


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "a\0b", "half \ud83c", ".", ".."])
def test_other_names_are_made_to_fit_each_in_its_own_way(
    app: Celery, connection: Connection, name: str
) -> None:
    names = [name, f"{name}\0", f"{name}\0\0"]
    app.conf.beat_schedule = {
        name: {"task": TASK, "schedule": schedule(30, relative=True), "args": (number,)}
        for number, name in enumerate(names)
    }
    wanted = entries.from_app(app, {})
    assert len(apply(connection, wanted).added) == 3
    assert apply(connection, wanted) == sync.SyncChanges()
    for row in schedules.listing(connection):
        assert len(row.name) <= 200
        assert entries.code_arguments(app, row, {})[0] == row.args


def test_an_entry_may_have_more_than_celery_s(app: Celery, connection: Connection) -> None:
    """A person's value stays where the entry has none."""
    app.conf.beat_schedule = {
        "a": {"task": TASK, "schedule": 60, "fresh_within": timedelta(hours=1)},
        "b": {"task": TASK, "schedule": 60},
        "s": {"task": TASK, "after": ("a", "b"), "after_match": "any", "fresh_within": "2 days"},
    }
    apply(connection, entries.from_app(app, {}))
    with connections.transaction(connection):
        writes.edit(connection, "b", fresh_within=timedelta(hours=3))
    assert apply(connection, entries.from_app(app, {})) == sync.SyncChanges()
    app.conf.beat_schedule["a"]["fresh_within"] = 7200
    assert apply(connection, entries.from_app(app, {})).changed == ["a"]
    a, b, s = schedules.listing(connection)
    limits = [timedelta(hours=2), timedelta(hours=3), timedelta(days=2)]
    assert [row.fresh_within for row in (a, b, s)] == limits
    assert (s.after, s.after_match, s.after_outcome) == ("a\nb", "any", "completed")
    assert s.timetable("UTC") is not None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"task": TASK, "after": "a", "schedule": 5}, "needs a task, and a schedule or after"),
        ({"task": TASK}, "needs a task, and a schedule or after"),
        ({"schedule": 5}, "needs a task, and a schedule or after"),
        ({"task": TASK, "schedule": 5, "fresh_within": 0}, "fresh_within is 0.*; it must be"),
        ({"task": TASK, "after": ["a", 5]}, "after is 5, which is no text"),
        ({"task": TASK, "after": ["a", "s"]}, "after goes in a circle: s after s"),
    ],
)
def test_an_entry_that_is_wrong(app: Celery, entry: dict[str, Any], message: str) -> None:
    app.conf.beat_schedule = {"s": entry}
    with pytest.raises(ConfigError, match=message):
        entries.from_app(app, {})


def test_a_periodic_task_is_named_after_its_call(beat: Beat, app: Celery, sql: Sql) -> None:
    """Celery's name for it has quotes, slashes and any length."""
    note = app.tasks["tests.note"]
    app.add_periodic_task(30, note.s("http://example.com/"))
    app.add_periodic_task(30, note.s("x" * 5000))
    beat().run_due()
    rows = sql("SELECT name, args->>0 FROM pgbeat.schedules ORDER BY length(name)")
    assert [arguments for _, arguments in rows] == ["http://example.com/", "x" * 5000]
    assert rows[0][0] == "tests.note('http://example.com/')"
    assert rows[1][0].startswith("tests.note('xxxx")


def test_a_row_whose_entry_is_gone_says_so(app: Celery, connection: Connection) -> None:
    apply(connection, [CodeEntry("s", TASK, None, None, None, None, {}, {})])
    row = schedules.get(connection, "s")
    for ask in (entries.code_timetable, entries.code_arguments):
        with pytest.raises(InvalidSchedule, match="this app has no entry of that name"):
            ask(app, row, {})


def test_a_schedule_whose_class_raises_fails_alone(beat: Beat, app: Celery, sql: Sql) -> None:
    class Broken(schedule):
        def is_due(self, last_run_at: datetime) -> Any:
            raise KeyError("holidays")

    app.conf.beat_schedule = {
        "broken": {"task": TASK, "schedule": Broken(60)},
        "sound": {"task": TASK, "schedule": 60},
    }
    beat().run_due()
    said = "Broken.is_due: KeyError: 'holidays'"
    assert sql("SELECT schedule, error FROM pgbeat.ticks") == [("broken", said)]
    forecast = json.loads(run_with(app, "forecast", "--json").stdout)
    assert forecast["unknown"] == {"broken": said}
    assert {time["schedule"] for time in forecast["times"]} == {"sound"}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ("every = '90 s'", schedule(90)),
        ("every = NULL, cron = '*/15 2 1-7 * *'", crontab("*/15", "2", "*", "1-7", "*")),
        ("every = NULL, cron = '@daily'", schedule(timedelta(days=1))),
        ("every = NULL, cron = '0 0 L * *'", schedule(timedelta(days=1))),
        ("every = NULL, cron = '0 0 * * 7'", schedule(timedelta(days=1))),
        ("every = NULL, cron = '5/10 * * * *'", schedule(timedelta(days=1))),
        ("every = NULL, cron = '1,2-3/0 * * * *'", schedule(timedelta(days=1))),
        ("every = NULL, source = 'code'", schedule(timedelta(days=1))),
    ],
)
def test_a_row_as_celerys_entry(
    app: Celery, connection: Connection, sql: Sql, values: str, shown: Any
) -> None:
    """For reading; what Celery's parser has no words for is shown as daily."""
    sql("INSERT INTO pgbeat.schedules (name, task, every) VALUES ('s', %s, '1 hour')", TASK)
    sql("ALTER TABLE pgbeat.schedules DISABLE TRIGGER USER")
    sql(f"UPDATE pgbeat.schedules SET args = '[1]', queue = 'slow', {values}")
    entry = entries.as_celery_entries(app, schedules.listing(connection))["s"]
    assert entry.schedule == shown
    assert (entry.task, entry.args, entry.options["queue"]) == (TASK, (1,), "slow")


def test_a_row_of_the_code_is_shown_with_the_codes_timetable(
    app: Celery, connection: Connection
) -> None:
    both = crontab(day_of_month="13", day_of_week="fri")
    app.conf.beat_schedule = {"s": {"task": TASK, "schedule": both}}
    apply(connection, entries.from_app(app, {}))
    shown = entries.as_celery_entries(app, schedules.listing(connection))["s"]
    assert shown.schedule == both
