"""Locks unique keys, and finds the jobs that have them. A key is one of a task's."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.database import sql
from pgbeat.errors import NotUnique


class UniqueKey(NamedTuple):
    """A task, and a key of its jobs."""

    task: str
    key: str


_LOCK = text(sql.load("unique_keys.sql", "lock"))
_TRY_LOCK = text(sql.load("unique_keys.sql", "try_lock"))
_FIND = text(sql.load("unique_keys.sql", "find"))
_FIND_AS_OWNER = text(sql.load("unique_keys.sql", "find_as_owner"))


def try_lock(connection: Connection, namespace: str, keys: Iterable[UniqueKey]) -> set[UniqueKey]:
    """Locks keys without waiting, and returns those that another transaction has locked."""
    values = _values(namespace, keys)
    if not values["keys"]:
        return set()
    rows = connection.execute(_TRY_LOCK, values)
    return {UniqueKey(task, key) for task, key, is_locked in rows if not is_locked}


def lock_and_find(
    connection: Connection,
    namespace: str,
    keys: Mapping[UniqueKey, timedelta | None],
    *,
    as_owner: bool = False,
) -> dict[UniqueKey, tuple[str, str]]:
    """Locks keys until the transaction ends, then returns the same as `find`.

    Raises `NotUnique` if another transaction has one locked for seconds.
    """
    if keys:
        with refusing():
            connection.execute(_LOCK, _values(namespace, keys))
    return find(connection, namespace, keys, as_owner=as_owner)


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
            message = str(cause.diag.message_primary).removeprefix("job: ")
            raise NotUnique(f"{message}; commit it, or try again later") from error
        raise


def find(
    connection: Connection,
    namespace: str,
    keys: Mapping[UniqueKey, timedelta | None],
    *,
    as_owner: bool = False,
) -> dict[UniqueKey, tuple[str, str]]:
    """Returns the keys that are taken, each with the id and the state of a job that has it.

    An unfinished job takes its key. For a key with a length of time, so does any job that was
    created within it. With `as_owner`, the role may not read the tables.
    """
    if not keys:
        return {}
    seconds = [0.0 if span is None else span.total_seconds() for span in keys.values()]
    values = {**_values(namespace, keys), "seconds": seconds, "longest": max(seconds)}
    rows = connection.execute(_FIND_AS_OWNER if as_owner else _FIND, values)
    return {UniqueKey(task, key): (str(job_id), state) for task, key, job_id, state in rows}


def _values(namespace: str, keys: Iterable[UniqueKey]) -> dict[str, Any]:
    key_list = list(keys)
    tasks, names = [key.task for key in key_list], [key.key for key in key_list]
    return {"namespace": namespace, "tasks": tasks, "keys": names}
