"""Changes lanes for people, with a function for each verb.

Each takes an open unit of work, records the change in the audit log, and dispatches the lane
after the commit if that may free slots.
"""

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import sql
from pgbeat.database.tables import lanes as table
from pgbeat.errors import (
    AlreadyExists,
    InvalidJob,
    InvalidTimetable,
    InvalidTransition,
    NotFound,
    Problems,
)
from pgbeat.jobs.flow import dispatch
from pgbeat.jobs.lanes import concurrency, reservations
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes.model import Lane
from pgbeat.names import name_problem
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import parse_duration

#: The columns that `save` changes.
CHANGES = (
    "max_running", "rate_limit", "rate_period", "rate_key", "rate_unit", "temporary_limit",
    "temporary_period", "temporary_until", "fair_by", "max_per_key", "policy", "options",
)  # fmt: skip
_KEYS = ("task", "tag", "created_by")


class SavedLane(NamedTuple):
    """A lane, and as it was before, if it existed."""

    lane: Lane
    before: Lane | None
    is_new: bool


def save(
    unit: UnitOfWork,
    name: str,
    changes: Mapping[str, Any],
    *,
    only: Literal["new", "there"] | None = None,
) -> SavedLane:
    """Creates a lane, or changes some of its `CHANGES`. A new policy starts without options.

    A new lane without a limit must say so: `max_running` is `None` in `changes`.

    With `only`, raises `AlreadyExists` or `NotFound` instead of the other of the two. Raises
    `InvalidJob`.
    """
    connection, namespace = unit.connection, unit.namespace
    before = lanes.lock(connection, namespace, name)
    if before is None and only == "there":
        lanes.get(connection, name, namespace=namespace)
    changes = dict(changes)
    if "rate_limit" in changes:
        changes = _NO_TEMPORARY | changes
    if "policy" in changes and (before is None or changes["policy"] != before.policy):
        changes.setdefault("options", {})
    problem = name_problem(name)
    if problem:
        raise InvalidJob.of("name", "malformed", problem, subject=f"lane {name!r}")
    statement = insert(table).values(namespace=namespace, name=name).on_conflict_do_nothing()
    is_new = connection.execute(statement.returning(table.c.name)).one_or_none() is not None
    if only == "new" and not is_new:
        raise AlreadyExists(f"there is a lane {name!r} already")
    query = select(*lanes.COLUMNS).where(lanes.is_lane(name, namespace)).with_for_update()
    lane = Lane(*connection.execute(query).one())._replace(**changes)
    wrong = problems(lane, new=changes if is_new else None)
    if lane.policy is not None and {"policy", "options"} & set(changes):
        with wrong.within():
            concurrency.make(lane.policy, lane.options)
    wrong.raise_if_any(InvalidJob, subject=f"lane {name!r}")
    if changes:
        lane = _update(unit, name, {**changes, "updated_at": func.now()})
    lanes.announce(connection, namespace, name)
    unit.record("create" if is_new else "update", before, lane)
    dispatch.after_commit(unit, {lanes.Room(namespace, name)})
    return SavedLane(lane, before, is_new)


