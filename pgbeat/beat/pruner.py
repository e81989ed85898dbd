"""Deletes records that are older than the retention, a little at a time.

Of each schedule the newest ticks and jobs are kept, or the young ones, whichever is more; of those
without a schedule, or whose schedule was removed, only the young. Executions are deleted with their
job. Jobs that have not ended stay, and so do a group's members while the group runs. The audit has
a retention of its own.
"""

import time
from collections import Counter
from typing import Any, NamedTuple

from sqlalchemy import Connection, TextClause, text

from pgbeat.config import Settings

#: Rows that a step scans, at most.
BATCH = 500
#: Seconds after which what was kept is scanned at once more: there are newer ones by then.
_AGAIN = 3600.0


class _Kind(NamedTuple):
    """A table, scanned from its oldest row on by an index."""

    table: str
    #: Where to begin: below every value of the index.
    start: tuple[Any, ...]
    #: Old rows after a place (`at_0`, `at_1`), in the index's order: what a step scans.
    scanned: str
    #: The ids of those to delete.
    old: str
    #: A table whose rows are deleted with them, and its column that has their ids.
    dependents: tuple[str, str] | None = None


_OLD = "now() - make_interval(secs => :seconds)"
_LONG_AGO, _NO_ID = "-infinity", "00000000-0000-0000-0000-000000000000"

# Of a schedule, what is older than the last of its newest goes: those of one moment stay together.
_KINDS = (
    _Kind(
        "ticks",
        (0,),
        f"""
        SELECT id, id AS at_0, schedule_id, due_at FROM (
               SELECT id, schedule_id, due_at, decided_at FROM pgbeat.ticks
                WHERE id > :at_0 ORDER BY id LIMIT :batch) AS oldest
         WHERE decided_at < {_OLD}
        """,
        """
        SELECT l.id FROM scanned l LEFT JOIN (
               SELECT s.id, s.namespace, (
                      SELECT due_at FROM pgbeat.ticks WHERE schedule_id = s.id
                       ORDER BY due_at DESC OFFSET greatest(:count - 1, 0) LIMIT 1) AS last
                 FROM pgbeat.schedules s
                WHERE s.id IN (SELECT schedule_id FROM scanned) OFFSET 0) AS s
               ON s.id = l.schedule_id
         WHERE s.id IS NULL OR s.namespace = :namespace AND (:count = 0 OR l.due_at < s.last)
        """,
    ),
    _Kind(
        "jobs",
        (_LONG_AGO, _NO_ID),
        f"""
        SELECT id, created_at AS at_0, id AS at_1, created_at, schedule_id, group_id, state,
               finished_at
          FROM pgbeat.jobs
         WHERE namespace = :namespace AND created_at < {_OLD}
           AND (created_at, id) > (CAST(:at_0 AS timestamptz), CAST(:at_1 AS uuid))
         ORDER BY created_at, id LIMIT :batch
        """,
        f"""
        SELECT l.id FROM scanned l
               LEFT JOIN (
               SELECT s.id, (
                      SELECT created_at FROM pgbeat.jobs WHERE schedule_id = s.id
                       ORDER BY created_at DESC OFFSET greatest(:count - 1, 0) LIMIT 1) AS last
                 FROM pgbeat.schedules s
                WHERE s.id IN (SELECT schedule_id FROM scanned) OFFSET 0) AS s
               ON s.id = l.schedule_id
         WHERE l.state IN ('completed', 'failed', 'cancelled', 'skipped')
           AND l.finished_at < {_OLD}
           AND coalesce((SELECT finished_at IS NOT NULL FROM pgbeat.groups
                          WHERE id = l.group_id), true)
           AND (s.id IS NULL OR :count = 0 OR l.created_at < s.last)
        """,
        ("executions", "job_id"),
    ),
    # Those whose jobs were deleted by hand.
    _Kind(
        "executions",
        (_LONG_AGO, _NO_ID),
        f"""
        SELECT id, started_at AS at_0, id AS at_1, job_id FROM pgbeat.executions
         WHERE started_at < {_OLD} AND started_at >= CAST(:at_0 AS timestamptz)
           AND (started_at, id) > (CAST(:at_0 AS timestamptz), CAST(:at_1 AS uuid))
         ORDER BY started_at, id LIMIT :batch
        """,
        """
        SELECT l.id FROM scanned l
         WHERE NOT EXISTS (SELECT FROM pgbeat.jobs j WHERE j.id = l.job_id)
        """,
    ),
    _Kind(
        "groups",
        (_LONG_AGO, _NO_ID),
        f"""
        SELECT id, created_at AS at_0, id AS at_1, finished_at FROM pgbeat.groups
         WHERE namespace = :namespace AND created_at < {_OLD}
           AND (created_at, id) > (CAST(:at_0 AS timestamptz), CAST(:at_1 AS uuid))
         ORDER BY created_at, id LIMIT :batch
        """,
        f"""
        SELECT l.id FROM scanned l
         WHERE l.finished_at < {_OLD}
           AND NOT EXISTS (SELECT FROM pgbeat.jobs j WHERE j.group_id = l.id
                              AND (NOT :dry_run OR j.finished_at IS NULL
                                   OR j.finished_at >= {_OLD}))
        """,
    ),
    _Kind(
        "deliveries",
        (_LONG_AGO, _NO_ID),
        f"""
        SELECT d.id, d.created_at AS at_0, d.id AS at_1, d.finished_at, d.webhook_id
          FROM pgbeat.deliveries d
         WHERE d.created_at < {_OLD} AND d.created_at >= CAST(:at_0 AS timestamptz)
           AND (d.created_at, d.id) > (CAST(:at_0 AS timestamptz), CAST(:at_1 AS uuid))
         ORDER BY d.created_at, d.id LIMIT :batch
        """,
        f"""
        SELECT l.id FROM scanned l JOIN pgbeat.webhooks w ON w.id = l.webhook_id
         WHERE l.finished_at < {_OLD} AND w.namespace = :namespace
        """,
    ),
    _Kind(
        "audit",
        (0,),
        f"""
        SELECT id, id AS at_0 FROM (
               SELECT id, at FROM pgbeat.audit WHERE namespace = :namespace AND id > :at_0
                ORDER BY id LIMIT :batch) AS oldest
         WHERE at < {_OLD}
        """,
        "SELECT id FROM scanned",
    ),
)


