"""Finds and changes the places of jobs in the waiting lines of lanes.

The order is by priority, the highest first, then by position, then by age. In a fair lane each key
has its own line.
"""

from decimal import Decimal
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.lanes.model import IS_WAITING
from pgbeat.jobs.rows.model import COLUMNS, Job, of_known

Where = Literal["front", "back", "before", "after"]

#: Places are counted up to here: the exact number further back is of no use.
MOST = 10_000

_PLACE = text(sql.load("waiting.sql", "place", is_waiting=IS_WAITING))
_LENGTH = text(sql.load("waiting.sql", "length", is_waiting=IS_WAITING))
_LOCK = text(
    "SELECT FROM pgbeat.lanes WHERE namespace = :namespace AND name = :lane FOR NO KEY UPDATE"
)
_FIRST = text(sql.load("waiting.sql", "first", is_waiting=IS_WAITING))
_LAST = text(sql.load("waiting.sql", "last", is_waiting=IS_WAITING))
_AT = text("SELECT position, created_at, id FROM pgbeat.jobs WHERE id = :id")
_NEIGHBOUR = {
    "before": text(sql.load("waiting.sql", "neighbour_before", is_waiting=IS_WAITING)),
    "after": text(sql.load("waiting.sql", "neighbour_after", is_waiting=IS_WAITING)),
}
_MIDDLE = text("SELECT (CAST(:one AS numeric) + CAST(:other AS numeric)) * 0.5")
_NUMBER = text(sql.load("waiting.sql", "number", is_waiting=IS_WAITING))
_PUT = text(
    sql.load(
        "waiting.sql",
        "put",
        is_in_line=of_known(f"namespace = :namespace AND lane = :lane AND {IS_WAITING}"),
        columns=COLUMNS,
    )
)


def is_waiting(job: Job) -> bool:
    """Returns whether a job is in its lane's line, or gets into it as it is written."""
    waits = job.state == "pending" and not job.is_dispatched and not job.is_blocked
    return job.lane is not None and waits


def place(connection: Connection, job: Job) -> int:
    """Returns how many jobs are in line before this one, counted up to `MOST`.

    In a fair lane, how many jobs of its key are.
    """
    return int(connection.execute(_PLACE, _values(job) | {"limit": MOST}).scalar_one())


def length(connection: Connection, namespace: str, lane: str) -> int:
    """Returns how many jobs are in line, counted up to `MOST`."""
    values = {"namespace": namespace, "lane": lane, "limit": MOST}
    return int(connection.execute(_LENGTH, values).scalar_one())


def move(
    connection: Connection, job: Job, where: Where, other: Job | None = None, *, priority: int
) -> Job | None:
    """Gives a job another priority and place: at the front, at the back, or next to `other`.

    The other job has that priority. Returns `None` if the job has left the line.
    """
    connection.execute(_LOCK, {"namespace": job.namespace, "lane": job.lane})
    values = _values(job) | {"priority": priority, "moved": job.id}
    if other is None:
        end = connection.scalar(_FIRST if where == "front" else _LAST, values)
        step = -1 if where == "front" else 1
        position = job.position if end is None else end + step
    else:
        position = _between(connection, where, other.id, values)
    row = connection.execute(_PUT, values | {"position": position}).one_or_none()
    return None if row is None else Job(*row)


def _between(
    connection: Connection, where: Where, other: UUID, values: dict[str, object]
) -> Decimal:
    """Returns a position between another job and its neighbour, or beyond it without neighbour."""
    for _ in range(2):
        at = connection.execute(_AT, {"id": other}).one()
        beside = values | {"position": at.position, "created_at": at.created_at, "id": other}
        neighbour = connection.scalar(_NEIGHBOUR[where], beside)
        if neighbour is None:
            return Decimal(at.position + (-1 if where == "before" else 1))
        if neighbour != at.position:
            break
        connection.execute(_NUMBER, values)  # they shared a position: number all of them
    positions = {"one": at.position, "other": neighbour}
    return Decimal(connection.execute(_MIDDLE, positions).scalar_one())


def _values(job: Job) -> dict[str, object]:
    names = ("namespace", "lane", "priority", "fair_key", "position", "created_at", "id")
    return {name: getattr(job, name) for name in names}
