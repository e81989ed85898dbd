"""Starts workers on pgbeat's transport, sends them tasks, and reads their journal."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery

from pgbeat.config import postgres_url
from tests.support.processes import Process, Processes, until

POOLS = ("prefork", "solo", "threads", "gevent", "eventlet")


def transport_url(dsn: str) -> str:
    return f"pgbeat+{dsn}"


def backend_url(dsn: str) -> str:
    """Returns the DSN as Celery's own result backend on a database."""
    return f"db+{postgres_url(dsn).render_as_string(hide_password=False)}"


@dataclass(frozen=True)
class Entry:
    """A line of the journal."""

    phase: str
    at: float
    id: str
    task: str
    worker: str
    pid: int
    redelivered: bool
    failed_before: int
    retries: int
    value: Any = None


class TransportWorkers(Processes):
    """Workers on a database by pgbeat's transport, and their journal."""

    #: The module of the workers' app, unless one is told otherwise.
    module = "tests.support.apps.journal"

    def __init__(self, database: str, folder: Path) -> None:
        super().__init__(database, folder)
        self.env |= {"TESTS_BROKER": transport_url(database), "TESTS_FOLDER": str(folder)}
        self.app = Celery("transport", broker=transport_url(database), set_as_current=False)
        self.app.conf.update(task_ignore_result=True, result_expires=None)

    def start(self, *arguments: str, **options: Any) -> Process:
        """Starts a worker, prefork unless told otherwise, and waits until it consumes."""
        process = self.begin(*arguments, **options)
        self.await_ready(process)
        return process

    def begin(
        self,
        *arguments: str,
        settings: dict[str, Any] | None = None,
        app: str | None = None,
        **env: str,
    ) -> Process:
        """Starts a worker."""
        if "-P" not in arguments:
            arguments = ("-P", "prefork", *arguments)
        env = {"TESTS_SETTINGS": json.dumps(settings or {}), **env}
        if "--with-mingle" in arguments:
            arguments = tuple(a for a in arguments if a != "--with-mingle")
        else:
            arguments = (*arguments, "--without-mingle")  # it waits a second for neighbours
        return self.worker(*arguments, app=app or self.module, **env)

    def await_ready(self, *workers: Process) -> None:
        """Waits until they consume."""
        for worker in workers:
            worker.says(" ready.", 60)

    def name(self, worker: Process) -> str:
        """Returns the worker's name, as its tasks know it."""
        return f"w{self.started.index(worker)}@tests"

    def consumer(self, worker: Process) -> int:
        query = "SELECT id FROM pgbeat.consumers WHERE name LIKE %s"
        [(consumer,)] = self.sql(query, f"%:{worker.pid}")
        return int(consumer)

    def send(self, task: str, *args: Any, **options: Any) -> str:
        """Publishes a task; its id."""
        return str(self.app.send_task(f"transport.{task}", args, **options).id)

    def open(self, *gates: str) -> None:
        """Lets the tasks that hold at these gates end."""
        for gate in gates:
            (self.folder / f"gate-{gate}").touch()

    def journal(self, phase: str = "started", task: str | None = None) -> list[Entry]:
        """Returns what tasks wrote, in its order."""
        file = self.folder / "journal"
        # The last line may be half written.
        lines = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
        entries = [Entry(**json.loads(line)) for line in lines]
        return [e for e in entries if e.phase == phase and task in (None, e.task)]

    def first_starts(self, *ids: str) -> list[Entry] | None:
        """Returns the first starts of these tasks, once they are all there."""
        first: dict[str, Entry] = {}
        for entry in self.journal():
            first.setdefault(entry.id, entry)
        return [first[i] for i in ids] if all(i in first for i in ids) else None

    def await_started(self, ids: Sequence[str], seconds: float = 30.0) -> list[Entry]:
        """Waits until each has started; the entries."""
        return until(lambda: self.first_starts(*ids), seconds, f"{len(ids)} tasks start")

    def count(self, where: str, *parameters: Any) -> int:
        """Messages of which that is true."""
        [(count,)] = self.sql(f"SELECT count(*) FROM kombu_message WHERE {where}", *parameters)
        return int(count)

    def ids(self) -> list[str]:
        """Returns the ids of the tasks in the table."""
        rows = self.sql("SELECT payload::json -> 'headers' ->> 'id' FROM kombu_message")
        return [str(row[0]) for row in rows]

    def claimed(self) -> int:
        """Messages for the default queue that workers have."""
        return self.count(f"claimed_by IS NOT NULL AND {OF_CELERY}")

    def waiting(self) -> int:
        """Messages in the default queue that anybody may have."""
        return self.count(f"visible AND {OF_CELERY}")

    def is_empty(self) -> bool:
        """Returns whether the default queue's rows are all gone."""
        return self.count(OF_CELERY) == 0

    def await_empty(self, seconds: float = 30.0) -> None:
        """Waits until they are."""
        until(self.is_empty, seconds, "all messages are acknowledged")

    def sweep(self, times: int = 1) -> None:
        """Waits until somebody has looked for the dead, so often: each time one is put there."""
        for _ in range(times):
            [(dead,)] = self.sql(_A_DEAD_ONE)
            until(
                lambda d=dead: not self.sql("SELECT 1 FROM pgbeat.consumers WHERE id = %s", d),  # type: ignore[misc]
                20,
                "a sweep",
            )

    def close(self) -> None:
        self.stop_all()
        self.app.pool.force_close_all()
        self.app.close()


#: A consumer like one of those that live, whose lock nobody holds.
_A_DEAD_ONE = """
    INSERT INTO pgbeat.consumers
    SELECT (jsonb_populate_record(c, jsonb_build_object(
               'id', 1000000000 + c.id, 'name', 'dead', 'started_at', now() - interval '1 day'))).*
      FROM pgbeat.consumers c LIMIT 1
    RETURNING id
"""
OF_CELERY = "queue_id = (SELECT id FROM kombu_queue WHERE name = 'celery')"
