"""Holds what a restored database would do again, until a person releases it.

A restored database knows nothing of what happened after the moment that it shows: what was queued
then has run, and schedules that are due have been launched. A fence pauses all queues and schedules
at once, and remembers which, so that they are released together or one by one.
"""

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime

from sqlalchemy import Connection, text

from pgbeat.broker import queues
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import fence, sql
from pgbeat.errors import AlreadyExists, Fenced, InvalidTransition, NotFound
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.verbs import control
from pgbeat.monitoring import fences
from pgbeat.monitoring.fences import Fence, Held

#: Why schedules are paused.
MARK = "held by a fence"
_SQL = "fences.sql"
_RAISE, _RELEASE, _RELEASE_SCHEDULES = (
    text(sql.load(_SQL, name)) for name in ("raise", "release", "release_schedules")
)
_HELD_SCHEDULES = text("SELECT schedules FROM pgbeat.fences WHERE epoch = :epoch")
_DELETE = text("DELETE FROM kombu_message WHERE id = ANY (:ids)")
_DELETE_OF_JOBS = text("DELETE FROM kombu_message WHERE job_id = ANY (CAST(:ids AS uuid[]))")


def raise_fence(
    unit: UnitOfWork, *, reason: str | None = None, restored_to: datetime | None = None
) -> Fence:
    """Pauses all queues and schedules of the database, of all namespaces, but for paused ones.

    Accepts the server, too. Raises `AlreadyExists` if a fence is raised.
    """
    permissions.require_admin(unit.actor, "raise a fence")
    _require_table(unit.connection)
    fence.note(unit.connection)
    values = {"mark": MARK, "raised_by": unit.actor.name}
    why = {"reason": reason, "restored_to": restored_to}
    is_new = unit.connection.scalar(_RAISE, values | why) is not None
    new = fences.require_raised(unit.connection)
    if not is_new:  # somebody else may have raised it at the same moment
        raise AlreadyExists(f"a fence is raised already, epoch {new.epoch}; release it first")
    _record(unit, "raise", new)
    return new


def accept(unit: UnitOfWork) -> fence.Server:
    """Notes that the database was moved to its server, with all that it had done. Holds nothing."""
    permissions.require_admin(unit.actor, "accept a server")
    _require_table(unit.connection)
    server = fence.read(unit.connection)
    fence.note(unit.connection)
    unit.record_action("accept", "server", str(server.system), None, server._asdict())
    return server


def release(
    unit: UnitOfWork,
    *,
    of_queues: Collection[str] | None = None,
    of_schedules: Collection[str] | None = None,
) -> Fence:
    """Resumes what the fence holds: of queues and schedules those named, `None` for all.

    Schedules are those of the namespace if they are named. Returns the fence with what is left.
    Raises `NotFound` if no fence is raised, or if it doesn't hold one of them.
    """
    permissions.require_admin(unit.actor, "release a fence")
    held = fences.require_raised(unit.connection)
    names = list(held.queues) if of_queues is None else list(of_queues)
    _require_held("queue", names, held.queues)
    for name in names:
        if queues.find(unit.connection, name) is not None:
            queues.set_paused(unit.connection, name, False)
    if of_schedules is not None:
        full = [f"{unit.namespace}/{name}" for name in of_schedules]
        _require_held("schedule", full, held.schedules)
    rows = unit.connection.execute(
        _RELEASE_SCHEDULES,
        {
            "epoch": held.epoch,
            "mark": MARK,
            "namespace": unit.namespace,
            "names": None if of_schedules is None else list(of_schedules),
        },
    ).all()
    ids = [row.id for row in rows]
    if of_schedules is None:  # those that were resumed or deleted meanwhile, too
        ids = unit.connection.scalar(_HELD_SCHEDULES, {"epoch": held.epoch})
    unit.connection.execute(_RELEASE, {"epoch": held.epoch, "queues": names, "schedules": ids})
    left = fences.newest(unit.connection) or held
    _record(unit, "release", left)
    return left


def drop_ended(unit: UnitOfWork, ended: Collection[str]) -> list[Held]:
    """Ends held tasks that had ended before the restore, by their ids, and returns them.

    Jobs and their retries are cancelled, and messages of plain tasks deleted. Raises `NotFound` if
    no fence is raised.
    """
    permissions.require_admin(unit.actor, "release a fence")
    held = fences.require_raised(unit.connection)
    known = set(ended)
    dropped: dict[Held, None] = {}
    # Meanwhile, messages become due, which changes their numbers, and jobs are sent or retried.
    while tasks := [
        task
        for task in fences.held_tasks(unit.connection, held)
        if task.is_among(known) and task not in dropped
    ]:
        _drop(unit, tasks)
        dropped |= dict.fromkeys(tasks)
    return list({task.id: task for task in dropped}.values())


def _drop(unit: UnitOfWork, tasks: Collection[Held]) -> None:
    messages = [task.message for task in tasks if not task.is_job]
    unit.connection.execute(_DELETE, {"ids": messages})
    jobs = list({task.id for task in tasks if task.is_job})
    for job_id in jobs:
        with suppress(InvalidTransition):  # it has ended, and left its message
            control.cancel(unit, job_id, reason="it had ended before the restore")
    unit.connection.execute(_DELETE_OF_JOBS, {"ids": jobs})


def _require_held(noun: str, names: Collection[str], held: Collection[str]) -> None:
    if unknown := sorted(set(names) - set(held)):
        raise NotFound(f"the fence holds no {noun} {unknown[0]!r}")


def _require_table(connection: Connection) -> None:
    if not fences.is_installed(connection):
        raise Fenced("the schema has no fence yet", advice="run `pgbeat migrate`")


def _record(unit: UnitOfWork, verb: str, held: Fence) -> None:
    values = {"queues": held.queues, "schedules": held.schedules, "reason": held.reason}
    unit.record_action(verb, "fence", str(held.epoch), None, values)
