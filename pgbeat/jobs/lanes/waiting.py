"""Lines: jobs that wait for a slot of their lane, in the order in which they get one.

The order is by priority, the highest first, then by position, then by age.
"""

from decimal import Decimal
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.jobs.model import COLUMNS, Job, of_known

Where = Literal["front", "back", "before", "after"]

_IN_LINE = """namespace = :namespace AND lane = :lane AND dispatched_at IS NULL
       AND state = 'pending' AND NOT blocked_by_group"""
_BEFORE = "(position, created_at, id) < (:position, :created_at, :id)"
# Up to so many are counted: nobody needs to know it to the last, further back.
_PLACE = text(
    f"""
    SELECT count(*) FROM (
        SELECT FROM pgbeat.jobs
         WHERE {_IN_LINE} AND priority >= :priority
           AND (priority > :priority OR {_BEFORE})
         LIMIT :limit) AS ahead
    """  # noqa: S608
)
_LENGTH = text(
    f"""
    SELECT count(*) FROM (SELECT FROM pgbeat.jobs WHERE {_IN_LINE} LIMIT :limit) AS line
    """  # noqa: S608
)
_LOCK = text(
    "SELECT FROM pgbeat.lanes WHERE namespace = :namespace AND name = :lane FOR NO KEY UPDATE"
)
_OTHERS = f"{_IN_LINE} AND priority = :priority AND id <> :moved"
_FIRST = text(f"SELECT min(position) FROM pgbeat.jobs WHERE {_OTHERS}")  # noqa: S608
_LAST = text(f"SELECT max(position) FROM pgbeat.jobs WHERE {_OTHERS}")  # noqa: S608
_NEIGHBOUR = {
    "before": text(
        f"""
        SELECT position FROM pgbeat.jobs WHERE {_OTHERS} AND {_BEFORE}
         ORDER BY position DESC, created_at DESC, id DESC LIMIT 1
        """  # noqa: S608
    ),
    "after": text(
        f"""
        SELECT position FROM pgbeat.jobs
         WHERE {_OTHERS} AND (position, created_at, id) > (:position, :created_at, :id)
         ORDER BY position, created_at, id LIMIT 1
        """  # noqa: S608
    ),
}
_NUMBER = text(
    f"""
    UPDATE pgbeat.jobs j SET position = n.number
      FROM (SELECT id, row_number() OVER (ORDER BY position, created_at, id) AS number
              FROM pgbeat.jobs WHERE {_IN_LINE} AND priority = :priority) AS n
     WHERE j.id = n.id
    """  # noqa: S608
)
_PUT = text(
    f"""
    UPDATE pgbeat.jobs j SET position = :position, priority = :priority
     WHERE id = :moved AND {of_known(_IN_LINE)}
    RETURNING {COLUMNS}
    """  # noqa: S608
)

#: Places are counted up to here.
MOST = 10_000


def is_waiting(job: Job) -> bool:
    """Whether it stands in its lane's line."""
    waits = job.state == "pending" and job.dispatched_at is None and not job.blocked_by_group
    return job.lane is not None and waits


def place(connection: Connection, job: Job) -> int:
    """How many go before a job that waits, counted up to `MOST`."""
    values = _values(job) | {"limit": MOST}
    return int(connection.execute(_PLACE, values).scalar_one())


def length(connection: Connection, namespace: str, lane: str) -> int:
    """How many wait for the lane, counted up to `MOST`."""
    values = {"namespace": namespace, "lane": lane, "limit": MOST}
    return int(connection.execute(_LENGTH, values).scalar_one())


def move(
    connection: Connection, job: Job, where: Where, other: Job | None = None, *, priority: int
) -> Job | None:
    """Moves a job among those of that priority, which it takes on: to the front, to the back, or
    next to `other`, which is one of them. `None` if it has left the line."""
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


_AT = text("SELECT position, created_at, id FROM pgbeat.jobs WHERE id = :id")


def _between(
    connection: Connection, where: Where, other: UUID, values: dict[str, object]
) -> Decimal:
    """A position next to another job's: the middle, or one beyond it where nobody is."""
    for _ in range(2):
        at = connection.execute(_AT, {"id": other}).one()
        beside = values | {"position": at.position, "created_at": at.created_at, "id": other}
        neighbour = connection.scalar(_NEIGHBOUR[where], beside)
        if neighbour is None:
            return Decimal(at.position + (-1 if where == "before" else 1))
        if neighbour != at.position:
            break
        connection.execute(_NUMBER, values)  # they share a place; now each has its own
    middle: Decimal = connection.execute(
        text("SELECT (CAST(:one AS numeric) + CAST(:other AS numeric)) * 0.5"),
        {"one": at.position, "other": neighbour},
    ).scalar_one()
    return middle


def _values(job: Job) -> dict[str, object]:
    return {
        "namespace": job.namespace, "lane": job.lane, "priority": job.priority,
        "position": job.position, "created_at": job.created_at, "id": job.id,
    }  # fmt: skip
