"""Calendars: rows of named rules that exclude times of the schedules that name them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

from sqlalchemy import Connection, delete, update
from sqlalchemy.dialects.postgresql import insert

from pgbeat.database.named_rows import NamedRows, not_found
from pgbeat.database.tables import calendars, schedules
from pgbeat.errors import AlreadyExists, InvalidCalendar
from pgbeat.names import NAMESPACE, name_problem
from pgbeat.schedules.calendars.definitions import parse
from pgbeat.schedules.calendars.exclusions import Rules


@dataclass(frozen=True)
class Calendar:
    """A row of `pgbeat.calendars`, as read at one moment."""

    namespace: str
    name: str
    definition: Any
    created_at: datetime
    updated_at: datetime

    @cached_property
    def rules(self) -> Rules:
        """Returns the parsed definition.

        Raises `InvalidCalendar` for a definition that bypassed the checks, and if the package
        `holidays` is needed and missing.
        """
        parsed = _rules(self.name, json.dumps(self.definition, sort_keys=True))
        if isinstance(parsed, Rules):
            return parsed
        raise InvalidCalendar(parsed.problems, subject=parsed.subject)

    def exclusion(self, moment: datetime, timezone: str) -> str | None:
        """Returns why it excludes an (aware) moment, as `calendar 'office': Saturday`, or `None`.

        `timezone` is the schedule's, for a calendar that has none. Raises `InvalidCalendar`, and
        `InvalidTimetable` for an unknown zone.
        """
        return self.rules.exclusion(moment, timezone)

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "calendar", self.name, {"definition": self.definition}


@lru_cache(maxsize=1024)
def _rules(name: str, definition: str) -> Rules | InvalidCalendar:
    """Returns the rules, or what is wrong with them; cached, as rows are read again and again."""
    try:
        return parse(name, json.loads(definition))
    except InvalidCalendar as error:
        return error


def exclusion(
    known: Mapping[str, Calendar], name: str | None, moment: datetime, timezone: str
) -> str | None:
    """Returns why the calendar of that name, if any, excludes the moment, or `None`.

    `known` is what `load` returned. Raises `NotFound` if the calendar is not in it, and what
    `Calendar.exclusion` raises.
    """
    if name is None:
        return None
    if name not in known:
        raise not_found("calendar", name, known)
    return known[name].exclusion(moment, timezone)


_rows = NamedRows("calendar", Calendar, calendars.c, schedules.c.calendar)
get, load, listing, users = _rows.get, _rows.load, _rows.listing, _rows.users
_is = _rows.is_named


def add(
    connection: Connection, name: str, definition: Any, *, namespace: str = NAMESPACE
) -> Calendar:
    """Adds a calendar. Raises `InvalidCalendar`, which lists every mistake, or `AlreadyExists`."""
    problem = name_problem(name)
    if problem:
        raise InvalidCalendar.of("name", "malformed", problem, subject=f"calendar {name!r}")
    parse(name, definition)
    row = {"namespace": namespace, "name": name, "definition": definition}
    statement = insert(calendars).values(row).on_conflict_do_nothing().returning(*calendars.c)
    added = connection.execute(statement).one_or_none()
    if added is None:
        raise AlreadyExists(
            f"there is a calendar {name!r} already; change it with `pgbeat calendars update`"
        )
    return Calendar(*added)


def edit(
    connection: Connection, name: str, definition: Any, *, namespace: str = NAMESPACE
) -> Calendar:
    """Gives a calendar another definition. Raises `InvalidCalendar` or `NotFound`."""
    get(connection, name, namespace=namespace, for_update=True)
    parse(name, definition)
    statement = update(calendars).where(_is(name, namespace)).values(definition=definition)
    return Calendar(*connection.execute(statement.returning(*calendars.c)).one())


def remove(connection: Connection, name: str, *, namespace: str = NAMESPACE) -> Calendar:
    """Deletes a calendar. Raises `NotFound`, and `InvalidCalendar` while schedules name it."""
    row = _rows.lock_unused(connection, name, InvalidCalendar, namespace=namespace)
    connection.execute(delete(calendars).where(_is(name, namespace)))
    return row
