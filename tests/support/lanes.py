"""Fills lanes with jobs, and dispatches them."""

from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID

from celery import Celery
from sqlalchemy import Connection

from pgbeat.broker.publishing.publisher import TransactionPublisher
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.jobs.flow.dispatch import dispatch_lane
from pgbeat.jobs.rows import new_jobs
from tests.support.jobs import ADMIN, messages, new_job
from tests.support.rows import Sql, make_lane


class Lanes:
    """Makes lanes and jobs that wait in them, dispatches those, and reads who has a slot."""

    def __init__(self, database: str, app: Celery, sql: Sql, connection: Connection) -> None:
        self.database, self.app, self.sql, self.connection = database, app, sql, connection
        self.publisher = TransactionPublisher(app)
        with connections.transaction(connection):
            self.publisher.prepare(connection)

    def lane(self, name: str = "l", **columns: Any) -> None:
        make_lane(self.sql, name, **{"limit": None} | columns)

    def do(self, verb: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Does what a verb of `lane_control` does, without dispatching the lane."""
        unit = UnitOfWork(self.connection, Settings.load(self.app.conf), ADMIN)
        with unit.transaction():
            return verb(unit, *args, **more)

    def add(self, count: int = 1, lane: str = "l", **fields: Any) -> list[str]:
        """Puts jobs in the lane's line; their ids."""
        wanted = {"created_by": "user:me", "is_dispatched": False, "lane": lane, **fields}
        made = [new_job(**wanted) for _ in range(count)]
        new_jobs.insert(self.connection, made)
        return [str(job.id) for job in made]

    def dispatch(self, lane: str = "l", job_ids: Collection[UUID] | None = None) -> list[str]:
        """Dispatches the lane; returns the jobs that got a slot, in the order of their messages."""
        before = set(self.messages())
        count = dispatch_lane(self.connection, self.publisher, "default", lane, job_ids).jobs
        fresh = [job for job in self.messages() if job not in before]
        assert len(fresh) == count
        return fresh

    def retry_in(self) -> float | None:
        """Dispatches the lane; returns after how many seconds its rate allows more."""
        return dispatch_lane(self.connection, self.publisher, "default", "l").retry_in

    def messages(self) -> list[str]:
        """Returns the jobs of all messages, in their order."""
        return messages(self.sql)

    def seated(self, lane: str = "l") -> set[str]:
        """Returns the jobs that have a slot."""
        rows = self.sql(
            "SELECT id FROM pgbeat.jobs WHERE lane = %s AND dispatched_at IS NOT NULL "
            "AND state IN ('pending', 'scheduled', 'running')",
            lane,
        )
        return {str(row[0]) for row in rows}

    def end(self, *ids: str, state: str = "completed") -> None:
        """Ends jobs, as their workers would."""
        self.sql(
            "UPDATE pgbeat.jobs SET state = %s, finished_at = now() WHERE id = ANY (%s::uuid[])",
            state,
            list(ids),
        )