def read_changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes, for `save`, that people ask for.

    Besides some `CHANGES`, they may name a `rate` in words, and `rate_for`: how long it holds.
    Without a rate there is no key or unit for it, without `fair_by` no limit for each key. Raises
    `InvalidJob`.
    """
    changes = dict(values)
    for_ = changes.pop(_FOR, None)
    if "rate" in changes:
        rate = changes.pop("rate")
        left_out = {"rate_key": None, "rate_unit": None} if rate is None else {}
        changes = left_out | changes | rate_changes(rate, for_)
    elif for_ is not None:
        raise InvalidJob.of(_FOR, "conflict", "rate_for needs a rate")
    if changes.get("fair_by", "") is None:
        changes.setdefault("max_per_key", None)
    if "options" in changes:
        changes["options"] = changes["options"] or {}
        if not isinstance(changes["options"], dict):
            raise InvalidJob.of("options", "malformed", "options must be a JSON object")
    return changes


#: The field of errors in the time for which a rate holds.
_FOR = "rate_for"
_NO_TEMPORARY = dict.fromkeys(("temporary_limit", "temporary_period", "temporary_until"))


def rate_changes(rate: str | None, for_: str | float | timedelta | None = None) -> dict[str, Any]:
    """Returns the changes, for `save`, that set a lane's rate: for good, or for a length of time.

    `None` removes it. Raises `InvalidJob`.
    """
    if for_ is None:
        limit, period = (None, None) if rate is None else lanes.parse_rate(rate)
        return {"rate_limit": limit, "rate_period": period}
    if rate is None:
        raise InvalidJob.of(
            _FOR, "conflict", "only a rate can hold for a time, not the lack of one"
        )
    try:
        length = parse_duration(for_) if isinstance(for_, str) else for_
    except InvalidTimetable as error:
        raise InvalidJob.of(_FOR, "malformed", str(error)) from None
    if not isinstance(length, timedelta):
        length = timedelta(seconds=min(length, 1e9))
    if not timedelta(0) < length <= timedelta(days=366):
        message = f"a rate must hold for up to 366 days, got {for_!r}"
        raise InvalidJob.of(_FOR, "out_of_range", message)
    limit, period = lanes.parse_rate(rate)
    until = func.clock_timestamp() + length
    return {"temporary_limit": limit, "temporary_period": period, "temporary_until": until}


def _limits(lane: Lane) -> bool:
    """Returns whether a lane may hold any job back."""
    limits = (lane.max_running, lane.max_per_key, lane.rate_limit, lane.temporary_limit)
    return lane.policy is not None or any(limit is not None for limit in limits)


def problems(lane: Lane, *, new: Collection[str] | None = None) -> Problems:
    """Returns what is wrong with a lane, but for its policy's options.

    `new` has the columns that people gave a new lane: a limit, or expressly none.
    """
    problems = Problems()
    if lane.max_running is not None and not 0 <= lane.max_running <= 1_000_000:
        message = f"a limit must be 0 to 1000000, got {lane.max_running}"
        problems.add("max_running", "out_of_range", message)
    if lane.rate_key is not None:
        if lane.rate_limit is None and lane.temporary_limit is None:
            problems.add("rate_key", "conflict", "there is a key for the rate, but no rate")
        if lane.rate_key not in _KEYS and not re.fullmatch(r"kwargs\..+", lane.rate_key):
            hint = did_you_mean(lane.rate_key, _KEYS)
            hint = hint or f"there are {', '.join(_KEYS)} and kwargs.NAME"
            message = f"a rate can't be counted by {lane.rate_key!r}; {hint}"
            problems.add("rate_key", "unknown", message)
    if lane.rate_unit is not None:
        if lane.rate_limit is None and lane.temporary_limit is None:
            problems.add("rate_unit", "conflict", "there is a unit for the rate, but no rate")
        if not re.fullmatch(r"[^\x00-\x1f]{1,200}", lane.rate_unit):
            problems.add("rate_unit", "malformed", "a unit must be the name of a resource")
    _check_fairness(lane, problems)
    if lane.policy is None and lane.options:
        problems.add("options", "conflict", "there are options for a policy, but no policy")
    if new is not None and not problems and "max_running" not in new and not _limits(lane):
        message = "a new lane needs a limit (0 or more), a rate or a policy, or expressly no limit"
        problems.add("max_running", "required", message)
    return problems


def _check_fairness(lane: Lane, problems: Problems) -> None:
    if lane.max_per_key is not None:
        if lane.fair_by is None:
            problems.add("max_per_key", "conflict", "there is a limit for each key, but no key")
        if not 0 <= lane.max_per_key <= 1_000_000:
            message = f"a limit must be 0 to 1000000, got {lane.max_per_key}"
            problems.add("max_per_key", "out_of_range", message)
    if lane.fair_by is None or lane.fair_by in _KEYS:
        return
    if not re.fullmatch(r"(kwargs\.|tag:).{1,200}", lane.fair_by):
        hint = did_you_mean(lane.fair_by, _KEYS)
        hint = hint or f"there are {', '.join(_KEYS)}, tag:PREFIX and kwargs.NAME"
        message = f"jobs can't take turns by {lane.fair_by!r}; {hint}"
        problems.add("fair_by", "unknown", message)


def _update(unit: UnitOfWork, name: str, values: Mapping[str, Any]) -> Lane:
    statement = update(table).where(lanes.is_lane(name, unit.namespace)).values(**values)
    return Lane(*unit.connection.execute(statement.returning(*lanes.COLUMNS)).one())


def pause(unit: UnitOfWork, name: str) -> tuple[Lane, bool]:
    """Pauses a lane: it dispatches nothing more; jobs that have a slot continue.

    Returns the lane, and whether it was not paused before. Raises `NotFound`.
    """
    before = _lock(unit, name)
    if before.paused_at is not None:
        return before, False
    lane = _update(unit, name, {"paused_at": func.now()})
    unit.record("pause", before, lane)
    return lane, True


def resume(unit: UnitOfWork, name: str) -> tuple[Lane, bool]:
    """Resumes a lane. Returns it, and whether it was paused. Raises `NotFound`."""
    before = _lock(unit, name)
    if before.paused_at is None:
        return before, False
    lane = _update(unit, name, {"paused_at": None})
    unit.record("resume", before, lane)
    lanes.announce(unit.connection, unit.namespace, name)
    dispatch.after_commit(unit, {lanes.Room(unit.namespace, name)})
    return lane, True


def _lock(unit: UnitOfWork, name: str) -> Lane:
    lane = lanes.lock(unit.connection, unit.namespace, name)
    return lane or lanes.get(unit.connection, name, namespace=unit.namespace)


_USES = text(sql.load("lane_control.sql", "uses"))


def remove(unit: UnitOfWork, name: str, *, force: bool = False) -> None:
    """Deletes a lane in which nothing waits, and which no schedule or template names.

    With `force`, deletes it anyway: what waits is dispatched without a limit. Raises `NotFound`,
    and `InvalidJob` if the lane is in use.
    """
    before = lanes.get(unit.connection, name, namespace=unit.namespace)
    values = {"namespace": unit.namespace, "lane": name}
    jobs, direct, schedules, templates = unit.connection.execute(_USES, values).one()
    uses = [
        *([f"{jobs} job{'' if jobs == 1 else 's'} to come"] if jobs else ()),
        *([f"{direct} direct execution{'' if direct == 1 else 's'}"] if direct else ()),
        *(f"schedule {user!r}" for user in schedules[:5]),
        *(f"template {user!r}" for user in templates[:5]),
    ]
    if uses and not force:
        raise InvalidJob.of("", "in_use", f"lane {name!r} is in use: {', '.join(uses)}")
    unit.connection.execute(table.delete().where(lanes.is_lane(name, unit.namespace)))
    lanes.announce(unit.connection, unit.namespace, name)
    unit.record("delete", before, None)
    dispatch.after_commit(unit, {lanes.Room(unit.namespace, name)})


def release(unit: UnitOfWork, name: str, number: int) -> None:
    """Removes a direct execution that waits from a lane's line.

    Raises `NotFound`, and `InvalidTransition` if it has a slot.
    """
    connection, namespace = unit.connection, unit.namespace
    lanes.get(connection, name, namespace=namespace)
    reservations.delete_dead(connection, namespace, name)
    alive = reservations.live(connection, namespace, name)
    reservation = next((reservation for reservation in alive if reservation.id == number), None)
    if reservation is None:
        raise NotFound(f"no direct execution {number} is in lane {name!r}; it is over")
    if not reservations.give_up(connection, number):
        hint = "its slot is free when its task, or its process, ends"
        raise InvalidTransition.of(number, "running", "released", hint, noun="direct execution")
    before = {"task": reservation.task, "created_by": reservation.created_by, "lane": name}
    unit.record_action("release", "direct", str(number), before)
    lanes.announce(connection, namespace, name)
    dispatch.after_commit(unit, {lanes.Room(namespace, name)})
