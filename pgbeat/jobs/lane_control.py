"""Control of lanes: what people do with them, a function for each verb.

Each takes an open unit of work, records the change in the audit log, and has the lane's free slots
dispatched after the commit.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.errors import AlreadyExists, InvalidTransition, NotFound
from pgbeat.jobs import dispatch
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import reservations
from pgbeat.jobs.lanes.model import Lane


class SavedLane(NamedTuple):
    """A lane as it is now, and as it was, if it was there."""

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
    """Creates a lane, or changes what is given of `lanes.CHANGES`; another policy begins without
    the options of the one before.

    Raises `InvalidJob`, which lists every mistake; `AlreadyExists` or `NotFound` where `only` the
    other may be done.
    """
    connection, namespace = unit.connection, unit.namespace
    before = lanes.lock(connection, namespace, name)
    if before is None and only == "there":
        lanes.get(connection, namespace, name)
    changes = dict(changes)
    if "policy" in changes and (before is None or changes["policy"] != before.policy):
        changes.setdefault("options", {})
    lane, is_new = lanes.save(connection, namespace, name, changes)
    if only == "new" and not is_new:
        raise AlreadyExists(f"there is a lane {name!r} already")
    unit.record("create" if is_new else "update", before, lane)
    dispatch.after_commit(unit, {(namespace, name)})
    return SavedLane(lane, before, is_new)


def pause(unit: UnitOfWork, name: str) -> tuple[Lane, bool]:
    """Has nothing more dispatched from a lane; what has a slot goes on. Returns it, and whether it
    was not paused before. Raises `NotFound`."""
    return _switch(unit, "pause", name, lanes.pause)


def resume(unit: UnitOfWork, name: str) -> tuple[Lane, bool]:
    """Has what waits in a lane dispatched. Returns it, and whether it was paused. Raises
    `NotFound`."""
    lane, was_paused = _switch(unit, "resume", name, lanes.resume)
    if was_paused:
        dispatch.after_commit(unit, {(unit.namespace, name)})
    return lane, was_paused


def _switch(
    unit: UnitOfWork, verb: str, name: str, turn: Callable[[Connection, str, str], bool]
) -> tuple[Lane, bool]:
    before = lanes.lock(unit.connection, unit.namespace, name)
    is_changed = turn(unit.connection, unit.namespace, name)
    lane = lanes.get(unit.connection, unit.namespace, name)
    unit.record(verb, before, lane)
    return lane, is_changed


def remove(unit: UnitOfWork, name: str, *, force: bool = False) -> None:
    """Deletes a lane that nothing waits in, and that no schedule or template names; with `force`,
    any, and what waits in it is dispatched without a limit. Raises `NotFound` and `InvalidJob`."""
    before = lanes.get(unit.connection, unit.namespace, name)
    lanes.remove(unit.connection, unit.namespace, name, force=force)
    unit.record("delete", before, None)
    dispatch.after_commit(unit, {(unit.namespace, name)})


def release(unit: UnitOfWork, name: str, number: int) -> None:
    """Takes a direct execution that waits out of a lane's line. Raises `NotFound`, and
    `InvalidTransition` for one that has its slot."""
    connection, namespace = unit.connection, unit.namespace
    lanes.get(connection, namespace, name)
    reservations.delete_dead(connection, namespace, name)
    alive = reservations.live(connection, namespace, name)
    found = next((each for each in alive if each.id == number), None)
    if found is None:
        raise NotFound(f"no direct execution {number} is in lane {name!r}; it is over")
    if not reservations.give_up(connection, number):
        raise InvalidTransition.of(
            number, "running", "released", "its slot is free when its task, or its process, ends",
            noun="direct execution",
        )  # fmt: skip
    before = {"task": found.task, "created_by": found.created_by, "lane": name}
    unit.record_action("release", "direct", str(number), before)
    lanes.announce(connection, namespace, name)
    dispatch.after_commit(unit, {(namespace, name)})
