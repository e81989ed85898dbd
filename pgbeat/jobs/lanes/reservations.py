"""Reservations: direct executions that want a lane's next slot, or have one."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database.advisory_locks import held
from pgbeat.database.connections import recordset
from pgbeat.jobs.lanes.concurrency import Work

#: The first half of the advisory locks that they live by.
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
        """As policies are told of it."""
        return Work(
            f"direct/{self.id}", self.namespace, self.lane, self.task, None, None, self.tags,
            self.resources, 0, self.created_by, is_direct=True,
        )  # fmt: skip


class _New(NamedTuple):
    namespace: str
    lane: str
    task: str
    tags: Sequence[str]
    resources: Mapping[str, float]
    created_by: str


# One statement: nobody sees the row before its lock is held, and takes it for a dead one's.
_RESERVE = text(
    f"""
    WITH made AS (
        INSERT INTO pgbeat.reservations (namespace, lane, task, tags, resources, created_by)
        SELECT * FROM json_to_recordset(CAST(:batch AS json)) AS d (
                   namespace text, lane text, task text, tags text[], resources jsonb,
                   created_by text)
        RETURNING id)
    SELECT id, pg_try_advisory_lock({LIFE}, id) FROM made
    """  # noqa: S608
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
    """Asks for the lane's next slot, for as long as this session lives; the reservation's id.
    `connection` is in autocommit mode."""
    new = _New(namespace, lane, task, tags, resources, created_by)
    while True:
        made, lives = connection.execute(_RESERVE, {"batch": recordset([new])}).one()
        if lives:
            return int(made)


_FIELDS = ", ".join(f"r.{name}" for name in Reservation._fields)
_HELD = f"r.id IN ({held(LIFE)})"
_DELETE_DEAD = text(
    f"""
    DELETE FROM pgbeat.reservations r
     WHERE r.namespace = :namespace AND r.lane = :lane AND NOT {_HELD}
    """  # noqa: S608
)


def delete_dead(connection: Connection, namespace: str, lane: str) -> None:
    """Deletes the reservations of a lane whose sessions are gone."""
    connection.execute(_DELETE_DEAD, {"namespace": namespace, "lane": lane})


_LIVE = text(
    f"""
    SELECT {_FIELDS} FROM pgbeat.reservations r
     WHERE r.namespace = :namespace AND r.lane = :lane AND {_HELD} ORDER BY r.id
    """  # noqa: S608
)


def live(connection: Connection, namespace: str, lane: str) -> list[Reservation]:
    """Those that live, in their order."""
    rows = connection.execute(_LIVE, {"namespace": namespace, "lane": lane})
    return [Reservation(*row) for row in rows]


_START = text(
    """
    UPDATE pgbeat.reservations SET started_at = statement_timestamp()
     WHERE id = ANY (CAST(:ids AS integer[])) AND started_at IS NULL
    RETURNING id
    """
)


def start(connection: Connection, ids: Collection[int]) -> list[int]:
    """Gives these their slots; those that it did."""
    return list(connection.scalars(_START, {"ids": list(ids)})) if ids else []


_STARTED = text("SELECT started_at IS NOT NULL FROM pgbeat.reservations WHERE id = :id")


def has_started(connection: Connection, reservation: int) -> bool | None:
    """Whether it has its slot; `None` if it is gone."""
    said: bool | None = connection.execute(_STARTED, {"id": reservation}).scalar_one_or_none()
    return said


_DROP = text("DELETE FROM pgbeat.reservations WHERE id = :id")


def drop(connection: Connection, reservation: int) -> None:
    """It wants no slot, or no longer."""
    connection.execute(_DROP, {"id": reservation})


_GIVE_UP = text("DELETE FROM pgbeat.reservations WHERE id = :id AND started_at IS NULL")


def give_up(connection: Connection, reservation: int) -> bool:
    """It no longer wants its slot; false if it has it just now."""
    return bool(connection.execute(_GIVE_UP, {"id": reservation}).rowcount)
