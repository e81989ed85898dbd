"""Queries for all event streams of a process: one for jobs, and one for marks.

Streams send jobs as they are. Of everything else they only send that it changed, which they see by
its mark: a value that stays the same unless something happened.
"""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import connections
from pgbeat.database.advisory_locks import OF_LEADER
from pgbeat.jobs.executions import NEWEST
from pgbeat.jobs.model import ENDED

# -- jobs

#: How many of the newest jobs are read of each unfinished state, of each person, and of all.
_NEWEST = 300


class StreamedJob(NamedTuple):
    """A job as streams send it."""

    id: UUID
    task: str
    state: str
    attempt: int
    created_by: str
    schedule: str | None
    lane: str | None
    awaits_approval: bool
    worker: str | None
    error: str | None
    retried_by: UUID | None
    run_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    #: The newest execution's number and progress.
    execution: int | None
    done: float | None
    total: float | None
    message: str | None

    @property
    def changed_at(self) -> datetime:
        """When it was made, started or finished."""
        return max(filter(None, (self.created_at, self.started_at, self.finished_at)))

    @property
    def has_ended(self) -> bool:
        """Whether it is in a final state."""
        return self.state in ENDED


class JobSnapshot(NamedTuple):
    """The jobs that were read, and the database's time."""

    at: datetime
    jobs: dict[UUID, StreamedJob]

    @classmethod
    def empty(cls) -> "JobSnapshot":
        """Returns what is known at first."""
        return cls(datetime.min.replace(tzinfo=UTC), {})


_JOB = ", ".join(f"j.{name}" for name in StreamedJob._fields[:-4])
_SNAPSHOT = text(
    f"""
    WITH wanted AS (
        SELECT unnest(CAST(:ids AS uuid[])) AS id
         UNION
        SELECT id FROM (SELECT id FROM pgbeat.jobs
                         WHERE namespace = :namespace AND :with_all
                         ORDER BY created_at DESC, id DESC LIMIT :newest) AS newest
         UNION
        SELECT found.id
          FROM unnest(ARRAY['pending', 'scheduled', 'running', 'paused']) AS s (state)
               CROSS JOIN LATERAL (
                   SELECT id FROM pgbeat.jobs
                    WHERE namespace = :namespace AND state = s.state AND :with_all
                    ORDER BY created_at DESC, id DESC LIMIT :newest) AS found
         UNION
        SELECT found.id
          FROM unnest(CAST(:people AS text[])) AS p (name)
               CROSS JOIN LATERAL (
                   SELECT id FROM pgbeat.jobs
                    WHERE namespace = :namespace AND created_by = p.name
                    ORDER BY created_at DESC, id DESC LIMIT :newest) AS found)
    SELECT now(), {_JOB}, e.number, e.progress_done, e.progress_total, e.progress_message
      FROM wanted w
           JOIN pgbeat.jobs j ON j.id = w.id AND j.namespace = :namespace
           LEFT JOIN LATERAL (
               SELECT * FROM ({NEWEST}) AS newest WHERE j.started_at IS NOT NULL) AS e ON true
    """  # noqa: S608
)


def snapshot(
    connection: Connection,
    namespace: str,
    *,
    ids: Iterable[UUID],
    people: Iterable[str],
    with_all: bool,
) -> JobSnapshot:
    """Reads the jobs with these ids, and the newest ones of these people or of all."""
    values: dict[str, Any] = {
        "namespace": namespace,
        "ids": [str(each) for each in ids],
        "with_all": with_all,
        "people": sorted(people),
        "newest": _NEWEST,
    }
    rows = connection.execute(_SNAPSHOT, values).all()
    at = rows[0][0] if rows else connections.now(connection)
    return JobSnapshot(at, {row[1]: StreamedJob(*row[1:]) for row in rows})


# -- marks

#: The mark of a schedule is `schedule:NAME`.
SCHEDULE = "schedule:"
# Each reads one row of an index, or all of a small table.
_MARKS = {
    "audit": "SELECT max(id) FROM pgbeat.audit WHERE namespace = :namespace",
    "ticks": "SELECT max(id) FROM pgbeat.ticks",
    "made": """
        SELECT id FROM pgbeat.jobs WHERE namespace = :namespace
         ORDER BY created_at DESC, id DESC LIMIT 1""",
    "began": "SELECT max(started_at) FROM pgbeat.executions",
    "ended": "SELECT max(recorded_at) FROM pgbeat.ended_executions",
    "lanes": """
        SELECT md5(string_agg(l::text, '' ORDER BY name)) FROM pgbeat.lanes l
         WHERE namespace = :namespace""",
    "direct": """
        SELECT md5(string_agg(r::text, '' ORDER BY id)) FROM pgbeat.reservations r
         WHERE namespace = :namespace""",
    "webhooks": """
        SELECT md5(string_agg(w.id || ':' || d.sent, ',' ORDER BY w.id))
          FROM pgbeat.webhooks w
               CROSS JOIN LATERAL (
                   SELECT string_agg(concat_ws(' ', n.id, n.state, n.next_at), ',') AS sent
                     FROM (SELECT id, state, next_at FROM pgbeat.deliveries
                            WHERE webhook_id = w.id
                            ORDER BY created_at DESC, id DESC LIMIT 25) AS n) AS d
         WHERE w.namespace = :namespace AND w.schedule_id IS NULL""",
    "beats": f"""
        SELECT string_agg(pid || ' ' || granted, ',' ORDER BY pid) FROM pg_locks
         WHERE {OF_LEADER}""",  # noqa: S608
    # The server's statistics, a second late, because the tables may be of any size.
    "messages": """
        SELECT string_agg(concat_ws(' ', n_tup_ins, n_tup_upd, n_tup_del), ',' ORDER BY relid)
          FROM pg_stat_all_tables
         WHERE relid IN (to_regclass('kombu_message'), to_regclass('kombu_message_dead'),
                         to_regclass('kombu_queue'))""",
}
#: The names of marks, without those of single schedules.
MARKS = frozenset(_MARKS)

# The row, and the states of its newest jobs.
_SCHEDULES = text(
    """
    SELECT s.name, md5(concat(s::text, j.states))
      FROM unnest(CAST(:names AS text[])) AS n (name)
           JOIN pgbeat.schedules s ON s.namespace = :namespace AND s.name = n.name
           CROSS JOIN LATERAL (
               SELECT string_agg(newest.state, ',') AS states
                 FROM (SELECT state FROM pgbeat.jobs WHERE schedule_id = s.id
                        ORDER BY created_at DESC LIMIT 25) AS newest) AS j
    """
)


def marks(
    connection: Connection,
    namespace: str,
    wanted: Collection[str],
    *,
    leader_key: int,
) -> dict[str, Any]:
    """Reads the marks of these names, without those of schedules that don't exist."""
    found: dict[str, Any] = {}
    names = sorted(MARKS & set(wanted))
    if names:
        values = {"namespace": namespace, "leader_key": leader_key}
        statement = "SELECT " + ", ".join(f"({_MARKS[name]})" for name in names)
        used = {key: value for key, value in values.items() if f":{key}" in statement}
        found = dict(zip(names, connection.execute(text(statement), used).one(), strict=True))
    schedules = [each.removeprefix(SCHEDULE) for each in wanted if each.startswith(SCHEDULE)]
    if schedules:
        rows = connection.execute(_SCHEDULES, {"namespace": namespace, "names": schedules})
        found |= {SCHEDULE + name: mark for name, mark in rows}
    return found
