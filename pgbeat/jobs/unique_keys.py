"""Locks unique keys, and finds the jobs that have them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.errors import NotUnique

# Transactions that make jobs with the same key must wait for each other.
_LOCK = text(
    "SELECT pgbeat.lock_key(:namespace, key) "
    "FROM (SELECT DISTINCT key FROM unnest(CAST(:keys AS text[])) AS key ORDER BY key) AS k"
)
_TRY_LOCK = text(
    "SELECT key, pg_try_advisory_xact_lock("
    "hashtextextended(CAST(:namespace AS text) || '/' || key, 1050)) "
    "FROM (SELECT DISTINCT key FROM unnest(CAST(:keys AS text[])) AS key ORDER BY key) AS k"
)
_FIND = text(
    """
    SELECT k.key, j.id, j.state
      FROM unnest(CAST(:keys AS text[]), CAST(:seconds AS float8[])) AS k (key, seconds)
           CROSS JOIN LATERAL (
               SELECT id, state, created_at FROM pgbeat.unfinished_jobs
                WHERE namespace = :namespace AND unique_key = k.key
               UNION ALL (
               SELECT id, state, created_at FROM pgbeat.ended_jobs
                WHERE namespace = :namespace AND unique_key = k.key AND k.seconds > 0
                  AND created_at > now() - k.seconds * interval '1 second'
                  AND finished_at > now() - CAST(:longest AS float8) * interval '1 second'
                ORDER BY created_at DESC LIMIT 1)
               ORDER BY created_at DESC LIMIT 1) AS j
    """
)


def try_lock(connection: Connection, namespace: str, keys: Iterable[str]) -> set[str]:
    """Locks keys without waiting, and returns those that another transaction has locked."""
    names = list(keys)
    if not names:
        return set()
    rows = connection.execute(_TRY_LOCK, {"namespace": namespace, "keys": names})
    return {key for key, is_locked in rows if not is_locked}


def lock_and_find(
    connection: Connection, namespace: str, keys: Mapping[str, timedelta | None]
) -> dict[str, tuple[str, str]]:
    """Locks keys until the transaction ends, then returns the same as `find`.

    Raises `NotUnique` if another transaction has one locked for seconds.
    """
    if keys:
        with refusing():
            connection.execute(_LOCK, {"namespace": namespace, "keys": list(keys)})
    return find(connection, namespace, keys)


@contextmanager
def refusing() -> Iterator[None]:
    """Raises `NotUnique` if the block fails since another transaction has locked a unique key."""
    try:
        yield
    except (DBAPIError, psycopg.Error) as error:
        cause = getattr(error, "orig", error)
        if isinstance(cause, psycopg.errors.UniqueViolation) and (
            (cause.diag.table_name, cause.diag.column_name) == ("jobs", "unique_key")
        ):
            said = str(cause.diag.message_primary).removeprefix("job: ")
            raise NotUnique(f"{said}; commit it, or try again later") from error
        raise


def find(
    connection: Connection, namespace: str, keys: Mapping[str, timedelta | None]
) -> dict[str, tuple[str, str]]:
    """Returns the keys that are taken, each with the id and the state of a job that has it.

    An unfinished job takes its key. For a key with a length of time, so does any job that was
    created within it.
    """
    if not keys:
        return {}
    seconds = [0.0 if span is None else span.total_seconds() for span in keys.values()]
    values = {
        "namespace": namespace, "keys": list(keys), "seconds": seconds, "longest": max(seconds)
    }  # fmt: skip
    return {key: (str(job_id), state) for key, job_id, state in connection.execute(_FIND, values)}
