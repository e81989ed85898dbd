"""Makes apps on pgbeat's transport, jobs of their tasks, and sessions that control them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from sqlalchemy import Connection

from pgbeat import submit, submit_group
from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.pool import publishing
from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.jobs.flow import dispatch, lifecycle
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.policy.policies import parse
from pgbeat.jobs.preparing.prepare import JobSpec
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import NOW, Job
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.submitting.submit_group import SubmittedGroup
from pgbeat.jobs.verbs import control
from pgbeat.jobs.writing.submissions import SubmittedJob
from tests.support.command_line import Sql
from tests.support.transport_workers import transport_url

ADMIN, ALICE, BOB = Actor("user:root", True), Actor("user:alice"), Actor("user:bob")


def make_app(database: str, broker: str | None = None) -> Celery:
    """Returns an app with tasks, on pgbeat's transport in the database unless given a broker."""
    app = plain_app(broker or transport_url(database))
    app.conf.pgbeat_url = database

    @app.task(name="jobs.add", shared=False)
    def add_to(x: int, y: int = 2) -> int:
        return x + y

    return app


def plain_app(broker: str) -> Celery:
    """Returns an app with two tasks."""
    app = Celery("tests", broker=broker, set_as_current=False)
    app.conf.task_ignore_result = True
    app.conf.result_expires = None  # no cleanup among the schedules
    app.conf.broker_connection_retry_on_startup = True

    @app.task(name="tests.add", shared=False)
    def add(x: int = 1, y: int = 2) -> int:
        return x + y

    @app.task(name="tests.note", shared=False)
    def note(text: str = "") -> str:
        return text

    return app


def new_job(
    task: str = "tests.add", args: Any = (), *, is_dispatched: bool = True, **fields: Any
) -> Job:
    """Returns a job to insert; `fields` may be written as JSON has them."""
    return Job(
        uuid4(),
        task=task,
        **{
            "namespace": "default",
            "args": args,
            "kwargs": {},
            "job_source": "user_cli",
            "created_by": "me",
            "dispatched_at": NOW if is_dispatched else None,
            **fields,
        },
    )


class JobControl:
    """Makes jobs and controls them, each time in a transaction of its own."""

    def __init__(self, connection: Connection, app: Celery, publisher: Publisher) -> None:
        self.connection, self.app, self.publisher = connection, app, publisher
        self.settings = Settings.load(app.conf)

    def unit(self, actor: Actor = ADMIN) -> UnitOfWork:
        """Returns a unit of work by the actor, with no transaction open."""
        return UnitOfWork(self.connection, self.settings, actor, app=lambda: self.app)

    def order(self, *args: Any, actor: Any = ALICE, **given: Any) -> SubmittedJob:
        """Submits a job, of `jobs.add` unless told otherwise; other arguments are its policy."""
        own = {name: given.pop(name) for name in JobSpec._fields if name in given}
        own.setdefault("task", None if "template" in given else "jobs.add")
        asked = JobSpec(args=args or None, policy=parse(given), **own)
        with self.unit(actor).transaction() as unit:
            return control.submit(unit, asked, job_source="user_cli")

    def make(self, *args: Any, **given: Any) -> Job:
        """Submits a job, and returns it once its lane was dispatched."""
        return self.job(self.order(*(args or (1,)), **given).job)

    def do(self, verb: Callable[..., Job], job: Job, actor: Any = ADMIN, **more: Any) -> Job:
        """Does it; the job as it is then."""
        with self.unit(actor).transaction() as unit:
            changed = verb(unit, job.id, **more)
        return self.job(changed)

    def record(self, *runs: ExecutionRecord) -> set[Room]:
        """Records executions as workers do, with all that follows; the lanes to dispatch."""
        with connections.transaction(self.connection):
            ended = executions.record(self.connection, runs)
            return lifecycle.follow(self.connection, self.publisher, ended)

    def begins(self, job_id: object, **values: Any) -> str:
        """Records that a worker began the job; returns the execution's id."""
        run = str(uuid4())
        self.record(ExecutionRecord(run, str(job_id), True, **{"worker": "w"} | values))
        return run

    def tells(
        self,
        run: str,
        job_id: object,
        state: Any = "completed",
        job_state: str | None = None,
        **values: Any,
    ) -> None:
        """Records the execution's state and more, and its job's, which is the same unless given."""
        told = ExecutionRecord(run, str(job_id), False, state, job_state or state, **values)
        self.record(told)

    def job(self, job: Job) -> Job:
        """Returns the job as it is now."""
        return jobs.get(self.connection, job.id)


