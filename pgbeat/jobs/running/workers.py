"""Registers workers, and finds dead ones and their executions.

A worker lives as long as its session holds an advisory lock. Behind a transaction-mode pooler, a
session is shared, and its lock would outlive the worker: there, it lives by a lease that it renews.
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pgbeat.database import connections, sql
from pgbeat.processes.known import ALIVE as ALIVE
from pgbeat.processes.known import LIFE as LIFE

#: Seconds after which a worker behind a pooler must renew its lease.
LEASE = 30.0
# Seconds for which a dead worker's row is kept.
_KEPT = 3600.0
#: The counter (`pgbeat.counters`) of executions and jobs that were given up as lost.
RELEASED = "stale_claims_released"

_REGISTER = text(sql.load("workers.sql", "register"))


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
    """Registers a worker, which lives by this session, and returns whether that worked.

    It doesn't work while an earlier session of the worker holds its lock: try again. Behind a
    pooler, the worker must `renew` its lease. `tasks` are the names of its registered tasks.
    """
    values = {
        "id": worker,
        "name": name,
        "pid": pid,
        "pool": pool,
        "concurrency": concurrency,
        "namespace": namespace,
        "tasks": None if tasks is None else list(tasks),
        "lease": None if connections.has_own_session(connection) else LEASE,
        "life": LIFE,
    }
    return bool(connection.scalar(_REGISTER, values))


class Knowing(NamedTuple):
    """A worker that may know a task."""

    name: str
    #: Whether it has registered the task, or doesn't say: workers of older versions don't.
    knows: bool
    #: Seconds since it started.
    age: float


_KNOWING = text(sql.load("workers.sql", "knowing", alive=ALIVE))


def may_know_task(
    connection: Connection, namespace: str, task: str, queue: str | None, *, window: float = 0.0
) -> Knowing | None:
    """Returns a living worker that may know a task; `None` if none does.

    It consumes from the queue, unless that is `None`. One that started in the last `window` seconds
    counts, too: others of its version may follow.
    """
    values = {"namespace": namespace, "task": task, "queue": queue, "window": window}
    row = connection.execute(_KNOWING, values).first()
    return None if row is None else Knowing(*row)


_RENEW = text(
    "UPDATE pgbeat.workers SET missing_since = NULL, "
    "alive_until = now() + make_interval(secs => :lease) WHERE id = :id"
)


def renew(connection: Connection, worker: int) -> bool:
    """Renews the lease of a worker behind a pooler, and returns whether its row exists."""
    return connection.execute(_RENEW, {"id": worker, "lease": LEASE}).rowcount > 0


class WorkerReport(NamedTuple):
    """A worker's regular report on itself."""

    host: str
    #: Of pgbeat, Celery and Python, and of the app, if it has one; and the roles of `pgbeat.sql`.
    versions: dict[str, str]
    #: That it consumes from.
    queues: list[str]
    #: How many executions it runs at once, if its pool says so.
    concurrency: int | None
    #: Resident, of all of its processes; `None` if the system doesn't say.
    memory_mb: float | None
    #: Cores in use, on average since the report before; `None` at first.
    cpu: float | None


_REPORT = text(
    """
    UPDATE pgbeat.workers
       SET host = :host, versions = CAST(:versions AS jsonb), queues = CAST(:queues AS text[]),
           concurrency = coalesce(:concurrency, concurrency), memory_mb = :memory_mb, cpu = :cpu,
           reported_at = now()
     WHERE id = :id
    """
)


def report(connection: Connection, worker: int, observed: WorkerReport) -> None:
    """Records a worker's report."""
    values = observed._asdict() | {"id": worker, "versions": json.dumps(observed.versions)}
    connection.execute(_REPORT, values)


_LEAVE = text("DELETE FROM pgbeat.workers WHERE id = :id")


def leave(connection: Connection, worker: int) -> None:
    """Deletes the row of a worker that ends and has recorded everything."""
    connection.execute(_LEAVE, {"id": worker})


_MISSING = text(sql.load("workers.sql", "missing", alive=ALIVE))
_NOTE = text(
    "UPDATE pgbeat.workers SET missing_since = now() "
    "WHERE id = ANY (CAST(:ids AS integer[])) AND missing_since IS NULL"
)
_FORGIVE = text(
    "UPDATE pgbeat.workers SET missing_since = NULL WHERE id = ANY (CAST(:ids AS integer[]))"
)
_FORGET = text(
    "DELETE FROM pgbeat.workers w WHERE id = ANY (CAST(:ids AS integer[])) AND NOT EXISTS ("
    "SELECT FROM pgbeat.running_executions e WHERE e.worker_id = w.id)"
)


