"""Learns which tasks Celery revokes, in workers that run batches.

A member that waits for its batch has no message that a worker would drop, and its batch's run takes
it along in a process that knows of no revocations.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any
from uuid import UUID

from celery import Celery
from celery.utils.functional import maybe_list
from celery.worker.control import Panel

from pgbeat.jobs.policy.batches import is_batch

_ORIGINAL = "pgbeat_original"


def follow(app: Celery, report: Callable[[str], None]) -> None:
    """Calls `report` in this worker with each id of a job that a `revoke` names."""
    revoke = getattr(Panel.data["revoke"], _ORIGINAL, Panel.data["revoke"])

    @wraps(revoke)
    def revoke_members(state: Any, task_id: Any, *args: Any, **kwargs: Any) -> Any:
        if any(map(is_batch, app.tasks.values())):
            for each in maybe_list(task_id) or ():
                with suppress(ValueError):  # of others, which are no jobs
                    report(str(UUID(str(each))))
        return revoke(state, task_id, *args, **kwargs)

    setattr(revoke_members, _ORIGINAL, revoke)
    Panel.data["revoke"] = revoke_members
