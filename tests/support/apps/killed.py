"""Kills a pool's process while Celery ends a task, once for each task.

More tasks are `recorded`'s.
"""

from typing import Any

from celery import Task, signals

import pgbeat
from pgbeat.worker.finishing import snoozes
from tests.support.apps.files import die_once, is_first, note
from tests.support.apps.recorded import app

__all__ = ["app"]

snoozes.LATE_PATIENCE = 3.0


@app.task(name="tests.end_and_die", shared=False, acks_late=True, reject_on_worker_lost=True)
def end_and_die() -> str:
    """Ends; the process dies before it can say so to the worker, which redelivers the message."""
    note("ran")
    return "done"


class _Stored(Task):
    """A task whose process dies as soon as the result is stored."""

    def on_success(self, *args: Any, **kwargs: Any) -> None:
        die_once(f"killed-{self.name}")


@app.task(name="tests.store_and_die", shared=False, base=_Stored, ignore_result=False)
def store_and_die() -> str:
    """Has its result stored; then Celery says nothing of the death."""
    note("ran")
    return "done"


@app.task(name="tests.snooze_once", shared=False, acks_late=True)
def snooze_once() -> str:
    """Snoozes the first time."""
    if is_first("snoozed"):
        raise pgbeat.Snooze(1)
    return "done"


def _ended(task: Any, **kwargs: Any) -> None:
    if task.name == end_and_die.name:
        die_once(f"killed-{task.name}")


@signals.worker_process_init.connect
def _come_last(**kwargs: Any) -> None:
    """Has the process die after every other receiver of the signal was called."""
    signals.task_postrun.connect(_ended, weak=False)
