"""Calendars in files. A file's calendars are added and changed, never removed."""

from collections.abc import Mapping
from typing import Any

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database.tables import calendars as table
from pgbeat.schedules.calendars import control
from pgbeat.schedules.calendars.definitions import parse
from pgbeat.schedules.calendars.model import Calendar
from pgbeat.schedules.files.nouns.noun import FileNoun, Plain, Stored


class _Calendars(FileNoun):
    """Calendars, of which `parse` knows the fields."""

    section, name = "calendars", "calendar"
    fields = None
    table, columns, row = table, tuple(table.c), Calendar
    is_owned = False

    def check(self, name: str, given: Plain) -> dict[str, Any]:
        parse(name, given)
        return given

    def values(self, stored: Stored) -> dict[str, Any]:
        return dict(stored.row.definition)

    def plain(self, values: Mapping[str, Any]) -> Plain:
        return dict(values)

    def write(
        self, unit: UnitOfWork, name: str, values: Mapping[str, Any], changed: set[str] | None
    ) -> None:
        control.put(unit, name, dict(values), only_new=changed is None)

    def remove(self, unit: UnitOfWork, name: str) -> None:
        control.remove(unit, name)


CALENDARS = _Calendars()
