"""What is due: the statements of a look at the schedules, and of what a decision does to them.

A row is read unlocked, and locked only to be written: by its version, `xmin`, it is seen whether
somebody wrote to it meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, text

from pgbeat.db import recordset
from pgbeat.schedules import ACTIVE, SELECT, Schedule
from pgbeat.tables import schedules


@dataclass(frozen=True, slots=True)
class Outlook:
    """What an idle look at the schedules says, in one statement."""

    #: The database's clock.
    now: datetime
    #: When the next schedule is due; `None` when there is none.
    next_run: datetime | None
    #: Whether a row waits for its next time to be computed.
    has_new: bool


# Asked at every idle tick: straight to the driver, which has it prepared.
_OUTLOOK = """
    SELECT statement_timestamp(),
           (SELECT min(next_run) FROM pgbeat.schedules
             WHERE enabled AND paused_at IS NULL AND id <> ALL (%(held)s::bigint[])),
           EXISTS (SELECT FROM pgbeat.schedules
             WHERE enabled AND paused_at IS NULL AND next_run IS NULL
               AND id <> ALL (%(held)s::bigint[]))
"""


def outlook(connection: Connection, held: Iterable[int] = ()) -> Outlook:
    """The clock and the next due time, leaving out the `held` ids."""
    return Outlook(*connection.exec_driver_sql(_OUTLOOK, {"held": list(held)}).one())


_DUE = (
    SELECT.where(
        ACTIVE,
        schedules.c.next_run <= bindparam("now"),
        text("schedules.id <> ALL (CAST(:held AS bigint[]))"),
    )
    .order_by(schedules.c.next_run)
    .limit(bindparam("limit"))
)
_DUE_PLAIN = _DUE.where(
    schedules.c.launcher == "GenericLauncher",
    schedules.c.condition_sql.is_(None),
    schedules.c.args.is_not(None),
)


def oldest(
    connection: Connection,
    now: datetime,
    *,
    limit: int,
    held: Iterable[int] = (),
    only_plain: bool = False,
) -> list[Schedule]:
    """Schedules that are due, oldest first, leaving out the `held` ids."""
    query = _DUE_PLAIN if only_plain else _DUE
    rows = connection.execute(query, {"now": now, "limit": limit, "held": list(held)})
    return [Schedule._make(row) for row in rows]


_NEW = SELECT.where(
    ACTIVE,
    schedules.c.next_run.is_(None),
    text("schedules.id <> ALL (CAST(:held AS bigint[]))"),
).limit(bindparam("limit"))


def new(connection: Connection, *, limit: int, held: Iterable[int] = ()) -> list[Schedule]:
    """Schedules whose next time is still to be computed."""
    rows = connection.execute(_NEW, {"limit": limit, "held": list(held)})
    return [Schedule._make(row) for row in rows]


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
    """Locks those of the batch that nobody else holds and nobody wrote to since; their ids."""
    ids = [schedule.id for schedule in batch]
    versions = [schedule.version for schedule in batch]
    return set(connection.scalars(_LOCK, {"ids": ids, "versions": versions}))


class Advance(NamedTuple):
    """What a decision does to a schedule's run state."""

    id: int
    outcome: str
    next_run: datetime | None
    retry_count: int
    error: str | None
    #: JSON text; `None` leaves the cursor as it is.
    cursor: str | None


_ADVANCE = text(
    """
    UPDATE pgbeat.schedules s
       SET next_run = d.next_run, retry_count = d.retry_count, last_run = :now,
           last_success = CASE WHEN d.outcome = 'launched' THEN :now ELSE s.last_success END,
           last_failure = CASE WHEN d.outcome = 'failed' THEN :now ELSE s.last_failure END,
           last_error = coalesce(d.error, s.last_error),
           cursor = CASE WHEN d.cursor IS NULL THEN s.cursor
                         ELSE nullif(CAST(d.cursor AS jsonb), 'null') END
      FROM json_to_recordset(CAST(:batch AS json)) AS d (
               id bigint, outcome text, next_run timestamptz, retry_count integer, error text,
               cursor text)
     WHERE s.id = d.id
    """
)


def advance(connection: Connection, batch: Sequence[Advance], now: datetime) -> None:
    """Writes the run state that a batch of decisions, made at `now`, leaves behind."""
    if batch:
        connection.execute(_ADVANCE, {"batch": recordset(batch), "now": now})


_SET_NEXT = text(
    """
    WITH given AS (
        SELECT * FROM unnest(CAST(:id AS bigint[]), CAST(:version AS bigint[]),
                             CAST(:next_run AS timestamptz[])) AS d (id, version, next_run)),
    locked AS (
        SELECT s.id FROM pgbeat.schedules s JOIN given USING (id)
         WHERE s.xmin::text::bigint = given.version FOR UPDATE OF s SKIP LOCKED)
    UPDATE pgbeat.schedules s SET next_run = given.next_run
      FROM given JOIN locked USING (id) WHERE s.id = given.id
    RETURNING s.id
    """
)


def set_next(connection: Connection, batch: Sequence[tuple[Schedule, datetime]]) -> set[int]:
    """Gives schedules their next time, unless somebody holds them or wrote to them since they were
    read; the ids of those that have it."""
    if not batch:
        return set()
    values = {
        "id": [schedule.id for schedule, _ in batch],
        "version": [schedule.version for schedule, _ in batch],
        "next_run": [moment for _, moment in batch],
    }
    return set(connection.scalars(_SET_NEXT, values))


_DISABLE_FAILED = text(
    """
    UPDATE pgbeat.schedules s SET enabled = false, disabled_reason = d.reason
      FROM unnest(CAST(:id AS bigint[]), CAST(:reason AS text[])) AS d (id, reason)
     WHERE s.id = d.id
    """
)


def disable(connection: Connection, reasons: Mapping[int, str]) -> None:
    """Takes schedules out of service that failed too often, by id."""
    if reasons:
        connection.execute(_DISABLE_FAILED, {"id": list(reasons), "reason": list(reasons.values())})
