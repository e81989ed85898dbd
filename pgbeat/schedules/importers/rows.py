"""Writes an import's plan: the rows of arrivals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, insert, update
from sqlalchemy.exc import DBAPIError

from pgbeat.database import connections
from pgbeat.database.tables import schedules
from pgbeat.schedules.entries import row_name
from pgbeat.schedules.importers.imported import Inventory, names
from pgbeat.schedules.importers.plan import SOURCE, Action, ImportStep
from pgbeat.schedules.writes import refusal


def wanted_names(inventory: Inventory) -> set[str]:
    """Returns the names that rows of these arrivals may have."""
    origins = [arrival.origin for arrival in inventory.arrivals]
    return {*names(origins).values(), *map(row_name, origins)}


def apply(
    connection: Connection, steps: Sequence[ImportStep], *, namespace: str, **defaults: Any
) -> list[ImportStep]:
    """Executes the steps in the open transaction; `defaults` are values of new rows.

    Returns the steps as they turned out: `Action.REFUSE`, with the database's sentence, if the
    database refuses a row.
    """
    new = {"namespace": namespace, "source": SOURCE, **defaults}
    done: dict[int, ImportStep] = {}
    writes = {Action.ADD: _insert, Action.REPLACE: _update, Action.CARRY_OVER: _update}
    for action, write in writes.items():
        chosen = [index for index, step in enumerate(steps) if step.action == action]
        came_out = _attempt(connection, [steps[index] for index in chosen], write, new)
        done |= dict(zip(chosen, came_out, strict=True))
    return [done.get(index, step) for index, step in enumerate(steps)]


Write = Callable[[Connection, Sequence[ImportStep], Mapping[str, Any]], None]


def _attempt(
    connection: Connection, steps: list[ImportStep], write: Write, new: Mapping[str, Any]
) -> list[ImportStep]:
    """Writes all steps at once or, if the database refuses, each half by itself."""
    if not steps:
        return []
    try:
        with connection.begin_nested():
            write(connection, steps, new)
            return steps
    except DBAPIError as error:
        if not connections.is_refused(error):
            raise
        if len(steps) == 1:
            return [replace(steps[0], action=Action.REFUSE, reason=refusal(error).sentence)]
    middle = len(steps) // 2
    return [
        *_attempt(connection, steps[:middle], write, new),
        *_attempt(connection, steps[middle:], write, new),
    ]


def _insert(connection: Connection, steps: Sequence[ImportStep], new: Mapping[str, Any]) -> None:
    connection.execute(
        insert(schedules), [{"name": step.name, **new, **step.values} for step in steps]
    )


def _update(connection: Connection, steps: Sequence[ImportStep], new: Mapping[str, Any]) -> None:
    for keys, batch in _alike(steps).items():
        values = [{"the_id": step.row.id, **step.values} for step in batch if step.row]
        is_it = schedules.c.id == bindparam("the_id")
        connection.execute(
            update(schedules).where(is_it).values({key: bindparam(key) for key in keys}), values
        )
        if "next_run" in keys:
            # Separately: with a new timetable in one statement, it would be computed from now.
            times = [{"the_id": row["the_id"], "next_run": row["next_run"]} for row in values]
            connection.execute(
                update(schedules).where(is_it).values(next_run=bindparam("next_run")), times
            )


def _alike(steps: Sequence[ImportStep]) -> dict[tuple[str, ...], list[ImportStep]]:
    """Returns the steps by the columns that they set."""
    groups: dict[tuple[str, ...], list[ImportStep]] = {}
    for step in steps:
        groups.setdefault(tuple(step.values), []).append(step)
    return groups
