"""Defines tasks that end in every way, for workers that record their executions.

`TESTS_BROKER` is the broker's URL (else that of the basic app), `TESTS_SETTINGS` more of the app's
settings, as JSON; gates are files in `TESTS_FOLDER`.
"""

import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from celery import chain
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.utils.log import get_task_logger

import pgbeat
from tests.support.apps import files
from tests.support.apps.basic import app as stock_app
from tests.support.apps.files import FOLDER, note, wait_for

app = stock_app
app.conf.update(json.loads(os.environ.get("TESTS_SETTINGS", "{}")))
if "TESTS_BROKER" in os.environ:
    app.conf.broker_url = os.environ["TESTS_BROKER"]


@app.task(name="tests.fail", shared=False)
def fail(which: int = 0, more: str = "") -> None:
    """Raises something, also with what no database takes in its words."""
    raise ValueError(("no such thing", "nul\0 here", "half \ud800 a character")[which] + more)


@app.task(name="tests.empty", shared=False)
def empty(order: dict[str, Any]) -> None:
    """Takes all out of its argument, and fails."""
    order.clear()
    raise ValueError("no such thing")


@app.task(name="tests.coroutine", shared=False)
async def coroutine() -> None:
    """Would do something, if somebody awaited it."""


@app.task(name="tests.die", shared=False)
def die() -> None:
    """Takes its process with it."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="tests.die_once", bind=True, shared=False, acks_late=True)
def die_once(self: Any, gate: str) -> str:
    """Takes its process with it, the first time, when it is told of."""
    pgbeat.checkpoint("here")
    files.die_once(f"gate-{gate}")
    return "survived"


die_once_rejected = app.task(
    name="tests.die_once_rejected",
    bind=True,
    shared=False,
    acks_late=True,
    reject_on_worker_lost=True,
)(die_once.run.__func__)


@app.task(name="tests.retry", bind=True, max_retries=1, shared=False)
def retry(self: Any, countdown: float = 0) -> None:
    """Wants to be run again, once."""
    if self.request.retries == 0:
        raise self.retry(countdown=countdown, exc=OSError("not yet"))
    sys.stdout.write("second\n")


@app.task(name="tests.snooze", shared=False)
def snooze(countdown: float) -> None:
    """Wants to be run again later, once its start is recorded."""
    time.sleep(0.3)
    raise pgbeat.Snooze(countdown)


@app.task(name="tests.log", shared=False)
def log() -> None:
    """Logs in every way, also what another task does that it calls."""
    logging.getLogger("shop").info("%d of %s", 1, "nul\0")
    get_task_logger("shop.tasks").warning("twice?")
    print("printed")
    inner.apply()
    other = threading.Thread(target=logging.getLogger("shop").info, args=("in another thread",))
    other.start()
    other.join()
    try:
        raise ValueError("caught")
    except ValueError:
        logging.getLogger("shop").exception("It failed")


@app.task(name="tests.inner", shared=False)
def inner() -> None:
    logging.getLogger("shop").info("inner")


@app.task(name="tests.leave", shared=False, acks_late=True)
def leave(how: str) -> None:
    """Ends in one of the ways that are neither success nor failure."""
    raise {
        "skip": pgbeat.Skip("nothing to do"),
        "ignore": Ignore("as you like"),
        "reject": Reject("broken", requeue=False),
        "cancelled": pgbeat.Cancelled("enough"),
        "exit": SystemExit(3),
    }[how]


@app.task(name="tests.hold", shared=False)
def hold(gate: str, fails: bool = False) -> str:
    """Runs until the gate is opened, and fails then if it is to."""
    wait_for(gate)
    if fails:
        raise ValueError("no such thing")
    return gate


@app.task(name="tests.hold_late", shared=False, acks_late=True)
def hold_late(gate: str) -> str:
    """As `hold`, acknowledged late."""
    wait_for(gate)
    return gate


@app.task(name="tests.fail_once", bind=True, shared=False, acks_late=True)
def fail_once(self: Any, gate: str) -> str:
    """Fails once the gate is open, unless its message is delivered again."""
    if self.request.delivery_info["redelivered"]:
        return "again"
    wait_for(gate)
    raise ValueError("once")


@app.task(name="tests.limited", shared=False, time_limit=1)
def limited() -> None:
    """Takes longer than it may."""
    time.sleep(60)


@app.task(name="tests.cling", shared=False, soft_time_limit=2, time_limit=4)
def cling(gate: str) -> None:
    """Doesn't end at its soft time limit either."""
    try:
        wait_for(gate)
    except SoftTimeLimitExceeded:
        clean_up()


