"""Reads from a task's message what its job must know."""

import json
from functools import lru_cache
from typing import Any, NamedTuple

from pgbeat.broker.messages import Message
from pgbeat.broker.publishing import payloads, reserved
from pgbeat.jobs.messages import canvas
from pgbeat.jobs.messages.canvas import Place
from pgbeat.jobs.policy.policies import stored
from pgbeat.storable import is_storable

#: What a message says of others that learn of the task's end, however that comes.
_PART_OF = ("chord", "chain", "errbacks")


#: Whether a header is not of the caller's.
_is_celerys = lru_cache(maxsize=1024)(reserved.is_reserved_header)


class Envelope(NamedTuple):
    """A task, as its message describes it."""

    id: str
    task: str
    #: `None` if they are not JSON.
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    #: Options for another message of the job, such as a retry by hand.
    options: dict[str, Any]
    run_at: str | None
    place: Place
    #: Whether its end has to do with others: a chord, the rest of its chain, errbacks.
    is_part: bool

    @classmethod
    def of(cls, message: Message) -> "Envelope":
        """Returns the envelope of a message in Celery's protocol 2."""
        payload = json.loads(message.payload)
        headers = payload["headers"]
        args: Any = None
        kwargs: Any = None
        embedded: Any = {}
        is_json = payload["content-type"] == "application/json"
        if is_json:
            args, kwargs, embedded = json.loads(payloads.body(payload))
        hard, soft = headers.get("timelimit") or (None, None)
        own = {name: value for name, value in headers.items() if not _is_celerys(name)}
        options = {
            "headers": own if own and is_storable(own) else None,
            "compression": headers.get("compression"),
            "expires": message.ttl / 1000 if message.ttl and headers.get("expires") else None,
            "time_limit": hard,
            "soft_time_limit": soft,
            "shadow": headers.get("shadow"),
            "ignore_result": headers.get("ignore_result") or None,
        }
        is_part = not is_json or any(embedded.get(name) for name in _PART_OF)
        return cls(
            headers["id"],
            headers["task"],
            stored(args),
            stored(kwargs),
            {name: value for name, value in options.items() if value is not None},
            message.available_at,
            canvas.of_message(headers, embedded or {}),
            is_part,
        )
