"""Control of schedules: what people do with them, a function for each verb.

Each takes an open unit of work, and records the change in the audit log.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, func, null, update

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database.tables import schedules as table
from pgbeat.errors import InvalidSchedule
from pgbeat.schedules import model as schedules
from pgbeat.schedules.model import SELECT, Schedule
from pgbeat.storable import is_storable


class Switched(NamedTuple):
    """A schedule that was changed, as it was and as it is."""

    before: Schedule
    after: Schedule


def add(unit: UnitOfWork, name: str, **values: Any) -> Schedule:
    """Adds a schedule. Raises `InvalidSchedule` or `AlreadyExists`."""
    source = str(unit.actor.origin)
    row = schedules.add(unit.connection, name, source=source, namespace=unit.namespace, **values)
    unit.record("create", None, row)
    return row


def edit(
    unit: UnitOfWork, name: str, values: dict[str, Any], *, enabled: bool | None = None
) -> Switched:
    """Changes a schedule, and enables or disables it if told. Raises `InvalidSchedule` or
    `NotFound`."""

    def turn(connection: Any, name: str, *, namespace: str) -> Schedule:
        row = schedules.edit(connection, name, namespace=namespace, **values)
        if enabled is None or enabled == row.enabled:
            return row
        switch = schedules.enable if enabled else schedules.disable
        return switch(connection, name, namespace=namespace)

    return _change(unit, "update", name, turn)


def enable(unit: UnitOfWork, name: str) -> Switched:
    """Puts a schedule back in service; its next time is computed from now. Raises `NotFound`."""
    return _change(unit, "enable", name, schedules.enable, unless=lambda row: row.enabled)


def disable(unit: UnitOfWork, name: str, reason: str | None = None) -> Switched:
    """Takes a schedule out of service until it is enabled. Raises `NotFound`."""
    return _change(unit, "disable", name, schedules.disable, reason)


def pause(unit: UnitOfWork, name: str, reason: str | None = None) -> Switched:
    """Holds a schedule; what falls due meanwhile is not made up for. Raises `NotFound`."""
    return _change(unit, "pause", name, schedules.pause, reason)


def resume(unit: UnitOfWork, name: str) -> Switched:
    """Lets a paused schedule go on; its next time is computed from now. Raises `NotFound`."""
    return _change(unit, "resume", name, schedules.resume, unless=lambda row: row.paused_at is None)


def _change(
    unit: UnitOfWork,
    verb: str,
    name: str,
    turn: Callable[..., Schedule],
    *given: Any,
    unless: Callable[[Schedule], bool] = lambda row: False,
) -> Switched:
    before = schedules.get(unit.connection, name, namespace=unit.namespace, for_update=True)
    if unless(before):
        return Switched(before, before)
    after = turn(unit.connection, name, *given, namespace=unit.namespace)
    unit.record(verb, before, after)
    return Switched(before, after)


def remove(unit: UnitOfWork, name: str) -> Schedule:
    """Deletes a schedule and returns it; its ticks and jobs stay until they are pruned. Raises
    `NotFound`."""
    row = schedules.get(unit.connection, name, namespace=unit.namespace, for_update=True)
    schedules.remove(unit.connection, name, namespace=unit.namespace)
    unit.record("delete", row, None)
    return row


def pause_all(unit: UnitOfWork, reason: str | None = None) -> list[Switched]:
    """Pauses every schedule of the namespace that isn't paused, and returns those, by name.

    Schedules that are added later are not paused.
    """
    values = {"paused_at": func.now(), "paused_reason": reason}
    return _change_all(unit, "pause", table.c.paused_at.is_(None), values)


def resume_all(unit: UnitOfWork, reason: str | None = None) -> list[Switched]:
    """Resumes every paused schedule of the namespace, and returns those, by name.

    With a reason, only those that were paused for it. Each is due next from now on.
    """
    which: ColumnElement[bool] = table.c.paused_at.is_not(None)
    if reason is not None:
        which &= table.c.paused_reason == reason
    return _change_all(unit, "resume", which, {"paused_at": None})


def _change_all(
    unit: UnitOfWork, verb: str, which: ColumnElement[bool], values: dict[str, Any]
) -> list[Switched]:
    connection = unit.connection
    own = SELECT.where(table.c.namespace == unit.namespace, which)
    # In the order of ids, as other writers of many rows lock them.
    locked = connection.execute(own.order_by(table.c.id).with_for_update())
    before = {row.id: Schedule._make(row) for row in locked}
    if not before:
        return []
    found = table.c.id.in_(before)
    connection.execute(update(table).where(found).values(**values))
    after = map(Schedule._make, connection.execute(SELECT.where(found).order_by(table.c.name)))
    changed = [Switched(before[row.id], row) for row in after]
    unit.record_all([(verb, *each) for each in changed])
    return changed


def set_cursor(unit: UnitOfWork, name: str, cursor: Any) -> Any:
    """Sets what a schedule's launcher finds as its cursor at the next evaluation; `None` clears it.
    Returns it as it is kept.

    Raises `NotFound`, and `InvalidSchedule` for a cursor that JSON or Postgres can't hold. A
    decision that is being made at this moment is made again.
    """
    connection = unit.connection
    before = schedules.get(connection, name, namespace=unit.namespace, for_update=True)
    if not is_storable(cursor):
        raise InvalidSchedule.of(
            "cursor",
            "unstorable",
            "cursor can't be kept as JSON: it has NaN, NUL or half a character",
        )
    value = null() if cursor is None else cursor
    connection.execute(update(table).where(table.c.id == before.id).values(cursor=value))
    kept = schedules.get(connection, name, namespace=unit.namespace).cursor
    if kept != before.cursor:
        unit.record_action("update", "schedule", name, {"cursor": before.cursor}, {"cursor": kept})
    return kept
