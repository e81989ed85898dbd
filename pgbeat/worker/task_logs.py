"""Keeps the last lines that tasks log, until their executions are recorded.

A handler on the root logger, and on Celery's of tasks, gets what the tasks' threads log. To set up
logging removes handlers, so each execution that begins puts it back.
"""

import logging
import time
from collections import deque
from typing import Any

from celery._state import _task_stack

from pgbeat.storable import escaped
from pgbeat.worker.reporting import ATTEMPT

#: Characters of a line, and of all lines of an execution, about.
LINE, ALL = 2_000, 16_000
#: Seconds between two writes of the lines of a running execution.
_AGAIN = 2.0
#: Celery logs about tasks in their threads; these are its loggers by which tasks log.
_OF_TASKS = ("celery.task", "celery.redirected")
_OTHERS = ("celery", "kombu", "amqp", "pgbeat")
_formatter = logging.Formatter()
_root, _task_logger = logging.root, logging.getLogger(_OF_TASKS[0])


class TaskLog:
    """The last lines of one execution. Its thread adds them; the recorder's thread reads them."""

    __slots__ = ("_lines", "_most", "_omitted", "_size", "_write_at")

    def __init__(self, most: int) -> None:
        #: Seconds since the execution began, level, logger, and message.
        self._lines: deque[tuple[float, str, str, str]] = deque()
        self._most, self._omitted, self._size = most, 0, 0
        self._write_at = 0.0

    def add(self, after: float, level: str, logger: str, message: str) -> None:
        """Adds a line, and drops the oldest for which there is no room."""
        lines = self._lines
        self._size += len(message)
        lines.append((after, level, logger, message))
        while len(lines) > self._most or (self._size > ALL and len(lines) > 1):
            self._size -= len(lines.popleft()[3])
            self._omitted += 1

    def document(self) -> dict[str, Any]:
        """Returns the lines as the database has them."""
        # A copy is one step of the interpreter, so no other thread adds a line meanwhile.
        return {"omitted": self._omitted, "lines": [list(line) for line in self._lines.copy()]}

    def is_due(self, now: float) -> bool:
        """Returns whether to write it while the execution runs, at most every two seconds."""
        if now < self._write_at:
            return False
        self._write_at = now + _AGAIN
        return True


class TaskLogHandler(logging.Handler):
    """Adds the lines that a task logs to its attempt."""

    def __init__(self, most: int) -> None:
        """Takes the lines that are kept of each execution."""
        super().__init__()
        self._most = most

    def attach(self) -> None:
        """Adds it to the loggers, unless they have it.

        A root logger without handlers stays so: Python then prints warnings by itself.
        """
        if _root.handlers and self not in _root.handlers:
            _root.addHandler(self)
        if not _task_logger.propagate and self not in _task_logger.handlers:
            _task_logger.addHandler(self)

    def detach(self) -> None:
        """Removes it from the loggers."""
        for logger in (_root, _task_logger):
            logger.removeHandler(self)

    def handle(self, record: logging.LogRecord) -> bool:
        """Keeps a record, without the lock by which other handlers would wait for each other."""
        name = record.name
        if name.partition(".")[0] in _OTHERS and not name.startswith(_OF_TASKS):
            return False
        try:
            self._keep(record)
        except Exception:  # a message that can't be formatted: the other handlers say so
            return False
        return True

    def _keep(self, record: logging.LogRecord) -> None:
        for task in reversed(_task_stack.stack):
            attempt = getattr(task.request, ATTEMPT, None)
            if attempt is not None:
                break
        else:
            return
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{_formatter.formatException(record.exc_info)}"
        if len(message) > LINE:
            message = message[: LINE - 1] + "…"
        if attempt.log is None:
            attempt.log = TaskLog(self._most)
        after = round(time.monotonic() - attempt.began, 3)
        attempt.log.add(after, record.levelname, escaped(record.name), escaped(message))
