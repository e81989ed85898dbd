"""Control: jobs made, cancelled, held and let go, retried, moved and deleted; no worker runs."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from celery import Celery, Signature
from kombu import Exchange, Queue
from sqlalchemy import Connection, Engine, NullPool, create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import pgbeat
from pgbeat.broker import exchanges
from pgbeat.broker import messages as broker_messages
from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.errors import (
    ConfigError,
    InvalidJob,
    InvalidSchedule,
    InvalidTransition,
    NotUnique,
    PgbeatError,
    UnknownTask,
)
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.states import endings
from pgbeat.jobs.submitting import submit_group
from pgbeat.jobs.verbs import control, template_control
from tests.support.command_line import Sql
from tests.support.databases import end_sessions, sqlalchemy_url
from tests.support.jobs import ADMIN, ALICE, JobControl, job_controls, make_app, messages
from tests.support.problems import raises
from tests.support.processes import until
from tests.support.rows import make_group, make_job, make_lane
from tests.support.threads import WAITS, together

JobControls = Callable[[], JobControl]


def refused(
    job_control: JobControl, verb: Callable[..., Job], job: Job, **more: object
) -> tuple[str, str]:
    """The state that the verb is refused in, and what it would do; the refusal changes nothing."""
    with pytest.raises(InvalidTransition) as error:
        job_control.do(verb, job, **more)
    assert job_control.job(job) == job
    return error.value.state, error.value.verb


def fails(job_control: JobControl, job: Job, error: str = "oops") -> Job:
    """The job as it is once a worker has recorded that it failed."""
    run = str(uuid4())
    job_control.record(
        ExecutionRecord(run, str(job.id), True, "failed", "failed", worker="w", error=error)
    )
    return job_control.job(job)


def runs(job_control: JobControl, job: Job) -> Job:
    """The job as it is once a worker has recorded that it began."""
    job_control.begins(job.id)
    return job_control.job(job)


# -- made


def test_a_job_and_its_message(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make(
        3,
        kwargs={"y": 4},
        queue="extra",
        options={"expires": 60},
        priority=7,
        tags=["a", "b"],
        resources={"gpu": 0.5},
        max_attempts=5,
        retry_base=10,
        retry_cap=100,
    )
    assert (job.state, job.task, job.args, job.kwargs) == ("pending", "jobs.add", [3], {"y": 4})
    assert (job.queue, job.options, job.priority) == ("extra", {"expires": 60}, 7)
    assert (job.tags, job.resources, job.max_attempts) == (["a", "b"], {"gpu": 0.5}, 5)
    assert (job.retry_base, job.retry_cap) == (timedelta(seconds=10), timedelta(seconds=100))
    assert (job.job_source, job.created_by, job.is_system_job) == ("user_cli", ALICE.name, False)
    assert job.dispatched_at is not None
    assert messages(sql) == [str(job.id)]
    [(queue, priority, payload)] = sql(
        "SELECT q.name, m.priority, m.payload::json FROM kombu_message m "
        "JOIN kombu_queue q ON q.id = m.queue_id"
    )
    assert (queue, priority, payload["headers"]["id"]) == ("extra", 7, str(job.id))
    assert payload["headers"]["pgbeat_job"] is True


def test_the_settings_say_how_often_it_is_tried(job_control: JobControl, app: Celery) -> None:
    assert job_control.make().max_attempts == 1  # as in Celery
    app.conf.pgbeat_job_max_attempts = 3
    job_control.settings = type(job_control.settings).load(app.conf)
    job = fails(job_control, job_control.make())
    assert (job.state, job.max_attempts) == ("failed", 3)
    assert job.retried_by is not None


def test_put_off(job_control: JobControl, sql: Sql) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    at, soon = job_control.make(run_at=tomorrow), job_control.make(countdown=timedelta(hours=1))
    past = job_control.make(run_at=tomorrow - timedelta(days=2))
    assert (at.state, at.run_at) == ("scheduled", tomorrow)
    assert soon.state == "scheduled"
    assert (past.state, past.run_at) == ("pending", None)
    rows = sql("SELECT job_id, visible, available_at FROM kombu_message ORDER BY id")
    assert rows == [(at.id, False, tomorrow), (soon.id, False, soon.run_at), (past.id, True, None)]


def test_in_a_lane(job_control: JobControl, sql: Sql) -> None:
    make_lane(sql, limit=1)
    first, second = job_control.make(lane="l"), job_control.make(lane="l")
    later = job_control.make(lane="l", countdown=timedelta(hours=1))
    assert first.dispatched_at is not None
    assert (second.state, second.dispatched_at) == ("pending", None)
    assert (later.state, later.dispatched_at) == ("scheduled", None)
    assert messages(sql) == [str(first.id)]


def test_awaiting_approval(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make(requires_approval=True)
    assert (job.state, job.awaits_approval, job.dispatched_at) == ("paused", True, None)
    assert messages(sql) == []


def test_from_a_template(job_control: JobControl) -> None:
    with job_control.unit().transaction() as unit:
        template_control.put(
            unit,
            "t",
            task="jobs.add",
            args=[1],
            kwargs={"y": 5},
            queue="extra",
            options={"expires": 60},
            job_policy={"max_attempts": 9, "tags": ["x"]},
        )
    change = job_control.order(template="t")
    job = change.job
    assert (job.task, job.args, job.kwargs, job.queue) == ("jobs.add", [1], {"y": 5}, "extra")
    assert (job.template, job.max_attempts, job.tags) == ("t", 9, ["x"])
    own = job_control.order(7, template="t", kwargs={"y": 6}, max_attempts=2, queue="other").job
    assert (own.args, own.kwargs, own.queue) == ([7], {"y": 6}, "other")
    assert (own.max_attempts, own.tags, own.options) == (2, ["x"], {"expires": 60})
    # What the job was made of stays, whatever becomes of the template.
    with job_control.unit().transaction() as unit:
        template_control.put(unit, "t", task="jobs.add", args=[2])
    assert job_control.job(job) == job


def test_what_is_wrong_with_an_order(job_control: JobControl, sql: Sql) -> None:
    cases: list[tuple[dict[str, Any], type[PgbeatError], str, str]] = [
        ({"options": {"eta": "2030"}}, InvalidJob, "options", "conflict"),
        ({"run_at": datetime(2030, 1, 1)}, InvalidJob, "run_at", "malformed"),  # noqa: DTZ001
        ({"run_at": "2030-01-01"}, InvalidJob, "run_at", "malformed"),
        ({"countdown": "5"}, InvalidJob, "countdown", "malformed"),
        ({"queue": 5}, InvalidSchedule, "options.queue", "malformed"),
        ({"queue": "q" * 201}, InvalidJob, "", "invalid_job"),
        ({"options": {"compression": "x"}}, InvalidJob, "", "invalid_job"),
        *(
            ({"options": {key: value}}, InvalidSchedule, f"options.{key}", "malformed")
            for key, value in [
                ("expires", "x"),
                ("expires", float("inf")),
                ("expires", timedelta(5)),
                ("priority", "x"),
                ("priority", -5),
                ("priority", True),
                ("time_limit", "x"),
                ("soft_time_limit", -1),
                ("expiration", "x"),
                ("exchange", 5),
                ("retry_policy", "x"),
                ("link", "x"),
                ("link_error", [{"task": "jobs.add"}]),
            ]
        ),
        ({"task": 5}, UnknownTask, "task", "malformed"),
        ({"task": ["jobs.add"]}, UnknownTask, "task", "malformed"),
        ({"args": ({1},)}, InvalidJob, "", "invalid_job"),
        ({"kwargs": {"y": "\ud800"}}, InvalidJob, "", "unstorable"),
        (
            {"queue": "a\0", "requires_approval": True},
            InvalidSchedule,
            "options.queue",
            "malformed",
        ),
        ({"unique_key": "a\0"}, InvalidJob, "unique_key", "malformed"),
        ({"tags": ["\ud800"]}, InvalidJob, "tags", "malformed"),
    ]
    for given, error, field, code in cases:
        args = given.get("args", (1,))
        with raises(error, (field, code)):
            job_control.order(
                *args, **{key: value for key, value in given.items() if key != "args"}
            )
        assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]
        assert messages(sql) == []
        # What comes after is not held up by it.
        job = pgbeat.submit("jobs.add", 1, app=job_control.app)
        assert messages(sql) == [str(job.id)]
        sql("DELETE FROM kombu_message")
        sql("DELETE FROM pgbeat.jobs")


def test_a_template_is_of_a_task_that_nobody_imported_yet(
    database: str, sql: Sql, tmp_path: Path
) -> None:
    (tmp_path / "late").mkdir()
    (tmp_path / "late/__init__.py").write_text(
        "from celery import Celery\n"
        f"app = Celery('late', broker='pgbeat+' + {database!r})\n"
        "app.autodiscover_tasks(['late'])\n"
    )
    (tmp_path / "late/tasks.py").write_text(
        "from late import app\n@app.task\ndef later(): return 5\n"
    )
    sql("INSERT INTO pgbeat.templates (name, task) VALUES ('t', 'late.tasks.later')")
    program = "import pgbeat, late; pgbeat.submit(template='t')"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)
    assert sql("SELECT task FROM pgbeat.jobs") == [("late.tasks.later",)]


def test_arguments_that_only_kombu_knows(job_control: JobControl, sql: Sql) -> None:
    """They are kept so that a retry has them too."""
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    job = job_control.make(moment, max_attempts=2, retry_base=0)
    assert job.args == [{"__type__": "datetime", "__value__": moment.isoformat()}]
    assert fails(job_control, job).retried_by is not None
    bodies = [row[0]["body"] for row in sql("SELECT payload::json FROM kombu_message ORDER BY id")]
    assert len(bodies) == 2 and bodies[0] == bodies[1]


# -- one of a kind


def test_unique_by_content_and_by_key(job_control: JobControl, sql: Sql) -> None:
    first = job_control.order(1, unique=True)
    again = job_control.order(1, unique=True)
    other = job_control.order(2, unique=True)
    keyed = job_control.order(3, unique_key="k")
    same = job_control.order(4, unique_key="k")
    is_new = [change.is_new for change in (first, again, other, keyed, same)]
    assert is_new == [True, False, True, True, False]
    assert (again.job.id, same.job.id) == (first.job.id, keyed.job.id)
    assert len(messages(sql)) == 3
    job_control.do(control.cancel, keyed.job)
    assert job_control.order(4, unique_key="k").is_new


def test_unique_for_a_time(job_control: JobControl, sql: Sql) -> None:
    first = job_control.order(1, unique_for="1 hour").job
    job_control.do(control.cancel, first)
    assert job_control.order(1, unique_for="1 hour").job.id == first.id
    sql("UPDATE pgbeat.jobs SET created_at = now() - interval '61 minutes'")
    assert job_control.order(1, unique_for="1 hour").is_new


def test_unique_under_two_who_ask_at_once(make_job_control: JobControls, sql: Sql) -> None:
    controls = [make_job_control() for _ in range(4)]
    for number in range(20):
        made = together([partial(each.order, number, unique=True) for each in controls])
        assert sum(change.is_new for change in made) == 1
        assert len({change.job.id for change in made}) == 1
    assert len(messages(sql)) == 20


# -- pgbeat.submit


def test_submit(app: Celery, sql: Sql, job_control: JobControl) -> None:
    job = pgbeat.submit(app.tasks["jobs.add"], 1, kwargs={"y": 3}, priority=2, created_by="user:x")
    assert (job.args, job.kwargs, job.priority) == ([1], {"y": 3}, 2)
    assert (job.created_by, job.job_source) == ("user:x", "user_api")
    assert messages(sql) == [str(job.id)]
    named = pgbeat.submit("jobs.add", 1, app=app, countdown=3600)
    assert (named.state, named.created_by[:5]) == ("scheduled", "user:")
    with raises(InvalidJob, ("priorty", "unknown_field")):
        pgbeat.submit("jobs.add", 1, app=app, priorty=3)  # type: ignore[call-arg]


def test_options_that_celery_takes(app: Celery, sql: Sql) -> None:
    cases: list[dict[str, Any]] = [
        {"expires": 60.5},
        {"expires": -1},
        {"expires": "2030-01-01T09:00Z"},
        {"expires": None},
        {"expires": datetime(2030, 1, 1, tzinfo=UTC)},
        {"priority": 0},
        {"priority": 255},
        {"time_limit": 5, "soft_time_limit": 2.5},
        {"exchange": "x"},
        {"exchange": Exchange("x")},
        {"queue": Queue("extra")},
        {"link": []},
        {"link": Signature("jobs.add")},
        {"link_error": [dict(Signature("jobs.add", (1,)))]},
    ]
    for options in cases:
        job = pgbeat.submit("jobs.add", 1, app=app, options=options)
        assert messages(sql)[-1] == str(job.id)


@pytest.mark.parametrize(
    "connection", ["postgresql://u:secret@h/d", create_engine("postgresql+psycopg://")]
)
def test_what_is_no_session(app: Celery, connection: Any) -> None:
    with pytest.raises(TypeError, match=r"(builtins.str|base.Engine)$"):
        pgbeat.submit("jobs.add", 1, app=app, connection=connection)
    with pytest.raises(TypeError, match=r"(builtins.str|base.Engine)$"):
        pgbeat.submit_group([{"task": "jobs.add"}], app=app, connection=connection)


def test_what_is_wrong_with_a_submission(app: Celery, sql: Sql) -> None:
    cases: list[tuple[str, Any, str]] = [
        ("job_source", "x", "unknown"),
        ("created_by", "a\0", "malformed"),
        ("created_by", 5, "malformed"),
        ("countdown", 1e300, "out_of_range"),
    ]
    for field, value, code in cases:
        given = {field: value}
        with raises(InvalidJob, (field, code)):
            pgbeat.submit("jobs.add", 1, app=app, **given)
        member = {"task": "jobs.add", "args": [1], "countdown": given.pop("countdown", None)}
        with raises(InvalidJob, (f"jobs[0].{field}", code)):
            pgbeat.submit_group([member], app=app, **given)
        for table in ("pgbeat.groups", "pgbeat.jobs", "kombu_message"):
            assert sql(f"SELECT count(*) FROM {table}") == [(0,)]


def test_a_signature_is_no_task(app: Celery, sql: Sql) -> None:
    """Its arguments would be lost."""
    with raises(UnknownTask, ("task", "malformed")):
        pgbeat.submit(app.tasks["jobs.add"].s(1), 1)
    assert messages(sql) == []


@pytest.mark.parametrize("kind", ["session", "scoped session", "connection"])
def test_submit_in_the_callers_transaction(
    app: Celery, sql: Sql, engine: Engine, kind: str
) -> None:
    make_lane(sql, limit=1)
    sql("CREATE TABLE orders (id int)")
    opened: Any = engine.connect() if kind == "connection" else Session(engine)
    with opened:
        session = opened
        if kind == "scoped session":
            session = scoped_session(sessionmaker())
            session.registry.set(opened)
        session.execute(text("INSERT INTO orders VALUES (1)"))
        pgbeat.submit("jobs.add", 1, app=app, connection=session)
        pgbeat.submit("jobs.add", 1, app=app, connection=session, lane="l")
        session.rollback()
        assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]
        assert sql("SELECT count(*) FROM kombu_message") == [(0,)]
        session.execute(text("INSERT INTO orders VALUES (2)"))
        job = pgbeat.submit("jobs.add", 1, app=app, connection=session)
        assert messages(sql) == []
        session.commit()
    assert sql("SELECT id FROM orders") == [(2,)]
    assert sql("SELECT id, state FROM pgbeat.jobs") == [(job.id, "pending")]
    assert messages(sql) == [str(job.id)]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_the_callers_session_keeps_its_styles(
    app: Celery, sql: Sql, database: str, driver: str
) -> None:
    """Drivers read no others than ISO and `postgres`."""
    make_lane(sql)
    url = sqlalchemy_url(database).replace("psycopg:", f"{driver}:")
    engine = create_engine(url, poolclass=NullPool)
    shown = text("SELECT current_setting('DateStyle'), current_setting('IntervalStyle')")
    with engine.connect() as session:
        for style in ("iso_8601", "postgres_verbose"):
            styles = ("SQL, DMY", style)
            session.execute(text(f"SET DateStyle = 'SQL, DMY'; SET IntervalStyle = '{style}'"))
            job = pgbeat.submit("jobs.add", 1, app=app, connection=session, retry_base="2 days")
            assert job.retry_base == timedelta(days=2)
            with pytest.raises(InvalidJob):
                pgbeat.submit("jobs.add", 1, app=app, connection=session, lane="none")
            with pytest.raises(InvalidJob):
                pgbeat.submit_group([{"task": "jobs.add", "x": 1}], app=app, connection=session)
            later: Any = {"unique_key": style, "lane": "l", "countdown": 60, "depends_on": [job]}
            for _ in range(2):
                assert pgbeat.submit("jobs.add", 1, app=app, connection=session, **later).run_at
            assert session.execute(shown).one() == styles
            session.commit()
            assert session.execute(shown).one() == styles


def test_the_beat_hears_of_what_waits_for_it(
    app: Celery, sql: Sql, engine: Engine, database: str
) -> None:
    make_lane(sql, limit=1)
    with psycopg.connect(database, autocommit=True) as listener, engine.connect() as session:
        listener.execute("LISTEN pgbeat_lanes; LISTEN pgbeat_schedules")
        pgbeat.submit("jobs.add", 1, app=app, connection=session, lane="l")
        pgbeat.submit("jobs.add", 1, app=app, connection=session, lane="l", countdown=60)
        session.commit()
        told = [(n.channel, n.payload) for n in listener.notifies(timeout=30, stop_after=2)]
    assert sorted(told) == [("pgbeat_lanes", "default/l"), ("pgbeat_schedules", "jobs")]


def test_no_transaction_to_be_in(app: Celery, connection: Connection, empty_database: str) -> None:
    with pytest.raises(ValueError, match="autocommit"):
        pgbeat.submit("jobs.add", 1, app=app, connection=connection)
    elsewhere = create_engine(postgres_url(empty_database))
    with elsewhere.connect() as connection, pytest.raises(ConfigError):
        pgbeat.submit("jobs.add", 1, app=app, connection=connection)
    elsewhere.dispose()


def test_submit_where_the_broker_is_elsewhere(database: str, engine: Engine) -> None:
    """In the caller's transaction, the job waits for beat: nobody is told of what may not come."""
    app, queue = make_app(database, "memory://"), uuid4().hex
    app.conf.task_default_queue = queue  # the broker in memory is the whole process's
    with engine.connect() as connection:
        job = pgbeat.submit("jobs.add", 1, app=app, connection=connection)
        connection.commit()
    assert (job.state, job.dispatched_at) == ("scheduled", None)
    with app.connection_for_read() as broker:
        assert broker.SimpleQueue(queue).qsize() == 0
        own = pgbeat.submit("jobs.add", 2, app=app)
        assert own.state == "pending" and own.dispatched_at is not None
        message = broker.SimpleQueue(queue).get(timeout=5)
        assert message.headers["id"] == str(own.id)
        message.ack()
    app.close()


