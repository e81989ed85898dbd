"""Makes rows that are so many days old, for tests of what is pruned, and prunes."""

from collections import Counter
from functools import partial
from typing import Any

from sqlalchemy import Connection

from pgbeat.beat.maintenance.pruner import Pruner
from pgbeat.config import Settings
from tests.support.rows import Sql, make_schedule

#: Adds a schedule that decides nothing.
schedule = partial(make_schedule, paused_at="now")


def jobs(sql: Sql, days: list[float], schedule_id: int | None = None, **columns: Any) -> list[str]:
    """Adds jobs that ended so many days ago, each with an execution; returns their ids."""
    values = {"state": "completed", "namespace": "default", "group_id": None, **columns}
    made = []
    for age in days:
        ((job_id,),) = sql(
            """
            INSERT INTO pgbeat.jobs (id, schedule_id, namespace, task, state, job_source,
                created_by, is_system_job, group_id, created_at, started_at, finished_at)
            SELECT gen_random_uuid(), %s, %s, 't', %s, 'system', 'tests', true, %s, at, at,
                   CASE WHEN %s IN ('completed', 'failed') THEN at END
              FROM (SELECT now() - %s * interval '1 day' AS at) AS a RETURNING id
            """,
            schedule_id,
            values["namespace"],
            values["state"],
            values["group_id"],
            values["state"],
            age,
        )
        sql(
            "INSERT INTO pgbeat.executions (job_id, schedule_id, number, state, worker, "
            "started_at, finished_at) "
            "SELECT id, schedule_id, 1, CASE WHEN finished_at IS NULL THEN 'running' ELSE state "
            "END, 'w', created_at, finished_at FROM pgbeat.jobs WHERE id = %s",
            job_id,
        )
        made.append(str(job_id))
    return made


def ticks(sql: Sql, days: list[float], schedule_id: int) -> None:
    """Adds ticks that were due, and decided, so many days ago."""
    for age in days:
        sql(
            "INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, decided_at, outcome, reason) "
            "SELECT %s, 's', at, at, 'skipped', 'no' "
            "FROM (SELECT now() - %s * interval '1 day' AS at) AS a",
            schedule_id,
            age,
        )


def left(sql: Sql, table: str, moment: str = "created_at") -> list[int]:
    """Returns the ages of a table's rows in whole days, the oldest first."""
    rows = sql(f"SELECT round(extract(epoch FROM now() - {moment}) / 86400) FROM pgbeat.{table}")
    return sorted((int(age) for (age,) in rows), reverse=True)


def audited(sql: Sql, days: list[float], namespace: str = "default") -> None:
    """Adds changes of so many days ago to the audit log."""
    for age in days:
        sql(
            "INSERT INTO pgbeat.audit (namespace, at, actor, origin, verb, kind, subject) "
            "VALUES (%s, now() - %s * interval '1 day', 'user:a', 'cli', 'pause', 'lane', 'l')",
            namespace,
            age,
        )


def prune(connection: Connection, settings: Settings, **options: bool) -> Counter[str]:
    """Prunes a whole round; what it deleted, by kind."""
    pruner = Pruner(settings, **options)
    while pruner.step(connection):
        pass
    return pruner.deleted
