"""Defines tasks whose results matter, on pgbeat's broker and backend; a worker may die at a step.

`TESTS_DATABASE` is the database, `TESTS_FOLDER` where the journal is, `TESTS_SETTINGS` more of the
app's settings, as JSON. `TESTS_DIE_AT` names a step of storing a result; the worker that reaches it
first after a test has made the file `armed` kills itself.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from celery import Celery

from pgbeat.database.prepared import Statement
from pgbeat.results import chords
from pgbeat.results.store import Store
from tests.support.apps.files import FOLDER, note

STEPS = (
    "before store_result",
    "after store_result",
    "after return_chord_part",
    "after end_chord",
    "before commit",
    "after commit",
)

url = f"pgbeat+{os.environ.get('TESTS_DATABASE', 'postgresql://nowhere/none')}"
app = Celery("results", broker=url, backend=url)
app.conf.update(
    {
        "task_acks_late": True,
        "broker_connection_retry_on_startup": True,
        "worker_prefetch_multiplier": 1,
        "result_extended": True,
        **json.loads(os.environ.get("TESTS_SETTINGS", "{}")),
    }
)


def reached(step: str) -> None:
    """Dies by SIGKILL at the chosen step, once for each time that a test asks for it."""
    if step == os.environ.get("TESTS_DIE_AT"):
        try:
            (FOLDER / "armed").unlink()
        except FileNotFoundError:
            return
        os.killpg(0, signal.SIGKILL)


run, end, atomically = Store.run, chords._end, Store.atomically


def _run(self: Store, statement: Statement, *parameters: Any) -> Any:
    reached(f"before {statement.label}")
    result = run(self, statement, *parameters)
    reached(f"after {statement.label}")
    return result


def _atomically(self: Store, function: Callable[[Any], Any], **options: Any) -> Any:
    is_outermost = self.joined is None
    answer = atomically(self, function, **options)
    if is_outermost:
        reached("after commit")
    return answer


def _end(*arguments: Any) -> None:
    end(*arguments)
    reached("before commit")


if os.environ.get("TESTS_DIE_AT"):
    Store.run, Store.atomically, chords._end = _run, _atomically, _end  # type: ignore[method-assign, assignment]


@app.task(name="results.add", shared=False)
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="results.fail", shared=False)
def fail(*args: Any) -> None:
    raise ValueError("it fails")


@app.task(name="results.body", bind=True, shared=False)
def body(self: Any, parts: Any) -> Any:
    """Writes down that it ran, once for each delivery that is new."""
    if not (self.request.delivery_info or {}).get("redelivered"):
        note(f"{self.request.id} {parts}")
    return parts


@app.task(name="results.sleep", shared=False)
def sleep(seconds: float) -> float:
    """Takes its time."""
    time.sleep(seconds)
    return seconds


@app.task(name="results.die", shared=False, acks_late=False)
def die() -> None:
    """Kills the process that runs it."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="results.ignored", shared=False, ignore_result=True)
def ignored(value: Any) -> Any:
    """Returns what is not to be kept."""
    return value


@app.task(name="results.retried", bind=True, shared=False, max_retries=3)
def retried(self: Any, times: int) -> int:
    """Wants to be run again, so often."""
    if self.request.retries < times:
        raise self.retry(countdown=0)
    return times


@app.task(name="results.odd", shared=False)
def odd() -> Any:
    """Returns what no serializer of the app can write."""
    return object()


@app.task(name="results.echo", shared=False)
def echo(value: Any) -> Any:
    return value


@app.task(name="results.refuse", shared=False)
def refuse(value: Any) -> None:
    """Fails with what it was given."""
    raise ValueError(value)


@app.task(name="results.errback", shared=False)
def errback(request: Any, exc: Any, traceback: Any) -> None:
    """Writes down which error it was called with, and what others see of the task."""
    note(f"errback {request.id} {type(exc).__name__}")
    note(f"{request.id} is {app.AsyncResult(request.id).state}")
