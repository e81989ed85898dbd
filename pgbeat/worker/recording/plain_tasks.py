"""Makes jobs of tasks that were published without one, with `pgbeat_track = "all"`."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pgbeat.jobs.messages import canvas
from pgbeat.jobs.messages.canvas import NOWHERE
from pgbeat.worker.recording import attempts

_UUID = re.compile("[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)


def may_have_job(task_id: Any) -> bool:
    """Returns whether a task's id can be that of a job."""
    return _UUID.fullmatch(str(task_id)) is not None


def is_trackable(task_id: str, task: Any, request: Any) -> bool:
    """Returns whether such a task may get a job."""
    if request.is_eager or task.name.startswith("pgbeat."):
        return False
    return may_have_job(task_id)


def job_maker(namespace: str, task: Any, request: Any) -> Callable[[], Mapping[str, Any]]:
    """Returns what gives the columns of a new job for a task that begins.

    It is called later. So it keeps what the task may change, and nothing of the request.
    """
    call = attempts.call_text(request.args or (), request.kwargs or {})
    place = canvas.of_request(request)
    columns = {
        "job_source": "system",
        "is_system_job": True,
        "namespace": namespace,
        "task": task.name,
        "queue": (request.delivery_info or {}).get("routing_key"),
        "created_by": f"celery:{request.origin}" if request.origin else "celery",
        **(place._asdict() if place is not NOWHERE else {}),
    }
    return lambda: {**columns, **attempts.arguments(call)}