def test_submit_in_a_task_makes_its_child_and_nobody_elses(app: Celery, sql: Sql) -> None:
    """What a process keeps for the next message knows nothing of whose the last one was."""

    @app.task(name="jobs.parent", shared=False)
    def parent() -> None:
        pgbeat.submit("jobs.add", 1, app=app)

    pgbeat.submit("jobs.add", 1, app=app)
    parent.apply(task_id="a-task")
    pgbeat.submit("jobs.add", 1, app=app)
    found = sql("SELECT payload::json -> 'headers' ->> 'parent_id' FROM kombu_message ORDER BY id")
    assert found == [(None,), ("a-task",), (None,)]


def test_submit_from_many_threads(app: Celery, sql: Sql) -> None:
    def work(number: int) -> list[str]:
        made = (pgbeat.submit("jobs.add", number * 100 + each, app=app) for each in range(10))
        return [str(job.id) for job in made]

    with ThreadPoolExecutor(8) as pool:
        made = [each for ids in pool.map(work, range(8)) for each in ids]
    assert sorted(messages(sql)) == sorted(made)
    args = sql("SELECT args ->> 0 FROM pgbeat.jobs")
    assert sorted(int(first) for (first,) in args) == [
        n * 100 + m for n in range(8) for m in range(10)
    ]


