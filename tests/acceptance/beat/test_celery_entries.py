"""Celery's entries: what its scheduler offers to code, on rows."""

import pytest
from celery import Celery

from tests.support.rows import Sql, make_schedule
from tests.support.schedulers import Beat


def test_scheduler_schedule_is_a_view_of_the_rows(beat: Beat, sql: Sql) -> None:
    make_schedule(sql, "a", every="5 minutes", queue="q")
    make_schedule(sql, "b", cron="0 2 * * *")
    entries = beat().schedule
    assert entries["a"].schedule.run_every.total_seconds() == 300
    assert entries["a"].options == {"queue": "q"}
    assert str(entries["b"].schedule) == "<crontab: 0 2 * * * (m/h/dM/MY/d)>"


def test_entries_given_and_added_to_the_scheduler(beat: Beat, sql: Sql) -> None:
    """As other code does with Celery's scheduler: by the constructor, `add`, and assignment."""
    names = "SELECT name FROM pgbeat.schedules ORDER BY name"
    scheduler = beat(schedule={"given": {"task": "tests.add", "schedule": 60}})
    scheduler.run_due()
    assert sql(names) == [("given",)]
    entry = scheduler.add(name="added", task="tests.add", schedule=60)
    scheduler.run_due()
    assert entry.name == "added"
    assert sql(names) == [("added",), ("given",)]
    assert set(scheduler.schedule) == {"added", "given"}
    scheduler.schedule = {"other": {"task": "tests.add", "schedule": 60}}
    scheduler.run_due()
    assert sql(names) == [("given",), ("other",)]


def test_an_entry_that_the_database_refuses_stops_nobody(
    beat: Beat, sql: Sql, app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    sql("ALTER TABLE pgbeat.schedules ADD CONSTRAINT house_rule CHECK (name <> 'forbidden')")
    make_schedule(sql, due="0")
    app.conf.beat_schedule = {"forbidden": {"task": "tests.add", "schedule": 60}}
    assert beat().run_due() == 1
    assert "The app's entries are left as they were" in caplog.text
    assert "house_rule" in caplog.text
