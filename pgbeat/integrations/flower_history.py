"""Fills Flower's tasks from the history when it starts, and after it had no connection.

Flower knows only the events that it has seen itself, and keeps them in memory. Here it also gets
those of the newest executions, as far as it lacks them. They change the tasks alone: counters and
metrics count what Flower sees. Tasks are masked as for a user of the console.
"""

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from celery.events import EventReceiver
from celery.events.state import State
from celery.utils.saferepr import saferepr
from flower import app as flower_app
from flower import events
from sqlalchemy.exc import SQLAlchemyError

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import Redactor
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import PgbeatError
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import TaskRun

logger = logging.getLogger("pgbeat")

#: Seconds until a failed read is repeated, at first and at most; at once if Flower connects again.
_FIRST_WAIT, _LONGEST_WAIT = 2.0, 60.0
#: Seconds by which a worker's clock and the database's may differ.
_SKEW = 1.0
#: What ends an execution, by its state.
_ENDS = {
    "completed": "succeeded",
    "failed": "failed",
    "cancelled": "revoked",
    "skipped": "revoked",
    "snoozed": "retried",
}
#: How fields of Flower's own events are masked, which are text.
_MASKS: dict[str, Any] = {
    "args": Redactor.whole,
    "kwargs": Redactor.whole,
    "result": Redactor.whole,
    "exception": Redactor.error,
    "traceback": Redactor.text,
}


class TaskEvents(events.Events):
    """Flower's events, and the history's."""

    _redactor: Redactor | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Set whenever Flower begins to receive events.
        self.connected = threading.Event()
        try:
            self._settings = Settings.load(self.capp.conf)
        except PgbeatError as error:
            logger.warning("Flower doesn't show pgbeat's history: %s", error)
            return
        self._redactor = Redactor(Actor("program:flower"), self._settings.redact, self.capp.tasks)

    def start(self) -> None:
        """Starts to receive events, and to read the history."""
        super().start()
        if self._redactor is not None and self._settings.flower_history:
            threading.Thread(target=self._follow, args=(self._redactor,), daemon=True).start()

    def on_event(self, event: dict[str, Any]) -> None:
        """Passes an event on to the thread that has the tasks."""
        self.io_loop.add_callback(self._see, event)

    def _see(self, event: dict[str, Any]) -> None:
        if self._redactor is not None and event["type"].startswith("task-"):
            known = self.state.tasks.data.get(event["uuid"])
            name = event.get("name") or getattr(known, "name", None)
            for field in _MASKS.keys() & event.keys():
                event[field] = _MASKS[field](self._redactor, name, event[field])
        self.state.event(event)

    def _follow(self, redactor: Redactor) -> None:
        """Reads the history whenever Flower has connected, in its own thread."""
        engine = connections.engine(self._settings.url, "pgbeat flower")
        wait: float | None = None
        while True:
            self.connected.wait(wait)
            self.connected.clear()
            try:
                with engine.connect() as connection:
                    runs = executions.of_all(
                        connection,
                        self._settings.namespace,
                        limit=min(self._settings.flower_history, self.state.tasks.limit),
                    )
            except SQLAlchemyError as error:
                wait = min(2 * wait, _LONGEST_WAIT) if wait else _FIRST_WAIT
                reason = connections.first_line(error)
                logger.warning("Flower can't read pgbeat's history yet: %s", reason)
                continue
            wait = None
            tasks = histories(runs, redactor)
            for task_id, history in tasks.items():
                self.io_loop.add_callback(self._remember, task_id, history)
            logger.info("Flower has read the history of %d tasks", len(tasks))

    def _remember(self, task_id: str, history: list[dict[str, Any]]) -> None:
        """Applies those events of a task that Flower has not seen."""
        tasks, index = self.state.tasks, getattr(self.state, "search_engine", None)
        task, oldest = tasks.data.get(task_id), next(iter(tasks), None)
        known = {} if task is None else {**vars(task)}
        known["retried"] = known.get("timestamp")  # an older retry would undo what came after it
        for event in history:
            kind = event["type"].removeprefix("task-")
            seen = known.get(kind)
            # Of `received`, Flower knows the time better.
            if seen is None or (kind != "received" and seen < event["timestamp"] - _SKEW):
                State.event(self.state, event)
        if index is not None:
            if oldest not in tasks:
                index.remove(oldest)
            index.upsert(tasks.data[task_id])


def histories(runs: Iterable[TaskRun], redactor: Redactor) -> dict[str, list[dict[str, Any]]]:
    """Returns the events of executions, which come with the newest first, by task."""
    by_job: dict[str, list[TaskRun]] = {}
    for run in reversed(list(runs)):
        by_job.setdefault(str(run.execution.job_id), []).append(run)
    return {
        job_id: [
            event
            for run in its_runs
            for event in _events(run, redactor, is_last=run is its_runs[-1] and run.has_ended)
        ]
        for job_id, its_runs in by_job.items()
    }


def _events(run: TaskRun, redactor: Redactor, *, is_last: bool) -> Iterator[dict[str, Any]]:
    """Yields what a worker says of an execution; `is_last`, if the job ended with it."""
    execution = redactor.row(run.execution, run.task)
    began = execution.started_at.timestamp()
    # Without a clock, Celery orders events by their times; an event that was not received now is
    # no sign of life of its worker.
    common = {
        "uuid": str(execution.job_id),
        "hostname": execution.worker,
        "clock": 0,
        "local_received": None,
        "utcoffset": 0,
    }
    yield {
        **common,
        "type": "task-received",
        # When its worker received it is not recorded.
        "timestamp": began,
        "name": run.task,
        "args": _shown(None if run.args is None else tuple(redactor.args(run.task, run.args))),
        "kwargs": _shown(run.kwargs and redactor.kwargs(run.task, run.kwargs)),
        "retries": execution.retry_attempt,
        "root_id": str(run.root_id or execution.job_id),
        "parent_id": run.parent_id and str(run.parent_id),
    }
    yield {**common, "type": "task-started", "timestamp": began}
    if execution.finished_at is None:
        return
    end = {**common, "timestamp": execution.finished_at.timestamp()}
    kind = _ENDS[execution.state]
    if kind == "succeeded":
        result = "None" if execution.result is None else execution.result
        runtime = (execution.duration_ms or 0) / 1000
        yield {**end, "type": "task-succeeded", "result": result, "runtime": runtime}
    elif kind == "revoked":
        yield {**end, "type": "task-revoked"}
    else:
        yield {
            **end,
            "type": "task-failed" if kind == "failed" and is_last else "task-retried",
            "exception": execution.error or execution.result,
            "traceback": execution.traceback,
        }


def _shown(arguments: Any) -> str | None:
    return None if arguments is None else str(saferepr(arguments, maxlen=1024))


class Receiver(EventReceiver):
    """Receives Flower's events, and says when it begins to."""

    def on_consume_ready(self, *args: Any, **kwargs: Any) -> None:
        """Begins to receive; what comes from now on is not lost."""
        super().on_consume_ready(*args, **kwargs)
        self.handlers["*"].__self__.connected.set()


events.EventReceiver = Receiver
flower_app.Events = TaskEvents
