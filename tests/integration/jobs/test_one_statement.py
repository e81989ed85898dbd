"""`pgbeat.submit` in one statement: the same rows and messages as step by step, byte for byte."""

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import celery
import pytest
from celery import Celery, signals
from sqlalchemy import Engine
from sqlalchemy.orm import Session

import pgbeat
from pgbeat.broker.publishing import publisher
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.config import postgres_url
from pgbeat.errors import InvalidJob, InvalidSchedule, NotUnique, UnknownTask
from pgbeat.jobs.preparing import prepare
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.writing import one_statement
from tests.support.command_line import Sql
from tests.support.jobs import any_arguments
from tests.support.processes import until
from tests.support.rows import make_lane

KEY = "order/1"


@pytest.fixture
def app(app: Celery) -> Celery:
    """The app, with a task that takes anything."""
    app.task(any_arguments, name="jobs.any", shared=False)
    return app


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each job was made by the statement."""
    made: list[bool] = []
    original = one_statement.submit

    def noting(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        made.append(found is not None)
        return found

    monkeypatch.setattr(one_statement, "submit", noting)
    return made


def rows(sql: Sql) -> list[tuple[Any, ...]]:
    """All that is stored of the jobs and their messages, but for clocks and numbers."""
    return sql(
        """
        SELECT to_jsonb(j) - '{created_at,dispatched_at,paused_at,position,id}'::text[], j.id::text,
               dispatched_at = created_at, q.name, m.visible, m.payload, m.priority,
               m.available_at, m.expires_at - m.enqueued_at, m.claimed_by, m.version, m.timestamp
          FROM pgbeat.jobs j LEFT JOIN kombu_message m ON m.job_id = j.id
               LEFT JOIN kombu_queue q ON q.id = m.queue_id
        """
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "arguments": {"args": (1, [2.5, 1e22, -0.0, 1e-9], {"b": None, "ä": '"\\\n€😀'}, "x" * 5000)},
    "keywords": {"kwargs": {"x": 2**70, "a b": "'", "day": "%s %(id)s"}},
    "not quite JSON": {"args": (datetime(2026, 1, 2, tzinfo=UTC), (1, 2))},
    "queue": {"queue": "mail"},
    "options": {"options": {"queue": "mail", "priority": 3, "ignore_result": True}},
    "headers": {"options": {"headers": {"tenant": "a"}}},
    "priority": {"priority": 255},
    "retries": {"max_attempts": 9, "retry_base": 0.1, "retry_cap": "1 hour"},
    "tags": {"tags": ["a", 'q"\\,{}', "é"], "resources": {"gpu": 0.5, "ram": 2}},
    "details": {"description": "d", "labels": {"team": "a"}, "metadata": {"n": [1.0, 1e30]}},
    "key": {"unique_key": KEY},
    "content": {"args": (1, "é"), "unique": True},
    "key for a time": {"unique_key": KEY, "unique_for": "90 seconds"},
    "approval": {"requires_approval": True},
    "lane": {"lane": "full"},
    "lane and approval": {"lane": "full", "requires_approval": True},
    "lane and time": {"lane": "full", "countdown": 3600},
    "creator": {"created_by": "user:é", "job_source": "system"},
}


@pytest.mark.parametrize("own", [True, False], ids=["own", "caller's"])
@pytest.mark.parametrize("name", OPTIONS)
def test_rows_messages_and_results_are_the_same(
    app: Celery,
    sql: Sql,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    own: bool,
    statements: list[bool],
) -> None:
    given = dict(OPTIONS[name])
    make_lane(sql, "full", 0)
    sql("INSERT INTO kombu_queue (name, message_ttl, max_priority) VALUES ('mail', 60000, 2)")
    fixed = uuid4()
    monkeypatch.setattr(prepare, "uuid4", lambda: fixed)
    moment = datetime.now(UTC) + timedelta(hours=1)
    if "countdown" in given:
        given = {**given, "run_at": moment}
        del given["countdown"]

    def submit() -> tuple[Any, jobs.Job]:
        args = given.get("args", ())
        more = {key: value for key, value in given.items() if key != "args"}
        if own:
            job = pgbeat.submit("jobs.any", *args, app=app, **more)
        else:
            with Session(engine) as session:
                job = pgbeat.submit("jobs.any", *args, app=app, connection=session, **more)
                session.commit()
        with engine.connect() as connection:
            read = jobs.get(connection, job.id)
        assert [(type(a), a) for a in job] == [(type(b), b) for b in read]
        found = rows(sql)
        sql("DELETE FROM pgbeat.jobs")
        sql("DELETE FROM kombu_message")
        return found, job

    submit()  # Celery makes the first of its kind
    statements.clear()
    fixed = uuid4()
    quick, quick_job = submit()
    assert statements == [True]
    monkeypatch.setattr(one_statement, "submit", lambda *args, **kwargs: None)
    slow, slow_job = submit()
    assert quick == slow
    clocks = {"created_at", "dispatched_at", "paused_at", "position"}
    assert {k: v for k, v in quick_job._asdict().items() if k not in clocks} == {
        k: v for k, v in slow_job._asdict().items() if k not in clocks
    }


def test_it_is_one_round_trip_that_commits(app: Celery, sql: Sql, statements: list[bool]) -> None:
    pgbeat.submit("jobs.add", 1, app=app)
    job = pgbeat.submit("jobs.add", 1, app=app)
    assert statements == [False, True]
    (state,) = sql(
        "SELECT state, query FROM pg_stat_activity WHERE application_name = 'pgbeat submit' "
        "AND datname = current_database()"
    )
    assert state[0] == "idle"
    assert "write_job" in state[1]
    assert sql("SELECT job_id FROM kombu_message WHERE job_id = %s", job.id) == [(job.id,)]


def test_a_taken_key_returns_its_job(app: Celery, sql: Sql, statements: list[bool]) -> None:
    pgbeat.submit("jobs.add", 1, app=app)
    first = pgbeat.submit("jobs.add", 1, unique_key=KEY, app=app)
    assert pgbeat.submit("jobs.add", 2, unique_key=KEY, app=app) == first
    assert statements == [False, True, True]
    sql("UPDATE pgbeat.jobs SET state = 'cancelled', finished_at = now() WHERE id = %s", first.id)
    third = pgbeat.submit("jobs.add", 2, unique_key=KEY, unique_for="1 hour", app=app)
    assert (third.id, third.state) == (first.id, "cancelled")
    assert pgbeat.submit("jobs.add", 2, unique_key=KEY, app=app).id != first.id
    assert all(statements[1:])


def test_callers_with_one_key_wait_for_each_other(app: Celery, sql: Sql, engine: Engine) -> None:
    pgbeat.submit("jobs.add", 1, app=app)
    found: list[Any] = []
    with Session(engine) as session:
        mine = pgbeat.submit("jobs.add", 1, unique_key=KEY, connection=session, app=app)
        other = threading.Thread(
            target=lambda: found.append(pgbeat.submit("jobs.add", 1, unique_key=KEY, app=app))
        )
        other.start()
        until(
            lambda: sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") != []
        )
        session.commit()
        other.join()
    assert [job.id for job in found] == [mine.id]
    assert sql("SELECT count(*) FROM kombu_message WHERE job_id = %s", mine.id) == [(1,)]


@pytest.mark.slow
def test_a_key_that_an_open_transaction_has_is_waited_for_five_seconds(
    app: Celery, engine: Engine
) -> None:
    pgbeat.submit("jobs.add", 1, app=app)
    with Session(engine) as session:
        pgbeat.submit("jobs.add", 1, unique_key=KEY, connection=session, app=app)
        began = time.monotonic()
        with pytest.raises(NotUnique, match="a transaction that is still open"):
            pgbeat.submit("jobs.add", 1, unique_key=KEY, app=app)
        assert 4.5 < time.monotonic() - began < 20


@pytest.mark.parametrize("many", [False, True])
def test_a_thread_does_not_wait_for_its_own_open_session(
    app: Celery, database: str, engine: Engine, many: bool
) -> None:
    """It would wait for ever; the server can't know."""
    url = postgres_url(database).update_query_dict({"options": "-c lock_timeout=200ms"})
    app.conf.pgbeat_url = url.render_as_string(hide_password=False)
    pgbeat.submit("jobs.add", 1, app=app)
    with Session(engine) as session:
        mine = pgbeat.submit("jobs.add", 1, unique_key=KEY, connection=session, app=app)

        def submit() -> str:
            if many:
                return pgbeat.submit_many([app.tasks["jobs.add"].s(1)], unique_key=KEY, app=app)[0]
            return str(pgbeat.submit("jobs.add", 1, unique_key=KEY, app=app).id)

        with pytest.raises(NotUnique, match="a transaction that is still open"):
            submit()
        session.commit()
        assert submit() == str(mine.id)


