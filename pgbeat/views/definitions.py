"""Templates and calendars."""

from collections.abc import Mapping

from pgbeat.errors import InvalidCalendar
from pgbeat.jobs.templates import Template
from pgbeat.schedules.calendars import Calendar
from pgbeat.views import View

#: The names of the schedules that use a template or a calendar, by its name.
Users = Mapping[str, list[str]]


def template(row: Template, users: Users) -> View:
    """Returns a template with the schedules that use it."""
    return row._asdict() | {"schedules": users.get(row.name, [])}


def calendar(row: Calendar, users: Users) -> View:
    """Returns a calendar with its rules in words, or what is wrong, and who uses it."""
    rules, problem = None, None
    try:
        rules = str(row.rules)
    except InvalidCalendar as error:
        problem = str(error)
    uses = {"schedules": users.get(row.name, [])}
    return vars(row) | {"rules": rules, "problem": problem} | uses
