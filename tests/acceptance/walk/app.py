"""The app of the walk: its tasks write a journal that does not depend on the database.

`WALK_DATABASE` is the DSN of pgbeat's schema, `WALK_BROKER` the broker's URL, `WALK_OPTIONS` its
transport options as JSON, `WALK_FOLDER` where the journal is.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery

import pgbeat

FOLDER = Path(os.environ.get("WALK_FOLDER", "."))

app = Celery("walk", broker=os.environ.get("WALK_BROKER"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("WALK_OPTIONS", "{}")),
    pgbeat_job_retry_base=1.0,
    pgbeat_job_retry_cap=5.0,
    pgbeat_loop_interval=2.0,
    pgbeat_retry_base=1.0,
    pgbeat_retry_cap=5.0,
    pgbeat_url=os.environ.get("WALK_DATABASE"),
    result_expires=None,
    task_ignore_result=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)


def write(phase: str, request: Any) -> None:
    """Appends a line to the journal: one `write`, which the kernel does not interleave."""
    line = {
        "phase": phase, "id": request.id, "at": time.time(), "pid": os.getpid(),
        "worker": request.hostname, "task": request.task,
    }  # fmt: skip
    file = os.open(FOLDER / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


def work(self: Any, seconds: float = 0.0, how: str = "return") -> str:
    """Works for a while and ends in one of several ways.

    `how` is `return`, `fail`, `fail_once` (until a checkpoint is there), `skip`, `die` (takes its
    process with it, once) or `obey` (asks again and again whether it is cancelled).
    """
    write("start", self.request)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(min(0.05, seconds))
        if how == "obey":
            pgbeat.progress(1)
    if how in ("fail_once", "die") and pgbeat.checkpoint() is None:
        pgbeat.checkpoint("was here")
        if how == "die":
            write("die", self.request)
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError("the first attempt fails")
    if how == "skip":
        raise pgbeat.Skip("nothing to do")
    if how == "fail":
        raise ValueError("this one always fails")
    write("end", self.request)
    return "done"


app.task(name="walk.work", bind=True)(work)
app.task(name="walk.work_late", bind=True, acks_late=True)(work)


@app.task(name="walk.plain", bind=True, acks_late=True)
def plain(self: Any) -> None:
    """A task that is no job: published in somebody's transaction."""
    write("start", self.request)


@pgbeat.launcher
class EveryOther(pgbeat.Launcher):
    """Launches at every second due time, as its cursor says."""

    task = "walk.work"

    def check_conditions(self, ctx: pgbeat.Context) -> bool | pgbeat.Skip:
        ctx.cursor = (ctx.cursor or 0) + 1
        return ctx.cursor % 2 == 0 or pgbeat.Skip("only every second time")

    def prepare_job_data(self, ctx: pgbeat.Context) -> dict[str, Any]:
        return {"seconds": 0.02}
