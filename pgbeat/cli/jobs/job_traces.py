"""How the trace of a job looks: a line for each attempt."""

from datetime import datetime
from itertools import groupby

from rich.text import Text

from pgbeat.cli.terminal import printing
from pgbeat.jobs.explaining.trace import Phase, Trace


def in_words(trace: Trace, now: datetime) -> Text | None:
    """Returns the phases and their lengths, such as `in queue 2 s, running on w1 5 s (failed)`."""
    phases = [phase for phase in trace.phases if not phase.is_moment]
    attempts = [list(those) for _, those in groupby(phases, lambda phase: phase.job_id)]
    lines = [
        (f"{those[0].attempt}: " if len(attempts) > 1 else "")
        + ", ".join(_phase(phase, now) for phase in those)
        for those in attempts
    ]
    return Text("\n".join(map(printing.line, lines))) if lines else None


def _phase(phase: Phase, now: datetime) -> str:
    took = printing.lasting(phase.lasts(now))
    so_far = " so far" if phase.end is None else ""
    return f"{phase.words} {took}{so_far}" + (f" ({phase.state})" if phase.state else "")
