"""Control of schedules: what people do with them, a function for each verb.

Each takes an open unit of work, and records the change in the audit log. All but `add`, and those
that take many, raise `NotFound`.
"""

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, delete, func, null, update

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database.tables import schedules as table
from pgbeat.errors import InvalidSchedule
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.policy import templates
from pgbeat.schedules import model as schedules
from pgbeat.schedules import writes
from pgbeat.schedules.model import SELECT, Schedule
from pgbeat.storable import is_storable


class Switched(NamedTuple):
    """A schedule before and after a change."""

    before: Schedule
    after: Schedule


def add(
    unit: UnitOfWork, name: str, *, enabled: bool = True, paused: bool = False, **values: Any
) -> Schedule:
    """Adds a schedule. Raises `InvalidSchedule` or `AlreadyExists`."""
    source, values = str(unit.actor.origin), writes.defaults(unit.settings) | values
    row = writes.add(unit.connection, name, source=source, namespace=unit.namespace, **values)
    if off := ({} if enabled else _disabled()) | (_paused(None) if paused else {}):
        row = _set(unit, row, off)
    unit.record("create", None, row)
    return row


def edit(
    unit: UnitOfWork, name: str, values: dict[str, Any], *, enabled: bool | None = None
) -> Switched:
    """Changes a schedule, and enables or disables it by `enabled`. Raises `InvalidSchedule`."""
    if "job_policy" in values:
        templates.hold(unit.connection, unit.namespace)
    before = _locked(unit, name)
    after = writes.edit(unit.connection, name, namespace=unit.namespace, **values)
    if enabled is not None and enabled != after.enabled:
        after = _set(unit, after, {"enabled": True} if enabled else _disabled())
    unit.record("update", before, after)
    return Switched(before, after)


def enable(unit: UnitOfWork, name: str) -> Switched:
    """Puts a schedule back in service; its next time is computed from now."""
    before = _locked(unit, name)
    return _switch(unit, "enable", before, {} if before.enabled else {"enabled": True})


def disable(unit: UnitOfWork, name: str, reason: str | None = None) -> Switched:
    """Takes a schedule out of service until it is enabled."""
    return _switch(unit, "disable", _locked(unit, name), _disabled(reason))


def _disabled(reason: str | None = None) -> dict[str, Any]:
    reason = reason or "disabled by hand"
    return {"enabled": False, "disabled_reason": reason, "completed_at": None, "probe_at": None}


def pause(unit: UnitOfWork, name: str, reason: str | None = None) -> Switched:
    """Pauses a schedule; due times meanwhile are not made up for."""
    before = _locked(unit, name)
    return _switch(unit, "pause", before, {} if before.paused_at else _paused(reason))


def _paused(reason: str | None) -> dict[str, Any]:
    return {"paused_at": func.now(), "paused_reason": reason}


def resume(unit: UnitOfWork, name: str) -> Switched:
    """Resumes a paused schedule; its next time is computed from now."""
    before = _locked(unit, name)
    return _switch(unit, "resume", before, {"paused_at": None} if before.paused_at else {})


def _locked(unit: UnitOfWork, name: str) -> Schedule:
    return schedules.get(unit.connection, name, namespace=unit.namespace, for_update=True)


def _switch(unit: UnitOfWork, verb: str, before: Schedule, values: dict[str, Any]) -> Switched:
    """Changes a locked row, unless there is nothing to change."""
    after = _set(unit, before, values) if values else before
    unit.record(verb, before, after)
    return Switched(before, after)


def _set(unit: UnitOfWork, row: Schedule, values: dict[str, Any]) -> Schedule:
    unit.connection.execute(update(table).where(table.c.id == row.id).values(**values))
    return schedules.get(unit.connection, row.name, namespace=unit.namespace)


def remove(unit: UnitOfWork, name: str) -> Schedule:
    """Deletes a schedule and returns it; its ticks and jobs stay until they are pruned."""
    row = _locked(unit, name)
    unit.connection.execute(delete(table).where(table.c.id == row.id))
    unit.record("delete", row, None)
    return row


def pause_all(unit: UnitOfWork, reason: str | None = None) -> list[Switched]:
    """Pauses every schedule of the namespace that isn't paused, and returns those, by name.

    Schedules that are added later are not paused. Raises `Forbidden`, as do all verbs on all.
    """
    return _change_all(unit, "pause", table.c.paused_at.is_(None), _paused(reason))


def resume_all(unit: UnitOfWork, reason: str | None = None) -> list[Switched]:
    """Resumes every paused schedule of the namespace, and returns those, by name.

    With a reason, only those that were paused for it. The next time of each is computed from now.
    """
    which: ColumnElement[bool] = table.c.paused_at.is_not(None)
    if reason is not None:
        which &= table.c.paused_reason == reason
    return _change_all(unit, "resume", which, {"paused_at": None})


def enable_all(unit: UnitOfWork, reason: str | None = None) -> list[Switched]:
    """Enables every disabled schedule of the namespace, and returns those, by name.

    Those that are completed stay so. With a reason, only those that were disabled for it.
    """
    which: ColumnElement[bool] = ~table.c.enabled & table.c.completed_at.is_(None)
    if reason is not None:
        which &= table.c.disabled_reason == reason
    return _change_all(unit, "enable", which, {"enabled": True})


def disable_all(unit: UnitOfWork, reason: str | None = None) -> list[Switched]:
    """Disables every enabled schedule of the namespace, and returns those, by name."""
    return _change_all(unit, "disable", table.c.enabled, _disabled(reason))


def _change_all(
    unit: UnitOfWork, verb: str, which: ColumnElement[bool], values: dict[str, Any]
) -> list[Switched]:
    permissions.require_admin(unit.actor, f"{verb} all schedules")
    connection = unit.connection
    query = SELECT.where(table.c.namespace == unit.namespace, which)
    # In the order of ids, as other writers of many rows lock them.
    locked = connection.execute(query.order_by(table.c.id).with_for_update())
    before = {row.id: Schedule._make(row) for row in locked}
    if not before:
        return []
    is_changed = table.c.id.in_(before)
    connection.execute(update(table).where(is_changed).values(**values))
    after = map(Schedule._make, connection.execute(SELECT.where(is_changed).order_by(table.c.name)))
    changed = [Switched(before[row.id], row) for row in after]
    unit.record_all([(verb, *switched) for switched in changed])
    return changed


def set_cursor(unit: UnitOfWork, name: str, cursor: Any) -> Any:
    """Sets the cursor that the launcher gets at its next evaluation, and returns it as stored.

    `None` clears it. An evaluation that is in progress is repeated. Raises `InvalidSchedule` for a
    cursor that JSON or Postgres can't hold.
    """
    before = _locked(unit, name)
    if not is_storable(cursor):
        message = "cursor can't be kept as JSON: it has NaN, NUL or half a character"
        raise InvalidSchedule.of("cursor", "unstorable", message)
    kept = _set(unit, before, {"cursor": null() if cursor is None else cursor}).cursor
    if kept != before.cursor:
        unit.record_action("update", "schedule", name, {"cursor": before.cursor}, {"cursor": kept})
    return kept
