"""Exports rows as a file that declares them."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pgbeat.errors import InvalidSchedule
from pgbeat.names import NAMESPACE, name_problem
from pgbeat.schedules.files.definitions import timetables
from pgbeat.schedules.files.documents import SECTIONS
from pgbeat.schedules.files.fields import FIELDS, plain
from pgbeat.schedules.files.nouns.noun import Plain
from pgbeat.schedules.model import Schedule


def document(
    rows: Iterable[Schedule],
    sections: Mapping[str, dict[str, Plain]] = {},
    namespace: str = NAMESPACE,
) -> dict[str, Any]:
    """Returns a file that declares just these rows, without default values.

    `sections` has what it declares beside schedules. Raises `InvalidSchedule` for a row that no
    file can declare.
    """
    declared = {name: section for name, section in sections.items() if section}
    declared["schedules"] = {row.name: definition(row) for row in rows}
    result: dict[str, Any] = {} if namespace == NAMESPACE else {"namespace": namespace}
    return result | {name: declared[name] for name in SECTIONS if name in declared}


def named_by(
    rows: Collection[Schedule], sections: Mapping[str, dict[str, Plain]]
) -> dict[str, dict[str, Plain]]:
    """Returns, of the sections, what the schedules name, and the lanes of their templates."""
    policies = [row.job_policy for row in rows]
    templates = _only(sections["templates"], (policy.get("template") for policy in policies))
    policies += [template.get("job_policy", {}) for template in templates.values()]
    return {
        "calendars": _only(sections["calendars"], (row.calendar for row in rows)),
        "lanes": _only(sections["lanes"], (policy.get("lane") for policy in policies)),
        "templates": templates,
    }


def _only(section: dict[str, Plain], names: Iterable[str | None]) -> dict[str, Plain]:
    wanted = {*names}
    return {name: definition for name, definition in section.items() if name in wanted}


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
