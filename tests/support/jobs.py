"""Makes apps on pgbeat's transport, jobs of their tasks, and sessions that control them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from sqlalchemy import Connection

from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.jobs import control, submissions
from pgbeat.jobs import model as jobs
from pgbeat.jobs.control import Change
from pgbeat.jobs.drafts import Order
from pgbeat.jobs.model import Job
from pgbeat.jobs.permissions import Actor
from pgbeat.jobs.policies import parse
from tests.support.command_line import Sql
from tests.support.transport_workers import transport_url

ADMIN, ALICE, BOB = Actor("user:root", True), Actor("user:alice"), Actor("user:bob")


def make_app(database: str, broker: str | None = None) -> Celery:
    """An app with one task, whose broker is pgbeat's transport on the database unless given."""
    app = Celery("jobs", broker=broker or transport_url(database), set_as_current=False)
    app.conf.update(task_ignore_result=True, result_expires=None, pgbeat_url=database)

    @app.task(name="jobs.add", shared=False)
    def add(x: int, y: int = 2) -> int:
        return x + y

    return app


class Desk:
    """Makes jobs and controls them, each time in a transaction of its own."""

    def __init__(self, connection: Connection, app: Celery, publisher: Publisher) -> None:
        self.connection, self.app, self.publisher = connection, app, publisher
        self.settings = Settings.load(app.conf)

    def order(self, *args: Any, actor: Any = ALICE, **given: Any) -> Change:
        """A job of `jobs.add` unless told otherwise; what is no part of an order is its policy."""
        own = {name: given.pop(name) for name in Order._fields if name in given}
        own.setdefault("task", None if "template" in given else "jobs.add")
        asked = Order(args=args or None, policy=parse(given), **own)
        return control.act(
            self.connection,
            self.publisher,
            lambda open_one: control.submit(
                open_one, self.app, self.settings, self.publisher, actor, asked,
                job_source="user_cli",
            ),
        )  # fmt: skip

    def make(self, *args: Any, **given: Any) -> Job:
        """The job of an order, as it is once its lane has been seen to."""
        return self.job(self.order(*(args or (1,)), **given).job)

    def do(self, verb: Callable[..., Change], job: Job, actor: Any = ADMIN, **more: Any) -> Job:
        """Does it; the job as it is then."""
        change = control.act(
            self.connection,
            self.publisher,
            lambda open_one: verb(open_one, self.publisher, actor, job.id, **more),
        )
        return self.job(change.job)

    def job(self, job: Job) -> Job:
        """The job as it is now."""
        return jobs.get(self.connection, job.id)


@contextmanager
def desks(database: str, app: Celery) -> Iterator[Callable[[], Desk]]:
    """Makes desks, each with a session of its own."""
    opened: list[Connection] = []
    engine = connections.engine(postgres_url(database), "tests").execution_options(
        isolation_level="AUTOCOMMIT"
    )
    with submissions.publishing(app, Settings.load(app.conf)) as publisher:

        def make() -> Desk:
            opened.append(engine.connect())
            return Desk(opened[-1], app, publisher)

        yield make
    for connection in opened:
        connection.close()


def messages(sql: Sql) -> list[str]:
    """Ids of the jobs that have a message, in its order."""
    return [str(job) for (job,) in sql("SELECT job_id FROM kombu_message ORDER BY id") if job]
