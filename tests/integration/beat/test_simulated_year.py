"""A simulated year: every due time once, or accounted for."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from pgbeat.database import connections
from pgbeat.schedules import model as domain
from pgbeat.schedules.ticks import Tick
from pgbeat.timetables import Timetable
from tests.support.rows import Sql
from tests.support.schedulers import HOUR, START, At, add

#: Timetables of a year, and how many schedules have each, in hundredths.
MIX = [
    (30, {"cron": "0 6 * * mon"}),
    (20, {"cron": "30 2 1,15 * *", "timezone": "Europe/Oslo"}),
    (10, {"cron": "0 0 L * *", "timezone": "America/New_York"}),
    (10, {"every": "7 days", "timezone": "Europe/Oslo"}),
    (10, {"every": "240 hours"}),
    (10, {"rrule": "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=6;BYMINUTE=0;BYSECOND=0"}),
    (5, {"cron": "0 6 * * *", "timezone": "Europe/Oslo"}),
    (4, {"cron": "30 2 * * *", "timezone": "America/New_York"}),
    (1, {"cron": "0 */12 * * *"}),
]


@pytest.mark.parametrize(
    ("schedules", "days"),
    [(100, 45), pytest.param(1000, 366, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_a_simulated_year(sql: Sql, at: At, schedules: int, days: int) -> None:
    """Every expected due time once, or accounted for, through restarts and clocks that step."""
    for share, columns in MIX:
        for n in range(share * schedules // 100):
            # Half of them make up for each time that a leaping clock goes past.
            policy = {"catch_up": "all", "catch_up_limit": 1000} if n % 2 else {}
            add(sql, f"{columns} {n}".replace("/", "-"), **columns, **policy)
    begin, end = START, START + timedelta(days=days)
    beat = at(begin)
    ticks: list[Tick] = []
    while beat.now is not None and beat.now < end:
        week = beat.now + timedelta(days=7)
        beat.run_until(min(week, end))
        if week.day % 2:
            beat.now = min(beat.now, end) - 3 * HOUR  # set back …
            beat.run_until(min(week, end))
        elif week < end - timedelta(days=9):
            beat.now = week + timedelta(days=2)  # … or leapt forward
            beat.run_due()
        ticks += beat.ticks
        now = beat.now
        beat.close()
        beat = at(now)
    with connections.engine(beat.settings.url, "tests").connect() as connection:
        rows = {row.name: row for row in domain.listing(connection)}
    assert {tick.outcome for tick in ticks} == {"launched"}
    seen: dict[str, list[Tick]] = {name: [] for name in rows}
    for tick in ticks:
        seen[tick.schedule].append(tick)
    for name, row in rows.items():
        timetable = row.timetable("UTC")
        assert timetable is not None
        due_times = [tick.due_at for tick in seen[name]]
        expected = list(between(timetable, begin, end))
        assert due_times == sorted(set(due_times))
        if row.catch_up == "all":
            assert due_times == expected
        else:
            assert set(due_times) <= set(expected)
            assert sum(1 + tick.missed for tick in seen[name]) == len(expected)


def between(timetable: Timetable, begin: datetime, end: datetime) -> Iterator[datetime]:
    """The due times of a timetable in (begin, end]."""
    moment = timetable.next_after(begin)
    while moment is not None and moment <= end:
        yield moment
        moment = timetable.next_after(moment)