def clean_up() -> None:
    """Takes too long."""
    time.sleep(60)


@app.task(name="tests.talk", shared=False)
def talk(gate: str) -> str:
    """Tells how far it is, and what it did."""
    for step in range(1, 4):
        pgbeat.progress(step, 5, f"step {step}")
        pgbeat.report(items_crawled=10 * step, at=Path("/x"))
    wait_for(gate)
    pgbeat.report(items_indexed=7)
    pgbeat.artifacts("s3://x/1.pdf", Path("/x/2.csv"))
    pgbeat.artifacts("s3://x/1.pdf")
    return "x" * 1000


@app.task(name="tests.remember", bind=True, max_retries=1, shared=False)
def remember(self: Any, fails: bool = False) -> Any:
    """Leaves a checkpoint, and fails; with one there already, says what it is."""
    left = pgbeat.checkpoint()
    if left is not None:
        return left
    pgbeat.checkpoint({"page": 3, "seen": ["a\0b"]})
    assert pgbeat.checkpoint() == {"page": 3, "seen": ["a\\0b"]}
    if fails:
        raise OSError("not yet")
    raise self.retry(countdown=0)


@app.task(name="tests.keep_and_die", shared=False)
def keep_and_die() -> None:
    """Leaves a checkpoint, and its process dies."""
    pgbeat.checkpoint({"page": 1})
    (FOLDER / "gate-kept").touch()
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="tests.obey", shared=False)
def obey() -> None:
    """Goes on until it is told to end."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pgbeat.progress(1)
        time.sleep(0.02)


@app.task(name="tests.strive", shared=False)
def strive() -> None:
    """Goes on until it is told to end, and then fails in its own way."""
    deadline = time.monotonic() + 60
    while not pgbeat.is_cancelled() and time.monotonic() < deadline:
        time.sleep(0.02)
    raise ValueError("in the midst of it")


@app.task(name="tests.spend", shared=False)
def spend(seconds: float, megabytes: int) -> None:
    """Takes CPU time and memory."""
    memory = bytearray(megabytes << 20)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    del memory


@app.task(name="tests.work", shared=False)
def work(seconds: float = 0.0) -> int:
    """Takes its time."""
    time.sleep(seconds)
    return threading.get_native_id()


@app.task(name="tests.work_late", shared=False, acks_late=True)
def work_late(seconds: float = 0.0) -> None:
    """As `work`, acknowledged late."""
    time.sleep(seconds)


@app.task(name="tests.seize", shared=False)
def seize(seconds: int = 0) -> None:
    """Keeps the interpreter from every other thread of its process."""
    note("begin")
    ctypes.PyDLL(None).sleep(seconds)
    note("end")


@app.task(name="tests.say", shared=False)
def say(word: str) -> None:
    """Notes that it ran."""
    note(word)


@app.task(name="tests.replace", bind=True, shared=False)
def replace(self: Any) -> None:
    """Has others run in its place."""
    self.replace(chain(work.si(0.5), say.si("last")))


@app.task(name="tests.soon", shared=False, expires=1)
def soon() -> None:
    """Does nothing; its message expires after a second."""
    note("soon")
