"""Turns kombu's payloads into messages, and verifies the headers of those that start jobs.

A worker records the end of the job that a message's headers name. So only what pgbeat publishes may
name one: it writes the job's id into a column of the message's row, too, and without that the
headers don't count. Celery sends whatever headers a signature has, but from JSON.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pgbeat.broker.messages import JOB_HEADER, NEW_JOB_HEADER, Message, NewJob
from pgbeat.storable import is_storable


class JobMark(int):
    """The value of `JOB_HEADER` in a message that pgbeat makes, or that Celery makes from one.

    Its type says so: what comes as JSON, such as a signature's options, can't have it. It survives
    the way from a worker to the process that runs the task, and into a retry of that.
    """


#: The only mark that is needed.
JOB = JobMark(1)


def message(
    payload: Mapping[str, Any],
    *,
    queue: str | None = None,
    exchange: str = "",
    routing_key: str = "",
    delay: bool = True,
    dumps: Callable[[Any], str] = json.dumps,
) -> Message:
    """Returns the message for a payload of kombu's (body, headers, properties).

    With `delay`, a Celery task's ETA is when the message becomes available. Without, a worker
    keeps it in memory until then, as on kombu's SQLAlchemy transport. Raises `ValueError` for a
    name or key that can't be stored.
    """
    if "\0" in f"{queue}{exchange}{routing_key}":  # libpq would cut it off there
        raise ValueError("a name of a queue or exchange, or a routing key, has NUL")
    properties, headers = payload["properties"], payload["headers"] or {}
    eta, new_job = headers.get("eta") if delay else None, headers.get(NEW_JOB_HEADER)
    expiration = properties.get("expiration")
    try:
        priority = min(max(int(properties.get("priority") or 0), 0), 255)
    except (TypeError, ValueError):
        priority = 0
    starts_job = type(headers.get(JOB_HEADER)) is JobMark
    if starts_job:
        payload = {**payload, "headers": {**headers, JOB_HEADER: True}}
    return Message(
        queue,
        dumps(payload),
        priority,
        _available_at(eta),
        int(expiration) if expiration is not None else None,
        exchange,
        routing_key,
        _job_id(headers.get("id")) if starts_job else None,
        # Celery's retry is of the same job.
        new_job if isinstance(new_job, NewJob) and not headers.get("retries") else None,
    )


def header(payload: str, name: str) -> str | None:
    """Returns the text of a stored message's header; `None` if it has none that can be shown."""
    try:
        value = json.loads(payload)["headers"][name]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return value if isinstance(value, str) and is_storable(value) else None


def verify(headers: dict[str, Any], job_id: str | None) -> bool:
    """Marks the headers of a message that starts the job of its row (`job_id`).

    Returns false, without pgbeat's headers, if they say that it starts another one.
    """
    if not headers.get(JOB_HEADER):
        return True
    if job_id is not None and _job_id(headers.get("id")) == job_id:
        headers[JOB_HEADER] = JOB
        return True
    for name in [name for name in headers if name.startswith("pgbeat_")]:
        del headers[name]
    return False


def _available_at(eta: Any) -> str | None:
    due = moment(eta)
    return None if due is None else due.isoformat()


def moment(eta: Any) -> datetime | None:
    """Returns a header's ETA, `None` if it is invalid (the worker will report that)."""
    try:
        when = datetime.fromisoformat(eta)
    except (TypeError, ValueError):
        return None
    # Celery takes a time without a zone for UTC, Postgres for the session's zone.
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def drop_due_eta(headers: Any, now: float) -> None:
    """Drops a task's ETA that has come by the server's clock.

    Otherwise a worker whose clock is behind would hold the message until then by its own.
    """
    eta = moment(headers["eta"]) if headers and headers.get("eta") else None
    if eta is not None and eta.timestamp() <= now:
        headers["eta"] = None


def _job_id(text: Any) -> str | None:
    try:
        return str(UUID(text))
    except (ValueError, TypeError, AttributeError):
        return None
