"""Keeps the data of an execution in the worker's process until it is recorded."""

import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pgbeat.database import forks
from pgbeat.jobs.running.executions import State
from pgbeat.storable import escaped

if TYPE_CHECKING:
    from pgbeat.jobs.running.stacks import Reason
    from pgbeat.jobs.running.task_exceptions import Suspended
    from pgbeat.worker.steps import StepRun
    from pgbeat.worker.task_logs import TaskLog

try:
    import resource
except ImportError:  # pragma: no cover - not a Unix
    resource = None  # type: ignore[assignment]

#: Characters of an error, a traceback and a result that are kept, and bytes of arguments.
ERROR, TRACEBACK, RESULT, ARGUMENTS = 2_000, 20_000, 200, 10_000
_PLAIN = (int, float, bool, type(None))
#: How much is done, the total, and a message.
Progress = tuple[float | None, float | None, str | None]


class _Ids:
    """Makes UUIDs from a random prefix for this process and a counter.

    This needs no system call, during which other threads would run, and suits the database's index.
    """

    def __init__(self) -> None:
        self._start()
        forks.in_child(self._start)

    def _start(self) -> None:
        self._prefix = os.urandom(10).hex()
        self._next = itertools.count(int.from_bytes(os.urandom(3), "big")).__next__

    def __call__(self) -> str:
        return f"{self._prefix}{self._next():012x}"


_new_id = _Ids()


