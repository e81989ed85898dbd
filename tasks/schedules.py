"""The example's schedules, as rows: `python -m tasks.schedules` creates the tables and loads them.

With `--demo` they are due several times a minute, the first time at once, and there are two more:
one that takes long, and one with a broken condition.
"""

import argparse
from dataclasses import dataclass, field
from typing import Any

from kombu import Queue
from sqlalchemy import Connection, bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

from tasks import app, store


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule; the demo uses `every` instead of `cron`."""

    name: str
    cron: str
    every: str
    task: str | None = None
    launcher: str = "GenericLauncher"
    kwargs: dict[str, Any] = field(default_factory=dict)
    condition_sql: str | None = None
    retry_base: str = "1 minute"


SCHEDULES = [
    Row("take-in", "*/10 * * * *", "15 seconds", "tasks.vocabulary.take_in"),
    Row("category-refresh", "0 */6 * * *", "20 seconds", launcher="CategoryRefreshLauncher"),
    Row("vocab-consolidation", "0 */12 * * *", "45 seconds", launcher="VocabConsolidationLauncher"),
    Row("epistemic", "0 * * * *", "30 seconds", launcher="EpistemicRemeasurementLauncher"),
    Row("nightly-backup", "0 2 * * *", "2 minutes", "tasks.maintenance.backup", kwargs={"keep": 7}),
    Row(
        "prices-dk1", "5 * * * *", "20 seconds", "tasks.prices.fetch_prices", kwargs={"area": "DK1"}
    ),
    Row(
        "prices-no1-when-stale",
        "*/5 * * * *",
        "40 seconds",
        "tasks.prices.fetch_prices",
        kwargs={"area": "NO1"},
        condition_sql=(
            "SELECT coalesce(max(fetched_at), '-infinity') < now() - interval '{}' "
            "FROM example.prices WHERE area = 'NO1'"
        ),
    ),
]
#: What the demo has beside these.
WAREHOUSE = Row("warehouse-sync", "*/30 * * * *", "4 minutes", "tasks.shop.sync_warehouse")
#: Its condition reads a table that doesn't exist.
BROKEN = Row(
    "broken-report",
    "0 6 * * *",
    "2 seconds",
    "tasks.maintenance.backup",
    condition_sql="SELECT count(*) > 0 FROM example.reports_to_send",
    retry_base="0.25 seconds",
)

_UPSERT = text(
    """
    INSERT INTO pgbeat.schedules
        (name, cron, every, task, launcher, kwargs, condition_sql, retry_base, next_run)
    VALUES (:name, :cron, CAST(:every AS interval), :task, :launcher, :kwargs, :condition_sql,
            CAST(:retry_base AS interval), CASE WHEN :demo THEN now() END)
    ON CONFLICT (namespace, name) DO UPDATE SET
        (cron, every, task, launcher, kwargs, condition_sql, retry_base) =
        (excluded.cron, excluded.every, excluded.task, excluded.launcher, excluded.kwargs,
         excluded.condition_sql, excluded.retry_base)
    """
).bindparams(bindparam("kwargs", type_=JSONB))


def load(connection: Connection, *, demo: bool = False) -> int:
    """Creates the example's tables, writes its schedules, and returns their number."""
    store.create(connection)
    rows = [*SCHEDULES, WAREHOUSE, BROKEN] if demo else SCHEDULES
    stale = "45 seconds" if demo else "55 minutes"
    for row in rows:
        values = {
            "name": row.name,
            "demo": demo,
            "cron": None if demo else row.cron,
            "every": row.every if demo else None,
            "task": row.task,
            "launcher": row.launcher,
            "kwargs": row.kwargs,
            "condition_sql": row.condition_sql and row.condition_sql.format(stale),
            "retry_base": row.retry_base,
        }
        connection.execute(_UPSERT, values)
    return len(rows)


def declare() -> None:
    """Creates the default queue, so that it is listed before a worker declares it."""
    with app.connection_for_write() as connection:
        Queue(app.conf.task_default_queue)(connection.default_channel).declare()


def main() -> None:
    """Loads the schedules into `$PGBEAT_URL`, and declares the broker's queue."""
    parser = argparse.ArgumentParser(prog="python -m tasks.schedules", description=__doc__)
    parser.add_argument("--demo", action="store_true", help="due several times a minute")
    demo = parser.parse_args().demo
    with store.begin() as connection:
        print(f"{load(connection, demo=demo)} schedules loaded")
    declare()


if __name__ == "__main__":
    main()
