"""Finds jobs that wait for their time outside of the broker, and makes them pending."""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.rows.model import COLUMNS, Job

_FIND = text(sql.load("due.sql", "find"))
_TAKE_OLDEST, _TAKE_GIVEN = (
    text(sql.load("due.sql", "take", which=sql.load("due.sql", which), columns=COLUMNS))
    for which in ("oldest", "given")
)


def find(connection: Connection, namespace: str, *, limit: int = 500) -> list[UUID]:
    """Returns the ids of the jobs that are due, the longest due first."""
    return list(connection.scalars(_FIND, {"namespace": namespace, "limit": limit}))


def take(
    connection: Connection, namespace: str, *, ids: Collection[UUID] | None = None, limit: int = 500
) -> list[Job]:
    """Makes jobs pending that are due, all or those with these ids, and returns them."""
    if ids is None:
        rows = connection.execute(_TAKE_OLDEST, {"namespace": namespace, "limit": limit})
    else:
        rows = connection.execute(_TAKE_GIVEN, {"ids": [str(job_id) for job_id in ids]})
    return [Job(*row) for row in rows]