def _statement(kind: _Kind, *, dry_run: bool) -> TextClause:
    """How many it scanned at, the place of the last of them, and how many of each table went."""
    delete = "SELECT" if dry_run else "DELETE"
    returning = "" if dry_run else "RETURNING 1"
    # A locked row is for later: beat waits for no transaction.
    lock = "" if dry_run else "FOR UPDATE SKIP LOCKED"
    parts = [
        f"scanned AS MATERIALIZED ({kind.scanned})",
        f"old AS MATERIALIZED ({kind.old})",
        f"ids AS MATERIALIZED (SELECT id FROM pgbeat.{kind.table} "
        f"WHERE id IN (SELECT id FROM old) {lock})",
        f"deleted_rows AS ({delete} FROM pgbeat.{kind.table} "
        f"WHERE id IN (SELECT id FROM ids) {returning})",
    ]
    counts = ["(SELECT count(*) FROM scanned)", "(SELECT count(*) FROM deleted_rows)"]
    if kind.dependents is None:
        counts.append("0")
    else:
        table, column = kind.dependents
        parts += [
            f"their_ids AS MATERIALIZED (SELECT id FROM pgbeat.{table} "
            f"WHERE {column} IN (SELECT id FROM ids) {lock})",
            f"dependents_deleted AS ({delete} FROM pgbeat.{table} "
            f"WHERE id IN (SELECT id FROM their_ids) {returning})",
        ]
        counts.append("(SELECT count(*) FROM dependents_deleted)")
    places = [f"at_{n}" for n in range(len(kind.start))]
    order = ", ".join(f"{place} DESC" for place in places)
    last = [f"(SELECT {place} FROM scanned ORDER BY {order} LIMIT 1)" for place in places]
    return text(f"WITH {', '.join(parts)} SELECT {', '.join(counts + last)}")


class Pruner:
    """Deletes old records: a round through the tables, in small steps.

    It remembers its place: rows that were kept are read again only every hour.
    """

    #: The tables that it deletes from.
    tables = ("ticks", "jobs", "executions", "groups", "deliveries", "audit")

    def __init__(self, settings: Settings, *, dry_run: bool = False) -> None:
        self._settings, self._dry_run = settings, dry_run
        self._statements = [_statement(kind, dry_run=dry_run) for kind in _KINDS]
        self._places: list[tuple[Any, ...]] = []
        self._began_at = 0.0
        #: The table that is next.
        self._kind = 0
        #: Rows deleted so far by table; with `dry_run`, those that would be.
        self.deleted: Counter[str] = Counter()

    def step(self, connection: Connection) -> int:
        """Scans at most `BATCH` old rows, and deletes those that need not be kept.

        Returns how many it scanned; 0 at the end of a round.
        """
        now = time.monotonic()
        if self._kind == 0 and (not self._places or now - self._began_at >= _AGAIN):
            self._places, self._began_at = [kind.start for kind in _KINDS], now
        while self._kind < len(_KINDS):
            scanned = self._scan(connection, self._kind) if self._days(_KINDS[self._kind]) else 0
            if scanned < BATCH:
                self._kind += 1
            if scanned:
                return scanned
        self._kind = 0
        return 0

    def _days(self, kind: _Kind) -> float:
        """Returns how long rows are kept; 0 for ever."""
        settings = self._settings
        return settings.audit_days if kind.table == "audit" else settings.retention_days

    def _scan(self, connection: Connection, number: int) -> int:
        kind, place = _KINDS[number], self._places[number]
        values = {
            "namespace": self._settings.namespace,
            "seconds": self._days(kind) * 86_400,
            "count": self._settings.retention_count,
            "batch": BATCH,
            "dry_run": self._dry_run,
            **{f"at_{n}": value for n, value in enumerate(place)},
        }
        statement = self._statements[number]
        used = {name: values[name] for name in statement.compile().params}
        scanned, deleted, dependents, *last = connection.execute(statement, used).one()
        self.deleted[kind.table] += deleted
        if kind.dependents is not None:
            self.deleted[kind.dependents[0]] += dependents
        if scanned:
            self._places[number] = tuple(last)
        return int(scanned)
