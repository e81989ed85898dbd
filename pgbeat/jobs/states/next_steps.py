"""What the end of jobs means for others: some may run now, and some can't any more."""

from typing import Literal, NamedTuple

from pgbeat.jobs.rows.model import Job


class Ending(NamedTuple):
    """Waiting jobs that must end, and why."""

    jobs: list[str]
    to: Literal["cancelled", "skipped"]
    reason: str


class NextSteps(NamedTuple):
    """What the caller must do: publish unblocked jobs that are dispatched, and end others."""

    unblocked: list[Job]
    endings: list[Ending]


#: What an UPDATE sets of a blocked job `j` that may go on: it goes where it would have been.
UNBLOCKED = """
           is_blocked = false,
           state = CASE WHEN state = 'scheduled' AND run_at <= now() THEN 'pending' ELSE state END,
           dispatched_at = CASE WHEN lane IS NULL AND state <> 'paused' THEN now() END
"""
