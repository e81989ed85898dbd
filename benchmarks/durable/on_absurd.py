"""Absurd: tasks for a worker, and what spawns and wakes them."""

import threading
from typing import Any

from absurd_sdk import Absurd

from durable.common import charge, noted, spec, timed

_absurd = Absurd(spec.url)


@_absurd.register_task("steps")
def steps(count: int, context: Any) -> None:
    """Has steps that return a value."""
    timed(count, lambda name: context.step(name, charge))


@_absurd.register_task("waits")
def waits(number: int, context: Any) -> None:
    """Waits for the event of its number, whose value is when it was emitted."""
    noted(0.0)
    noted(context.await_event(f"event-{number}"))


def work() -> None:
    """Begins to run tasks, in a thread."""
    threading.Thread(target=_absurd.start_worker).start()


def start(task: str, number: int) -> None:
    """Spawns a task."""
    _absurd.spawn(task, number)


def emit(key: str, value: Any) -> None:
    """Emits an event."""
    _absurd.emit_event(key, value)
