"""Makes the rows of schedules match the entries of an app's code."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from pgbeat.database.tables import schedules
from pgbeat.jobs.policy import templates
from pgbeat.names import NAMESPACE
from pgbeat.storable import storable_json


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """A schedule made by code.

    Without `cron` and `every`, its timetable stays in the code. If `args` is `None`, so do its
    arguments and options. `enabled` and `paused` are for a row that is made. `given` has those of
    `MAY_GIVE` that the code decides.
    """

    name: str
    task: str
    cron: str | None
    every: timedelta | None
    timezone: str | None
    args: list[Any] | None
    kwargs: dict[str, Any]
    options: dict[str, Any]
    enabled: bool = True
    paused: bool = False
    given: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncChanges:
    """What `apply` did, by name."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    #: Names of rows that were made elsewhere, and left alone.
    taken: list[str] = field(default_factory=list)
    #: Names of rows that another app's code made, with that app; left alone.
    foreign: dict[str, str] = field(default_factory=dict)
    #: Rows made by the code of an unknown app, which this app's code doesn't have.
    orphaned: list[str] = field(default_factory=list)


#: Columns of which an entry may have some, with what a new row has otherwise.
MAY_GIVE = {"after": None, "after_outcome": "completed", "after_match": "all", "fresh_within": None}
_OTHERS = {"name", "enabled", "paused", "given"}
_DEFINITION = [column for column in CodeEntry.__slots__ if column not in _OTHERS]
#: Why a row is disabled whose entry says `"enabled": False`.
BY_CODE = "disabled by the app's code"
#: A person may have set these on a row that the code makes.
_NO_OTHER_TIMETABLE = {"once_at": None, "solar": None, "rrule": None, "after": None}
_COMPARED = [*dict.fromkeys((*_DEFINITION, *_NO_OTHER_TIMETABLE, *MAY_GIVE))]


def apply(
    connection: Connection,
    entries: Sequence[CodeEntry],
    namespace: str = NAMESPACE,
    *,
    app: str | None,
    **defaults: Any,
) -> SyncChanges:
    """Makes the rows of this app's code match its entries; `defaults` are values of new rows.

    Run state, pauses and disabling survive, and rows that were made elsewhere or by another app's
    code are left alone. Rows of an unknown app become this app's if it has an entry of their name.
    Nothing is removed for an app without a name (`None`).
    """
    templates.hold(connection, namespace)
    changes, updates, present = _compared(connection, entries, namespace, app)
    fresh = [entry for entry in entries if entry.name not in present]
    changes.added.extend(entry.name for entry in fresh)
    if changes.removed:
        connection.execute(
            delete(schedules).where(
                schedules.c.namespace == namespace, schedules.c.name.in_(changes.removed)
            )
        )
    if updates:
        connection.execute(
            update(schedules).where(
                schedules.c.namespace == namespace, schedules.c.name == bindparam("the_name")
            ),
            updates,
        )
    if fresh:
        common = {"namespace": namespace, "source": "code", "app": app}
        rows = [common | _identity(entry) | MAY_GIVE | _values(entry) | defaults for entry in fresh]
        connection.execute(insert(schedules), rows)
    if paused := [entry.name for entry in fresh if entry.paused]:
        connection.execute(
            update(schedules)
            .where(schedules.c.namespace == namespace, schedules.c.name.in_(paused))
            .values(paused_at=func.now())
        )
    return changes


def _compared(
    connection: Connection, entries: Sequence[CodeEntry], namespace: str, app: str | None
) -> tuple[SyncChanges, list[dict[str, Any]], set[str]]:
    """Locks the rows concerned; returns the changes, their updates, and the names that exist."""
    wanted = {entry.name: entry for entry in entries}
    compared = (schedules.c[name] for name in _COMPARED)
    is_ours = (schedules.c.source == "code") & (
        schedules.c.app.is_(None) | (schedules.c.app == app)
    )
    rows = connection.execute(
        select(schedules.c.name, schedules.c.source, schedules.c.app, *compared)
        .where(schedules.c.namespace == namespace, is_ours | schedules.c.name.in_(wanted))
        .order_by(schedules.c.id)
        .with_for_update()
    )
    changes = SyncChanges()
    updates: list[dict[str, Any]] = []
    present: set[str] = set()
    for name, source, owner, *definition in sorted(rows, key=lambda row: str(row.name)):
        present.add(name)
        entry = wanted.get(name)
        if source != "code":
            changes.taken.append(name)
        elif owner not in (None, app):
            changes.foreign[name] = owner
        elif entry is None:
            (changes.orphaned if owner is None else changes.removed).append(name)
        else:
            have = dict(zip(_COMPARED, definition, strict=True))
            values = have | _values(entry)
            if values != have:
                changes.changed.append(name)
            if values != have or owner != app:
                updates.append({"the_name": name, "app": app, **values})
    return changes, updates, present


def other_apps(connection: Connection, namespace: str, *, app: str | None) -> dict[str, int]:
    """Returns the other apps whose code made schedules of the namespace, and how many each."""
    name = schedules.c.app
    query = select(name, func.count()).where(
        schedules.c.namespace == namespace,
        schedules.c.source == "code",
        name.is_not(None),
        name.is_distinct_from(app),
    )
    rows = connection.execute(query.group_by(name).order_by(name))
    return {str(other): count for other, count in rows}


def _values(entry: CodeEntry) -> dict[str, Any]:
    definition = {name: getattr(entry, name) for name in _DEFINITION}
    return definition | _NO_OTHER_TIMETABLE | entry.given


def _identity(entry: CodeEntry) -> dict[str, Any]:
    reason = None if entry.enabled else BY_CODE
    return {"name": entry.name, "enabled": entry.enabled, "disabled_reason": reason}


def faithful(value: Any) -> Any:
    """Returns the value as JSON returns it. Raises `ValueError` if that is another value.

    A tuple counts as a list, as in Celery's own serializer.
    """
    try:
        copy = json.loads(storable_json(value))
    except TypeError as error:
        raise ValueError(str(error)) from None
    if copy != _listed(value):
        raise ValueError(f"{value!r} is not the same after JSON")
    return copy


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value
