"""Writes a plan: the rows of schedules that come from files, in bulk."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Row,
    Text,
    bindparam,
    case,
    cast,
    column,
    delete,
    func,
    insert,
    literal,
    null,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError

from pgbeat.access import audit
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections
from pgbeat.database.tables import schedules
from pgbeat.errors import Busy
from pgbeat.jobs.policy import templates
from pgbeat.schedules import model as schedules_model
from pgbeat.schedules.files.definitions import Definition
from pgbeat.schedules.files.documents import Mistake
from pgbeat.schedules.files.fields import FIELDS, SWITCHES, plain
from pgbeat.schedules.files.nouns import writing
from pgbeat.schedules.files.plans import BY_FILE, Plan
from pgbeat.schedules.files.reading import File, InvalidFile
from pgbeat.schedules.writes import refusal

#: A row's values by column, and `paused`.
Values = dict[str, Any]

_ALONE = text("SELECT pg_advisory_xact_lock(hashtextextended('pgbeat.files ' || :namespace, 0))")
_LOCK = (
    select(schedules.c.id)
    .where(schedules.c.id == func.any(bindparam("ids", type_=ARRAY(BigInteger))))
    .order_by(schedules.c.id)
    .with_for_update()
)


def lock(connection: Connection, plan: Plan) -> None:
    """Waits for other syncs of the namespace, and locks the rows that the plan changes."""
    connection.execute(_ALONE, {"namespace": plan.namespace})
    for section in plan.sections.values():
        writing.lock(connection, plan.namespace, section)
    templates.hold(connection, plan.namespace)
    names = {*plan.changed, *plan.removed, *plan.adopted, *plan.noted}
    connection.execute(_LOCK, {"ids": [row.id for n, row in plan.rows.items() if n in names]})


def apply(unit: UnitOfWork, file: File, plan: Plan) -> None:
    """Executes a plan that was made after `lock`. Leaves alone what is not a field of the file.

    Schedules come after what they may name, and what nothing names any more is removed last. Raises
    `InvalidFile` for rows that are refused, `InvalidInput` if something can't be removed, and
    `Busy` if a name was taken just now.
    """
    connection = unit.connection
    old = schedules_model.named(connection, plan.touched, namespace=plan.namespace)
    try:
        if plan.removed:
            connection.execute(_DELETE, {"ids": [plan.rows[name].id for name in plan.removed]})
        mistakes = [m for section in plan.sections.values() for m in writing.write(unit, section)]
        if mistakes:
            raise InvalidFile(file.label, mistakes)
        for names in _in_order(plan):
            _change(connection, file, plan, [name for name in names if name in plan.rows])
            _add(connection, file, plan, [name for name in names if name in plan.added])
        _note(connection, file, plan)
    except DBAPIError as error:
        if not connections.is_refused(error):
            raise
        raise _refusal(error, file) from None
    new = schedules_model.named(connection, plan.touched, namespace=plan.namespace)
    unit.record_all(audit.compared(old, new))
    for section in reversed(plan.sections.values()):
        writing.remove(unit, section)


def _in_order(plan: Plan) -> Iterator[list[str]]:
    """Returns the names in steps; a schedule comes in a later step than those that it is after.

    So there is never a circle in the database, not even between two steps.
    """
    touched = dict.fromkeys((*plan.added, *plan.changed, *plan.adopted))
    moved = {n for n, changes in plan.changed.items() if any(c.field == "after" for c in changes)}
    moved.update(plan.added)
    depths: dict[str, int] = {}
    for name in TopologicalSorter(plan.after).static_order():
        before = max((depths[other] for other in plan.after.get(name, ())), default=0)
        depths[name] = before + (name in moved)
    steps: defaultdict[int, list[str]] = defaultdict(list)
    for name in touched:
        steps[depths.get(name, 0)].append(name)
    return (steps[depth] for depth in sorted(steps))


_COLUMNS = [schedules.c[name] for name in FIELDS if name in schedules.c]
#: A batch of any size is one JSON document, read as columns.
_BATCH = (
    func.json_to_recordset(cast(bindparam("batch", type_=Text), JSON))
    .table_valued(
        column("id", BigInteger),
        column("name", Text),
        column("disabled_reason", Text),
        column("paused", Boolean),
        column("file_definition", JSONB),
        *(column(c.name, c.type) for c in _COLUMNS),
        name="batch",
    )
    .render_derived(with_types=True)
)
_SAME = {c.name: _BATCH.c[c.name] for c in _COLUMNS} | {
    "disabled_reason": _BATCH.c.disabled_reason,
    "file_definition": _BATCH.c.file_definition,
    "source": literal("file"),
}
_INSERTED = _SAME | {
    "namespace": bindparam("namespace", type_=Text),
    "name": _BATCH.c.name,
    "paused_at": case((_BATCH.c.paused, func.now())),
}
_INSERT = insert(schedules).from_select([*_INSERTED], select(*_INSERTED.values()))


def _unless_by_file(name: str) -> ColumnElement[Any]:
    """Returns a column as it is, or NULL where the file disables the schedule."""
    return case((_BATCH.c.disabled_reason == BY_FILE, null()), else_=schedules.c[name])


_UPDATE = (
    update(schedules)
    .where(schedules.c.id == _BATCH.c.id)
    .values(
        _SAME
        | {
            "paused_at": case((_BATCH.c.paused, func.coalesce(schedules.c.paused_at, func.now()))),
            "probe_at": _unless_by_file("probe_at"),
            "completed_at": _unless_by_file("completed_at"),
        }
    )
)
#: For rows that stay as they are.
_NOTE = (
    update(schedules)
    .where(schedules.c.id == _BATCH.c.id)
    .values(
        file_definition=_BATCH.c.file_definition,
        disabled_reason=_BATCH.c.disabled_reason,
        probe_at=_unless_by_file("probe_at"),
        completed_at=_unless_by_file("completed_at"),
    )
)
_DELETE = delete(schedules).where(
    schedules.c.id == func.any(bindparam("ids", type_=ARRAY(BigInteger)))
)


def _send(connection: Connection, statement: Any, batch: list[Values], **more: Any) -> None:
    if batch:
        connection.execute(statement, {"batch": json.dumps(batch, default=str), **more})


def _add(connection: Connection, file: File, plan: Plan, names: Iterable[str]) -> None:
    batch = []
    for name in names:
        values = _values(file.definitions[name])
        values["disabled_reason"] = None if values["enabled"] else BY_FILE
        batch.append(values)
    _send(connection, _INSERT, batch, namespace=plan.namespace)


def _change(connection: Connection, file: File, plan: Plan, names: Iterable[str]) -> None:
    batch = []
    for name in names:
        before, values = plan.rows[name], _values(file.definitions[name])
        switched = {change.field: change.new for change in plan.changed.get(name, ())}
        for switch in SWITCHES:
            values[switch] = switched.get(switch, getattr(before, switch))
        values["disabled_reason"] = _reason(before, file.definitions[name], values["enabled"])
        batch.append(values | {"id": before.id})
    _send(connection, _UPDATE, batch)


def _note(connection: Connection, file: File, plan: Plan) -> None:
    batch = []
    for name in plan.noted:
        before, definition = plan.rows[name], file.definitions[name]
        values = {"id": before.id, "file_definition": plain(definition.values)}
        batch.append(values | {"disabled_reason": _reason(before, definition, before.enabled)})
    _send(connection, _NOTE, batch)


def _values(definition: Definition) -> Values:
    identity = {"name": definition.name, "file_definition": plain(definition.values)}
    return definition.values | identity


def _reason(before: Row[Any], definition: Definition, is_enabled: bool) -> str | None:
    """Returns why a row is disabled: by the file, if the file has just begun to say so."""
    said_so = (before.file_definition or {}).get("enabled") is False and not before.enabled
    if not definition.values["enabled"] and not said_so:
        return BY_FILE
    return None if is_enabled else before.disabled_reason


def _refusal(error: DBAPIError, file: File) -> Exception:
    """Returns the database's message as a mistake of the wrong definition."""
    diagnosis = getattr(error.orig, "diag", None)
    if getattr(diagnosis, "constraint_name", None) == "schedules_name_key":
        return Busy("a schedule of the same name was added just now; try again")
    name, field, sentence = refusal(error)
    definition = file.definitions.get(name or "")
    if definition is None:
        return InvalidFile(file.label, [Mistake(1, 1, connections.first_line(error))])
    return InvalidFile(file.label, [definition.mistake(field, sentence)])
