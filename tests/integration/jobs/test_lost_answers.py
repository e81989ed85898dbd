"""Publishes whose answer is lost: the server has committed, and the client must not know."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, group

import pgbeat
from tests.support.jobs import opened_app
from tests.support.rows import Sql, make_lane
from tests.support.tcp_proxy import Proxy

#: An argument by which the proxy knows the message: base64 of JSON that begins with it.
ARGS = ("lost!",)
BODY = b"W1sibG9zdCEi"


@pytest.fixture
def app(proxy: Proxy, sql: Sql) -> Iterator[Celery]:
    """An app that reaches its broker and pgbeat over the proxy."""
    make_lane(sql, "one")
    tasks: dict[str, dict[str, Any] | None] = {
        "lost.job": {"tags": ["lost"]},
        "lost.unique": {"unique": True},
        "lost.in_lane": {"lane": "one"},
        "lost.plain": None,
    }
    with opened_app(proxy.dsn, tasks) as app:
        yield app


@pytest.fixture
def end_jobs(sql: Sql) -> Callable[[], None]:
    """Ends all jobs, as a worker may have done by the time that the message is sent again."""

    def end() -> None:
        sql("DELETE FROM kombu_message")
        sql("UPDATE pgbeat.jobs SET state = 'cancelled', finished_at = now()")

    return end


def kept(sql: Sql) -> tuple[list[str], list[str]]:
    """Returns the ids of jobs, and the task ids of messages."""
    found = [
        json.loads(row[0])["headers"]["id"] for row in sql("SELECT payload FROM kombu_message")
    ]
    return [str(row[0]) for row in sql("SELECT id FROM pgbeat.jobs")], found


def empty(sql: Sql) -> None:
    """Deletes all jobs and messages."""
    sql("DELETE FROM kombu_message")
    sql("DELETE FROM pgbeat.jobs")


def nothing() -> None:
    """Lets nothing happen meanwhile."""


@pytest.mark.parametrize("is_first", [True, False], ids=["celery's", "by template"])
@pytest.mark.parametrize("name", ["lost.job", "lost.unique", "lost.in_lane"])
def test_a_task_with_a_policy_is_one_job(
    app: Celery, proxy: Proxy, sql: Sql, name: str, is_first: bool
) -> None:
    """Celery sends the message again, and the job is found by its id."""
    if not is_first:
        app.tasks[name].delay("before")
        empty(sql)
    proxy.lose_answer(BODY)
    result = app.tasks[name].delay(*ARGS)
    assert proxy.lost == 1
    assert kept(sql) == ([result.id], [result.id])


@pytest.mark.parametrize("options", [{}, {"countdown": 60}])
@pytest.mark.parametrize("name", ["lost.job", "lost.unique"])
def test_a_job_that_has_ended_by_then_does_not_run_again(
    app: Celery,
    proxy: Proxy,
    sql: Sql,
    name: str,
    options: dict[str, Any],
    end_jobs: Callable[[], None],
) -> None:
    """Also where a transaction of several statements writes it."""
    app.tasks[name].apply_async(("before",), **options)
    empty(sql)
    proxy.lose_answer(b"COMMIT" if options else BODY, end_jobs)
    result = app.tasks[name].apply_async(ARGS, **options)
    assert proxy.lost == 1
    assert kept(sql) == ([result.id], [])


@pytest.mark.parametrize("name", ["lost.job", "lost.plain"])
def test_a_connection_lost_while_a_queue_is_declared(
    app: Celery, proxy: Proxy, sql: Sql, name: str
) -> None:
    """Celery connects again, and publishes."""
    proxy.lose_answer(b"INSERT INTO kombu_queue")
    result = app.tasks[name].apply_async(ARGS, queue="new")
    assert proxy.lost == 1
    assert kept(sql)[1] == [result.id]


def test_members_of_a_group(app: Celery, proxy: Proxy, sql: Sql) -> None:
    """Each is one job."""
    proxy.lose_answer(BODY)
    result = group(app.tasks["lost.unique"].s(*ARGS), app.tasks["lost.job"].s(2)).apply_async()
    assert proxy.lost == 1
    jobs, messages = kept(sql)
    assert sorted(jobs) == sorted(messages) == sorted(each.id for each in result.children)


def test_a_plain_task_is_there_at_least_once(app: Celery, proxy: Proxy, sql: Sql) -> None:
    """Under one id: only a job can be found by it."""
    proxy.lose_answer(BODY)
    result = app.tasks["lost.plain"].delay(*ARGS)
    assert kept(sql) == ([], [result.id] * 2)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("policy", [{}, {"unique": True}, {"lane": "one"}])
def test_submit_finds_its_job(
    app: Celery,
    proxy: Proxy,
    sql: Sql,
    policy: dict[str, Any],
    ends: bool,
    end_jobs: Callable[[], None],
) -> None:
    """By one statement."""
    pgbeat.submit("lost.plain", app=app)
    empty(sql)
    proxy.lose_answer(b'["lost!"]', end_jobs if ends else nothing)
    job = pgbeat.submit("lost.plain", *ARGS, app=app, **policy)
    assert proxy.lost == 1
    assert kept(sql) == ([str(job.id)], [] if ends else [str(job.id)])
    assert job.state == ("cancelled" if ends else "pending")


def test_submit_step_by_step_finds_its_job(app: Celery, proxy: Proxy, sql: Sql) -> None:
    """What the steps write they write in a transaction."""
    parent = pgbeat.submit("lost.plain", app=app)
    proxy.lose_answer(b"COMMIT")
    job = pgbeat.submit("lost.plain", *ARGS, app=app, depends_on=[parent])
    assert proxy.lost == 1
    assert sorted(kept(sql)[0]) == sorted(map(str, (parent.id, job.id)))


@pytest.mark.parametrize("way", ["many", "group"])
def test_several_are_found(app: Celery, proxy: Proxy, sql: Sql, way: str) -> None:
    """All of them, or none."""
    pgbeat.submit_many(["lost.plain"], app=app)
    proxy.lose_answer(b"COMMIT")
    if way == "many":
        ids = pgbeat.submit_many(["lost.plain"] * 3, app=app)
    else:
        ids = [str(job.id) for job in pgbeat.submit_group(["lost.plain"] * 3, app=app).jobs]
    assert proxy.lost == 1
    assert len(kept(sql)[0]) == 4
    assert set(ids) < set(kept(sql)[0])


def test_a_lane_that_cannot_be_dispatched_fails_no_publish(
    app: Celery, proxy: Proxy, sql: Sql
) -> None:
    """The job is written; the connection that would dispatch its lane is refused."""
    app.tasks["lost.plain"].delay()
    proxy.refuse()
    job = app.tasks["lost.in_lane"].delay().id
    assert sql("SELECT id::text, dispatched_at FROM pgbeat.jobs") == [(job, None)]
