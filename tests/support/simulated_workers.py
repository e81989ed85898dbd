"""Fills a database with workers that are nothing but rows."""

from typing import Any
from uuid import UUID, uuid4

from celery import Celery

from pgbeat.broker.publishing.publisher import publisher
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.rescuing import rescue
from pgbeat.jobs.rescuing.rescue import Rescuer
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows import new_jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running import executions, workers
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.states.endings import Ended
from tests.support.databases import executed
from tests.support.jobs import new_job
from tests.support.transport_workers import transport_url


class FakeWorkers:
    """A database, and workers in it that are nothing but rows."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.engine = connections.engine(postgres_url(dsn), "tests").execution_options(
            isolation_level="AUTOCOMMIT"
        )
        self.app = Celery("fake", broker=transport_url(dsn), set_as_current=False)
        self.settings = Settings.load(self.app.conf)
        self.connection = self.engine.connect()
        self.publisher = publisher(self.app, self.settings, lambda: None)
        with connections.transaction(self.connection):
            self.publisher.prepare(self.connection)

    def job(self, *, with_message: bool = True, **fields: Any) -> str:
        """Adds a job that waits for a worker."""
        job = new_job(**fields)
        job_id = str(job.id)
        with connections.transaction(self.connection):
            new_jobs.insert(self.connection, [job])
            if with_message:
                lifecycle.publish(
                    self.connection, self.publisher, jobs.find(self.connection, [job_id])
                )
        return job_id

    def run(self, job_id: str, worker: int, *, acks: bool = True, **values: Any) -> str:
        """Adds an execution of a job, whose message is acknowledged."""
        run_id = str(uuid4())
        run = ExecutionRecord(
            run_id, job_id, True, worker=f"w{worker}", worker_id=worker, pid=1, **values
        )
        self.record(run)
        if acks:
            self.sql("DELETE FROM kombu_message WHERE job_id = %s", job_id)
        return run_id

    def worker(self, worker: int, *, lives: bool = False, missing: float | None = None) -> None:
        """Adds a worker's row; this session holds its lock, or no session does."""
        self.sql(
            "INSERT INTO pgbeat.workers (id, name, pid, missing_since) "
            "VALUES (%s, 'w', 1, now() - make_interval(secs => %s))",
            worker,
            missing,
        )
        if lives:
            self.sql("SELECT pg_advisory_lock(%s, %s)", workers.LIFE, worker)

    def accept(self, job_id: str, worker: int | None, *, ago: float = 60) -> None:
        """Records that a worker acknowledged its message so many seconds ago."""
        self.sql(
            "WITH gone AS (DELETE FROM kombu_message WHERE job_id = %(job)s) "
            "INSERT INTO pgbeat.message_ends (job_id, how, consumer_id, worker_id, ended_at) "
            "VALUES (%(job)s, 'accepted', 2000000000, %(worker)s, "
            "clock_timestamp() - make_interval(secs => %(ago)s))",
            {"job": job_id, "worker": worker, "ago": ago},
        )
        self.sql(
            "UPDATE pgbeat.jobs SET dispatched_at = now() - make_interval(secs => %s) "
            "WHERE id = %s",
            ago + 1,
            job_id,
        )

    def sql(self, statement: str, *parameters: Any) -> list[Any]:
        return executed(connections.driver(self.connection), statement, *parameters)

    def state(self, job_id: str) -> str:
        return self.get(job_id).state

    def of(self, job_id: str) -> list[tuple[str, bool, str | None]]:
        """Returns state, loss and error of its executions."""
        runs = executions.of_job(self.connection, job_id)
        return [(run.state, run.lost, run.error) for run in runs]

    def released(self) -> int:
        """Returns the counter of stale claims."""
        found = self.sql("SELECT value FROM pgbeat.counters WHERE metric = %s", workers.RELEASED)
        return int(found[0][0]) if found else 0

    def record(self, *records: ExecutionRecord) -> list[Ended]:
        """Records executions, without what follows of their jobs' ends."""
        return executions.record(self.connection, records)

    def end(
        self, run: str, job_id: str, state: Any = "completed", job_state: str = "", **values: Any
    ) -> list[Ended]:
        """Records that an execution ended, and its job like it, unless told otherwise."""
        end = ExecutionRecord(run, job_id, False, state, job_state or state, **values)
        return self.record(end)

    def now(self, job_id: str) -> tuple[str, list[tuple[str, bool, str | None]]]:
        """Returns the job's state, and state, loss and error of its executions, sorted."""
        return self.state(job_id), sorted(self.of(job_id))

    def get(self, job_id: str | UUID) -> Job:
        """Returns the job as it is now."""
        return jobs.get(self.connection, job_id)

    def rescuer(self) -> Rescuer:
        """Returns one that has not looked before."""
        return Rescuer(self.publisher, self.settings)

    def rescue(self) -> set[Room]:
        """Rescues once, by the same rescuer each time; returns the lanes that have free slots."""
        return rescue.rescue(self.connection, self.publisher, self.settings)

    def close(self) -> None:
        connections.close(self.connection)
        self.engine.dispose()
        self.app.close()
