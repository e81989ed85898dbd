"""Control of calendars: what people do with them, a function for each verb."""

from typing import Any

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import AlreadyExists
from pgbeat.schedules.calendars import model as calendars
from pgbeat.schedules.calendars.model import Calendar


def add(unit: UnitOfWork, name: str, definition: Any) -> Calendar:
    """Adds a calendar. Raises `InvalidCalendar` or `AlreadyExists`."""
    row = calendars.add(unit.connection, name, definition, namespace=unit.namespace)
    unit.record("create", None, row)
    return row


def edit(unit: UnitOfWork, name: str, definition: Any) -> Calendar:
    """Gives a calendar another definition. Raises `InvalidCalendar` or `NotFound`."""
    before = calendars.get(unit.connection, name, namespace=unit.namespace, for_update=True)
    row = calendars.edit(unit.connection, name, definition, namespace=unit.namespace)
    unit.record("update", before, row)
    return row


def put(
    unit: UnitOfWork, name: str, definition: Any, *, only_new: bool = False
) -> tuple[Calendar, bool]:
    """Adds or redefines a calendar; returns it, and whether it is new.

    Raises `InvalidCalendar`, and `AlreadyExists` if it is not new but must be (`only_new`).
    """
    try:
        return add(unit, name, definition), True
    except AlreadyExists:
        if only_new:
            raise AlreadyExists(f"there is a calendar {name!r} already; PUT changes it") from None
        return edit(unit, name, definition), False


def remove(unit: UnitOfWork, name: str) -> None:
    """Deletes a calendar. Raises `NotFound`, and `InvalidCalendar` while schedules name it."""
    row = calendars.remove(unit.connection, name, namespace=unit.namespace)
    unit.record("delete", row, None)
