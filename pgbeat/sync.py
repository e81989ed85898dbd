"""What the app's code says should be scheduled, merged into the rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from pgbeat.schedules import NAMESPACE
from pgbeat.tables import schedules


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """A schedule made by code. Without `cron` and `every` its timetable stays in the code, and
    with `args` of `None` so do its arguments and options."""

    name: str
    task: str
    cron: str | None
    every: timedelta | None
    timezone: str | None
    args: list[Any] | None
    kwargs: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Changes:
    """What `apply` did, by name."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    #: Names that a row made elsewhere has already; those rows were left alone.
    taken: list[str] = field(default_factory=list)


_DEFINITION = [column for column in CodeEntry.__slots__ if column != "name"]
#: What a person may have set on a row that the code makes.
_NO_OTHER_TIMETABLE = {"once_at": None, "solar": None, "rrule": None, "after": None}
_COMPARED = [*_DEFINITION, *_NO_OTHER_TIMETABLE]


def apply(
    connection: Connection,
    entries: Sequence[CodeEntry],
    namespace: str = NAMESPACE,
    **defaults: Any,
) -> Changes:
    """Makes the rows whose source is `code` be just the entries; `defaults` go to new rows.

    Run state, pauses and disabling of what stays are left alone, as are rows made elsewhere.
    """
    wanted = {entry.name: entry for entry in entries}
    rows = connection.execute(
        select(schedules.c.name, schedules.c.source, *(schedules.c[name] for name in _COMPARED))
        .where(
            schedules.c.namespace == namespace,
            (schedules.c.source == "code") | schedules.c.name.in_(wanted),
        )
        .with_for_update()
    )
    changes = Changes()
    updates = []
    present = set()
    for name, source, *definition in rows:
        present.add(name)
        entry = wanted.get(name)
        if source != "code":
            changes.taken.append(name)
        elif entry is None:
            changes.removed.append(name)
        elif _values(entry) != dict(zip(_COMPARED, definition, strict=True)):
            changes.changed.append(name)
            updates.append({"the_name": name, **_values(entry)})
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
        connection.execute(
            insert(schedules),
            [
                {
                    "namespace": namespace,
                    "name": e.name,
                    "source": "code",
                    **_values(e),
                    **defaults,
                }
                for e in fresh
            ],
        )
    return changes


def _values(entry: CodeEntry) -> dict[str, Any]:
    return {**{name: getattr(entry, name) for name in _DEFINITION}, **_NO_OTHER_TIMETABLE}


def faithful(value: Any) -> Any:
    """The value as JSON gives it back; `ValueError` where that is not the same value.

    A tuple counts as its list: Celery's own serializer makes no difference.
    """
    try:
        written = json.dumps(value, allow_nan=False, ensure_ascii=False)
        written.encode()  # raises for half a surrogate pair
        copy = json.loads(written)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if "\\u0000" in written:
        raise ValueError("jsonb holds no NUL")
    if copy != _listed(value):
        raise ValueError(f"{value!r} is not the same after JSON")
    return copy


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value
