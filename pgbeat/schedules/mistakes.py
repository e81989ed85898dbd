"""Finds all mistakes in the values of a schedule, not only the first."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import Connection

from pgbeat.errors import AlreadyExists, ConfigError, InvalidInput, InvalidSchedule, Problem
from pgbeat.schedules.model import TIMETABLES

Made = TypeVar("Made")
#: A task of every app, to go on with in place of a wrong one.
_TASK = "celery.backend_cleanup"


def attempt(
    connection: Connection,
    values: Mapping[str, Any],
    change: Callable[[dict[str, Any]], Made],
    *,
    is_new: bool,
    known: Iterable[Problem] = (),
) -> Made:
    """Returns what `change` makes of the values, in the open transaction.

    After a mistake it is tried again without the wrong value, until nothing else is wrong. Then the
    mistakes are raised together, with those that were `known` before, as `InvalidSchedule`; one by
    itself is raised as it is. The caller must roll the transaction back.
    """
    problems, first = list(known), None
    rest = without(values, {each.root for each in problems}, is_new=is_new)
    while True:
        try:
            with connection.begin_nested():
                made = change(rest)
            break
        except ConfigError:
            raise
        except AlreadyExists as error:
            if not problems:
                raise
            problems.append(Problem("name", error.code, str(error)))
            break
        except InvalidInput as error:
            first = first or error
            seen = {each.root for each in problems}
            fresh = [each for each in error.problems if each.root not in seen]
            if not fresh:
                break
            problems += fresh
            rest = without(rest, {each.root for each in fresh}, is_new=is_new)
    if not problems:
        return made
    if first is not None and len(problems) == len(first.problems):
        raise first
    raise InvalidSchedule(problems, subject="" if first is None else first.subject)


def without(values: Mapping[str, Any], fields: Collection[str], *, is_new: bool) -> dict[str, Any]:
    """Returns the values without these fields, or with harmless ones where a schedule needs one."""
    rest = {name: value for name, value in values.items() if name not in fields}
    if not fields:
        return rest
    if "task" in fields:
        rest = {name: value for name, value in rest.items() if name not in ("args", "kwargs")}
    has_timetable = any(rest.get(name) is not None for name in TIMETABLES)
    if not is_new:  # its own timetable stays, or is replaced by one that is not wrong
        if has_timetable:
            return dict.fromkeys(TIMETABLES) | rest
        return {name: value for name, value in rest.items() if name not in TIMETABLES}
    if "name" in fields:
        rest["name"] = str(uuid4())
    if not has_timetable and not {"", *TIMETABLES}.isdisjoint(fields):
        rest["every"] = timedelta(days=1)
    if not rest.get("task") and not {"task", "launcher", "job_policy"}.isdisjoint(fields):
        rest["task"] = _TASK
    return rest
