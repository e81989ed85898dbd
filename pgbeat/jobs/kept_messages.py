"""Keeps the message of a task with its job, while that waits to be dispatched.

Celery has made it, with all that it says of the task: its place in a group or chain, its callbacks,
when it expires.
"""

import json
from collections.abc import Mapping
from typing import Any

from pgbeat.broker.messages import Message
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
