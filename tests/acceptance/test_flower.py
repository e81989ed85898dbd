"""Flower starts without the database, fills what it missed, and counts nothing twice."""

from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.support.command_line import Sql
from tests.support.flower import WORKER, Flower, with_worker
from tests.support.processes import Processes, until
from tests.support.tcp_proxy import Proxy


@pytest.fixture
def flower(processes: Processes, database: str) -> Flower:
    return with_worker(processes, database)


def ran(database: str, sql: Sql) -> str:
    """Sends a task; returns its id once it has ended."""
    app = Celery("sender", broker=f"pgbeat+{database}", set_as_current=False)
    task_id = str(app.send_task("flower.add", (2, 3)).id)
    state = "SELECT state FROM pgbeat.jobs WHERE id = %s"
    until(lambda: sql(state, task_id) == [("completed",)], 90)
    return task_id


def succeeded(flower: Flower) -> Any:
    """Returns how many tasks of the worker succeeded, as the first page says; `None`: no worker."""
    rows = flower.json("/?json=1")["data"]
    counts = [row.get("task-succeeded", 0) for row in rows if row["hostname"] == WORKER]
    return counts[0] if counts else None


@pytest.mark.timeout(600)
def test_what_flower_missed_is_filled_once_it_has_connected(
    flower: Flower, database: str, sql: Sql
) -> None:
    proxy = Proxy(database)
    proxy.cut()
    flower.start(BROKER=f"pgbeat+{proxy.dsn}")
    before = ran(database, sql)
    assert flower.states == {}
    proxy.mend()
    until(lambda: flower.states == {before: "SUCCESS"}, 90)
    until(lambda: succeeded(flower) == 0, 90)

    live = ran(database, sql)
    until(lambda: flower.states.get(live) == "SUCCESS", 90)
    until(lambda: succeeded(flower) == 1, 90)
    known = flower.tasks[live]
    proxy.cut()
    missed = ran(database, sql)
    proxy.mend()
    wanted = dict.fromkeys((before, live, missed), "SUCCESS")
    until(lambda: flower.states == wanted, 90)
    assert flower.tasks[live] == known
    assert succeeded(flower) == 1
    proxy.close()


@pytest.mark.timeout(600)
def test_what_flower_has_stored_is_not_doubled(
    flower: Flower, database: str, sql: Sql, tmp_path: Path
) -> None:
    options = ("--persistent=True", f"--db={tmp_path}/stored")
    flower.start(*options)
    until(lambda: WORKER in flower.json("/api/workers?refresh=1"), 90)
    live = ran(database, sql)
    until(lambda: flower.states.get(live) == "SUCCESS", 90)
    known = flower.tasks[live]
    flower.stop()
    missed = ran(database, sql)
    flower.start(*options)
    until(lambda: flower.states == dict.fromkeys((live, missed), "SUCCESS"), 90)
    assert flower.tasks[live] == known
    assert succeeded(flower) == 1
