"""Tells whether a machine did nothing else while a benchmark ran."""

import os
import threading
import time
from typing import NamedTuple

import psutil
from beats.machine import Stolen

#: Percent of the machine's CPU that may be stolen by the hypervisor, or used by other processes.
MOST = 2.0
# Seconds between two looks at other processes.
_PAUSE = 2.0


class Disturbance(NamedTuple):
    """What others took of the CPU time of the machine, in percent."""

    stolen: float | None
    others: float

    @property
    def is_quiet(self) -> bool:
        """Whether that is little enough, and known."""
        return self.stolen is not None and max(self) <= MOST

    def __str__(self) -> str:
        stolen = "unknown" if self.stolen is None else f"{self.stolen:.1f} %"
        word = "quiet" if self.is_quiet else "NOT QUIET"
        return f"{word}: {stolen} of the CPU stolen, {self.others:.1f} % used by other processes"


class Watch:
    """Watches what is not of this run: neither started by this process, nor its Postgres.

    Of Postgres servers those belong to the run that begin during the watch; all do if
    `PGBEAT_TEST_URL` names one. Processes that end between two looks are missed.
    """

    def __init__(self) -> None:
        self._begun, self._wall = time.monotonic(), time.time()
        self._stolen = Stolen()
        self._seen = {each.pid: _seconds(each) for each in psutil.process_iter()}
        self._others = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(_PAUSE):
            self._look()

    def _look(self) -> None:
        processes = list(psutil.process_iter(["pid", "ppid", "name", "create_time"]))
        of = {each.pid: each.info for each in processes}
        for process in processes:
            now = _seconds(process)
            before = self._seen.get(process.pid, 0.0)
            self._seen[process.pid] = now
            if not self._is_own(process.pid, of):
                self._others += max(0.0, now - before)

    def _is_own(self, pid: int, of: dict[int, dict[str, object]]) -> bool:
        """Whether it, or a process above it, is this one, a server of the run or the kernel's."""
        while pid in of:
            info = of[pid]
            if pid in (os.getpid(), 2):
                return True
            began = float(str(info["create_time"]))
            if info["name"] == "postgres" and (began > self._wall or _given()):
                return True
            pid = int(str(info["ppid"]))
        return False

    def end(self) -> Disturbance:
        """Ends the watch."""
        self._is_over.set()
        self._thread.join()
        self._look()
        total = (time.monotonic() - self._begun) * (os.cpu_count() or 1)
        return Disturbance(self._stolen.percent(), 100 * self._others / total)


def _given() -> bool:
    return bool(os.environ.get("PGBEAT_TEST_URL"))


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