class Attempt:
    """One execution, in the process that runs it.

    The task's thread changes it; the recorder's thread reads it, and writes what has changed.
    """

    # Defaults are the class's attributes: an instance is made for every task.
    ended: float | None = None
    state: State = "running"
    #: The job's state after it.
    job_state = "running"
    duration_ms: float | None = None
    cpu_time_ms: float | None = None
    memory_peak_mb: float | None = None
    progress: Progress | None = None
    metadata: dict[str, Any] | None = None
    checkpoint: Any = None
    has_checkpoint = False
    #: The checkpoint of an earlier attempt, in a tuple once it was read.
    left: tuple[Any] | None = None
    result: str | None = None
    #: What its task has logged.
    log: "TaskLog | None" = None
    #: Seconds until its job runs again, and the message for that if it snoozes.
    runs_in: float | None = None
    message: dict[str, Any] | None = None
    error: str | None = None
    traceback: str | None = None
    #: Returns the columns of a new job, for a task that was published without one.
    makes: Callable[[], Mapping[str, Any]] | None = None
    #: How soon its end must be recorded, since a lane or a group waits for it: `soon` or `now`.
    awaited: str | None = None
    #: Whether another task continues its job (`Task.replace`).
    is_replaced = False
    #: The steps of its job, once it has used one, and how it sleeps or waits.
    steps: "StepRun | None" = None
    suspended: "Suspended | None" = None
    #: What its task raised, if its result says something else.
    raised: BaseException | None = None
    #: Whether a task with its id may have run before.
    is_repeated = False
    #: The id of the consumer that has its message until it has ended.
    consumer: int | None = None
    #: Whether Celery has stored what its task returned.
    has_succeeded = False
    #: Whether its job must be cancelled.
    cancel_asked = False
    # For the recorder: whether it is written, may be written in part, and is queued.
    is_known = was_tried = is_queued = False
    #: Whether the recorder is writing it.
    is_claimed = False
    #: Whether the task's thread writes it, has written its end, and knows its end for good.
    is_withdrawn = is_recorded = is_settled = False
    #: Whether the end of its batch writes its end.
    is_deferred = False
    #: Where it is noted (`shared_notes`), and whether nothing more will be.
    slot: int | None = None
    is_fully_noted = False
    #: Its process, if another records it.
    pid: int | None = None
    #: The id of the thread that runs it, or the greenlet.
    runner: Any = None
    #: Its time limits, by what each is, and when they are (`time.monotonic()`).
    limits: "tuple[tuple[Reason, float], ...]" = ()
    #: Why stacks of it were taken.
    stack_reasons: "frozenset[Reason]" = frozenset()
    #: The memory of its process.
    memory: "Memory | None" = None
    #: How many changes its task waited for, and how many of these are written.
    changes = written = 0

    def __init__(
        self, job_id: str, worker: str, retry_attempt: int, acks_late: bool, cpu: float | None
    ) -> None:
        self.id = _new_id()
        self.job_id, self.worker = job_id, worker
        self.retry_attempt, self.acks_late = retry_attempt, acks_late
        self.began, self.cpu = time.monotonic(), cpu

    def end(self, state: State, job_state: str | None = None) -> None:
        """Sets the end, the state of the execution and, if it differs, the job's."""
        self.ended = time.monotonic()
        self.duration_ms = 1000 * (self.ended - self.began)
        if self.cpu is not None:
            self.cpu_time_ms = 1000 * (time.thread_time() - self.cpu)
        self.job_state, self.runner = job_state or state, None
        # An end that is written is kept for a while: an error would keep its frames with it.
        self.steps = self.suspended = None
        self.state = state  # last: a thread that sees it sees the rest

    def documents(self, worker_id: int | None, pid: int) -> list[tuple[bool, dict[str, Any]]]:
        """Returns the JSON objects to write now, each with whether it begins an execution.

        Their fields are those of `executions.ExecutionRecord`. If a failed write may have written
        the beginning, the beginning and the rest are separate, so that each is written once.
        """
        now = time.monotonic()
        more: dict[str, Any] = {"id": self.id, "job_id": self.job_id, "state": "running"}
        if self.state != "running":
            more["state"] = self.state
            more["ended"] = now - (self.ended or now)
            for name in _AT_ITS_END:
                value = getattr(self, name)
                if value is not None:
                    more[name] = value
        if self.progress is not None:
            names = ("progress_done", "progress_total", "progress_message")
            more.update(zip(names, self.progress, strict=True))
        if self.metadata is not None:
            more["metadata"] = self.metadata
        log = self.log
        if log is not None and ("ended" in more or log.is_due(now)):
            more["log"] = log.document()
        if self.has_checkpoint:
            more["checkpoint"] = self.checkpoint
        more.setdefault("job_state", "running")
        if self.is_known:
            return [(False, more)]
        first: dict[str, Any] = {
            "worker": self.worker,
            "worker_id": worker_id,
            "pid": self.pid or pid,
            "acks_late": self.acks_late,
            "retry_attempt": self.retry_attempt,
            "began": now - self.began,
        }
        if self.is_repeated:
            first["is_repeated"] = True
        if self.makes is not None:
            first["job"] = self.makes()
        if self.was_tried:
            begun = {"id": self.id, "job_id": self.job_id, "state": "running", "is_repeated": True}
            return [(True, {**first, **begun, "job_state": "running"}), (False, more)]
        more.update(first)
        return [(True, more)]


_AT_ITS_END = (
    "job_state",
    "duration_ms",
    "cpu_time_ms",
    "memory_peak_mb",
    "error",
    "traceback",
    "result",
    "runs_in",
    "message",
)


