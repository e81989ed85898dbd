"""Headers of a job's message that say which schedule and which due time the job is for.

They travel with the message, so a task can ask (`pgbeat.current`) without the database and without
tracking, and hears the same after a redelivery and in every retry.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

#: Names of the headers; those that say nothing of a job are left out of its message.
SCHEDULE, TRIGGER, ATTEMPT = "pgbeat_schedule", "pgbeat_trigger", "pgbeat_job_attempt"
DUE_AT, INTERVAL_START = "pgbeat_due_at", "pgbeat_interval_start"


def headers(
    schedule: str | None,
    due_at: datetime | None,
    interval_start: datetime | None,
    trigger: str | None,
    attempt: int = 1,
) -> Mapping[str, Any]:
    """Returns the headers of a job."""
    found: dict[str, Any] = {} if attempt == 1 else {ATTEMPT: attempt}
    if schedule is not None:
        found[SCHEDULE] = schedule
    if due_at is not None:
        found[DUE_AT] = _written(due_at)
    if interval_start is not None:
        found[INTERVAL_START] = _written(interval_start)
    if trigger is not None:
        found[TRIGGER] = trigger
    return found


@lru_cache(maxsize=1024)
def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