def test_submit_in_a_child(app: Celery, sql: Sql) -> None:
    """A forked process doesn't talk on its parent's connection, which goes on."""
    pgbeat.submit("jobs.add", 1, app=app)
    child = os.fork()
    if child == 0:
        try:
            pgbeat.submit("jobs.add", 2, app=app)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    pgbeat.submit("jobs.add", 3, app=app)
    found = sql("SELECT args ->> 0 FROM pgbeat.jobs ORDER BY created_at")
    assert found == [("1",), ("2",), ("3",)]


@pytest.mark.parametrize("before", [1, 3])
def test_submit_after_the_server_cut_the_connection(app: Celery, sql: Sql, before: int) -> None:
    """Also while its statement is prepared there, or not yet."""
    for number in range(before):
        pgbeat.submit("jobs.add", number, app=app)
    assert end_sessions(sql, "pgbeat submit")
    pgbeat.submit("jobs.add", 2, app=app)
    assert len(messages(sql)) == before + 1


# -- cancelled


def test_cancel_what_waits(job_control: JobControl, sql: Sql) -> None:
    make_lane(sql, limit=1)
    found = {
        "pending": job_control.make(),
        "scheduled": job_control.make(countdown=timedelta(hours=1)),
        "paused": job_control.do(control.pause, job_control.make()),
        "approval": job_control.make(requires_approval=True),
        "slot": job_control.make(lane="l"),
        "line": job_control.make(lane="l"),
    }
    assert len(messages(sql)) == 3
    for kind in ("pending", "scheduled", "paused", "approval", "line"):
        job = job_control.do(control.cancel, found[kind], actor=ALICE, reason="changed my mind")
        assert (job.state, job.error) == ("cancelled", "cancelled by user:alice: changed my mind")
        assert job.finished_at is not None
    assert messages(sql) == [str(found["slot"].id)]
    assert sql("SELECT count(*) FROM pgbeat.executions") == [(0,)]


