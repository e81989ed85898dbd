"""What the tasks of all contenders do: each adds to the file of executions what it has timed."""

import time
from collections.abc import Callable
from typing import Any

from brokers.executions import note, opened
from brokers.spec import Spec
from sqlalchemy import text

spec = Spec.from_environment()
_file = opened(spec.executions)

#: The row that a step writes in its session.
INSERT = text("INSERT INTO bench_rows (n) VALUES (1)")
#: Seconds for which a job sleeps.
LONG = 86_400.0


def charge() -> dict[str, Any]:
    """The function of a step."""
    return {"order": 4711, "amount": 12.5, "currency": "EUR", "paid": True}


def timed(count: int, step: Callable[[str], object]) -> None:
    """Does so many steps, by their names, and notes when each began and ended."""
    for number in range(count):
        began = time.time()
        step(f"step-{number}")
        note(_file, began)


def noted(since: float) -> None:
    """Notes that a task has come so far: when the event was emitted, or 0."""
    note(_file, since)
