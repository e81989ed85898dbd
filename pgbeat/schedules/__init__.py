"""Schedules: their rows, ticks, calendars, launchers, files and importers."""

from typing import Literal

#: Which of the times that it missed a schedule launches.
CatchUp = Literal["latest", "all", "none"]
#: What it does while its last job is unfinished.
Overlap = Literal["allow", "skip", "queue_one", "buffer_all", "cancel_previous"]
#: After which end of another schedule's job it launches.
AfterOutcome = Literal["completed", "failed", "finished"]
