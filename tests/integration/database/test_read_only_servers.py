"""A read-only server is as good as none: the next connection may lead to the primary."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from celery import Celery
from sqlalchemy.exc import DBAPIError

import pgbeat
from pgbeat.database import connections, server_errors
from pgbeat.results.backend import ResultBackend
from tests.support.command_line import Sql
from tests.support.jobs import make_app
from tests.support.kombu_connections import Connect, Inbox, publish, terminate_others
from tests.support.processes import until
from tests.support.schedulers import Beat
from tests.support.transport_workers import transport_url
from tests.support.web import done, opened, problem


@pytest.fixture
def read_only(database: str, sql: Sql) -> Callable[[bool], None]:
    """Has all sessions, but this test's, be read-only, or not any more."""
    name = database.rpartition("/")[2].partition("?")[0]

    def switch(on: bool) -> None:
        value = "on" if on else "off"
        sql("SET default_transaction_read_only = off")
        sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}')
        terminate_others(sql)

    return switch


ReadOnly = Callable[[bool], None]


def test_a_consumer_and_a_publisher_wait(connect: Connect, read_only: ReadOnly) -> None:
    connection = connect()
    read_only(True)
    connection.close()
    with pytest.raises(connection.connection_errors, match="read-only"):
        connection.connect()
    with pytest.raises(connection.connection_errors, match="read-only"):
        publish(connect(), "q", "m")
    read_only(False)
    connection.connect()
    publish(connection, "q", "m")
    assert Inbox(connection, "q").bodies() == ["m"]


def test_a_session_that_becomes_read_only_is_given_up(connect: Connect) -> None:
    connection = connect()
    publish(connection, "q", "m")
    with connection.transport.broker.work() as (session, _):
        session.exec_driver_sql("SET default_transaction_read_only = on")
    with pytest.raises(connection.connection_errors) as failure:
        publish(connection, "q", "m")
    assert server_errors.is_read_only(failure.value.__cause__ or failure.value)
    publish(connection, "q", "again")  # over another connection


def test_a_beat_waits(app: Celery, beat: Beat, read_only: ReadOnly) -> None:
    app.conf.pgbeat_loop_interval = 0.1
    read_only(True)
    scheduler = beat()
    for _ in range(2):
        scheduler.tick()
    assert not scheduler._leader._leads
    read_only(False)
    until(lambda: scheduler.tick() == 0 and scheduler._leader._leads)


def test_results_wait(database: str, read_only: ReadOnly, monkeypatch: Any) -> None:
    app = Celery("results", broker=transport_url(database), backend="pgbeat", set_as_current=False)
    backend: ResultBackend = app.backend
    read_only(True)
    attempts: list[int] = []

    def writable_again(seconds: float) -> None:
        attempts.append(1)
        read_only(False)

    monkeypatch.setattr("pgbeat.database.server_errors.time.sleep", writable_again)
    backend.store_result("a-task", 1, "SUCCESS")
    assert attempts
    assert backend.get_task_meta("a-task")["result"] == 1
    app.close()


def test_submits_and_the_web_side_write_again(database: str, sql: Sql) -> None:
    """Though sessions that were opened meanwhile stay read-only."""
    name = database.rpartition("/")[2].partition("?")[0]
    schedule = {"name": "n", "task": "jobs.add", "args": [1], "every": 60}
    with make_app(database) as app, opened(app) as web:
        client = web.admin
        web.app.state.pgbeat.dispose()
        sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        problem(client.post("/admin/scheduled-jobs", json=schedule), 503)
        with pytest.raises(DBAPIError):
            pgbeat.submit("jobs.add", 1, app=app)
        sql(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        done(client.post("/admin/scheduled-jobs", json=schedule), 201)
        pgbeat.submit("jobs.add", 1, app=app)
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(1,)]


def test_which_errors_mean_another_connection() -> None:
    for state, is_lost in {
        "08006": True,
        "25006": True,
        "53300": True,
        "57P03": True,
        "57P01": True,
        "53100": False,
        "57014": False,
        "55P03": False,
        "23505": False,
    }.items():
        assert connections.is_lost(psycopg.errors.lookup(state)("no")) is is_lost, state
