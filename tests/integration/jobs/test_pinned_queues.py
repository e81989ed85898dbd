"""Tasks with `pin` are sent to a queue of the sender's version, and its workers consume from it."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, chain
from celery.app.trace import trace_task
from kombu import Queue

import pgbeat
from pgbeat.broker.messages import JOB_HEADER
from pgbeat.errors import ConfigError, InvalidJob
from pgbeat.jobs.policy import pinned_queues, task_policies
from pgbeat.worker.finishing import replacements
from tests.support.command_line import run_with
from tests.support.jobs import any_arguments, make_app, opened_app
from tests.support.problems import raises
from tests.support.rows import Sql, make_lane


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    pinned, free = {"pin": True}, {"pin": False}
    tasks = {"shop.one": pinned, "shop.routed": pinned, "shop.free": free, "glob.free": free}
    settings = {
        "pgbeat_version": "v1",
        "pgbeat_task_policies": {"glob.*": pinned},
        "task_routes": {"shop.routed": {"queue": "routed"}},
    }
    with opened_app(database, {**tasks, "glob.one": None}, **settings) as app:
        yield app


def queues(sql: Sql) -> list[str]:
    """Where messages lie, which is where their jobs say."""
    of_jobs = sql("SELECT coalesce(queue, 'celery') FROM pgbeat.jobs ORDER BY created_at, id")
    of_messages = sql(
        "SELECT q.name FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id "
        "JOIN pgbeat.jobs j ON j.id = m.job_id ORDER BY j.created_at, j.id"
    )
    assert of_jobs == of_messages
    return [name for (name,) in of_jobs]


@pytest.mark.parametrize("times", [1, 3])
def test_a_pinned_task_goes_to_a_queue_of_its_version(app: Celery, sql: Sql, times: int) -> None:
    """Also by a template, which sends the second and later ones."""
    for _ in range(times):
        app.tasks["shop.one"].delay(1)
        app.tasks["shop.routed"].delay(1)
        app.tasks["shop.one"].apply_async((1,), queue="named")
        app.tasks["glob.one"].delay()
        app.tasks["glob.free"].delay()
        app.tasks["shop.free"].delay()
        pgbeat.submit("shop.one", 1, app=app)
        pgbeat.submit("shop.routed", 1, app=app)
        pgbeat.submit("shop.free", 1, app=app, queue="named")
    version = ["celery.pinned.v1", "routed.pinned.v1", "named.pinned.v1", "celery.pinned.v1"]
    expected = [*version, "celery", "celery", *version[:2], "named"]
    assert queues(sql) == expected * times


def test_many_jobs_of_a_pinned_task(app: Celery, sql: Sql) -> None:
    pgbeat.submit_many([app.tasks["shop.one"].s(n) for n in range(3)], app=app)
    assert queues(sql) == ["celery.pinned.v1"] * 3


def test_the_queue_is_like_the_one_that_it_stands_for(app: Celery, sql: Sql) -> None:
    """But no worker for a month deletes it."""
    app.conf.task_queues = [
        Queue("celery", max_priority=5, queue_arguments={"x-delivery-limit": 3})
    ]
    app.conf.task_create_missing_queues = False
    app.tasks["shop.one"].delay()
    rows = sql(
        "SELECT max_priority, delivery_limit, expires FROM kombu_queue WHERE name LIKE '%v1'"
    )
    assert rows == [(5, 3, 30 * 86_400_000)]


def test_a_canvas_of_pinned_tasks(app: Celery, sql: Sql) -> None:
    chain(app.tasks["shop.one"].s(), app.tasks["shop.free"].s()).delay()
    assert queues(sql) == ["celery.pinned.v1"]


@pytest.mark.parametrize("is_job", [False, True])
def test_a_pinned_task_that_replaces_another(app: Celery, sql: Sql, is_job: bool) -> None:
    @app.task(name="shop.replaced", bind=True, shared=False)
    def replaced(self: Any) -> None:
        self.replace(app.tasks["shop.one"].si(1))

    replacements.follow(replaced)
    task_id = str(uuid4())
    request = {"id": task_id, "is_eager": False, JOB_HEADER: is_job}
    trace_task(replaced, task_id, (), {}, request, app=app)
    names = "SELECT q.name FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id"
    assert sql(names) == [("celery.pinned.v1",)]


@pytest.mark.parametrize("submits", [False, True])
def test_a_pinned_task_stays_so_in_a_lane_and_when_it_was_paused(
    app: Celery, sql: Sql, submits: bool
) -> None:
    make_lane(sql, "one")
    app.task(any_arguments, name="shop.in_lane", shared=False, pgbeat={"pin": True, "lane": "one"})
    if submits:
        job_id = str(pgbeat.submit("shop.in_lane", 1, app=app).id)
    else:
        job_id = app.tasks["shop.in_lane"].delay(1).id
    assert queues(sql) == ["celery.pinned.v1"]
    app.conf.pgbeat_version = "v2"
    for verb in "pause", "resume":
        assert run_with(app, "jobs", verb, job_id, "--admin").exit_code == 0
    assert queues(sql) == ["celery.pinned.v1"]


def test_without_a_version_nothing_is_pinned(
    app: Celery, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.conf.pgbeat_version = None
    app.tasks["shop.one"].delay()
    assert queues(sql) == ["celery"]
    monkeypatch.setenv("GIT_SHA", "deadbee")
    app.conf.pgbeat_namespace = "other"  # read again
    app.tasks["shop.one"].delay()
    assert queues(sql) == ["celery", "celery.pinned.deadbee"]


@pytest.mark.parametrize("field", ["exchange", "routing_key"])
def test_a_pinned_task_has_no_exchange_of_its_own(app: Celery, field: str) -> None:
    send = app.tasks["shop.one"].apply_async
    with raises(InvalidJob, (f"options.{field}", "conflict")):
        send(**{field: "logs"})


def test_a_wrong_pin(app: Celery) -> None:
    app.task(any_arguments, name="shop.wrong", shared=False, pgbeat={"pin": "v1"})
    with raises(ConfigError, ("task 'shop.wrong'.pin", "malformed")):
        task_policies.all_of(app)


def test_a_worker_consumes_from_its_versions_queues(app: Celery) -> None:
    """From those that stand for the queues that it consumes from."""
    app.amqp.queues.select(["celery", "named"])
    pinned_queues.consume(app, "v1")
    pinned_queues.consume(app, "v1")
    consumed = ["celery", "celery.pinned.v1", "named", "named.pinned.v1"]
    assert sorted(app.amqp.queues.consume_from) == consumed


def test_a_worker_without_pinned_tasks_has_no_such_queues(database: str) -> None:
    app = make_app(database)
    app.task(any_arguments, name="shop.free", shared=False, pgbeat={"priority": 1})
    app.amqp.queues.select(["celery"])
    pinned_queues.consume(app, "v1")
    assert sorted(app.amqp.queues.consume_from) == ["celery"]