@contextmanager
def job_controls(database: str, app: Celery) -> Iterator[Callable[[], JobControl]]:
    """Makes job controls, each with a session of its own."""
    opened: list[Connection] = []
    engine = connections.engine(postgres_url(database), "tests").execution_options(
        isolation_level="AUTOCOMMIT"
    )
    with publishing(app, Settings.load(app.conf)) as publisher:

        def make() -> JobControl:
            opened.append(engine.connect())
            return JobControl(opened[-1], app, publisher)

        yield make
    for connection in opened:
        connection.close()


def any_arguments(*args: Any, **kwargs: Any) -> None:
    """Takes whatever there is."""


@contextmanager
def opened_app(database: str, tasks: Mapping[str, Any] = {}, **settings: Any) -> Iterator[Celery]:
    """Opens an app on pgbeat's transport, whose tables are there.

    Its further `tasks` take any arguments, and have these policies, or none.
    """
    with make_app(database) as app:
        app.conf.update(settings)
        for name, policy in tasks.items():
            options = {} if policy is None else {"pgbeat": policy}
            app.task(any_arguments, name=name, shared=False, **options)
        with app.connection_for_write() as connection:
            connection.connect()
        yield app


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    """Yields an app on pgbeat's transport, for folders whose conftest.py imports it."""
    with make_app(database) as app:
        yield app


def messages(sql: Sql) -> list[str]:
    """Ids of the jobs that have a message, in its order."""
    return [str(job) for (job,) in sql("SELECT job_id FROM kombu_message ORDER BY id") if job]


class JobRunner:
    """Submits jobs, takes messages and records executions as workers do."""

    def __init__(self, job_control: JobControl, sql: Sql) -> None:
        self.job_control, self.sql, self.unit, self.settings = (
            job_control,
            sql,
            job_control.unit,
            job_control.settings,
        )
        self.connection, self.publisher = job_control.connection, job_control.publisher

    def submit(self, **options: Any) -> Job:
        """Submits a job of `tests.add`, with one attempt unless told otherwise."""
        return submit("tests.add", app=self.job_control.app, **{"max_attempts": 1} | options)

    def group(self, members: Any, **options: Any) -> SubmittedGroup:
        return submit_group(members, app=self.job_control.app, **options)

    def now(self, job: Job) -> Job:
        return self.job_control.job(job)

    def messages(self) -> list[str]:
        """Returns the ids of the jobs that have a message, in its order."""
        return messages(self.sql)

    def states(self) -> list[str]:
        """Returns the states of all members, by position and attempt, then the group's own."""
        rows = self.sql(
            "SELECT state FROM pgbeat.jobs WHERE group_id IS NOT NULL "
            "ORDER BY group_position, attempt, created_at"
        )
        return [state for (state,) in rows + self.sql("SELECT state FROM pgbeat.groups")]

    def record(self, *runs: ExecutionRecord) -> None:
        """Records executions, with all that follows."""
        dispatch.dispatch_lanes(self.connection, self.publisher, self.job_control.record(*runs))

    def take(self) -> str:
        """Takes the first message that is due; its job begins. Returns the job's id."""
        [(job_id,)] = self.sql(
            "DELETE FROM kombu_message WHERE id = (SELECT min(id) FROM kombu_message "
            "WHERE visible OR available_at <= now()) RETURNING job_id::text"
        )
        self.record(ExecutionRecord(str(uuid4()), job_id, True, worker="w"))
        return str(job_id)

    def ended(self, job_id: str, state: executions.State = "completed") -> ExecutionRecord:
        """Returns what a worker records at the end of the job's execution."""
        [(run,)] = self.sql(
            "SELECT id::text FROM pgbeat.executions WHERE job_id = %s AND state = 'running'", job_id
        )
        error = "oops" if state == "failed" else None
        return ExecutionRecord(run, job_id, False, state=state, job_state=state, error=error)

    def end(self, job_id: str, state: executions.State = "completed") -> None:
        self.record(self.ended(job_id, state))

    def run(self, state: executions.State = "completed") -> str:
        """Takes a message, and ends the execution so. Returns the job's id."""
        job_id = self.take()
        self.end(job_id, state)
        return job_id