def find_dead(connection: Connection, patience: float) -> list[int]:
    """Notes which workers are missing and which are back, and returns the ids of the dead ones.

    A worker is dead that has been without its lock for `patience` seconds. One whose session broke
    has another one sooner.

    Executes one statement if no worker is missing. The connection must be in autocommit mode.
    """
    missing = connection.execute(_MISSING, {"patience": patience, "kept": _KEPT}).all()
    for statement, ids in (
        (_NOTE, [w.id for w in missing if not w.lives and not w.is_noted]),
        (_FORGIVE, [w.id for w in missing if w.lives]),
        (_FORGET, [w.id for w in missing if w.is_old]),
    ):
        if ids:
            connection.execute(statement, {"ids": ids})
    return [w.id for w in missing if w.is_dead]


class LostExecution(NamedTuple):
    """A running execution whose worker is dead or has left."""

    id: UUID
    job_id: UUID
    worker: str
    worker_id: int | None
    acks_late: bool


_ANY_ABANDONED = text(sql.load("workers.sql", "any_abandoned"))


def any_abandoned(connection: Connection, dead: Collection[int]) -> bool:
    """Returns whether there may be abandoned executions: often not, which saves a transaction."""
    return bool(connection.scalar(_ANY_ABANDONED, {"dead": list(dead)}))


_ABANDONED = text(sql.load("workers.sql", "abandoned"))


def abandoned_executions(
    connection: Connection, namespace: str, dead: Collection[int], *, limit: int = 500
) -> list[LostExecution]:
    """Returns running executions of workers that are dead or have left, or whose batch is over.

    The caller must lock them (`lock_running`) before it ends them.
    """
    values = {"namespace": namespace, "dead": list(dead), "limit": limit}
    return [LostExecution(*row) for row in connection.execute(_ABANDONED, values)]


_RUNNING = text("SELECT id, pid FROM pgbeat.running_executions WHERE worker_id = :id")


def running_executions(connection: Connection, worker: int) -> dict[UUID, int | None]:
    """Returns a worker's running executions with their process ids."""
    return {row.id: row.pid for row in connection.execute(_RUNNING, {"id": worker})}


_LOCK_RUNNING = text(
    "SELECT id, job_id, worker, worker_id, acks_late FROM pgbeat.running_executions "
    "WHERE id = ANY (CAST(:ids AS uuid[])) FOR UPDATE SKIP LOCKED"
)


def lock_running(connection: Connection, execution_ids: Collection[UUID]) -> list[LostExecution]:
    """Locks and returns the executions that still run. Skips rows that are locked."""
    rows = connection.execute(_LOCK_RUNNING, {"ids": [str(run_id) for run_id in execution_ids]})
    return [LostExecution(*row) for row in rows]


_ENDED_BESIDE = text(sql.load("workers.sql", "ended_beside"))


def ended_beside(
    connection: Connection, execution_ids: Collection[UUID]
) -> set[tuple[UUID, int | None]]:
    """Returns, by the execution beside which they ran, workers that ended one of the same job.

    Leaves out those of attempts before it, and lost ones.
    """
    if not execution_ids:
        return set()
    rows = connection.execute(_ENDED_BESIDE, {"ids": [str(run_id) for run_id in execution_ids]})
    return {(row.id, row.worker_id) for row in rows}


_COUNT = text(
    "INSERT INTO pgbeat.counters AS c (namespace, metric, label, kind, value) "
    "VALUES ('', :metric, '', '', :more) "
    "ON CONFLICT (namespace, metric, label, kind) DO UPDATE SET value = c.value + :more"
)
_TRY_COUNT = text(sql.load("workers.sql", "try_count"))
# What this process counted while another transaction had locked the counter.
_to_count: Counter[str] = Counter()


def count(connection: Connection, metric: str, more: int) -> None:
    """Adds to a counter of the whole database, without waiting for other transactions.

    If the counter is locked, keeps the number and adds it the next time.
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
_LIVING = text(sql.load("workers.sql", "living", alive=ALIVE))


def number(connection: Connection) -> int:
    """Returns how many workers record executions, or did in the last hour."""
    return int(connection.scalar(_NUMBER) or 0)


def living(connection: Connection) -> int:
    """Returns how many of those are alive."""
    return int(connection.scalar(_LIVING) or 0)
