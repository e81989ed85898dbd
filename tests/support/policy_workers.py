"""Starts workers whose tasks have policies, and calls the tasks by a client that knows these."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from celery import Celery

from tests.support.processes import JournalWorkers
from tests.support.rows import Sql, make_lane
from tests.support.transport_workers import transport_url

#: The policy of tasks that run one at a time.
NARROW = {"lane": "narrow"}


class PolicyWorkers(JournalWorkers):
    """Workers, and a client that knows the policies of their tasks by the setting."""

    #: Its last part is also that of the tasks' names.
    app = "tests.support.apps.policies"
    policies: Mapping[str, Mapping[str, Any]] = {}

    def __init__(self, database: str, folder: Path) -> None:
        super().__init__(database, folder)
        url = transport_url(database)
        self.env["TESTS_BROKER"] = url
        self.client = Celery("client", broker=url, backend=url, set_as_current=False)
        self.client.conf.pgbeat_task_policies = self.policies

    @classmethod
    @contextmanager
    def at_work(cls, database: str, folder: Path, sql: Sql) -> Iterator[Self]:
        """Makes them, beside a lane of one slot; none survives the block."""
        make_lane(sql, "narrow")
        workers = cls(database, folder)
        yield workers
        workers.stop_all()
        workers.client.close()

    def task(self, name: str, *args: Any, **options: Any) -> Any:
        """Returns a signature."""
        _, _, prefix = self.app.rpartition(".")
        return self.client.signature(f"{prefix}.{name}", args=args, options=options)


def history(sql: Sql, job: str) -> list[str]:
    """Returns the states of a job's executions, in order."""
    rows = sql("SELECT state FROM pgbeat.executions WHERE job_id = %s ORDER BY number", job)
    return [row[0] for row in rows]
