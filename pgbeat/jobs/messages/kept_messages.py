"""Keeps the message that Celery made of a job's task, until the job has ended.

It says more than the row: the task's place in a chain or chord, its callbacks, when it expires, how
Celery retries it. A job that waits (for its lane, an approval, a person, its time after a snooze)
is sent with it. One whose end others wait for keeps a copy while its message is on its way, too, so
that the code that ends the job can end its result (`pgbeat.jobs.messages.answers`).
"""

import json
from collections.abc import Mapping
from typing import Any

from pgbeat.broker import payloads
from pgbeat.broker.messages import JOB_HEADER, NEW_JOB_HEADER, REASON_HEADER, Message, Withdrawn
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.jobs.messages.headers import isoformat
from pgbeat.jobs.rows.model import Job

_PARTS = ("queue", "payload", "priority", "ttl", "exchange", "routing_key")


def written(message: Message) -> dict[str, Any]:
    """Returns the message as the job's row keeps it."""
    return {name: getattr(message, name) for name in _PARTS}


def tried_again(kept: Mapping[str, Any], retries: int) -> dict[str, Any]:
    """Returns a message that is kept, as Celery would send it for a retry."""
    payload = json.loads(kept["payload"])
    payload["headers"]["retries"] = retries
    return {**kept, "payload": json.dumps(payload)}


def of_withdrawn(withdrawn: Withdrawn) -> dict[str, Any]:
    """Returns a message that was taken back from its queue, as the job's row keeps it."""
    queue, payload = withdrawn
    return written(payloads.message(json.loads(payload), queue=queue))


def read(job: Job, now: TaskMessage, *, delays: bool) -> Message:
    """Returns the message that a job keeps, for what the job's row says now.

    That is its time, its priority, how it is retried, and the headers of `now`, a message that
    would be made of the row alone. With `delays`, the broker keeps it until its time.
    """
    kept: dict[str, Any] = {**(job.message or {})}
    payload = json.loads(kept["payload"])
    run_at = job.run_at if job.state == "scheduled" else None
    eta = None if run_at is None else isoformat(run_at)
    headers = payload["headers"] = {**payload["headers"], **now.headers, "eta": eta}
    if headers.get(JOB_HEADER):
        headers[JOB_HEADER] = True
    if kept["priority"] != (payload["properties"].get("priority") or 0):
        payload["properties"]["priority"] = kept["priority"]
    new_job = headers.get(NEW_JOB_HEADER)
    if new_job is not None:
        retries = {
            "max_attempts": job.max_attempts,
            "retry_base": job.retry_base.total_seconds(),
            "retry_cap": job.retry_cap.total_seconds(),
        }
        headers[NEW_JOB_HEADER] = {**new_job, "policy": {**new_job["policy"], **retries}}
    parts = {name: kept[name] for name in _PARTS}
    parts |= {"payload": json.dumps(payload), "available_at": eta if delays else None}
    return Message(**parts, job_id=now.job_id)


#: For a worker, whatever its clock says.
_LONG_AGO = "2000-01-01T00:00:00+00:00"


def revocation(kept: Mapping[str, Any], reason: str) -> Message:
    """Returns a message that revokes the task of another one.

    A worker that gets it finds that it has expired: so it does not run it, but stores that it was
    revoked, and a chord that it is a part of ends. The job itself has nothing to do with it.
    """
    payload = json.loads(kept["payload"])
    headers = {**payload["headers"], "expires": _LONG_AGO, "eta": None, REASON_HEADER: reason}
    payload["headers"] = {
        name: value for name, value in headers.items() if name not in (JOB_HEADER, NEW_JOB_HEADER)
    }
    parts: dict[str, Any] = {name: kept[name] for name in _PARTS}
    return Message(**{**parts, "payload": json.dumps(payload), "ttl": None})