def test_cancel_what_runs(job_control: JobControl, sql: Sql) -> None:
    """Its worker is asked; again, it is asked again."""
    job = runs(job_control, job_control.make())
    for reason in ("too slow", "far too slow"):
        asked = job_control.do(control.cancel, job, actor=ALICE, reason=reason)
        assert (asked.state, asked.cancel_requested_by) == ("running", ALICE.name)
        assert asked.cancel_reason == f"cancelled by user:alice: {reason}"
    # Failing then is not a reason to try again.
    [(run,)] = sql("SELECT id::text FROM pgbeat.executions")
    job_control.tells(run, job.id, "failed", error="x")
    ended = job_control.job(job)
    assert (ended.state, ended.retried_by) == ("cancelled", None)
    assert ended.error == "cancelled by user:alice: far too slow (x)"


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
def test_workers_hear_of_a_cancellation_with_its_commit(
    job_control: JobControl, sql: Sql, ends: str
) -> None:
    with connections.transaction(job_control.connection):
        exchanges.declare(
            job_control.connection, "celery.pidbox", "fanout", durable=False, auto_delete=False
        )
        broker_messages.declare(job_control.connection, ["a worker's"])
        exchanges.bind(job_control.connection, "a worker's", "celery.pidbox", "", "fanout")
    heard = (
        "SELECT count(*) FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id "
        "WHERE q.name = 'a worker''s'"
    )
    job = runs(job_control, job_control.make())
    with job_control.unit().transaction(dry_run=ends == "ROLLBACK") as unit:
        control.cancel(unit, job.id)
        assert sql(heard) == [(0,)]
    assert sql(heard) == [(1 if ends == "COMMIT" else 0,)]


