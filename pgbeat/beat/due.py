"""Queries due schedules, and writes the effects of decisions on schedules.

A row is read unlocked, and locked only to be written: its version, `xmin`, shows whether another
transaction wrote to it meanwhile.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from psycopg.rows import tuple_row
from sqlalchemy import Connection, text

from pgbeat.beat.evaluation import Decision
from pgbeat.database import connections, sql
from pgbeat.database.connections import recordset
from pgbeat.jobs.flow import batch_members
from pgbeat.names import NAMESPACE
from pgbeat.schedules.model import Schedule


class DueSnapshot(NamedTuple):
    """What is due now and next, from one statement."""

    #: The database's clock.
    now: datetime
    #: When the next schedule is due; `None` if none is.
    next_run: datetime | None
    #: Whether a row waits for its next time to be computed.
    has_new: bool
    #: When the next schedule that was disabled by failures is probed; `None` if none is.
    next_probe: datetime | None
    #: Seconds until a job, a deadline, a look at freshness or a delivery is due; `None` if none.
    maintenance_in: float | None = None
    #: Whether members of batches wait.
    has_members: bool = False

    @property
    def is_due(self) -> bool:
        """Returns whether a schedule is due."""
        return self.next_run is not None and self.next_run <= self.now

    @property
    def next(self) -> datetime | None:
        """Returns when a schedule is due next, or is probed."""
        return min((moment for moment in (self.next_run, self.next_probe) if moment), default=None)


_SNAPSHOT = sql.load(
    "due.sql", "snapshot", is_member=batch_members.IS_MEMBER, own=batch_members.NAMESPACE
)


def snapshot(
    connection: Connection, held: Iterable[int] = (), *, namespace: str = NAMESPACE
) -> DueSnapshot:
    """Returns the clock and the next due time, leaving out the `held` ids."""
    values = {"namespace": namespace, "held": list(held)}
    return DueSnapshot(*connection.exec_driver_sql(_SNAPSHOT, values).one())


_DUE, _DUE_PLAIN, _NEW = (
    sql.load("due.sql", name, columns=", ".join(Schedule._fields[:-1]))
    for name in ("due", "due_plain", "new")
)


def _read(connection: Connection, query: str, **values: Any) -> list[Schedule]:
    """Returns the rows of a query, by the driver alone: SQLAlchemy takes as long again."""
    with connections.driver(connection).cursor(row_factory=tuple_row) as cursor:
        return [Schedule._make(row) for row in cursor.execute(query, values).fetchall()]


def oldest(
    connection: Connection,
    now: datetime,
    *,
    limit: int,
    held: Iterable[int] = (),
    only_plain: bool = False,
    namespace: str = NAMESPACE,
) -> list[Schedule]:
    """Returns schedules that are due, oldest first, leaving out the `held` ids."""
    query = _DUE_PLAIN if only_plain else _DUE
    return _read(connection, query, namespace=namespace, now=now, limit=limit, held=list(held))


def new(
    connection: Connection, *, limit: int, held: Iterable[int] = (), namespace: str = NAMESPACE
) -> list[Schedule]:
    """Returns schedules whose next time must still be computed."""
    return _read(connection, _NEW, namespace=namespace, limit=limit, held=list(held))


_LOCK = text(
    """
    SELECT s.id FROM pgbeat.schedules s
      JOIN unnest(CAST(:ids AS bigint[]), CAST(:versions AS bigint[])) AS d (id, version)
        ON s.id = d.id
     WHERE s.xmin::text::bigint = d.version
       FOR UPDATE OF s SKIP LOCKED
    """
)


def lock(connection: Connection, batch: Sequence[Schedule]) -> set[int]:
    """Locks the rows of the batch that no other transaction has locked or changed.

    Returns their ids.
    """
    ids = [schedule.id for schedule in batch]
    versions = [schedule.version for schedule in batch]
    return set(connection.scalars(_LOCK, {"ids": ids, "versions": versions}))


class RunState(NamedTuple):
    """What a decision does to a schedule's run state."""

    id: int
    #: A tick's, or `waiting`: nothing is decided yet.
    outcome: str
    next_run: datetime | None
    retry_count: int
    error: str | None = None
    #: JSON text; `None` leaves the cursor as it is.
    cursor: str | None = None
    #: The timetable's time of `next_run`, where it is another.
    due_at: datetime | None = None
    #: The due time that failed, of which `next_run` is a retry.
    failed_due_at: datetime | None = None
    waiting_for: str | None = None
    upstream_ended: int = 0
    out_of_turn: bool = False
    #: Launches to count.
    runs: int = 0


