"""Adds and changes schedules, checked against the app, with all mistakes at once."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database.tables import schedules
from pgbeat.errors import InvalidSchedule, Problems
from pgbeat.jobs.checks.user_limits import require_call
from pgbeat.schedules import control, mistakes
from pgbeat.schedules.control import Switched
from pgbeat.schedules.model import TIMETABLES, Schedule
from pgbeat.schedules.registry import check, condition_mistakes

#: Fields that the app's code decides about the schedules that it has.
CODE_OWNS = {"task", "timezone", "args", "kwargs", "options", *TIMETABLES}
#: What beat does about changes of these, and about a deletion.
RESET = "the app's code has it, and beat resets it when it starts"
ADDED = "the app's code has it, and beat adds it again when it starts; disable it instead"
#: Fields that are checked against the app.
_CHECKED = {"task", "launcher", "args", "kwargs", "options"}
#: Those that are cleared by another value than `None`.
_EMPTY: dict[str, Any] = {
    "jitter": timedelta(0),
    "job_policy": {},
    "options": {},
    "args": [],
    "kwargs": {},
    "labels": {},
    "metadata": {},
}
#: Those that can't be cleared.
REQUIRED = {c.name for c in schedules.c if not c.nullable or c.name == "next_run"} - set(_EMPTY)


def read_changes(values: Mapping[str, Any]) -> tuple[dict[str, Any], Problems]:
    """Returns the changes, for `edit`, that people ask for, and the mistakes among them.

    `None` clears a field. A new timetable replaces the old one, of whichever kind.
    """
    changes, problems = {**values}, Problems()
    for key in [key for key, value in values.items() if value is None]:
        changes[key] = _EMPTY.get(key)
        if key in REQUIRED or key not in schedules.c:
            message = f"{key} can't be null; leave it out to keep it as it is"
            problems.add(key, "required", message)
    if not changes.keys().isdisjoint(TIMETABLES):
        changes = dict.fromkeys(TIMETABLES) | changes
    return changes, problems


def add(unit: UnitOfWork, values: Mapping[str, Any]) -> Schedule:
    """Adds a schedule with these values, its `name` among them. Raises as `mistakes.attempt`."""

    def change(values: dict[str, Any]) -> Schedule:
        row = control.add(unit, **values)
        check(unit.require_app(), row)
        return row

    known = _known(unit, values)
    return mistakes.attempt(unit.connection, values, change, is_new=True, known=known)


def edit(unit: UnitOfWork, name: str, changes: Mapping[str, Any]) -> Switched:
    """Changes a schedule, and enables or disables it by `enabled`.

    Raises `InvalidSchedule` if nothing is given, else as `mistakes.attempt`.
    """
    if changes.get("enabled", False) is None:
        changes = {key: value for key, value in changes.items() if key != "enabled"}
    if not changes:
        message = "there is nothing to change; give at least one field"
        raise InvalidSchedule.of("", "required", message)
    values, known = read_changes(changes)
    enabled = values.pop("enabled", None)
    known += _known(unit, values)

    def change(values: dict[str, Any]) -> Switched:
        edited = control.edit(unit, name, values, enabled=enabled)
        if _CHECKED & values.keys():
            check(unit.require_app(), edited.after)
        return edited

    return mistakes.attempt(unit.connection, values, change, is_new=False, known=known)


def _known(unit: UnitOfWork, values: Mapping[str, Any]) -> Problems:
    """Returns the mistakes in a call and a condition, before rows are locked."""
    problems = Problems()
    with problems.within():
        require_call(unit.actor, values.get("task"), values.get("options", {}))
    problems += condition_mistakes(unit.settings, values.get("condition_sql"))
    return problems
