"""An app whose tasks have policies, with pgbeat's broker and result backend."""

import json
import os
import time
from typing import Any

from celery import Celery, chain, chord

import pgbeat
from tests.support.apps.files import is_first, note, wait_for

URL = os.environ["TESTS_BROKER"]

app = Celery("policies", broker=URL, backend=URL)
app.conf.update(
    result_expires=None,
    worker_prefetch_multiplier=1,
    **json.loads(os.environ.get("TESTS_SETTINGS", "{}")),
)


@app.task(name="policies.add", pgbeat={"lane": "narrow"})
def add(x: int, y: int = 1) -> int:
    note(f"begin {x}")
    time.sleep(0.02)  # long enough to overlap with another one, if that could be
    note(f"end {x}")
    return x + y


@app.task(name="policies.total", pgbeat={"lane": "narrow"})
def total(numbers: list[int]) -> int:
    """Adds them up."""
    return sum(numbers)


@app.task(name="policies.flaky", bind=True, pgbeat={"max_attempts": 3, "retry_base": 0.1})
def flaky(self: Any, succeeds_at: int, name: str = "") -> int:
    """Fails until its attempt with that number."""
    attempt = int(self.request.retries) + 1
    note(f"{name}{attempt} {self.request.id}")
    if attempt < succeeds_at:
        raise ValueError(f"attempt {attempt}")
    return attempt


@app.task(name="policies.late_flaky", acks_late=True, pgbeat={"max_attempts": 2, "retry_base": 0.1})
def late_flaky(marker: str) -> str:
    """Fails the first time; its message is acknowledged in the end."""
    if is_first(marker):
        raise ValueError("the first time")
    return "done"


@app.task(
    name="policies.late_tries",
    bind=True,
    acks_late=True,
    pgbeat={"max_attempts": 2, "retry_base": 0.1},
)
def late_tries(self: Any, how: str) -> str:
    """Is to be tried again, the first time and when a test says so: by its policy, or itself."""
    if is_first(f"first-{how}"):
        wait_for(f"retry-{how}")
        raise self.retry(countdown=0.1) if how == "itself" else ValueError("the first time")
    return "done"


@app.task(name="policies.parent", acks_late=True)
def parent(count: int) -> list[str]:
    """Sends tasks that have a policy, and waits for none."""
    return [add.delay(number).id for number in range(count)]


def _replaced(self: Any, how: str) -> None:
    if how == "one":
        self.replace(add.si(5))
    if how == "chain":
        self.replace(chain(add.si(5), add.s(1)))
    self.replace(chord([add.si(1), add.si(2)], total.s()))


@app.task(name="policies.replaced", bind=True, pgbeat={"lane": "narrow"})
def replaced(self: Any, how: str) -> None:
    """Has other tasks run in its place."""
    _replaced(self, how)


@app.task(name="policies.late_replaced", bind=True, acks_late=True, pgbeat={"lane": "narrow"})
def late_replaced(self: Any, how: str) -> None:
    """Does the same, and its message is acknowledged in the end."""
    _replaced(self, how)


@app.task(name="policies.held", bind=True, acks_late=True, pgbeat={"lane": "narrow"})
def held(self: Any, gate: str) -> str:
    """Waits for a file."""
    note(f"held {os.getpid()}")
    wait_for(gate)
    return gate


@app.task(name="policies.waits", bind=True, pgbeat={"max_attempts": 3, "retry_base": 3600})
def waits(self: Any, how: str) -> str:
    """Waits an hour for its next run: it fails, or snoozes; then it says how it was sent."""
    if how in ("fails", "snoozes") and is_first(f"first-{self.request.id}"):
        raise ValueError("the first time") if how == "fails" else pgbeat.Snooze(3600)
    header = getattr(self.request, "mine", None)
    return f"{how} {header} {pgbeat.current().attempt}"  # type: ignore[union-attr]


@app.task(name="policies.skips", pgbeat={})
def skips() -> None:
    """Has nothing to do."""
    raise pgbeat.Skip("nothing to do")


@app.task(name="policies.late_skips", acks_late=True, pgbeat={})
def late_skips() -> None:
    """Likewise; its message is acknowledged in the end."""
    raise pgbeat.Skip("nothing to do")


@app.task(name="policies.fails", pgbeat={})
def fails() -> None:
    raise ValueError("it fails")


@app.task(name="policies.unique", pgbeat={"unique": True})
def unique(number: int) -> int:
    """Returns the number."""
    return number


@app.task(name="policies.joined")
def joined(parts: list[str]) -> list[str]:
    """Is the body of a chord, or what follows in a chain."""
    return parts


@app.task(name="policies.handled")
def handled(task_id: str) -> None:
    note(f"handled {task_id}")
