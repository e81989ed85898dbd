"""The forecast against what beat does."""

from datetime import UTC, timedelta

import pytest
from celery import Celery

from pgbeat.schedules import model as schedules
from pgbeat.schedules import writes
from pgbeat.schedules.calendars import model as calendars
from pgbeat.schedules.forecast import forecast
from pgbeat.testing.fixtures import MakeScheduler
from tests.unit.schedules.test_forecast import HOUR, MINUTE, NIGHTS, NOW, mixed

COLUMNS = (
    *("cron", "every", "rrule", "once_at", "starts_at", "ends_at", "jitter", "max_runs"),
    *("min_interval", "calendar", "condition_sql", "task"),
)


@pytest.mark.slow
def test_beat_does_what_was_forecast(app: Celery, pgbeat_scheduler: MakeScheduler) -> None:
    scheduler = pgbeat_scheduler(app, NOW)
    with scheduler._conditions.connect() as connection:
        calendars.add(connection, "nights", NIGHTS["nights"].definition)
        for made in mixed(7, 40):
            values = {key: getattr(made, key) for key in COLUMNS}
            given = {key: value for key, value in values.items() if value is not None}
            if made.every is not None and made.every < MINUTE:
                given["every"] = 100 * made.every
            writes.add(connection, made.name, source="api", **given)
        connection.commit()
        rows = schedules.listing(connection)
    found = forecast(
        rows, lambda row: scheduler._evaluator.timetable(row), NIGHTS, NOW, NOW + 2 * HOUR
    )
    ticks = scheduler.run_until(NOW + 2 * HOUR - timedelta(microseconds=1))
    decided = [
        (tick.schedule, tick.due_at.astimezone(UTC), tick.outcome == "launched")
        for tick in ticks
        if "max_runs" not in str(tick.reason) and "no time left" not in str(tick.reason)
    ]
    wanted = [(due.schedule.name, due.due_at, due.skip is None) for due in found.times]
    assert len(wanted) > 200
    # Of what may be launched, min_interval and max_runs are only known when it has been.
    sure = {
        row.name
        for row in rows
        if row.condition_sql is None or not (row.min_interval or row.max_runs)
    }
    assert sorted(tick for tick in decided if tick[0] in sure) == sorted(
        tick for tick in wanted if tick[0] in sure
    )
