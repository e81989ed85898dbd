"""Control of queues and dead letters: what people do with them, a function for each verb.

Each takes an open unit of work, and records the change in the audit log.
"""

from collections.abc import Callable, Mapping

from sqlalchemy import Connection

from pgbeat.broker import dead_letters, discards, queues
from pgbeat.broker.dead_letters import Handled
from pgbeat.broker.messages import BrokerTables
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.broker.queues import QueueSummary


def pause(unit: UnitOfWork, tables: BrokerTables, name: str) -> tuple[QueueSummary, bool]:
    """Keeps consumers from claiming a queue's messages; what they have claimed goes on. Returns it,
    and whether it was not paused before. Raises `NotFound`."""
    return _switch(unit, tables, "pause", name, queues.pause)


def resume(unit: UnitOfWork, tables: BrokerTables, name: str) -> tuple[QueueSummary, bool]:
    """Lets consumers claim a queue's messages again. Returns it, and whether it was paused. Raises
    `NotFound`."""
    return _switch(unit, tables, "resume", name, queues.resume)


def _switch(
    unit: UnitOfWork,
    tables: BrokerTables,
    verb: str,
    name: str,
    turn: Callable[[Connection, BrokerTables, str], bool],
) -> tuple[QueueSummary, bool]:
    before = queues.get(unit.connection, tables, name)
    if not turn(unit.connection, tables, name):
        return before, False
    row = queues.get(unit.connection, tables, name)
    unit.record(verb, before, row)
    return row, True


def purge(unit: UnitOfWork, tables: BrokerTables, name: str) -> int:
    """Deletes the messages that wait in a queue, delayed ones too; returns how many those were.
    Raises `NotFound`."""
    queues.get(unit.connection, tables, name)
    count = discards.purge(unit.connection, tables, name)
    unit.record_action("purge", "queue", name, None, {"deleted": count})
    return count


def requeue(unit: UnitOfWork, tables: BrokerTables, chosen: Mapping[int, str]) -> int:
    """Puts dead letters (their ids and queues) back into their queues; returns how many could be:
    those whose queue was deleted stay."""
    count = dead_letters.requeue(unit.connection, tables, ids=list(chosen)) if chosen else 0
    if count:
        queued = {number: name for number, name in chosen.items() if name}
        unit.record("requeue", None, Handled(queued, count))
    return count


def drop(unit: UnitOfWork, tables: BrokerTables, chosen: Mapping[int, str]) -> int:
    """Deletes dead letters (their ids and queues) for good; returns how many there were."""
    count = dead_letters.drop(unit.connection, tables, ids=list(chosen)) if chosen else 0
    if count:
        unit.record("drop", None, Handled(chosen, count))
    return count
