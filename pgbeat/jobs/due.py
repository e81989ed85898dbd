"""Finds jobs that wait for their time outside of the broker, and makes them pending."""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import Connection, TextClause, text

from pgbeat.jobs.model import COLUMNS, Job

_IS_DUE = """state = 'scheduled' AND dispatched_at IS NULL AND NOT is_blocked
       AND run_at <= now()"""
_OLDEST = f"namespace = :namespace AND {_IS_DUE} ORDER BY run_at LIMIT :limit"


def _take(which: str) -> TextClause:
    return text(
        f"""
        WITH due AS (SELECT id FROM pgbeat.unfinished_jobs WHERE {which} FOR UPDATE SKIP LOCKED)
        UPDATE pgbeat.unfinished_jobs j SET state = 'pending',
               dispatched_at = CASE WHEN j.lane IS NULL THEN now() END
          FROM due WHERE j.id = due.id
        RETURNING {COLUMNS}
        """  # noqa: S608
    )


_FIND = text(f"SELECT id FROM pgbeat.unfinished_jobs WHERE {_OLDEST}")  # noqa: S608
_TAKE_OLDEST, _TAKE_GIVEN = _take(_OLDEST), _take(f"id = ANY (CAST(:ids AS uuid[])) AND {_IS_DUE}")


def find(connection: Connection, namespace: str, *, limit: int = 500) -> list[UUID]:
    """Returns the ids of the jobs that are due, the longest due first."""
    return list(connection.scalars(_FIND, {"namespace": namespace, "limit": limit}))


def take(
    connection: Connection,
    namespace: str,
    *,
    ids: Collection[UUID] | None = None,
    limit: int = 500,
) -> list[Job]:
    """Makes jobs pending that are due, all or those with these ids, and returns them."""
    if ids is None:
        rows = connection.execute(_TAKE_OLDEST, {"namespace": namespace, "limit": limit})
    else:
        rows = connection.execute(_TAKE_GIVEN, {"ids": [str(job_id) for job_id in ids]})
    return [Job(*row) for row in rows]
