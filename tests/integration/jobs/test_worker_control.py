"""Orders to workers that don't answer, or can't be given."""

from typing import Any

import pytest
from celery import Celery

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings
from pgbeat.errors import BrokerUnavailable, InvalidInput, NoReply, NotFound
from pgbeat.jobs.verbs import worker_control
from pgbeat.jobs.verbs.worker_control import WorkerCommand
from tests.support.command_line import Sql
from tests.support.databases import sqlalchemy_url


@pytest.fixture
def unit(app: Celery, connection: Any, database: str) -> UnitOfWork:
    """Returns a unit of work of an administrator's, with the app, on pgbeat's transport."""
    app.conf.broker_url = f"pgbeat+{sqlalchemy_url(database)}"
    actor = Actor("user:root", True, origin="api")
    return UnitOfWork(connection, Settings(connection.engine.url), actor, app=lambda: app)


def test_a_worker_that_is_silent_is_in_the_audit(unit: UnitOfWork, sql: Sql) -> None:
    sql("INSERT INTO pgbeat.workers (name, pid, alive_until) VALUES ('w@x', 1, 'infinity')")
    with pytest.raises(NoReply):
        worker_control.send(unit, "w@x", WorkerCommand("grow"), timeout=0.1)
    assert sql("SELECT verb, kind, subject, after FROM pgbeat.audit") == [
        ("grow", "worker", "w@x", {"n": 1})
    ]


def test_a_broker_that_is_away(unit: UnitOfWork, app: Celery, sql: Sql) -> None:
    sql("INSERT INTO pgbeat.workers (name, pid, alive_until) VALUES ('w@x', 1, 'infinity')")
    app.conf.broker_url = "redis://localhost:1/0"
    app.conf.broker_transport_options = {"max_retries": 1, "interval_start": 0}
    for order in (WorkerCommand("shutdown"), WorkerCommand("grow")):
        with pytest.raises(BrokerUnavailable):
            worker_control.send(unit, "w@x", order, timeout=0.1)


def test_only_living_workers_of_the_namespace_are_told(unit: UnitOfWork, sql: Sql) -> None:
    sql("INSERT INTO pgbeat.workers (name, pid) VALUES ('dead@x', 1)")  # nobody has noticed
    sql(
        "INSERT INTO pgbeat.workers (name, pid, namespace, alive_until) "
        "VALUES ('other@x', 1, 'other', 'infinity')"
    )
    for name in ("dead@x", "other@x", "nobody"):
        with pytest.raises(NotFound):
            worker_control.send(unit, name, WorkerCommand("shutdown"))
    assert sql("SELECT count(*) FROM pgbeat.audit") == [(0,)]


@pytest.mark.parametrize(
    ("order", "field"),
    [
        (WorkerCommand("grow", 0), "by"),
        (WorkerCommand("shrink", 5000), "by"),
        (WorkerCommand("add-consumer"), "queue"),
        (WorkerCommand("cancel-consumer", queue="q" * 300), "queue"),
    ],
)
def test_orders_are_checked_first(unit: UnitOfWork, order: WorkerCommand, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        worker_control.send(unit, "w@x", order)
    assert [each.field for each in caught.value.problems] == [field]