def test_what_is_about_to_run_when_it_is_cancelled(
    job_control: JobControl, sql: Sql, database: str
) -> None:
    """Its worker's word is under way: neither waiting nor running is seen."""
    job = job_control.make()
    with psycopg.connect(database) as worker, ThreadPoolExecutor() as threads:
        worker.execute("UPDATE pgbeat.jobs SET state = 'running', started_at = now()")
        with connections.transaction(job_control.connection):
            made = threads.submit(
                lifecycle.cancel,
                job_control.connection,
                job_control.publisher,
                [str(job.id)],
                by="me",
                reason="",
            )
            until(lambda: made.done() or sql(WAITS), 30, "the cancel waits")
            worker.commit()
            assert made.result(30) == []
    assert job_control.job(job).cancel_requested_by == "me"


def test_cancel_what_has_ended(job_control: JobControl) -> None:
    job = job_control.do(control.cancel, job_control.make())
    assert refused(job_control, control.cancel, job) == ("cancelled", "cancelled")
    failed = fails(job_control, job_control.make(max_attempts=2))
    with pytest.raises(InvalidTransition) as error:
        job_control.do(control.cancel, failed)
    assert str(error.value) == (
        f"job {failed.id} is failed and can't be cancelled; "
        f"its retry, {failed.retried_by}, is scheduled"
    )


def test_two_cancel_at_once(make_job_control: JobControls, sql: Sql) -> None:
    job_control, other = make_job_control(), make_job_control()

    def cancel(control_of: JobControl, job: Job) -> str:
        try:
            return f"now {control_of.do(control.cancel, job).state}"
        except InvalidTransition as error:
            return f"before {error.state}"

    for _ in range(10):
        job = job_control.make()
        said = together([partial(cancel, each, job) for each in (job_control, other)])
        assert sorted(said) == ["before cancelled", "now cancelled"]
        assert job_control.job(job).state == "cancelled"
    assert messages(sql) == []


