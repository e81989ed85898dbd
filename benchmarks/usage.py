"""CPU time of a process and all that it started."""

import psutil


def cpu_seconds(pid: int | None) -> float | None:
    """Returns the seconds of CPU time of a process and its descendants, ended ones included.

    Returns `None` if there is no such process here.
    """
    if pid is None:
        return None
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return None
    total = 0.0
    for process in family:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it has just ended: its parent's times have it, or will
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Usage:
    """CPU time that some processes use from now on."""

    def __init__(self, *pids: int | None) -> None:
        self._pids = pids
        self._before = [cpu_seconds(pid) for pid in pids]

    def seconds(self) -> float | None:
        """The time of all together since this was made; `None` when it can't be told."""
        total = 0.0
        for pid, before in zip(self._pids, self._before, strict=True):
            after = cpu_seconds(pid)
            if before is None or after is None:
                return None
            total += after - before
        return total
