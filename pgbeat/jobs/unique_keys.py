"""Locks unique keys, and finds the jobs that have them. A key is one of a task's."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.errors import NotUnique


class UniqueKey(NamedTuple):
    """A task, and a key of its jobs."""

    task: str
    key: str


# Transactions that make jobs with the same key must wait for each other.
_ID = "hashtextextended(CAST(:namespace AS text) || '/' || task || '/' || key, 1050)"
_DISTINCT = """
      FROM (SELECT DISTINCT task, key
              FROM unnest(CAST(:tasks AS text[]), CAST(:keys AS text[])) AS k (task, key)
             ORDER BY task, key) AS k
"""
_LOCK = text(f"SELECT pgbeat.lock_key(:namespace, task, key) {_DISTINCT}")
_TRY_LOCK = text(f"SELECT task, key, pg_try_advisory_xact_lock({_ID}) {_DISTINCT}")
# The task is an expression, so that jobs are found by their keys, which few have.
_FIND = text(
    """
    SELECT k.task, k.key, j.id, j.state
      FROM unnest(CAST(:tasks AS text[]), CAST(:keys AS text[]), CAST(:seconds AS float8[]))
               AS k (task, key, seconds)
           CROSS JOIN LATERAL (
               SELECT id, state, created_at FROM pgbeat.unfinished_jobs
                WHERE namespace = :namespace AND unique_key = k.key AND task || '' = k.task
               UNION ALL (
               SELECT id, state, created_at FROM pgbeat.ended_jobs
                WHERE namespace = :namespace AND unique_key = k.key AND task || '' = k.task
                  AND k.seconds > 0
                  AND created_at > now() - k.seconds * interval '1 second'
                  AND finished_at > now() - CAST(:longest AS float8) * interval '1 second'
                ORDER BY created_at DESC LIMIT 1)
               ORDER BY created_at DESC LIMIT 1) AS j
    """
)


def try_lock(connection: Connection, namespace: str, keys: Iterable[UniqueKey]) -> set[UniqueKey]:
    """Locks keys without waiting, and returns those that another transaction has locked."""
    values = _values(namespace, keys)
    if not values["keys"]:
        return set()
    rows = connection.execute(_TRY_LOCK, values)
    return {UniqueKey(task, key) for task, key, is_locked in rows if not is_locked}


def lock_and_find(
    connection: Connection, namespace: str, keys: Mapping[UniqueKey, timedelta | None]
) -> dict[UniqueKey, tuple[str, str]]:
    """Locks keys until the transaction ends, then returns the same as `find`.

    Raises `NotUnique` if another transaction has one locked for seconds.
    """
    if keys:
        with refusing():
            connection.execute(_LOCK, _values(namespace, keys))
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
    connection: Connection, namespace: str, keys: Mapping[UniqueKey, timedelta | None]
) -> dict[UniqueKey, tuple[str, str]]:
    """Returns the keys that are taken, each with the id and the state of a job that has it.

    An unfinished job takes its key. For a key with a length of time, so does any job that was
    created within it.
    """
    if not keys:
        return {}
    seconds = [0.0 if span is None else span.total_seconds() for span in keys.values()]
    values = {**_values(namespace, keys), "seconds": seconds, "longest": max(seconds)}
    rows = connection.execute(_FIND, values)
    return {UniqueKey(task, key): (str(job_id), state) for task, key, job_id, state in rows}


def _values(namespace: str, keys: Iterable[UniqueKey]) -> dict[str, Any]:
    given = list(keys)
    tasks, names = [each.task for each in given], [each.key for each in given]
    return {"namespace": namespace, "tasks": tasks, "keys": names}
