"""Steps of jobs, sleeps, waits and events: their rows, and what jobs and tasks make of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from celery import Celery
from celery._state import _task_stack
from kombu.exceptions import EncodeError
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import pgbeat
from pgbeat.access.redaction import Redactor
from pgbeat.beat.maintenance import pruner
from pgbeat.broker.messages import JOB_HEADER
from pgbeat.config import Settings, postgres_url
from pgbeat.errors import (
    CannotStep,
    ConfigError,
    InvalidInput,
    InvalidJob,
    InvalidTransition,
    SchemaError,
    TimedOut,
)
from pgbeat.jobs.explaining import explain
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running import steps
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.running.task_exceptions import Cancelled, Suspended
from pgbeat.jobs.states import due
from pgbeat.jobs.verbs import control
from pgbeat.testing.fixtures import MakeScheduler
from pgbeat.views import jobs as views
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.reporting import ATTEMPT
from tests.support import threads
from tests.support.command_line import run_with
from tests.support.databases import connected
from tests.support.jobs import ADMIN, ALICE, JobControl, any_arguments
from tests.support.problems import raises
from tests.support.rows import Sql, make_job


@pytest.fixture
def app(app: Celery) -> Celery:
    """The app, one of whose tasks may have steps."""
    app.task(any_arguments, name="jobs.late", acks_late=True, shared=False)
    app.task(any_arguments, name="jobs.early", shared=False)
    return app


@contextmanager
def attempt_at(app: Celery, job_id: Any, name: str = "jobs.late", **more: Any) -> Iterator[Attempt]:
    """Runs the block as a worker runs a task for the job."""
    task = app.tasks[name]
    attempt = Attempt(str(job_id), "w", 0, bool(task.acks_late), None)
    headers = {JOB_HEADER: True, ATTEMPT: attempt} | more
    _task_stack.push(task)
    task.push_request(id=str(job_id), called_directly=False, is_eager=False, **headers)
    try:
        yield attempt
    finally:
        task.pop_request()
        _task_stack.pop()


def snooze(job_control: JobControl, job_id: Any, suspended: Suspended) -> None:
    """Records that an attempt was suspended, as its worker does."""
    message: dict[str, Any] = {
        "queue": "celery",
        "payload": '{"headers": {}, "properties": {}}',
        "waits_for": suspended.waits_for,
    }
    message |= {"priority": 0, "ttl": None, "exchange": "", "routing_key": "celery"}
    run = ExecutionRecord(
        str(uuid4()), str(job_id), True, "snoozed", "scheduled", "w", message=message,
        runs_in=suspended.delay.total_seconds(),
    )  # fmt: skip
    job_control.record(run)


def waiting(job_control: JobControl, app: Celery, key: str, timeout: Any = "1 hour") -> Job:
    """Returns a job that waits for an event."""
    job = job_control.make(1)
    with attempt_at(app, job.id), pytest.raises(Suspended) as suspended:
        pgbeat.wait_for(key, timeout)
    snooze(job_control, job.id, suspended.value)
    return job


def is_due(job_control: JobControl, job: Job) -> bool:
    """Returns whether beat would send the job's message now."""
    return job.id in due.find(job_control.connection, "default")


def test_a_step_is_called_once_for_all_attempts(app: Celery, job_control: JobControl) -> None:
    """Its value is the same in each: as the serializer reads it back."""
    job = job_control.make(1)
    calls: list[Any] = []

    def pay(amount: int) -> Any:
        calls.append(amount)
        return amount, "paid"

    for _ in range(2):
        with attempt_at(app, job.id):
            assert pgbeat.step("pay", pay, 1) == [1, "paid"]
            assert pgbeat.step("pay", pay, 2) == [2, "paid"]
    assert calls == [1, 2]
    shown = steps.of_job(job_control.connection, Redactor(ADMIN, {}, {}), job)
    assert [(step.name, step.state, step.value) for step in shown] == [
        ("pay", "done", [1, "paid"]),
        ("pay#2", "done", [2, "paid"]),
    ]


