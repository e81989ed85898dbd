"""Registers workers, finds the dead ones and their executions.

A worker lives as long as its session holds an advisory lock. Behind a transaction-mode pooler its
session is not its own, and a lock would outlive it: there it lives by a lease, which it renews.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import connections
from pgbeat.database.advisory_locks import held

#: The first half of the advisory locks that workers live by.
LIFE = 1885823603
#: Seconds without its lock after which a worker counts as dead: a session that broke is back
#: sooner.
PATIENCE = 5.0
#: Seconds that a worker behind a pooler may be silent.
LEASE = 30.0
#: Seconds that a dead worker's row is kept.
_KEPT = 3600.0
#: The counter (`pgbeat.counters`) of executions and jobs that were given up as lost.
RELEASED = "stale_claims_released"

# One statement: its row is never seen without its lock.
_REGISTER = text(
    f"""
    WITH mine AS (
        INSERT INTO pgbeat.workers AS w
               (id, name, pid, pool, concurrency, namespace, tasks, alive_until)
        VALUES (:id, :name, :pid, :pool, :concurrency, :namespace, CAST(:tasks AS text[]),
                now() + make_interval(secs => CAST(:lease AS float8)))
        ON CONFLICT (id) DO UPDATE
           SET missing_since = NULL, tasks = excluded.tasks, alive_until = excluded.alive_until
        RETURNING id)
    SELECT CAST(:lease AS float8) IS NOT NULL OR pg_try_advisory_lock({LIFE}, id) FROM mine
    """  # noqa: S608
)


def register(
    connection: Connection,
    worker: int,
    name: str,
    pid: int,
    pool: str,
    concurrency: int | None,
    *,
    namespace: str | None = None,
    tasks: Sequence[str] | None = None,
) -> bool:
    """Records the worker, or that it is back. Returns whether it lives by this session from now on:
    it does not while an earlier session of its own still has its lock; then try again.

    Behind a pooler it lives for `LEASE` seconds, and must `renew` that. `tasks` are the names of
    the tasks that it has registered.
    """
    values = {
        "id": worker, "name": name, "pid": pid, "pool": pool, "concurrency": concurrency,
        "namespace": namespace, "tasks": None if tasks is None else list(tasks),
        "lease": None if connections.has_own_session(connection) else LEASE,
    }  # fmt: skip
    return bool(connection.scalar(_REGISTER, values))


_KNOW = text(
    """
    SELECT EXISTS (SELECT FROM pgbeat.workers w, pgbeat.jobs j
                    WHERE j.id = CAST(:job AS uuid) AND w.missing_since IS NULL
                      AND coalesce(w.namespace, j.namespace) = j.namespace
                      AND (w.tasks IS NULL OR j.task = ANY (w.tasks)))
    """
)


def may_know_task(connection: Connection, job_id: str) -> bool:
    """Returns whether a living worker has registered the task of a job, or may have: one of an
    older version does not say."""
    return bool(connection.scalar(_KNOW, {"job": job_id}))


_RENEW = text(
    "UPDATE pgbeat.workers SET missing_since = NULL, "
    "alive_until = now() + make_interval(secs => :lease) WHERE id = :id"
)


def renew(connection: Connection, worker: int) -> bool:
    """Renews the lease of a worker behind a pooler; returns whether the worker is still known."""
    return connection.execute(_RENEW, {"id": worker, "lease": LEASE}).rowcount > 0


_LEAVE = text("DELETE FROM pgbeat.workers WHERE id = :id")


def leave(connection: Connection, worker: int) -> None:
    """Removes the worker: it ends, and has recorded everything."""
    connection.execute(_LEAVE, {"id": worker})


class MissingWorker(NamedTuple):
    """A worker without its lock or lease, or one that was missing before."""

    id: int
    lives: bool
    #: Whether it was noted before.
    is_noted: bool
    #: Whether that is so long ago that it counts as dead.
    is_dead: bool
    #: Whether its row is of no more use.
    is_old: bool


_MISSING = text(
    f"""
    WITH living AS MATERIALIZED ({held(LIFE)}),
    known AS (
        SELECT w.id, w.missing_since,
               EXISTS (SELECT FROM living l WHERE l.id = w.id)
               OR coalesce(alive_until > now(), false) AS lives
          FROM pgbeat.workers w)
    SELECT id, lives, missing_since IS NOT NULL,
           NOT lives AND coalesce(missing_since < now() - make_interval(secs => :patience), false),
           NOT lives AND coalesce(missing_since < now() - make_interval(secs => :kept), false)
      FROM known WHERE NOT lives OR missing_since IS NOT NULL
    """  # noqa: S608
)
_NOTE = text(
    "UPDATE pgbeat.workers SET missing_since = now() "
    "WHERE id = ANY (CAST(:ids AS integer[])) AND missing_since IS NULL"
)
_FORGIVE = text(
    "UPDATE pgbeat.workers SET missing_since = NULL WHERE id = ANY (CAST(:ids AS integer[]))"
)
_FORGET = text(
    "DELETE FROM pgbeat.workers w WHERE id = ANY (CAST(:ids AS integer[])) AND NOT EXISTS ("
    "SELECT FROM pgbeat.executions e WHERE e.worker_id = w.id AND e.state = 'running')"
)


def find_dead(connection: Connection) -> list[int]:
    """Notes which workers are missing and which are back; returns the ids of the dead ones.

    Executes one statement if all is well. The connection must be in autocommit mode.
    """
    values = {"patience": PATIENCE, "kept": _KEPT}
    found = [MissingWorker(*row) for row in connection.execute(_MISSING, values)]
    for statement, ids in (
        (_NOTE, [w.id for w in found if not w.lives and not w.is_noted]),
        (_FORGIVE, [w.id for w in found if w.lives]),
        (_FORGET, [w.id for w in found if w.is_old]),
    ):
        if ids:
            connection.execute(statement, {"ids": ids})
    return [w.id for w in found if w.is_dead]


class LostExecution(NamedTuple):
    """A running execution whose worker is dead or has left."""

    id: UUID
    job_id: UUID
    worker: str
    worker_id: int | None
    acks_late: bool


# An execution of a worker without a row: it has left, and left this behind. One that has only just
# begun may be of a worker that is not registered yet.
_ABANDONED = text(
    """
    SELECT e.id, e.job_id, e.worker, e.worker_id, e.acks_late
      FROM pgbeat.executions e LEFT JOIN pgbeat.jobs j ON j.id = e.job_id
     WHERE e.state = 'running' AND e.worker_id IS NOT NULL
       AND coalesce(j.namespace, :namespace) = :namespace
       AND (e.worker_id = ANY (CAST(:dead AS integer[]))
            OR e.started_at < now() - interval '10 seconds'
               AND NOT EXISTS (SELECT FROM pgbeat.workers w WHERE w.id = e.worker_id))
     LIMIT :limit
    """
)


def abandoned_executions(
    connection: Connection, namespace: str, dead: Collection[int], *, limit: int = 500
) -> list[LostExecution]:
    """Returns running executions of workers that are dead or have left.

    To end them, lock them first (`lock_running`).
    """
    values = {"namespace": namespace, "dead": list(dead), "limit": limit}
    return [LostExecution(*row) for row in connection.execute(_ABANDONED, values)]


_RUNNING = text("SELECT id, pid FROM pgbeat.executions WHERE worker_id = :id AND state = 'running'")


def running_executions(connection: Connection, worker: int) -> dict[UUID, int | None]:
    """Returns a worker's running executions, with the ids of their processes."""
    return {row.id: row.pid for row in connection.execute(_RUNNING, {"id": worker})}


