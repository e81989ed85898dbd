"""Tasks of the last day: those of jobs by rollups, and those that ran untracked."""

from typing import Any

from sqlalchemy import Connection

from pgbeat.jobs.running import untracked_tasks
from pgbeat.jobs.running.untracked_tasks import Tally
from pgbeat.monitoring.rollups import tasks
from tests.support.command_line import Sql


def test_a_worker_counts_a_bounded_number_of_names() -> None:
    tally = Tally()
    for number in range(untracked_tasks.MOST + 50):
        tally.count(f"t{number}")
    tally.count("t0")
    found = tally.take()
    assert (found["t0"], found[untracked_tasks.OTHERS]) == (2, 50)
    assert not tally.take()


def test_tasks_are_listed_by_how_often_they_ran(connection: Connection, sql: Sql) -> None:
    untracked_tasks.add(connection, "default", {"mail": 3, "shop.sync": 1})
    untracked_tasks.add(connection, "default", {"mail": 4})
    untracked_tasks.add(connection, "other", {"mail": 100})
    sql(
        "INSERT INTO pgbeat.untracked_tasks VALUES "
        "('default', now() - interval '26 hours', 'mail', 1000)"
    )
    sql(
        "INSERT INTO pgbeat.rollups (namespace, step, kind, name, at, completed, failed, running) "
        "VALUES ('default', 60, 'task', 'shop.sync', now() - interval '1 hour', 9, 2, "
        "'{{20,9}}'), ('default', 60, 'task', 'old', now() - interval '25 hours', 99, 0, '{}')"
    )
    found = tasks.listing(connection, "default")
    rows: Any = [(row.name, row.runs, row.failed, row.untracked) for row in found.rows]
    assert rows == [("shop.sync", 11, 2, 1), ("mail", 0, 0, 7)]
    assert found.rows[0].running_p95 is not None
    assert (found.untracked, found.has_more) == (8, False)
    assert [row.name for row in tasks.listing(connection, "default", search="SYNC").rows] == [
        "shop.sync"
    ]
    assert tasks.listing(connection, "default", limit=1).has_more