def test_a_step_that_raises_is_not_recorded(app: Celery, job_control: JobControl) -> None:
    job = job_control.make(1)
    with attempt_at(app, job.id):
        with pytest.raises(ZeroDivisionError):
            pgbeat.step("divide", lambda: 1 // 0)
        with pytest.raises(EncodeError):
            pgbeat.step("object", object)
    with attempt_at(app, job.id):
        assert pgbeat.step("divide", lambda: 1 // 1) == 1


@pytest.fixture
def engine(database: str, sql: Sql) -> Iterator[Any]:
    """The application's own engine, with a table of its own."""
    sql("CREATE TABLE effects (name text)")
    engine = create_engine(postgres_url(database))
    yield engine
    engine.dispose()


def write(session: Any, name: str, error: Exception | None = None) -> str:
    """Writes a row, and raises the error if there is one."""
    session.execute(text("INSERT INTO effects VALUES (:name)"), {"name": name})
    if error is not None:
        raise error
    return name


def test_what_a_step_writes_commits_with_its_record(
    app: Celery, job_control: JobControl, engine: Any, sql: Sql
) -> None:
    """In a session or a connection; or not at all, if it raises or can't be recorded."""
    job = job_control.make(1)
    with attempt_at(app, job.id), Session(engine) as session, engine.connect() as connection:
        pgbeat.step("orm", write, session, "orm", session=session)
        pgbeat.step("core", write, connection, "core", session=connection)
        with pytest.raises(KeyError):
            pgbeat.step("no", write, session, "no", KeyError(), session=session)
        with pytest.raises(CannotStep) as refused:
            pgbeat.step("own", lambda: session.commit(), session=session)
        assert refused.value.code == "committed"
        with pytest.raises(EncodeError):
            pgbeat.step("set", lambda: (write(session, "set"), object()), session=session)
    assert sql("SELECT name FROM effects ORDER BY 1") == [("core",), ("orm",)]
    assert sql("SELECT name FROM pgbeat.steps ORDER BY id") == [("orm",), ("core",)]


@pytest.mark.parametrize("has_session", [True, False])
def test_of_two_attempts_at_once_the_first_to_record_decides(
    app: Celery, job_control: JobControl, engine: Any, sql: Sql, has_session: bool
) -> None:
    """The other one gets that value, and what it wrote in its session is rolled back."""
    job = job_control.make(1)

    def overtaken() -> str:
        with attempt_at(app, job.id):
            assert run("quick", lambda: None) == "quick"
        return "slow"

    def run(name: str, before: Callable[[], Any]) -> Any:
        with Session(engine) as session:

            def both() -> str:
                value = before() or name
                if has_session:
                    write(session, name)
                return str(value)

            return pgbeat.step("write", both, session=session if has_session else None)

    with attempt_at(app, job.id):
        assert run("slow", overtaken) == "quick"
    assert sql("SELECT name FROM effects") == [("quick",)] * has_session
    assert sql("SELECT count(*) FROM pgbeat.steps") == [(1,)]


def test_a_retry_continues_where_the_last_attempt_ended(
    app: Celery, job_control: JobControl, sql: Sql
) -> None:
    """The steps are the chain's, as long as any of its jobs is there."""
    job = job_control.make(1, max_attempts=3)
    calls: list[str] = []

    def attempt(job_id: Any, number: int) -> None:
        with attempt_at(app, job_id):
            for name in "abc"[:number]:
                pgbeat.step(name, calls.append, f"{name}{number}")
        job_control.tells(job_control.begins(job_id), job_id, "failed", error="no")

    attempt(job.id, 1)
    second = job_control.job(job).retried_by
    attempt(second, 2)
    [(third,)] = sql("SELECT id FROM pgbeat.jobs WHERE retry_of = %s", second)
    sql("DELETE FROM pgbeat.ended_jobs WHERE id = %s", job.id)
    attempt(third, 3)
    sql("DELETE FROM pgbeat.ended_jobs WHERE id = %s", second)
    with attempt_at(app, third):
        pgbeat.step("a", calls.append, "never")
    assert calls == ["a1", "b2", "c3"]
    shown = steps.of_job(job_control.connection, Redactor(ADMIN, {}, {}), job._replace(id=third))
    assert [step.name for step in shown] == ["a", "b", "c"]


def test_a_task_that_replaces_another_has_its_own_steps(
    app: Celery, job_control: JobControl
) -> None:
    """Its job is the same, and so may be the names, as where it replaces itself."""
    job = job_control.make(1)
    calls: list[int] = []

    def page(number: int) -> int:
        calls.append(number)
        return number

    for nesting in (0, 1, 2, 1, 0):
        with attempt_at(app, job.id, replaced_task_nesting=nesting) as attempt:
            for _ in range(2):
                assert pgbeat.step("page", page, nesting) == nesting
            assert attempt.steps is not None and attempt.steps.is_in_order
    assert calls == [0, 0, 1, 1, 2, 2]


def test_a_job_that_was_given_up_has_the_steps_of_its_chain(
    app: Celery, job_control: JobControl, sql: Sql
) -> None:
    """Its worker may be alive, and do its first step after the next retry has."""
    ids = [job_control.make(1, max_attempts=3).id]
    calls: list[str] = []
    for number in (1, 2):
        job_control.tells(job_control.begins(ids[-1]), ids[-1], "failed", error="lost")
        ids += [row[0] for row in sql("SELECT id FROM pgbeat.jobs WHERE retry_of = %s", ids[-1])]
        assert len(ids) == number + 1
    for job_id in reversed(ids):
        with attempt_at(app, job_id):
            pgbeat.step("pay", calls.append, str(job_id))
    assert calls == [str(ids[2])]


@pytest.mark.parametrize("is_by_hand", [True, False])
def test_a_retry_that_has_not_run_keeps_the_steps(
    app: Celery, job_control: JobControl, sql: Sql, is_by_hand: bool
) -> None:
    """It may be paused for longer than the job that it retries is kept."""
    job = job_control.make(1, max_attempts=2)
    with attempt_at(app, job.id):
        pgbeat.step("pay", str)
    job_control.tells(job_control.begins(job.id), job.id, "failed", error="no")
    retry = job_control.job(job).retried_by
    if is_by_hand:
        with job_control.unit().transaction() as unit:
            control.delete(unit, job.id)
    else:
        sql("DELETE FROM pgbeat.ended_jobs")
        sql("UPDATE pgbeat.steps SET began_at = now() - interval '40 days'")
        assert round_of(job_control)["steps"] == 0
    with attempt_at(app, retry):
        assert pgbeat.step("pay", str, "again") == ""


def test_a_retry_from_a_step_forgets_it_and_later_ones(
    app: Celery, job_control: JobControl
) -> None:
    job = job_control.make(1)
    calls: list[Any] = []
    with attempt_at(app, job.id):
        for name in ("a", "b", "b", "c"):
            pgbeat.step(name, calls.append, name)
    job_control.tells(job_control.begins(job.id), job.id, "failed", error="no")
    with raises(InvalidJob, ("from_step", "unknown")):
        job_control.do(control.retry, job, job_source="user_cli", from_step="d")
    retry = run_with(app, "jobs", "retry", str(job.id), "--from-step", "b#2", "--admin")
    assert retry.exit_code == 0, retry.stderr
    with attempt_at(app, job_control.job(job).retried_by):
        for name in ("a", "b", "b", "c"):
            pgbeat.step(name, calls.append, name.upper())
    assert calls == ["a", "b", "b", "c", "B", "C"]


def test_no_step_is_forgotten_for_which_an_attempt_waits(
    app: Celery, job_control: JobControl, sql: Sql
) -> None:
    """Somebody retries the first attempt, while the third waits for an event."""
    ids = [job_control.make(1, max_attempts=3).id]
    for _ in range(2):
        with attempt_at(app, ids[-1]):
            pgbeat.step("charge", str)
        job_control.tells(job_control.begins(ids[-1]), ids[-1], "failed", error="no")
        ids += [row[0] for row in sql("SELECT id FROM pgbeat.jobs WHERE retry_of = %s", ids[-1])]
    with attempt_at(app, ids[2]), pytest.raises(Suspended) as suspended:
        pgbeat.wait_for("k")
    snooze(job_control, ids[2], suspended.value)
    with job_control.unit().transaction() as unit, pytest.raises(InvalidTransition):
        control.retry(unit, ids[0], job_source="user_cli", from_step="charge")
    pgbeat.emit("k", app=app)
    assert ids[2] in due.find(job_control.connection, "default")


@pytest.mark.parametrize("first", [900, 1050])
def test_a_retry_forgets_later_steps_however_many_there_are(
    job_control: JobControl, sql: Sql, first: int
) -> None:
    job = job_control.make(1)
    sql(
        "INSERT INTO pgbeat.steps "
        "(root_id, job_id, namespace, kind, name, n, began_at, finished_at) "
        "SELECT j, j, 'default', 'step', 's', n, now(), now() "
        "FROM CAST(%s AS uuid) AS j, generate_series(1, 1100) AS n",
        job.id,
    )
    job_control.tells(job_control.begins(job.id), job.id, "failed", error="no")
    job_control.do(control.retry, job, job_source="user_cli", from_step=f"s#{first}")
    assert sql("SELECT count(*), max(n) FROM pgbeat.steps") == [(first - 1, first - 1)]


def test_a_step_out_of_order_is_noted(app: Celery, job_control: JobControl) -> None:
    job = job_control.make(1)
    with attempt_at(app, job.id) as attempt:
        for name in "ab":
            pgbeat.step(name, str, name)
        assert attempt.metadata is None
    with attempt_at(app, job.id) as attempt:
        assert pgbeat.step("b", str, "other") == "b"
        assert pgbeat.step("new", str, "new") == "new"
        assert attempt.steps is not None and not attempt.steps.is_in_order


def test_a_sleep_ends_when_it_was_to_end_at_first(
    app: Celery, job_control: JobControl, sql: Sql
) -> None:
    job = job_control.make(1)
    for _ in range(2):
        with attempt_at(app, job.id) as attempt:
            with pytest.raises(Suspended) as suspended:
                pgbeat.sleep("1 hour")
            assert 3590 < suspended.value.delay.total_seconds() <= 3600
            with pytest.raises(Suspended):  # though the task has caught it
                pgbeat.step("next", str)
            assert attempt.suspended is suspended.value
    snooze(job_control, job.id, suspended.value)
    slept = job_control.job(job)
    assert (slept.state, slept.dispatched_at, slept.attempt) == ("scheduled", None, 1)
    sql("UPDATE pgbeat.steps SET until = now()")
    with attempt_at(app, job.id):
        pgbeat.sleep("1 hour")
        pgbeat.sleep(0)


def test_an_event_wakes_the_jobs_that_wait_for_it(
    app: Celery, job_control: JobControl, sql: Sql
) -> None:
    """When the transaction commits, and only those; one that comes first is there at once."""
    jobs = [waiting(job_control, app, key) for key in ("k", "k", "other")]
    with job_control.connection.engine.connect() as own:
        own = own.execution_options(isolation_level="READ COMMITTED")
        assert pgbeat.emit("k", {"n": [1.5, None]}, connection=own, app=app)
        assert not any(is_due(job_control, job) for job in jobs)
        own.commit()
    assert [is_due(job_control, job) for job in jobs] == [True, True, False]
    assert not pgbeat.emit("k", "another", app=app)
    for _ in range(2):
        with attempt_at(app, jobs[0].id):
            assert pgbeat.wait_for("k") == {"n": [1.5, None]}
    late = job_control.make(1)
    with attempt_at(app, late.id):
        assert pgbeat.wait_for("k") == {"n": [1.5, None]}
    assert sql("SELECT pgbeat.emit('other')") == [(True,)]
    with attempt_at(app, jobs[2].id):
        assert pgbeat.wait_for("other") is None


def test_an_event_between_the_wait_and_its_snooze_wakes_the_job(
    app: Celery, job_control: JobControl, sql: Sql
) -> None:
    """What is written last sees the other: the snooze, or the event."""
    job = job_control.make(1)
    with attempt_at(app, job.id), pytest.raises(Suspended) as suspended:
        pgbeat.wait_for("k", "1 hour")
    pgbeat.emit("k", app=app)
    snooze(job_control, job.id, suspended.value)
    assert is_due(job_control, job)


def test_whoever_begins_to_wait_waits_for_who_emits(
    app: Celery, job_control: JobControl, database: str, sql: Sql
) -> None:
    """Each could miss the other's row; two that wait don't wait for each other."""
    job = job_control.make(1)

    def wait() -> Any:
        with attempt_at(app, job.id):
            return pgbeat.wait_for("k", "1 hour")

    with psycopg.connect(database) as emitting:
        emitting.execute("SELECT pgbeat.emit('k', '7')")
        with threads.waiting(sql, wait) as waiter:
            emitting.commit()
    assert waiter.result() == 7


def test_whoever_begins_to_wait_does_not_wait_for_long(
    app: Celery, job_control: JobControl, database: str
) -> None:
    """Its process is free while the transaction of who emits is open."""
    job = job_control.make(1)
    with psycopg.connect(database) as emitting:
        emitting.execute("SELECT pgbeat.emit('k', '7')")
        with attempt_at(app, job.id), pytest.raises(Suspended) as suspended:
            pgbeat.wait_for("k", "1 hour")
        assert suspended.value.delay.total_seconds() == 10
        snooze(job_control, job.id, suspended.value)
        asks = job_control.job(job)
        cause = explain.of_job(job_control.connection, asks, pgbeat_now(job_control)).cause
        assert (asks.state, cause) == ("scheduled", "waiting")
    with attempt_at(app, job.id):
        assert pgbeat.wait_for("k", "1 hour") == 7


def test_an_event_needs_to_see_who_waits(app: Celery, database: str) -> None:
    with connected(database) as own:
        repeatable = own.execution_options(isolation_level="REPEATABLE READ")
        with raises(ConfigError, ("connection", "conflict")):
            pgbeat.emit("k", connection=repeatable, app=app)


def test_a_wait_times_out_once_and_for_all(app: Celery, job_control: JobControl, sql: Sql) -> None:
    job = waiting(job_control, app, "k")
    sql("UPDATE pgbeat.steps SET until = now()")
    for _ in range(2):
        with attempt_at(app, job.id), pytest.raises(TimedOut):
            pgbeat.wait_for("k", "1 hour")
        pgbeat.emit("k", app=app)
    states = [s.state for s in steps.of_job(job_control.connection, Redactor(ADMIN, {}, {}), job)]
    assert states == ["timed_out"]


def test_tests_end_sleeps_and_waits(
    app: Celery, job_control: JobControl, pgbeat_scheduler: MakeScheduler
) -> None:
    """As if their time had passed; what neither sleeps nor waits is waited for in vain."""
    beat = pgbeat_scheduler(app)
    other, job = waiting(job_control, app, "k"), waiting(job_control, app, "k", None)
    assert beat.suspended(job) == beat.wake(str(job.id)) == "k"
    assert job_control.job(job).state == "pending"
    assert job_control.job(other).state == "scheduled"
    with attempt_at(app, job.id), pytest.raises(TimedOut):
        pgbeat.wait_for("k")
    asleep = job_control.make(1)
    with attempt_at(app, asleep.id), pytest.raises(Suspended) as suspended:
        pgbeat.sleep("1 day", name="night")
    snooze(job_control, asleep.id, suspended.value)
    assert beat.wake(asleep) == "night"
    with attempt_at(app, asleep.id):
        pgbeat.sleep("1 day", name="night")
    for wait in (beat.wake, beat.suspended):
        with pytest.raises(TimeoutError):
            wait(asleep, timeout=0.05)


def test_a_job_that_waits_can_be_paused_and_cancelled(
    app: Celery, job_control: JobControl, sql: Sql
) -> None:
    """A paused one stays paused, and runs when it is resumed; it stays in its row meanwhile."""
    jobs = [waiting(job_control, app, "k") for _ in range(3)]
    for job in jobs[:2]:
        job_control.do(control.pause, job)
    resumed = job_control.do(control.resume, jobs[1])
    assert (resumed.state, resumed.dispatched_at) == ("scheduled", None)
    assert job_control.do(control.cancel, jobs[2]).state == "cancelled"
    pgbeat.emit("k", app=app)
    assert job_control.job(jobs[0]).state == "paused"
    assert [is_due(job_control, job) for job in jobs] == [False, True, False]
    assert job_control.do(control.resume, jobs[0]).state == "pending"


def test_it_says_what_it_waits_for(app: Celery, job_control: JobControl) -> None:
    job = job_control.job(waiting(job_control, app, "paid/12"))
    redactor = Redactor(ALICE, {"jobs.add": ("*",)}, {})
    now = pgbeat_now(job_control)
    where = explain.of_job(job_control.connection, job, now)
    assert where.cause == "waiting" and "'paid/12'" in where.sentence
    masked = redactor.row(job, job.task)
    assert "paid" not in str(explain.of_job(job_control.connection, masked, now))
    shown = views.detail(job_control.connection, masked, redactor, limit=1)["steps"]
    assert [(step["state"], step["value"]) for step in shown] == [("waiting", None)]
    pgbeat.emit("paid/12", {"card": 1}, app=app)
    shown = views.detail(job_control.connection, masked, redactor, limit=1)["steps"]
    assert [(step["state"], step["value"]) for step in shown] == [("done", "[masked]")]


def pgbeat_now(job_control: JobControl) -> Any:
    """Returns the database's time."""
    return job_control.connection.execute(text("SELECT now()")).scalar_one()


@pytest.mark.parametrize(
    ("task", "more", "code"),
    [
        ("jobs.early", {}, "not_late"),
        ("jobs.late", {JOB_HEADER: None}, "no_job"),
        ("jobs.late", {ATTEMPT: None}, "no_job"),
    ],
)
@pytest.mark.parametrize("verb", ["step", "sleep", "wait"])
def test_what_can_have_no_steps_says_so(
    app: Celery, task: str, more: Any, code: str, verb: str
) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "step": lambda: pgbeat.step("one", str),
        "sleep": lambda: pgbeat.sleep(1),
        "wait": lambda: pgbeat.wait_for("k"),
    }
    with attempt_at(app, uuid4(), task, **more), pytest.raises(CannotStep) as refused:
        calls[verb]()
    assert refused.value.code == code


def test_a_step_has_no_steps_and_ends_if_it_must(app: Celery, job_control: JobControl) -> None:
    job = job_control.make(1)
    with attempt_at(app, job.id) as attempt:
        with pytest.raises(CannotStep) as refused:
            pgbeat.step("outer", lambda: pgbeat.sleep(1))
        assert refused.value.code == "nested"
        attempt.cancel_asked = True
        with pytest.raises(Cancelled):
            pgbeat.step("next", str)


def test_outside_of_a_job(app: Celery, engine: Any, sql: Sql) -> None:
    """Steps are called, sleeps are none, and an event is there or not."""
    app.set_current()
    assert pgbeat.step("one", str, 1) == "1"
    pgbeat.sleep("1 day")
    with pytest.raises(TimedOut):
        pgbeat.wait_for("k")
    pgbeat.emit("k", 1)
    assert pgbeat.wait_for("k") == 1
    with Session(engine) as session:
        pgbeat.step("write", write, session, "kept", session=session)
        with pytest.raises(KeyError):
            pgbeat.step("write", write, session, "no", KeyError(), session=session)
    assert sql("SELECT name FROM effects") == [("kept",)]
    eager = app.task(stepping, name="jobs.eager", acks_late=True, shared=False)
    assert eager.apply(args=("k",)).get() == ["1", 1]
    assert sql("SELECT count(*) FROM pgbeat.steps") == [(0,)]


def stepping(key: str) -> Any:
    """Has a step, sleeps and waits."""
    one = pgbeat.step("one", str, 1)
    pgbeat.sleep("1 day")
    return [one, pgbeat.wait_for(key)]


@pytest.mark.parametrize("name", ["", " a", "a\n", "x" * 201, 1, "\0"])
def test_names_that_nothing_can_have(app: Celery, name: Any) -> None:
    for call in (
        lambda: pgbeat.step(name, str),
        lambda: pgbeat.sleep(1, name=name),
        lambda: pgbeat.wait_for(name),
        lambda: pgbeat.emit(name, app=app),
    ):
        with pytest.raises(InvalidInput) as refused:
            call()
        assert [p.code for p in refused.value.problems] == ["malformed"]


@pytest.mark.parametrize("value", [object(), "\0", "\ud800", float("nan")])
def test_values_that_no_event_can_have(app: Celery, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        pgbeat.emit("k", value, app=app)
    assert [p.field for p in refused.value.problems] == ["value"]


def test_on_the_schema_before(app: Celery, job_control: JobControl, sql: Sql) -> None:
    """A step says what is missing; all that has no steps works."""
    job = job_control.make(1)
    sql("DROP TRIGGER wake_if_over ON pgbeat.unfinished_jobs")
    sql("DROP TABLE pgbeat.steps, pgbeat.events")
    for name in ("take_steps", "suspend", "emit", "emit_as_owner"):
        sql(f"DROP FUNCTION pgbeat.{name}")
    with attempt_at(app, job.id), pytest.raises(SchemaError):
        pgbeat.step("one", str)
    with pytest.raises(SchemaError):
        pgbeat.emit("k", app=app)
    job_control.tells(job_control.begins(job.id), job.id)
    assert (
        views.detail(job_control.connection, job, Redactor(ADMIN, {}, {}), limit=1)["steps"] == []
    )
    with job_control.unit().transaction() as unit:
        control.delete(unit, job.id)
    assert round_of(job_control) == {"steps": 0, "events": 0}


def round_of(job_control: JobControl, **settings: Any) -> dict[str, int]:
    """Deletes old records in one round; what was deleted."""
    whole = pruner.Pruner(
        Settings.load({"pgbeat_url": str(job_control.settings.url), **settings}, {})
    )
    while whole.step(job_control.connection):
        pass
    return {name: whole.deleted[name] for name in ("steps", "events")}


def test_retention(app: Celery, job_control: JobControl, sql: Sql) -> None:
    """Steps go with the jobs of their chain, events after their time: a job keeps what it got."""
    kept, gone = job_control.make(1), uuid4()
    pgbeat.emit("used", 7, app=app)
    for job_id in (kept.id, gone):
        with attempt_at(app, job_id):
            pgbeat.step("one", str)
            assert pgbeat.wait_for("used") == 7
    sql("UPDATE pgbeat.steps SET began_at = now() - interval '40 days'")
    sql("UPDATE pgbeat.events SET emitted_at = now() - interval '40 days'")
    assert round_of(job_control, pgbeat_event_days=0) == {"steps": 2, "events": 0}
    assert round_of(job_control) == {"steps": 0, "events": 1}
    assert sql("SELECT DISTINCT job_id FROM pgbeat.steps") == [(kept.id,)]
    with attempt_at(app, kept.id):
        pgbeat.step("one", str)
        assert pgbeat.wait_for("used") == 7
    make_job(sql, "completed", id=str(gone))
    with attempt_at(app, gone):
        pgbeat.step("one", str)
    with job_control.unit().transaction() as unit:
        control.delete(unit, gone)
    assert sql("SELECT DISTINCT job_id FROM pgbeat.steps") == [(kept.id,)]
