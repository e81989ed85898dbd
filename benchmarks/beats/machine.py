"""The machine that the figures come from, and how much of it others took while they were made."""

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("celery", "kombu", "sqlalchemy", "psycopg", "django", "redis")


def description(packages: Iterable[str], postgres: dict[str, str]) -> dict[str, object]:
    """What the figures depend on."""
    versions = {}
    for package in sorted({*PACKAGES, *packages}):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "postgres": postgres,
        "packages": versions,
    }


class Stolen:
    """The share of CPU time that the hypervisor gave to others since this was made, in percent.

    Figures made while much was stolen say more about the neighbours than about the contender.
    """

    def __init__(self) -> None:
        self._before = _cpu_times()

    def percent(self) -> float | None:
        """The share until now; `None` where the system doesn't tell."""
        after = _cpu_times()
        spent = [now - then for then, now in zip(self._before, after, strict=True)]
        # user, nice, system, idle, iowait, irq, softirq, steal: see proc(5).
        return 100 * spent[7] / sum(spent) if len(spent) > 7 and any(spent) else None


def _cpu_times() -> list[int]:
    try:
        return [int(part) for part in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    except OSError:
        return []