_ADVANCE = text(sql.load("due.sql", "advance"))


def advance(connection: Connection, batch: Sequence[RunState], now: datetime) -> None:
    """Writes the run state that a batch of decisions, made at `now`, leaves behind."""
    if batch:
        connection.execute(_ADVANCE, {"batch": recordset(batch), "now": now})


_SET_NEXT = text(sql.load("due.sql", "set_next"))


class Next(NamedTuple):
    """When a schedule is due next; `due_at` as in `RunState`."""

    schedule: Schedule
    next_run: datetime
    due_at: datetime | None = None


def set_next(connection: Connection, batch: Sequence[Next]) -> set[int]:
    """Gives schedules their next time, unless they are locked or have changed since they were read.

    Returns the ids of the schedules that it changed.
    """
    if not batch:
        return set()
    values = {
        "id": [row.schedule.id for row in batch],
        "version": [row.schedule.version for row in batch],
        "next_run": [row.next_run for row in batch],
        "due_at": [row.due_at for row in batch],
    }
    return set(connection.scalars(_SET_NEXT, values))


_DISABLE = text(
    """
    UPDATE pgbeat.schedules s SET enabled = false, disabled_reason = d.reason,
           completed_at = CASE WHEN d.id = ANY (CAST(:completed AS bigint[])) THEN :now END,
           probe_at = CASE WHEN d.id = ANY (CAST(:failed AS bigint[]))
                           THEN :now + s.probe_after END
      FROM unnest(CAST(:id AS bigint[]), CAST(:reason AS text[])) AS d (id, reason)
     WHERE s.id = d.id
    """
)


def disable(connection: Connection, decisions: Sequence[Decision], now: datetime) -> None:
    """Disables the schedules that decisions disable.

    Those that failed are tried again at their probe, if they have one; those that are complete have
    nothing left to do.
    """
    disabled = [d for d in decisions if d.disabled_reason]
    if disabled:
        connection.execute(
            _DISABLE,
            {
                "id": [d.schedule.id for d in disabled],
                "reason": [d.disabled_reason for d in disabled],
                "failed": [d.schedule.id for d in disabled if d.tick.outcome == "failed"],
                "completed": [d.schedule.id for d in disabled if d.is_complete],
                "now": now,
            },
        )


_PROBE = text(
    """
    UPDATE pgbeat.schedules
       SET enabled = true, next_run = :now, retry_count = greatest(max_retries - 1, 1)
     WHERE id IN (SELECT id FROM pgbeat.schedules
                   WHERE namespace = :namespace AND NOT enabled AND probe_at <= :now
                     FOR UPDATE SKIP LOCKED)
    RETURNING name
    """
)


def probe(connection: Connection, now: datetime, *, namespace: str = NAMESPACE) -> list[str]:
    """Enables schedules for one try that were disabled by failures, if it is time for their probe.

    Returns their names. One more failure disables such a schedule again.
    """
    return list(connection.scalars(_PROBE, {"namespace": namespace, "now": now}))


_FOLLOW_ZONE = text(sql.load("due.sql", "follow_zone"))


def follow_zone(connection: Connection, timezone: str, *, namespace: str = NAMESPACE) -> int:
    """Clears the next times of schedules without a zone, if the app's zone has changed.

    Returns how many. Schedules that are already due stay due.
    """
    values = {"namespace": namespace, "timezone": timezone}
    return connection.execute(_FOLLOW_ZONE, values).rowcount
