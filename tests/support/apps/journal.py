"""Defines tasks that write what they do in a journal, for workers on pgbeat's transport.

`TESTS_BROKER` is the broker's URL, `TESTS_FOLDER` where the journal is, `TESTS_SETTINGS` more of
the app's settings, as JSON. The journal is a file and not a table: databases go away in tests.
"""

import json
import os
import signal
import time
from typing import Any

from celery import Celery

import pgbeat as _pgbeat  # the transport's alias
from tests.support.apps.files import note as note_line
from tests.support.apps.files import wait_for

SETTINGS: dict[str, Any] = {
    "task_ignore_result": True,
    "broker_connection_retry_on_startup": True,
    # Nothing in these tests may wait for a look at the tables that nobody asked for.
    "broker_transport_options": {"polling_interval": 600},
    "result_expires": None,  # no cleanup among the schedules
    "pgbeat_loop_interval": 1.0,
}
__all__ = ["_pgbeat", "app"]

app = Celery("transport", broker=os.environ.get("TESTS_BROKER", "pgbeat+postgresql://nowhere/none"))
app.conf.update(SETTINGS | json.loads(os.environ.get("TESTS_SETTINGS", "{}")))


def journal(task: Any, phase: str, **more: Any) -> None:
    """Notes the phase of a task's run."""
    request = task.request
    entry = {
        "phase": phase,
        "at": time.time(),
        "id": request.id,
        "task": task.name.removeprefix("transport."),
        "worker": request.hostname,
        "pid": os.getpid(),
        "redelivered": bool((request.delivery_info or {}).get("redelivered")),
        "failed_before": request.get("x-delivery-count") or 0,
        "retries": request.retries,
        **more,
    }
    note_line(json.dumps(entry))


@app.task(name="transport.note", bind=True, shared=False)
def note(self: Any, value: Any = None) -> Any:
    """Writes down that it ran."""
    journal(self, "started", value=value)
    return value


@app.task(name="transport.hold", bind=True, shared=False)
def hold(self: Any, gate: str) -> None:
    """Runs until the gate is opened."""
    journal(self, "started", value=gate)
    wait_for(gate)
    journal(self, "ended", value=gate)


@app.task(name="transport.work", bind=True, shared=False, acks_late=True)
def work(self: Any, seconds: float = 0.0) -> None:
    """Takes its time, acknowledges late."""
    journal(self, "started")
    time.sleep(seconds)
    journal(self, "ended")


@app.task(name="transport.late", bind=True, shared=False, acks_late=True)
def late(self: Any, gate: str) -> None:
    """As `hold`, acknowledged late."""
    hold.run.__func__(self, gate)


#: A task that is a job for clients that know a policy of it.
late_job = app.task(name="transport.late_job", bind=True, shared=False, acks_late=True)(
    late.run.__func__
)


@app.task(name="transport.leave_a_child", bind=True, shared=False)
def leave_a_child(self: Any, gate: str) -> None:
    """Forks a process that lives until the gate is opened."""
    if os.fork() == 0:
        try:
            os.setsid()
            journal(self, "child")
            wait_for(gate)
        finally:
            os._exit(0)


@app.task(name="transport.again", bind=True, shared=False, max_retries=None)
def again(self: Any, countdown: float, times: int = 1) -> None:
    """Wants to be run again, so often."""
    journal(self, "started")
    if self.request.retries < times:
        raise self.retry(countdown=countdown)


@app.task(name="transport.poison", bind=True, shared=False, acks_late=True)
def poison(self: Any, victim: str) -> None:
    """Kills the process that runs it, or that one's parent."""
    journal(self, "started")
    os.kill(os.getpid() if victim == "self" else os.getppid(), signal.SIGKILL)
    time.sleep(60)


poison_rejected = app.task(
    name="transport.poison_rejected",
    bind=True,
    shared=False,
    acks_late=True,
    reject_on_worker_lost=True,
)(poison.run.__func__)


@app.task(name="transport.add", shared=False)
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="transport.total", shared=False)
def total(numbers: list[int]) -> int:
    """Returns the sum of a chord's results."""
    return sum(numbers)
