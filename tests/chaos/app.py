"""The app of the chaos: its tasks write a journal that does not depend on the database.

`CHAOS_DATABASE` is the DSN of pgbeat's schema, `CHAOS_BROKER` the broker's URL, `CHAOS_OPTIONS` its
transport options as JSON, `CHAOS_FOLDER` where the journal is, `CHAOS_EPOCH` the time at which
the monotonic clock was 0: what `time.time()` says may be wrong.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session

import pgbeat
from pgbeat.config import postgres_url
from tests.chaos.broken_builds import BUILDS, VARIABLE

if build := os.environ.get(VARIABLE):
    BUILDS[build].patch()

FOLDER = Path(os.environ.get("CHAOS_FOLDER", "."))

_EPOCH = float(os.environ.get("CHAOS_EPOCH", "0"))

app = Celery("chaos", broker=os.environ.get("CHAOS_BROKER"), backend=os.environ.get("CHAOS_BROKER"))
engine = create_engine(
    postgres_url(os.environ.get("CHAOS_DATABASE", "postgresql://nowhere/none")),
    poolclass=NullPool,
    connect_args={"prepare_threshold": None},
)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("CHAOS_OPTIONS", "{}")),
    pgbeat_job_retry_base=1.0,
    pgbeat_job_retry_cap=5.0,
    pgbeat_loop_interval=2.0,
    pgbeat_retry_base=1.0,
    pgbeat_retry_cap=5.0,
    pgbeat_url=os.environ.get("CHAOS_DATABASE"),
    result_expires=None,
    task_ignore_result=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)


def write(phase: str, request: Any) -> None:
    """Appends a line to the journal: one `write`, which the kernel does not interleave."""
    line = {
        "phase": phase,
        "id": request.id,
        "at": _EPOCH + time.monotonic(),
        "pid": os.getpid(),
        "worker": request.hostname,
        "task": request.task,
    }
    file = os.open(FOLDER / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


def _spend(task: Any, seconds: float, how: str) -> None:
    """Notes the start, and takes so long."""
    write("start", task.request)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(min(0.05, seconds))
        if how == "obey":
            pgbeat.progress(1)


def work(self: Any, seconds: float = 0.0, how: str = "return") -> str:
    """Works for a while and ends in one of several ways.

    `how` is `return`, `fail`, `fail_once` (until a checkpoint is there), `skip`, `die` (takes its
    process with it, once) or `obey` (asks again and again whether it is cancelled).
    """
    _spend(self, seconds, how)
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


app.task(name="chaos.work", bind=True, shared=False)(work)
app.task(name="chaos.work_late", bind=True, acks_late=True, shared=False)(work)


@app.task(name="chaos.plain", bind=True, acks_late=True, shared=False)
def plain(self: Any) -> None:
    """A task that is no job: published in somebody's transaction."""
    write("start", self.request)


def add(self: Any, before: int | list[int], seconds: float = 0.0, how: str = "return") -> int:
    """Returns one more than the values before it, together.

    `how` is `return`, `fail`, `retry` (by its policy, once), `celery_retry` (by `self.retry()`,
    once), `snooze` (once), `die` or `obey`.
    """
    _spend(self, seconds, how)
    if how == "fail" or (how not in ("return", "obey") and pgbeat.checkpoint() is None):
        pgbeat.checkpoint("was here")
        write("die" if how == "die" else "again", self.request)
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "snooze":
            raise pgbeat.Snooze(1.0)
        if how == "celery_retry":
            raise self.retry(countdown=0.5)
        raise OSError("this attempt fails")
    write("end", self.request)
    return 1 + (before if isinstance(before, int) else sum(before))


def book(self: Any, before: int | list[int], seconds: float = 0.0, how: str = "return") -> int:
    """Adds, and writes a row that commits with the task's end."""
    value = add(self, before, seconds, how)
    with pgbeat.finish(Session(engine)) as session:
        session.execute(text("INSERT INTO booked VALUES (:id)"), {"id": self.request.id})
    return value


#: Tasks whose policies make jobs of them, and one without a policy.
_TRIES: dict[str, Any] = {"max_attempts": 3, "retry_base": 0.5}
POLICIES: dict[str, dict[str, Any] | None] = {
    "chaos.add": _TRIES,
    "chaos.add_in_lane": {**_TRIES, "lane": "two"},
    "chaos.book": _TRIES,
    "chaos.book_in_lane": {**_TRIES, "lane": "one"},
    "chaos.add_once": {**_TRIES, "unique": True},
    "chaos.add_plainly": None,
}
for name, policy in POLICIES.items():
    app.task(
        name=name,
        bind=True,
        acks_late=True,
        ignore_result=False,
        max_retries=5,
        pgbeat=policy,
        shared=False,
    )(book if "book" in name else add)


@pgbeat.launcher
class EveryOther(pgbeat.Launcher):
    """Launches at every second due time, as its cursor says."""

    task = "chaos.work"

    def check_conditions(self, ctx: pgbeat.Context) -> bool | pgbeat.Skip:
        ctx.cursor = (ctx.cursor or 0) + 1
        return ctx.cursor % 2 == 0 or pgbeat.Skip("only every second time")

    def prepare_job_data(self, ctx: pgbeat.Context) -> dict[str, Any]:
        return {"seconds": 0.02}


@pgbeat.launcher
class TwoOrThree(pgbeat.Launcher):
    """Launches two or three jobs at each due time."""

    task = "chaos.work"

    def check_conditions(self, ctx: pgbeat.Context) -> bool:
        return True

    def prepare_job_data(self, ctx: pgbeat.Context) -> list[pgbeat.JobRequest]:
        ctx.cursor = (ctx.cursor or 0) + 1
        keys = "abc"[: 2 + ctx.cursor % 2]
        return [pgbeat.JobRequest(kwargs={"seconds": 0.1}, run_key=key) for key in keys]
