"""Tells which tasks that were published without a job get one, with `pgbeat_track = "all"`."""

import re
from typing import Any

_UUID = re.compile("[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)


def may_have_job(task_id: Any) -> bool:
    """Returns whether a task's id can be that of a job."""
    return _UUID.fullmatch(str(task_id)) is not None


def is_trackable(task_id: str, task: Any, request: Any) -> bool:
    """Returns whether such a task may get a job."""
    if request.is_eager or task.name.startswith("pgbeat."):
        return False
    return may_have_job(task_id)