def test_what_a_signal_observes_celery_makes(app: Celery, statements: list[bool]) -> None:
    pgbeat.submit("jobs.add", 1, app=app)
    seen: list[str] = []

    def receive(headers: Any = None, **kwargs: Any) -> None:
        seen.append(headers["id"])

    signals.before_task_publish.connect(receive, weak=False)
    try:
        job = pgbeat.submit("jobs.add", 1, app=app)
        again = pgbeat.submit("jobs.add", 1, unique_key=KEY, app=app)
        pgbeat.submit("jobs.add", 1, unique_key=KEY, app=app)
    finally:
        signals.before_task_publish.disconnect(receive)
    assert seen == [str(job.id), str(again.id)]
    assert statements == [False] * 4


def test_what_is_observed_is_published_step_by_step(
    app: Celery, statements: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pgbeat.submit("jobs.add", 1, app=app)
    seen: list[str] = []

    def observe(message: TaskMessage) -> AbstractContextManager[None]:
        seen.append(message.job_id)
        return nullcontext()

    monkeypatch.setattr(publisher, "observers", [observe])
    job = pgbeat.submit("jobs.add", 1, app=app)
    assert (seen, statements) == ([str(job.id)], [False, False])


def test_a_missing_queue_is_made(app: Celery, sql: Sql, statements: list[bool]) -> None:
    pgbeat.submit("jobs.add", 1, queue="q", app=app)
    sql("DELETE FROM kombu_message")
    sql("DELETE FROM kombu_queue WHERE name = 'q'")
    job = pgbeat.submit("jobs.add", 1, queue="q", app=app)
    assert statements == [False, False]
    assert sql(
        "SELECT m.job_id FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id "
        "WHERE q.name = 'q'"
    ) == [(job.id,)]


def test_errors_are_those_of_the_steps(app: Celery, sql: Sql) -> None:
    pgbeat.submit("jobs.add", 1, app=app)
    before = rows(sql)
    with pytest.raises(InvalidJob, match="there is no lane 'nope'"):
        pgbeat.submit("jobs.add", 1, lane="nope", app=app)
    with pytest.raises(InvalidSchedule, match="the arguments don't fit"):
        pgbeat.submit("jobs.add", 1, 2, 3, app=app)
    with pytest.raises(InvalidJob, match="hold a character that Postgres can't keep"):
        pgbeat.submit("jobs.add", "a\0b", app=app)
    assert rows(sql) == before


def test_a_job_gets_its_lanes_free_slot(app: Celery, sql: Sql, statements: list[bool]) -> None:
    make_lane(sql, "l", 1)
    first, second = (pgbeat.submit("jobs.add", 1, lane="l", app=app) for _ in range(2))
    assert statements == [True, True]
    assert first.dispatched_at is not None
    assert second.dispatched_at is None
    assert sql("SELECT job_id FROM kombu_message") == [(first.id,)]


def test_what_jobs_share_is_found_anew_after_a_change(app: Celery, sql: Sql) -> None:
    first, second = (pgbeat.submit("jobs.any", n, kwargs={"n": n}, app=app) for n in (1, 2))
    assert (first.args, second.args, second.kwargs) == ([1], [2], {"n": 2})
    assert pgbeat.submit("jobs.any", app=app, created_by="bob").created_by == "bob"
    assert pgbeat.submit("jobs.any", app=app, priority=7).priority == 7
    assert pgbeat.submit("jobs.any", app=app, resources={"gpu": 1}).resources == {"gpu": 1}
    app.conf.pgbeat_job_max_attempts = first.max_attempts + 1
    assert pgbeat.submit("jobs.any", app=app).max_attempts == first.max_attempts + 1
    del app.tasks["jobs.any"]
    with pytest.raises(UnknownTask):
        pgbeat.submit("jobs.any", app=app)
    app.conf.broker_url = "memory://"
    before = sql("SELECT count(*) FROM kombu_message")
    assert pgbeat.submit("jobs.add", 1, app=app).queue is None
    if celery.VERSION >= (5, 7):  # an older one keeps the pool of producers that it has
        assert sql("SELECT count(*) FROM kombu_message") == before
