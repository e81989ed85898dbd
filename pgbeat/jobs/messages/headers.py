"""Writes the headers that tell a task for which schedule and due time it runs.

They travel with the message. So a task can read them (`pgbeat.current`) without the database, and
they are the same after a redelivery and in every retry.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pgbeat.jobs.rows.model import Job

SCHEDULE, TRIGGER, ATTEMPT = "pgbeat_schedule", "pgbeat_trigger", "pgbeat_job_attempt"
CALLBACK_OF = "pgbeat_callback_of"
DUE_AT, INTERVAL_START = "pgbeat_due_at", "pgbeat_interval_start"
INTERVAL_END = "pgbeat_interval_end"


def of_job(job: Job) -> Mapping[str, Any]:
    """Returns the headers of a job, without those that have no value."""
    values = {
        ATTEMPT: None if job.attempt == 1 else job.attempt,
        SCHEDULE: job.schedule,
        DUE_AT: job.due_at and isoformat(job.due_at),
        INTERVAL_START: job.interval_start and isoformat(job.interval_start),
        INTERVAL_END: job.interval_end and isoformat(job.interval_end),
        TRIGGER: job.trigger,
        CALLBACK_OF: job.callback_of and str(job.callback_of),
    }
    return {name: value for name, value in values.items() if value is not None}


@lru_cache(maxsize=1024)
def isoformat(moment: datetime) -> str:
    """Returns a moment as the headers have it, in UTC."""
    return moment.astimezone(UTC).isoformat()
