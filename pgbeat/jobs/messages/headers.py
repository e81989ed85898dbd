"""Writes the headers that tell a task for which schedule and due time it runs.

They travel with the message. So a task can read them (`pgbeat.current`) without the database, and
they are the same after a redelivery and in every retry.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

SCHEDULE, TRIGGER, ATTEMPT = "pgbeat_schedule", "pgbeat_trigger", "pgbeat_job_attempt"
CALLBACK_OF = "pgbeat_callback_of"
DUE_AT, INTERVAL_START = "pgbeat_due_at", "pgbeat_interval_start"
INTERVAL_END = "pgbeat_interval_end"


def headers(
    schedule: str | None,
    due_at: datetime | None,
    interval_start: datetime | None,
    interval_end: datetime | None,
    trigger: str | None,
    attempt: int = 1,
    callback_of: UUID | None = None,
) -> Mapping[str, Any]:
    """Returns the headers of a job, without those that have no value.

    An `interval_end` is only given where it isn't `due_at`.
    """
    values = {
        ATTEMPT: None if attempt == 1 else attempt,
        SCHEDULE: schedule,
        DUE_AT: due_at and isoformat(due_at),
        INTERVAL_START: interval_start and isoformat(interval_start),
        INTERVAL_END: interval_end and isoformat(interval_end),
        TRIGGER: trigger,
        CALLBACK_OF: callback_of and str(callback_of),
    }
    return {name: value for name, value in values.items() if value is not None}


@lru_cache(maxsize=1024)
def isoformat(moment: datetime) -> str:
    """Returns a moment as the headers have it, in UTC."""
    return moment.astimezone(UTC).isoformat()
