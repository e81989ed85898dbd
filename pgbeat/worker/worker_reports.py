"""What a worker reports of itself: its queues, and the memory and CPU time of its processes."""

import os
import platform
import socket
import time
from contextlib import suppress
from typing import Any, NamedTuple

import celery

from pgbeat.config import settings_of
from pgbeat.jobs.running.workers import WorkerReport
from pgbeat.version import __version__

_VERSIONS = {
    "pgbeat": __version__,
    "celery": celery.__version__,
    "python": platform.python_version(),
}
_MB = 2**20


class Usage(NamedTuple):
    """What processes use."""

    memory_mb: float | None
    cpu_seconds: float


class WorkerReporter:
    """Describes a worker (`celery.worker.WorkController`) when it is called."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        settings = settings_of(worker.app)
        more = {"app": settings.version, "sql_roles": ", ".join(settings.sql_roles)}
        self._versions = {**{name: value for name, value in more.items() if value}, **_VERSIONS}
        self._before: tuple[float, float] | None = None

    def __call__(self) -> WorkerReport:
        """Returns a report, with the CPU time since the one before."""
        usage, now = of_processes(), time.monotonic()
        cpu = None
        if self._before is not None and now > self._before[0]:
            # The time of a child that ended is in no sum any more.
            cpu = max(0.0, usage.cpu_seconds - self._before[1]) / (now - self._before[0])
        self._before = now, usage.cpu_seconds
        return WorkerReport(
            host=socket.gethostname(),
            versions=self._versions,
            queues=sorted(self._worker.app.amqp.queues.consume_from),
            concurrency=self._concurrency(),
            memory_mb=usage.memory_mb,
            cpu=cpu,
        )

    def _concurrency(self) -> int | None:
        with suppress(Exception):  # pools of others may not say
            return int(self._worker.pool.num_processes)
        return None


def of_processes() -> Usage:
    """Returns the usage of this process and its children, or of it alone without /proc."""
    try:
        pages, ticks = 0, 0
        for pid in _family(os.getpid()):
            with suppress(FileNotFoundError, ProcessLookupError):
                pages += _resident_pages(pid)
                ticks += _cpu_ticks(pid)
    except OSError:
        times = os.times()
        return Usage(None, times.user + times.system)
    return Usage(pages * os.sysconf("SC_PAGE_SIZE") / _MB, ticks / os.sysconf("SC_CLK_TCK"))


def memory_mb() -> float | None:
    """Returns the resident memory of this process, if the system says."""
    try:
        return _resident_pages(os.getpid()) * os.sysconf("SC_PAGE_SIZE") / _MB
    except OSError:
        return None


def _family(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [pid, *map(int, file.read().split())]


def _resident_pages(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1])


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
