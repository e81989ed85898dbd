"""Deletes records that are older than the retention, a little at a time.

Most history goes with whole periods (`histories`).

Of each schedule the newest ticks and jobs are kept, or the young ones, whichever is more; of those
without a schedule, or whose schedule was removed, only the young. Executions are deleted with their
job. Jobs that have not ended stay, and so do a group's members while the group runs. The audit log
has another retention.
"""

import time
from collections import Counter
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Executable, text

from pgbeat.beat.maintenance import histories
from pgbeat.beat.maintenance.pruned_rows import KINDS, PRUNE_AUDIT, PrunedKind, statement
from pgbeat.config import Settings
from pgbeat.database import privileges
from pgbeat.database.tables import audit, events

#: Rows that a step scans, at most.
BATCH = 500
#: Seconds after which the rows that were kept are scanned again: there are newer ones by then.
_AGAIN = 3600.0


_MISSING = text(
    "SELECT name FROM unnest(CAST(:names AS text[])) AS t (name) "
    "WHERE to_regclass('pgbeat.' || name) IS NULL"
)


class Pruner:
    """Deletes old records: a round through the tables, in small steps.

    It remembers its place: rows that were kept are read again only every hour. With
    `leaves_periods` it leaves to `histories` what goes with a whole period, and deletes what was
    kept of those.
    """

    #: What it deletes.
    names = tuple(kind.name for kind in KINDS)

    def __init__(
        self, settings: Settings, *, dry_run: bool = False, leaves_periods: bool = False
    ) -> None:
        self._settings, self._dry_run, self._leaves_periods = settings, dry_run, leaves_periods
        #: Of each history, until when its rows are deleted one by one; all are if that is unknown.
        self._until: dict[str, datetime] = {}
        self._statements: list[Executable] = []
        self._places: list[tuple[Any, ...]] = []
        self._began_at = 0.0
        #: Tables that the schema doesn't have: before 0002.
        self._missing: set[str] = set()
        #: The table that is next.
        self._kind = 0
        #: Rows deleted so far, by what they are; with `dry_run`, those that would be.
        self.deleted: Counter[str] = Counter()

    def step(self, connection: Connection) -> int:
        """Scans at most `BATCH` old rows, and deletes those that need not be kept.

        Returns how many it scanned; 0 at the end of a round.
        """
        now = time.monotonic()
        if self._kind == 0 and (not self._places or now - self._began_at >= _AGAIN):
            self._begin(connection)
            self._began_at = now
        while self._kind < len(KINDS):
            keeps = self._days(KINDS[self._kind])
            scanned = self._scan(connection, self._kind) if keeps else 0
            if scanned < BATCH:
                self._kind += 1
            if scanned:
                return scanned
        self._kind = 0
        return 0

    def _begin(self, connection: Connection) -> None:
        is_whole = self._leaves_periods and histories.drops_whole_periods(
            connection, self._settings
        )
        self._until = histories.kept_until(connection) if is_whole else {}
        self._statements = [statement(kind, dry_run=self._dry_run) for kind in KINDS]
        if not self._dry_run and not privileges.may_change(connection, audit.name):
            self._statements[-1] = PRUNE_AUDIT
        self._places = [kind.start for kind in KINDS]
        self._missing = set(connection.scalars(_MISSING, {"names": list(self.names)}))

    def _days(self, kind: PrunedKind) -> float:
        """Returns how long rows are kept; 0 for ever."""
        if kind.name in self._missing:
            return 0
        if kind.table is events:
            return self._settings.event_days
        return self._settings.audit_days if kind.table is audit else self._settings.retention_days

    def _scan(self, connection: Connection, number: int) -> int:
        kind, place = KINDS[number], self._places[number]
        values = {
            "namespace": self._settings.namespace,
            "seconds": self._days(kind) * 86_400,
            "count": self._settings.retention_count,
            "batch": BATCH,
            "until": self._until.get(kind.table.name, "infinity"),
            **{f"at_{n}": value for n, value in enumerate(place)},
        }
        row = connection.execute(self._statements[number], values).one()
        scanned, deleted, dependents, *last = row
        self.deleted[kind.name] += deleted
        self.deleted["executions"] += dependents
        if scanned:
            self._places[number] = tuple(last)
        return int(scanned)
