"""Reads whether a task may have a policy, by which it becomes a job, without loading the jobs."""

import os
from typing import Any

from pgbeat.config.environment import variable

#: The option of a task, and the setting.
OPTION, SETTING = "pgbeat", "pgbeat_task_policies"


def own_policy(app: Any, name: str) -> Any:
    """Returns the policy that a registered task sets for its jobs; `None` if it sets none.

    An app that its program must finalize is not finalized for it.
    """
    tasks = app.tasks if app.finalized or app.autofinalize else app._tasks
    return getattr(tasks.get(name), OPTION, None)


def has_policies(app: Any) -> bool:
    """Returns whether the app's settings have policies of tasks."""
    return bool(app.conf.get(SETTING)) or variable("task_policies") in os.environ