# -- held, let go


def test_pause_and_resume(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make()
    paused = job_control.do(control.pause, job)
    assert (paused.state, paused.dispatched_at, messages(sql)) == ("paused", None, [])
    assert paused.paused_at is not None and paused.paused_at >= paused.created_at
    resumed = job_control.do(control.resume, job)
    assert resumed.state == "pending" and resumed.dispatched_at is not None
    assert resumed.paused_at is None
    assert messages(sql) == [str(job.id)]


def test_pause_what_is_put_off(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make(countdown=timedelta(hours=1))
    job_control.do(control.pause, job)
    assert messages(sql) == []
    resumed = job_control.do(control.resume, job)
    assert (resumed.state, resumed.run_at) == ("scheduled", job.run_at)
    assert sql("SELECT available_at FROM kombu_message") == [(job.run_at,)]
    # Its time goes by while it is held.
    job_control.do(control.pause, job)
    sql("UPDATE pgbeat.jobs SET run_at = now() - interval '1 s'")
    assert job_control.do(control.resume, job).state == "pending"
    assert sql("SELECT visible FROM kombu_message") == [(True,)]


def test_pause_in_a_lane(job_control: JobControl, sql: Sql) -> None:
    make_lane(sql, limit=1)
    first, second, third = (job_control.make(lane="l") for _ in range(3))
    job_control.do(control.pause, second)
    job_control.do(control.pause, first)
    assert job_control.job(third).dispatched_at is not None, "its slot goes to the next that waits"
    back = job_control.do(control.resume, first)
    assert (back.state, back.dispatched_at) == ("pending", None)
    job_control.do(control.resume, second)
    job_control.do(control.cancel, third)
    assert job_control.job(first).dispatched_at is not None, "its place has stayed"
    assert messages(sql) == [str(first.id)]


def test_pause_what_a_worker_holds(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make()
    sql("UPDATE kombu_message SET claimed_by = 1, visible = false")
    assert refused(job_control, control.pause, job) == ("pending", "paused")
    sql("DELETE FROM kombu_message")
    assert refused(job_control, control.pause, job) == ("pending", "paused")


def test_pause_what_can_not_be(job_control: JobControl, sql: Sql) -> None:
    job = runs(job_control, job_control.make())
    assert refused(job_control, control.pause, job) == ("running", "paused")
    assert refused(job_control, control.resume, job) == ("running", "resumed")
    sql("UPDATE pgbeat.jobs SET state = 'scheduled'")
    sql("DELETE FROM kombu_message")  # a worker has just taken Celery's retry
    assert refused(job_control, control.pause, job_control.job(job)) == ("scheduled", "paused")
    ended = fails(job_control, job_control.make(max_attempts=1))
    assert refused(job_control, control.pause, ended) == ("failed", "paused")
    paused = job_control.do(control.pause, job_control.make())
    assert refused(job_control, control.pause, paused) == ("paused", "paused")


def test_approve(job_control: JobControl, sql: Sql) -> None:
    job = job_control.make(requires_approval=True)
    assert refused(job_control, control.resume, job) == ("paused", "resumed")
    assert job.paused_at is not None
    approved = job_control.do(control.approve, job)
    assert (approved.state, approved.awaits_approval) == ("pending", False)
    assert approved.paused_at is None
    assert (approved.approved_by, approved.approved_at is None) == (ADMIN.name, False)
    assert messages(sql) == [str(job.id)]
    assert refused(job_control, control.approve, approved) == ("pending", "approved")
    plain = job_control.do(control.pause, job_control.make())
    assert refused(job_control, control.approve, plain) == ("paused", "approved")


def test_approval_counts_for_retries_that_nobody_asks_for(job_control: JobControl) -> None:
    job = job_control.do(control.approve, job_control.make(requires_approval=True, max_attempts=3))
    failed = fails(job_control, job)
    own = jobs.get(job_control.connection, str(failed.retried_by))
    assert (own.state, own.requires_approval, own.approved_by) == ("scheduled", True, ADMIN.name)
    # One that a person asks for is another decision.
    job_control.do(control.cancel, own)
    asked = job_control.do(control.retry, job_control.job(own), ALICE, job_source="user_cli")
    assert (asked.state, asked.awaits_approval, asked.approved_by) == ("paused", True, None)


def test_approval_counts_for_no_more_attempts_than_it_was_given_for(
    job_control: JobControl,
) -> None:
    """Their owner may hasten the last, but not make it the first."""
    job = job_control.do(control.approve, job_control.make(requires_approval=True, max_attempts=2))
    last = job_control.do(control.retry, fails(job_control, job), ALICE, job_source="user_cli")
    assert (last.state, last.approved_by, last.attempt) == ("pending", ADMIN.name, 2)
    assert fails(job_control, last).retried_by is None
    asked = job_control.do(control.retry, last, ALICE, job_source="user_cli")
    assert (asked.state, asked.awaits_approval) == ("paused", True)


def test_what_failed_unapproved_is_tried_again_only_once_approved(
    job_control: JobControl, sql: Sql
) -> None:
    job = job_control.make(requires_approval=True, max_attempts=3)
    with connections.transaction(job_control.connection):
        ended = endings.end(job_control.connection, [job.id], "failed", "can't be published")
        lifecycle.follow(job_control.connection, job_control.publisher, ended)
    again = jobs.get(job_control.connection, str(job_control.job(job).retried_by))
    assert (again.state, again.awaits_approval, again.dispatched_at) == ("paused", True, None)
    assert messages(sql) == []


def test_approve_into_a_lane_and_for_later(job_control: JobControl, sql: Sql) -> None:
    make_lane(sql, limit=1)
    first = job_control.make(lane="l")
    second = job_control.do(control.approve, job_control.make(lane="l", requires_approval=True))
    assert (second.state, second.dispatched_at) == ("pending", None)
    later = job_control.make(countdown=timedelta(hours=1), requires_approval=True)
    assert later.state == "paused"
    assert job_control.do(control.approve, later).state == "scheduled"
    job_control.do(control.cancel, first)
    assert job_control.job(second).dispatched_at is not None


def test_a_broker_elsewhere_gives_nothing_back(database: str, sql: Sql) -> None:
    app = make_app(database, "memory://")
    make_lane(sql, limit=0)
    with job_controls(database, app) as make:
        job_control = make()
        assert refused(job_control, control.pause, job_control.make()) == ("pending", "paused")
        waiting = job_control.make(lane="l")
        assert job_control.do(control.pause, waiting).state == "paused"
        assert job_control.do(control.resume, waiting).state == "pending"
        assert job_control.do(control.cancel, job_control.make()).state == "cancelled"
    app.close()


# -- once more


def test_retry_by_hand(job_control: JobControl, sql: Sql) -> None:
    job = fails(job_control, job_control.make(5, priority=3, tags=["t"], max_attempts=1))
    sql("UPDATE pgbeat.jobs SET checkpoint = '{\"at\": 7}' WHERE id = %s", job.id)
    new = job_control.do(control.retry, job, job_source="user_api")
    assert (new.retry_of, new.state, new.attempt, new.max_attempts) == (job.id, "pending", 1, 1)
    assert (new.args, new.priority, new.tags, new.checkpoint) == ([5], 3, ["t"], {"at": 7})
    assert (new.created_by, new.job_source) == (ALICE.name, "user_api")
    assert job_control.job(job).retried_by == new.id
    assert messages(sql) == [str(job.id), str(new.id)]
    # Always, and as often as somebody wants it.
    fails(job_control, new)
    other = job_control.do(control.retry, new, job_source="user_api", priority=9)
    fails(job_control, other)
    third = job_control.do(control.retry, job, job_source="user_api")
    assert (other.retry_of, other.priority, third.retry_of) == (new.id, 9, job.id)


def test_retry_what_was_cancelled_or_skipped(job_control: JobControl, sql: Sql) -> None:
    cancelled = job_control.do(control.cancel, job_control.make())
    skipped = jobs.get(job_control.connection, make_job(sql, "skipped"))
    for job in (cancelled, skipped):
        assert job_control.do(control.retry, job, job_source="user_cli").retry_of == job.id


def test_retry_what_can_not_be(job_control: JobControl, sql: Sql) -> None:
    def retry(job: Job) -> tuple[str, str]:
        return refused(job_control, control.retry, job, job_source="user_cli")

    job = job_control.make()
    assert retry(job) == ("pending", "retried")
    assert retry(runs(job_control, job)) == ("running", "retried")
    done = jobs.get(job_control.connection, make_job(sql, "completed"))
    assert retry(done) == ("completed", "retried")
    unknown = jobs.get(job_control.connection, make_job(sql, "failed", args=None, kwargs=None))
    with raises(InvalidJob, ("", "malformed")):
        job_control.do(control.retry, unknown, job_source="user_cli")


def test_retry_while_a_retry_is_to_come(job_control: JobControl, sql: Sql) -> None:
    """That one comes now: there are not two."""
    job = fails(job_control, job_control.make(max_attempts=3, retry_base=3600))
    [coming] = jobs.find(job_control.connection, [str(job.retried_by)])
    assert (coming.state, coming.attempt) == ("scheduled", 2)
    now = job_control.do(control.retry, job, job_source="user_cli")
    assert (now.id, now.state, now.attempt, now.run_at) == (coming.id, "pending", 1, None)
    assert sql("SELECT job_id, visible FROM kombu_message WHERE job_id = %s", now.id) == [
        (now.id, True)
    ]
    assert refused(job_control, control.retry, job_control.job(job), job_source="user_cli") == (
        "failed",
        "retried",
    )
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(2,)]


def test_retry_of_an_early_attempt(job_control: JobControl, sql: Sql) -> None:
    """The last one comes now, and while it has begun there is no other."""
    first = fails(job_control, job_control.make(max_attempts=3, retry_base=3600))
    second = fails(job_control, jobs.get(job_control.connection, str(first.retried_by)))
    now = job_control.do(control.retry, first, job_source="user_cli")
    assert (now.id, now.state, now.run_at) == (second.retried_by, "pending", None)
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(3,)]
    runs(job_control, now)
    for job in (first, second):
        assert refused(job_control, control.retry, job, job_source="user_cli") == (
            "failed",
            "retried",
        )
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(3,)]


