"""Defines what follows for other jobs when jobs end: some may run now, and some never."""

from typing import Literal, NamedTuple

from pgbeat.jobs.rows.model import Job


class Ending(NamedTuple):
    """Waiting jobs that must end, and why."""

    jobs: list[str]
    to: Literal["cancelled", "skipped"]
    reason: str


class NextSteps(NamedTuple):
    """The caller's next steps: publish unblocked jobs that are dispatched, and end others."""

    unblocked: list[Job]
    endings: list[Ending]


#: What an UPDATE sets of a blocked job `j` that may run: it goes where it would have been.
UNBLOCKED = """
           is_blocked = false,
           state = CASE WHEN state = 'scheduled' AND run_at <= now() THEN 'pending' ELSE state END,
           dispatched_at = CASE WHEN lane IS NULL AND state <> 'paused' THEN now() END
"""
