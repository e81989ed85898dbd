"""Changes queues and dead letters for people, with one function for each verb.

Each takes an open unit of work, and records the change in the audit log.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta

from sqlalchemy import Connection

from pgbeat.broker import dead_letters, discards, queues
from pgbeat.broker.dead_letters import Handled
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.broker.queues import QueueSummary
from pgbeat.errors import InvalidJob, NotFound
from pgbeat.timetables import span


def pause(unit: UnitOfWork, name: str) -> tuple[QueueSummary, bool]:
    """Stops consumers from claiming a queue's messages; claimed ones are still handled.

    Returns the queue, and whether this has changed it. Raises `NotFound`.
    """
    return _set_paused(unit, name, True)


def resume(unit: UnitOfWork, name: str) -> tuple[QueueSummary, bool]:
    """Lets consumers claim a queue's messages again; returns and raises as `pause`."""
    return _set_paused(unit, name, False)


def _set_paused(unit: UnitOfWork, name: str, paused: bool) -> tuple[QueueSummary, bool]:
    before = queues.get(unit.connection, name)
    if not queues.set_paused(unit.connection, name, paused):
        return before, False
    row = queues.get(unit.connection, name)
    unit.record("pause" if paused else "resume", before, row)
    return row, True


def purge(unit: UnitOfWork, name: str, tell: Callable[[int], object] = lambda deleted: None) -> int:
    """Deletes a queue's waiting and delayed messages; returns how many. Raises `NotFound`.

    It opens a transaction for every `queues.PURGED` messages, so that no statement takes long, and
    calls `tell` after each with the number deleted so far.
    """
    deleted, is_over = 0, False
    while not is_over:
        with unit.transaction():
            queues.get(unit.connection, name)
            count = discards.purge(unit.connection, name)
            is_over = count < queues.PURGED
            if count or not deleted:
                unit.record_action("purge", "queue", name, None, {"deleted": count})
        deleted += count
        tell(deleted)
    return deleted


def choose(
    connection: Connection,
    *,
    ids: Collection[int] = (),
    queue: str | None = None,
    older_than: timedelta | None = None,
    everything: bool = False,
) -> dict[int, str]:
    """Locks the dead letters to requeue or drop, and returns their queues by id.

    All conditions must hold. Raises `InvalidJob` if none is given, or `ids` with `everything`;
    `NotFound` if no such letter has one of the ids, or for an unknown queue without dead letters.
    """
    if ids and everything:
        raise InvalidJob.of("all", "conflict", "ids and all exclude each other")
    if not (ids or everything or queue is not None or older_than is not None):
        raise InvalidJob.of(
            "ids", "required", "which dead letters? Give their ids, their queue or all"
        )
    chosen = dead_letters.choose(
        connection,
        queue=queue,
        ids=list(ids) or None,
        older_than=None if older_than is None else older_than.total_seconds(),
    )
    missing = sorted(set(ids) - set(chosen))
    if missing:
        named = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        are = "is no dead letter" if len(missing) == 1 else "are no dead letters"
        scope = "" if queue is None else f" of queue {queue!r}"
        scope += "" if older_than is None else f" older than {span(older_than, 4)}"
        raise NotFound(f"there {are} {named}{scope}; nothing was changed")
    if not chosen and queue is not None:
        queues.get(connection, queue)
    return chosen


def requeue(unit: UnitOfWork, chosen: Mapping[int, str]) -> int:
    """Requeues dead letters (their queues by id), unless their queue was deleted.

    Returns how many were requeued.
    """
    count = dead_letters.requeue(unit.connection, ids=list(chosen)) if chosen else 0
    if count:
        queued = {number: name for number, name in chosen.items() if name}
        unit.record("requeue", None, Handled(queued, count))
    return count


def drop(unit: UnitOfWork, chosen: Mapping[int, str]) -> int:
    """Deletes dead letters (their queues by id) for good; returns how many there were."""
    count = dead_letters.drop(unit.connection, ids=list(chosen)) if chosen else 0
    if count:
        unit.record("drop", None, Handled(chosen, count))
    return count
