"""Finds all mistakes in the values of a schedule, not only the first."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import Connection

from pgbeat.errors import AlreadyExists, ConfigError, InvalidInput, InvalidSchedule, Problem
from pgbeat.schedules.model import TIMETABLES

Made = TypeVar("Made")
Values = TypeVar("Values")
#: A task of every app, which stands in for a wrong one.
_TASK = "celery.backend_cleanup"


def retried(
    values: Values,
    change: Callable[[Values], Made],
    note: Callable[[Exception], Collection[str]],
    without: Callable[[Values, Collection[str]], Values],
) -> Made | None:
    """Returns `change`'s result for the values; `None` if they are wrong even after all tries.

    An error goes to `note`, which returns the fields that are wrong by it and were not before, or
    raises it again. It is tried again with what `without` makes of the values, until none is.
    """
    while True:
        try:
            return change(values)
        except Exception as error:
            fresh = note(error)
        if not fresh:
            return None
        values = without(values, fresh)


def attempt(
    connection: Connection,
    values: Mapping[str, Any],
    change: Callable[[dict[str, Any]], Made],
    *,
    is_new: bool,
    known: Iterable[Problem] = (),
) -> Made:
    """Returns `change`'s result for the values, in the open transaction.

    After a mistake it is tried again without the wrong value, until nothing else is wrong. Then the
    mistakes are raised together, with those that were `known` before, as `InvalidSchedule`; one by
    itself is raised as it is. The caller must roll the transaction back.
    """
    problems, refusals = list(known), list[InvalidInput]()

    def change_alone(rest: dict[str, Any]) -> Made:
        with connection.begin_nested():
            return change(rest)

    def note(error: Exception) -> set[str]:
        if isinstance(error, AlreadyExists) and problems:
            problems.append(Problem("name", error.code, str(error)))
            return set()
        if not isinstance(error, InvalidInput) or isinstance(error, ConfigError):
            raise error
        refusals.append(error)
        seen = {problem.root for problem in problems}
        fresh = [problem for problem in error.problems if problem.root not in seen]
        problems.extend(fresh)
        return {problem.root for problem in fresh}

    less = partial(without, is_new=is_new)
    result = retried(less(values, {problem.root for problem in problems}), change_alone, note, less)
    if result is not None and not problems:
        return result
    if refusals and len(problems) == len(refusals[0].problems):
        raise refusals[0]
    raise InvalidSchedule(problems, subject=refusals[0].subject if refusals else "")


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