_LOCK_RUNNING = text(
    "SELECT id, job_id, worker, worker_id, acks_late FROM pgbeat.executions "
    "WHERE id = ANY (CAST(:ids AS uuid[])) AND state = 'running' FOR UPDATE SKIP LOCKED"
)


def lock_running(connection: Connection, execution_ids: Collection[UUID]) -> list[LostExecution]:
    """Locks and returns those of the executions that still run; skips what is locked."""
    return [
        LostExecution(*row)
        for row in connection.execute(_LOCK_RUNNING, {"ids": list(map(str, execution_ids))})
    ]


_COUNT = text(
    "INSERT INTO pgbeat.counters AS c (namespace, metric, label, kind, value) "
    "VALUES ('', :metric, '', '', :more) "
    "ON CONFLICT (namespace, metric, label, kind) DO UPDATE SET value = c.value + :more"
)
_TRY_COUNT = text(
    """
    WITH free AS MATERIALIZED (
        SELECT metric FROM pgbeat.counters
         WHERE namespace = '' AND metric = :metric AND label = '' AND kind = ''
           FOR NO KEY UPDATE SKIP LOCKED),
    added AS (
        UPDATE pgbeat.counters SET value = value + :more
         WHERE namespace = '' AND metric IN (SELECT metric FROM free) AND label = '' AND kind = ''
        RETURNING metric)
    SELECT EXISTS (SELECT FROM added), EXISTS (
           SELECT FROM pgbeat.counters
            WHERE namespace = '' AND metric = :metric AND label = '' AND kind = '')
    """
)
#: What this process has counted while another transaction had the counter's row.
_to_count: Counter[str] = Counter()


def count(connection: Connection, metric: str, more: int) -> None:
    """Adds to a counter of the whole database.

    Waits for no other transaction: while one has the counter locked, the number is kept, and added
    with the next.
    """
    if not more:
        return
    more += _to_count.pop(metric, 0)
    is_added, is_there = connection.execute(_TRY_COUNT, {"metric": metric, "more": more}).one()
    if is_there and not is_added:
        _to_count[metric] += more
    elif not is_added:
        connection.execute(_COUNT, {"metric": metric, "more": more})


_NUMBER = text("SELECT count(*) FROM pgbeat.workers")
_LIVING = text("SELECT count(*) FROM pgbeat.workers WHERE missing_since IS NULL")


def number(connection: Connection) -> int:
    """Returns how many workers record executions, or did within the last hour."""
    return int(connection.scalar(_NUMBER) or 0)


def living(connection: Connection) -> int:
    """Returns how many of those are not missing."""
    return int(connection.scalar(_LIVING) or 0)
