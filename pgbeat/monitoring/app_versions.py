"""Reads which versions of the app run, and what waits for each (`pgbeat_version`)."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.jobs.policy.pinned_queues import SEPARATOR
from pgbeat.jobs.running.workers import ALIVE


class AppVersion(NamedTuple):
    """A version of the app."""

    version: str
    #: How many of its workers live.
    workers: int
    #: When the first of its workers started, of those that live or died in the last hour.
    started_at: datetime | None
    #: How many executions its workers run.
    running: int
    #: How many unfinished jobs that are pinned to it don't run.
    waiting: int
    #: When the oldest of them was made.
    oldest_at: datetime | None

    @property
    def state(self) -> str:
        """Returns `running`, `drained` (nothing needs its workers) or `abandoned`.

        Jobs wait for an abandoned one, and none of its workers lives.
        """
        if not self.workers and self.waiting:
            return "abandoned"
        return "running" if self.running or self.waiting else "drained"


_LISTING = text(sql.load("app_versions.sql", "listing", alive=ALIVE))


def listing(connection: Connection, namespace: str) -> list[AppVersion]:
    """Returns the versions, the newest first."""
    values = {"namespace": namespace, "separator": SEPARATOR}
    return [AppVersion(*row) for row in connection.execute(_LISTING, values)]
