"""Keeps the message of a task with its job, while that waits to be dispatched.

Celery has made it, with all that it says of the task: its place in a group or chain, its callbacks,
when it expires.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.broker.messages import JOB_HEADER, NEW_JOB_HEADER, Message
from pgbeat.broker.publishing.message_templates import TaskMessage

_PARTS = ("queue", "payload", "priority", "ttl", "exchange", "routing_key")


def written(message: Message) -> dict[str, Any]:
    """Returns the message as the job's row keeps it."""
    return {name: getattr(message, name) for name in _PARTS}


def read(kept: Mapping[str, Any], now: TaskMessage) -> Message:
    """Returns the message that was kept, with the headers of a message that would be made now."""
    payload = json.loads(kept["payload"])
    payload["headers"] |= now.headers
    own: dict[str, Any] = {name: kept[name] for name in _PARTS}
    return Message(**{**own, "payload": json.dumps(payload)}, job_id=now.job_id)


_OF_WAITING = text(
    """
    SELECT id, message FROM pgbeat.unfinished_jobs
     WHERE id = ANY (CAST(:ids AS uuid[])) AND message IS NOT NULL AND dispatched_at IS NULL
    """
)
#: For a worker, whatever its clock says.
_LONG_AGO = "2000-01-01T00:00:00+00:00"


def revocations(connection: Connection, job_ids: Collection[str | UUID]) -> dict[UUID, Message]:
    """Returns messages that revoke tasks, of those of the jobs that wait with theirs.

    A worker that gets one finds that it has expired: so it does not run it, but stores that it was
    revoked, and a chord that it is a part of ends. The job itself has nothing to do with it.
    """
    if not job_ids:
        return {}
    rows = connection.execute(_OF_WAITING, {"ids": [str(job_id) for job_id in job_ids]})
    return {job_id: _revocation(kept) for job_id, kept in rows}


def _revocation(kept: Mapping[str, Any]) -> Message:
    payload = json.loads(kept["payload"])
    headers = {**payload["headers"], "expires": _LONG_AGO, "eta": None}
    payload["headers"] = {
        name: value for name, value in headers.items() if name not in (JOB_HEADER, NEW_JOB_HEADER)
    }
    own: dict[str, Any] = {name: kept[name] for name in _PARTS}
    return Message(**{**own, "payload": json.dumps(payload), "ttl": None})