def test_two_attempts_are_retried_at_once(make_job_control: JobControls, sql: Sql) -> None:
    job_control, other = make_job_control(), make_job_control()
    first = fails(job_control, job_control.make(max_attempts=1))
    second = fails(job_control, job_control.do(control.retry, first, job_source="user_cli"))
    retry = partial(other.do, control.retry, first, job_source="user_cli")
    with pytest.raises(InvalidTransition), job_control.unit(ALICE).transaction() as unit:
        third = control.retry(unit, second.id, job_source="user_cli")
        with ThreadPoolExecutor(1) as pool:
            too = pool.submit(retry)
            until(lambda: too.done() or sql(WAITS), what="it waits")
            unit.connection.commit()
            too.result(30)
    assert sql("SELECT id FROM pgbeat.unfinished_jobs") == [(third.id,)]


def test_retry_of_one_of_a_kind(job_control: JobControl) -> None:
    job = fails(job_control, job_control.make(unique_key="k", max_attempts=1))
    other = job_control.make(unique_key="k")
    with pytest.raises(NotUnique, match=str(other.id)):
        job_control.do(control.retry, job, job_source="user_cli")
    job_control.do(control.cancel, other)
    assert job_control.do(control.retry, job, job_source="user_cli").unique_key == "k"


def test_retry_of_a_member_whose_group_has_ended(job_control: JobControl) -> None:
    """The group stays as it was."""
    with job_control.unit(ALICE).transaction() as unit:
        made = submit_group.submit(
            unit,
            [{"task": "jobs.add", "args": [x], "max_attempts": 1} for x in (1, 2)],
            job_source="user_cli",
        )
    first = fails(job_control, made.jobs[0])
    again = job_control.do(control.retry, first, job_source="user_cli")
    assert (again.group_id, job_control.job(first).retried_by) == (None, again.id)
    [progress] = groups.progress(job_control.connection, [made.group.id]).values()
    assert (progress.total, progress.counts) == (2, {"failed": 1, "cancelled": 1})


