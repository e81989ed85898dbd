"""Looks up results for people: what a task returned, or how it failed, as JSON."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from pgbeat.database.tables import results
from pgbeat.storable import is_storable, shown

_JSON = "application/json"


class TaskResult(NamedTuple):
    """A task's result. `value` is `None` where it can't be shown, see `is_readable`."""

    task_id: str
    #: Celery's state, such as `SUCCESS`.
    status: str
    #: What the task returned, or `exc_type`, `exc_message` and `exc_module` of its error, as JSON.
    value: Any
    #: Whether it is JSON that can be shown: pickle, for one, is never loaded here.
    is_readable: bool
    content_type: str
    #: Of the encoded value, in bytes.
    size: int
    traceback: str | None
    finished_at: datetime | None
    expires_at: datetime | None
    #: These four where results are extended.
    task: str | None
    worker: str | None
    queue: str | None
    retries: int | None


def prefix_of(conf: Mapping[str, Any]) -> str:
    """Returns what an app puts before the ids of its tasks (`global_keyprefix`)."""
    options = conf.get("result_backend_transport_options") or {}
    return str(options.get("global_keyprefix") or "")


def find(connection: Connection, task_id: str, *, prefix: str = "") -> TaskResult | None:
    """Returns a task's result; `None` if it is missing or has expired."""
    if not is_storable(task_id):
        return None
    r = results.c
    row = connection.execute(
        select(results, func.octet_length(r.body).label("size")).where(
            r.task_id == f"{prefix}{task_id}",
            (r.expires_at.is_(None)) | (r.expires_at > func.now()),
        )
    ).one_or_none()
    if row is None:
        return None
    value, is_readable = _value(row.body, row.content_type)
    return TaskResult(
        task_id,
        row.status,
        value,
        is_readable,
        row.content_type,
        row.size or 0,
        row.traceback,
        row.date_done,
        row.expires_at,
        row.task,
        row.worker,
        row.queue,
        row.retries,
    )


def _value(body: bytes | None, content_type: str) -> tuple[Any, bool]:
    if body is None:
        return None, True
    if content_type != _JSON:
        return None, False
    try:
        return shown(body), True
    except ValueError:  # compressed, or too deep
        return None, False
