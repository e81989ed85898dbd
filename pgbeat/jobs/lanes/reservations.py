"""Makes, starts and drops reservations, by which direct executions get slots of a lane."""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.database.locks import held
from pgbeat.jobs.lanes.concurrency import Work
from pgbeat.jobs.lanes.model import Lane

#: The first half of the advisory lock that a reservation's session holds.
LIFE = 1885823609


class Reservation(NamedTuple):
    """A row of `pgbeat.reservations`."""

    id: int
    namespace: str
    lane: str
    task: str
    tags: list[str]
    resources: dict[str, float]
    created_by: str
    created_at: datetime
    #: When it got its slot.
    started_at: datetime | None

    @property
    def work(self) -> Work:
        """Returns what the lane's policy gets to know of it."""
        return Work(
            f"direct/{self.id}",
            self.namespace,
            self.lane,
            self.task,
            None,
            None,
            self.tags,
            self.resources,
            0,
            self.created_by,
            is_direct=True,
        )


# One statement: without its lock, the row would look like that of a dead session.
_RESERVE = text(
    """
    WITH made AS (
        INSERT INTO pgbeat.reservations (namespace, lane, task, tags, resources, created_by)
        VALUES (:namespace, :lane, :task, CAST(:tags AS text[]), CAST(:resources AS jsonb),
                :created_by)
        RETURNING id)
    SELECT id, pg_try_advisory_lock(CAST(:life AS integer), id) FROM made
    """
)


def reserve(
    connection: Connection,
    namespace: str,
    lane: str,
    *,
    task: str,
    tags: Sequence[str],
    resources: Mapping[str, float],
    created_by: str,
) -> int:
    """Reserves the lane's next slot for as long as this session lives; returns the id.

    The connection must be in autocommit mode.
    """
    values = {
        "namespace": namespace,
        "lane": lane,
        "task": task,
        "tags": list(tags),
        "resources": json.dumps(resources),
        "created_by": created_by,
        "life": LIFE,
    }
    while True:
        reservation, lives = connection.execute(_RESERVE, values).one()
        if lives:
            return int(reservation)


_FIELDS = ", ".join(f"r.{name}" for name in Reservation._fields)
_DELETE_DEAD = text(sql.load("reservations.sql", "delete_dead", alive=held(LIFE)))


def delete_dead(connection: Connection, namespace: str, lane: str) -> None:
    """Deletes the reservations of a lane whose sessions have ended."""
    connection.execute(_DELETE_DEAD, {"namespace": namespace, "lane": lane})


_LIVE = text(sql.load("reservations.sql", "live", fields=_FIELDS, alive=held(LIFE)))


def live(connection: Connection, namespace: str, lane: str) -> list[Reservation]:
    """Returns the reservations of a lane whose sessions live, in order."""
    rows = connection.execute(_LIVE, {"namespace": namespace, "lane": lane})
    return [Reservation(*row) for row in rows]


_NONE = text(
    "SELECT NOT EXISTS (SELECT FROM pgbeat.reservations WHERE namespace = :namespace "
    "AND lane = :lane)"
)


def none(connection: Connection, lane: Lane) -> bool:
    """Returns whether a lane has no reservations, not even of sessions that have ended."""
    return bool(connection.execute(_NONE, lane.identity).scalar_one())


_START = text(
    """
    UPDATE pgbeat.reservations SET started_at = statement_timestamp()
     WHERE id = ANY (CAST(:ids AS integer[])) AND started_at IS NULL
    RETURNING id
    """
)


def start(connection: Connection, ids: Collection[int]) -> list[int]:
    """Gives slots to these reservations, and returns the ids of those that had none."""
    return list(connection.scalars(_START, {"ids": list(ids)})) if ids else []


_STARTED = text("SELECT started_at IS NOT NULL FROM pgbeat.reservations WHERE id = :id")


def has_started(connection: Connection, reservation: int) -> bool | None:
    """Returns whether a reservation has its slot; `None` if it was deleted."""
    started: bool | None = connection.execute(_STARTED, {"id": reservation}).scalar_one_or_none()
    return started


_DROP = text("DELETE FROM pgbeat.reservations WHERE id = :id")


def drop(connection: Connection, reservation: int) -> None:
    """Deletes a reservation, and so frees its slot."""
    connection.execute(_DROP, {"id": reservation})


_GIVE_UP = text("DELETE FROM pgbeat.reservations WHERE id = :id AND started_at IS NULL")


def give_up(connection: Connection, reservation: int) -> bool:
    """Deletes a reservation that has no slot yet; returns whether it had none."""
    return bool(connection.execute(_GIVE_UP, {"id": reservation}).rowcount)
