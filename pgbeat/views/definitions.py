"""Templates and calendars."""

from collections.abc import Mapping
from datetime import UTC, datetime

from pgbeat.errors import InvalidCalendar, InvalidTimetable
from pgbeat.jobs.policy.templates import Template
from pgbeat.schedules.calendars.model import Calendar
from pgbeat.storable import EARLIEST, LATEST
from pgbeat.timetables import zone
from pgbeat.views import View

#: The names of the schedules that use a template or a calendar, by its name.
Users = Mapping[str, list[str]]


def template(row: Template, users: Users) -> View:
    """Returns a template with the schedules that use it."""
    return row._asdict() | {"schedules": users.get(row.name, [])}


def calendar(row: Calendar, users: Users) -> View:
    """Returns a calendar with its rules in words, or the problem, and its schedules."""
    rules, problem = None, None
    try:
        rules = str(row.rules)
    except InvalidCalendar as error:
        problem = str(error)
    uses = {"schedules": users.get(row.name, [])}
    return vars(row) | {"rules": rules, "problem": problem} | uses


def calendar_check(row: Calendar, at: datetime, timezone: str) -> View:
    """Returns whether a calendar excludes a time, in the time zone of its rules or else this.

    Raises `InvalidTimetable`.
    """
    if not EARLIEST <= at <= LATEST:
        raise InvalidTimetable.of("at", "out_of_range", "at is out of the years 1 to 9999")
    local = row.rules.zone or zone(timezone)
    reason = row.exclusion(at, local.key)
    return {
        "calendar": row.name,
        "at": at.astimezone(UTC),
        "timezone": local.key,
        "excluded": reason is not None,
        "reason": reason,
    }
