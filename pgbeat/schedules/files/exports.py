"""Exports schedules as a file that declares them."""

import json
from collections.abc import Iterable
from typing import Any

from pgbeat.errors import InvalidSchedule
from pgbeat.names import NAMESPACE, name_problem
from pgbeat.schedules.calendars.model import Calendar
from pgbeat.schedules.files.definitions import timetables
from pgbeat.schedules.files.fields import FIELDS, plain
from pgbeat.schedules.model import Schedule


def document(
    rows: Iterable[Schedule], calendars: Iterable[Calendar] = (), namespace: str = NAMESPACE
) -> dict[str, Any]:
    """Returns a file that declares just these rows, without default values.

    Raises `InvalidSchedule` for a row that no file can declare.
    """
    result: dict[str, Any] = {} if namespace == NAMESPACE else {"namespace": namespace}
    declared = {calendar.name: calendar.definition for calendar in calendars}
    if declared:
        result["calendars"] = declared
    return result | {"schedules": {row.name: definition(row) for row in rows}}


def definition(row: Schedule) -> dict[str, Any]:
    """Returns the definition of a row. Raises `InvalidSchedule`."""
    values = {name: getattr(row, name, None) for name in FIELDS}
    values["paused"] = row.paused_at is not None
    problem = name_problem(row.name)
    if row.args is None or not timetables(values):
        problem = "its timetable or its arguments are in the app's code"
    if problem:
        raise InvalidSchedule(f"schedule {row.name!r} can't be in a file: {problem}")
    return plain(values)


def as_json(document: dict[str, Any]) -> str:
    """Returns the file as JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
