"""Schedules: their rows, ticks, calendars, launchers, files and importers."""

from typing import Literal

#: Which of the times that it missed a schedule launches.
CatchUp = Literal["latest", "all", "none"]
#: What it does while its last job is unfinished.
Overlap = Literal["allow", "skip", "queue_one", "buffer_all", "cancel_previous"]
#: After which end of another schedule's job it launches.
AfterOutcome = Literal["completed", "failed", "finished"]
#: After which of several others it launches.
AfterMatch = Literal["all", "any"]
#: The most others.
MOST_UPSTREAMS = 20


def upstreams(after: str | None) -> list[str]:
    """Returns the names in `after`, which has one on each line."""
    if after is None or "\n" not in after:
        return [] if after is None else [after]
    lines = (line.strip(" \t\r\f\v") for line in after.split("\n"))
    return list(dict.fromkeys(filter(None, lines)))
