"""Two apps beside each other, each with a namespace, a database and a beat of its own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from celery import Celery
from sqlalchemy import create_engine

import pgbeat
from pgbeat.testing.databases import Databases
from tests.support.databases import sqlalchemy_url
from tests.support.processes import Processes, until
from tests.support.rows import make_schedule
from tests.support.schedulers import Beat

NAMES = ("left", "right")


@dataclass
class Side:
    """An app, and its database."""

    name: str
    dsn: str
    app: Celery
    _connection: psycopg.Connection

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def schedule(self, count: int) -> None:
        """Makes schedules that are due; those of the other side have the same names."""
        for number in range(count):
            make_schedule(
                self.sql,
                f"s{number}",
                due="0",
                namespace=self.name,
                task="tests.note",
                kwargs={"side": self.name},
            )


def note(**kwargs: Any) -> None:
    """Is published, and runs in the processes of the second test."""


@pytest.fixture
def sides(pgbeat_databases: Databases) -> Iterator[list[Side]]:
    with ExitStack() as stack:
        found = []
        for name in NAMES:
            dsn = stack.enter_context(pgbeat_databases.lent())
            app = Celery(name, broker=f"pgbeat+{sqlalchemy_url(dsn)}", set_as_current=False)
            app.conf.update(pgbeat_namespace=name, result_expires=None, task_ignore_result=True)
            app.task(name="tests.note", shared=False)(note)
            stack.callback(app.close)
            connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            found.append(Side(name, dsn, app, connection))
        yield found


def submit(side: Side, count: int, way: str) -> None:
    """Submits jobs, or publishes in a transaction that commits or doesn't."""
    task = side.app.tasks["tests.note"]
    engine = create_engine(sqlalchemy_url(side.dsn))
    for _ in range(count):
        if way == "submit":
            pgbeat.submit(task, kwargs={"side": side.name})
            continue
        with engine.connect() as connection, connection.begin() as transaction:
            with pgbeat.in_transaction(connection, app=side.app):
                task.apply_async(kwargs={"side": side.name})
            if way == "rolled back":
                transaction.rollback()
    engine.dispose()


def test_apps_of_one_process_keep_to_their_databases(sides: list[Side], beat: Beat) -> None:
    """Jobs, tasks in transactions and two leading beats, from many threads at the same time."""
    ways = ("submit", "committed", "rolled back")
    threads = [
        threading.Thread(target=submit, args=(side, 10, way)) for way in ways for side in sides
    ]
    schedulers = [beat(side.app) for side in sides]
    for side in sides:
        side.schedule(5)
    for thread in threads:
        thread.start()
    launched = [0, 0]
    while any(thread.is_alive() for thread in threads) or min(launched) < 5:
        launched = [done + each.run_due() for done, each in zip(launched, schedulers, strict=True)]
    assert launched == [5, 5]
    for side in sides:
        messages = side.sql("SELECT payload FROM kombu_message")
        other = next(name for name in NAMES if name != side.name)
        assert len(messages) == 25
        assert not [payload for (payload,) in messages if other in payload]
        jobs = side.sql(
            "SELECT namespace, kwargs ->> 'side', count(*) FROM pgbeat.jobs GROUP BY 1, 2"
        )
        assert jobs == [(side.name, side.name, 15)]
        assert side.sql("SELECT count(*) FROM pgbeat.ticks") == [(5,)]


@pytest.mark.slow
def test_beats_and_workers_of_two_databases_side_by_side(
    sides: list[Side], processes: Processes
) -> None:
    """Also after one of the beats was killed: the other one does not take its place."""

    def start(side: Side, command: Callable[..., Any]) -> Any:
        return command(
            app="tests.support.apps.webhooks", TESTS_DATABASE=side.dsn, PGBEAT_NAMESPACE=side.name
        )

    def notes(side: Side) -> list[tuple[Any, ...]]:
        if side.sql("SELECT to_regclass('notes')") == [(None,)]:
            return []
        return side.sql("SELECT data ->> 'side', count(*) FROM notes GROUP BY 1")

    beats = [start(side, processes.beat) for side in sides]
    for side, beat in zip(sides, beats, strict=True):
        start(side, processes.worker)
        beat.says("This beat leads")
        side.schedule(5)
    until(lambda: all(notes(side) == [(side.name, 5)] for side in sides))
    beats[0].kill_group()
    for side in sides:
        side.sql("UPDATE pgbeat.schedules SET next_run = now()")
    left, right = sides
    until(lambda: notes(right) == [("right", 10)])
    assert notes(left) == [("left", 5)]
    start(left, processes.beat)
    until(lambda: notes(left) == [("left", 10)])
    assert notes(right) == [("right", 10)]