def test_the_retries_of_a_chain(job_control: JobControl) -> None:
    """Three attempts, each a job of its own, each later than the one before."""
    job, waits = job_control.make(max_attempts=3, retry_base=100, retry_cap=150), []
    for attempt in (1, 2, 3):
        assert job.attempt == attempt
        job = fails(job_control, job)
        if job.retried_by is None:
            break
        [job] = jobs.find(job_control.connection, [str(job.retried_by)])
        assert job.run_at is not None
        waits.append((job.run_at - job.created_at).total_seconds())
    assert waits == [100, 150]
    assert (job.attempt, job.state) == (3, "failed")


# -- in line


def test_move(job_control: JobControl, sql: Sql) -> None:
    make_lane(sql, limit=0)
    a, b, c = (job_control.make(lane="l") for _ in range(3))
    high = job_control.make(lane="l", priority=5)

    def line() -> list[Job]:
        ids = sql("SELECT id FROM pgbeat.jobs ORDER BY priority DESC, position")
        return [next(job for job in (a, b, c, high) if job.id == row[0]) for row in ids]

    control.move(job_control.unit(ALICE), c.id, "front")
    assert line() == [high, c, a, b]
    moved, _ = control.move(job_control.unit(ALICE), b.id, "before", high.id)
    assert (line(), moved.priority) == ([b, high, c, a], 5)
    control.move(job_control.unit(ALICE), b.id, "back", priority=0)
    assert line() == [high, c, a, b]


def test_move_what_is_in_no_line(job_control: JobControl, sql: Sql) -> None:
    make_lane(sql, limit=1)
    make_lane(sql, "other", limit=0)
    has_slot, waits = job_control.make(lane="l"), job_control.make(lane="l")
    held = job_control.do(control.pause, job_control.make(lane="l"))
    elsewhere, plain = job_control.make(lane="other"), job_control.make()

    for job, state in ((has_slot, "pending"), (held, "paused"), (plain, "pending")):
        with pytest.raises(InvalidTransition) as error:
            control.move(job_control.unit(ALICE), job.id, "back")
        assert (error.value.state, error.value.verb) == (state, "moved")
    for other in (has_slot, elsewhere, held, plain, waits):
        with raises(InvalidJob, ("other", "conflict")):
            control.move(job_control.unit(ALICE), waits.id, "after", other.id)


# -- gone


def test_delete(job_control: JobControl, sql: Sql) -> None:
    job, other = (
        fails(job_control, job_control.make(max_attempts=1)),
        fails(job_control, job_control.make(max_attempts=1)),
    )
    with connections.transaction(job_control.connection):
        control.delete(job_control.unit(ALICE), job.id)
    assert sql("SELECT id FROM pgbeat.jobs") == [(other.id,)]
    assert sql("SELECT job_id FROM pgbeat.executions") == [(other.id,)]
    with pytest.raises(InvalidTransition) as error:
        control.delete(job_control.unit(ALICE), job_control.make().id)
    assert (error.value.state, error.value.verb) == ("pending", "deleted")


def test_delete_one_of_a_running_group(job_control: JobControl, sql: Sql) -> None:
    group = make_group(sql)
    job = make_job(sql, "failed", group_id=group)
    with pytest.raises(InvalidTransition, match=str(group)):
        control.delete(job_control.unit(ADMIN), job)
    sql("UPDATE pgbeat.groups SET state = 'failed', finished_at = now()")
    control.delete(job_control.unit(ADMIN), job)
    assert until(lambda: sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)])