def bare(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document without the text and JSON of tasks, which the database may refuse."""
    kept = {key: value for key, value in document.items() if key not in _OF_OTHERS}
    if "job" in kept:
        kept["job"] = {key: value for key, value in kept["job"].items() if key not in _ARGUMENTS}
    if "error" in kept:
        kept["error"] = kept["error"].encode("ascii", "backslashreplace").decode()
    return kept


_OF_OTHERS = {"traceback", "result", "metadata", "log", "checkpoint", "progress_message"}
_ARGUMENTS = {"args", "kwargs"}


def text(value: str, limit: int) -> str:
    """Returns text as the database accepts it, cut to `limit` characters."""
    if len(value) > limit:
        value = value[: limit - 1] + "…"
    return escaped(value)


def summary(result: Any) -> str | None:
    """Returns a short text for a result; `None` for `None`."""
    if result is None:
        return None
    if type(result) in _PLAIN:
        return repr(result)
    from celery.utils.saferepr import saferepr

    return text(saferepr(result, maxlen=RESULT), RESULT)


def error_text(error: BaseException) -> str:
    """Returns the text of an error, such as `ValueError: no such thing`."""
    try:
        words = f"{type(error).__name__}: {error}".rstrip(": ")
    except Exception:
        words = type(error).__name__
    return text(words, ERROR)


def as_json(value: Any) -> Any:
    """Returns a copy of a value as JSON represents it and the database accepts it.

    Raises `TypeError` or `ValueError` for a value that is not JSON.
    """
    return _loaded(json.dumps(value, allow_nan=False))


def _loaded(document: str) -> Any:
    value = json.loads(document)
    return _escaped(value) if _is_odd(document) else value


def _is_odd(document: str) -> bool:
    """Returns whether JSON may have text that the database refuses."""
    return "\\u0000" in document or "\\ud" in document


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value


def call_text(args: Any, kwargs: Any) -> str | None:
    """Returns a call's arguments as JSON; `None` if they are no JSON, or too long."""
    with suppress(TypeError, ValueError, RecursionError):
        document = json.dumps([list(args), dict(kwargs)], allow_nan=False)
        if len(document) <= ARGUMENTS:
            return document
    return None


def arguments(call: str | None) -> dict[str, Any]:
    """Returns the columns with such arguments, as the database accepts them."""
    return {} if call is None else dict(zip(("args", "kwargs"), _loaded(call), strict=True))


#: Megabytes by which a process may grow until its peak is reset.
_GREW = 1.0
#: Tasks shorter than so many seconds share a reading of the peak, for so many seconds.
_SHORT, _SHARED = 0.005, 0.05


class Memory:
    """The peak memory of the process that called `reset` first: since then, if it can be reset."""

    def __init__(self, resets: bool) -> None:
        self._file: int | None = None
        self._resets = resets
        #: The peak just after the last reset; `None` to reset it again.
        self._base: float | None = None
        self._unit = 1024.0 if os.uname().sysname != "Darwin" else 1024.0 * 1024.0
        #: `/proc/self/status`, where `getrusage` includes what can't be reset.
        self._status: int | None = None
        #: The last reading, and until when short tasks share it (`time.monotonic()`).
        self._read: float | None = None
        self._shared_until = 0.0

    def reset(self) -> None:
        """Resets the peak, unless it has hardly grown since the last reset."""
        if not self._resets or self._base is not None:
            return
        try:
            if self._file is None:
                self._file = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
                os.write(self._file, b"5")
                self._status = self._source()
            else:
                os.write(self._file, b"5")
        except OSError:
            self._resets = False
        self._base = self._read = self._peak()

    def _source(self) -> int | None:
        """Opens `/proc/self/status`, if `getrusage` (which is faster) is wrong.

        Linux keeps counting the memory of the process that started this program by exec.
        """
        status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        if self._peak_by_usage() > self._peak_by_status(status) + _GREW:
            return status
        os.close(status)
        return None

    def peak_mb(self, began: float, now: float) -> float | None:
        """Returns the peak in megabytes (2^20 bytes), for a task that began then and ends now.

        Short tasks share a reading, which costs as much as the rest of what they record.
        """
        if now < self._shared_until and now - began < _SHORT:
            return self._read
        self._shared_until = now + _SHARED
        self._read = peak = self._peak()
        if peak is not None and self._base is not None and peak > self._base + _GREW:
            self._base = None
        return peak

    def _peak(self) -> float | None:
        if resource is None:
            return None
        return self._peak_by_usage() if self._status is None else self._peak_by_status(self._status)

    def _peak_by_usage(self) -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / self._unit

    @staticmethod
    def _peak_by_status(status: int) -> float:
        lines = os.pread(status, 4096, 0)
        _, _, rest = lines.partition(b"VmHWM:")
        return int(rest.split(None, 1)[0]) / 1024.0
