"""Controls of schedules: pausing and resuming all of a namespace, setting a launcher's cursor."""

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, func, null, update

from pgbeat.database.tables import schedules as table
from pgbeat.errors import InvalidSchedule
from pgbeat.jobs.policies import is_storable
from pgbeat.schedules import model as schedules
from pgbeat.schedules.model import SELECT, Schedule


class Switched(NamedTuple):
    """A schedule that was paused or resumed with others, as it was and as it is."""

    before: Schedule
    after: Schedule


def pause_all(
    connection: Connection, *, namespace: str, reason: str | None = None
) -> list[Switched]:
    """Pauses every schedule of a namespace that isn't paused, and returns those, by name.

    Schedules that are added later are not paused.
    """
    return _switch(
        connection,
        (table.c.namespace == namespace) & table.c.paused_at.is_(None),
        paused_at=func.now(),
        paused_reason=reason,
    )


def resume_all(
    connection: Connection, *, namespace: str, reason: str | None = None
) -> list[Switched]:
    """Resumes every paused schedule of a namespace, and returns those, by name.

    With a reason, only those that were paused for it. Each is due next from now on.
    """
    which = (table.c.namespace == namespace) & table.c.paused_at.is_not(None)
    if reason is not None:
        which &= table.c.paused_reason == reason
    return _switch(connection, which, paused_at=None)


def _switch(connection: Connection, which: ColumnElement[bool], **values: Any) -> list[Switched]:
    # In the order of ids, as other writers of many rows lock them.
    locked = connection.execute(SELECT.where(which).order_by(table.c.id).with_for_update())
    before = {row.id: Schedule._make(row) for row in locked}
    if not before:
        return []
    found = table.c.id.in_(before)
    connection.execute(update(table).where(found).values(**values))
    after = map(Schedule._make, connection.execute(SELECT.where(found).order_by(table.c.name)))
    return [Switched(before[row.id], row) for row in after]


def set_cursor(connection: Connection, name: str, cursor: Any, *, namespace: str) -> Switched:
    """Sets what a schedule's launcher finds as its cursor at the next decision; `None` clears it.

    Raises `NotFound`, and `InvalidSchedule` for a cursor that JSON or Postgres can't hold. A
    decision that is being made at this moment is made again.
    """
    before = schedules.get(connection, name, namespace=namespace, for_update=True)
    if not is_storable(cursor):
        raise InvalidSchedule("cursor can't be kept as JSON: it has NaN, NUL or half a character")
    value = null() if cursor is None else cursor
    connection.execute(update(table).where(table.c.id == before.id).values(cursor=value))
    return Switched(before, schedules.get(connection, name, namespace=namespace))
