"""Starts workers that record executions, and gives them jobs."""

from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from pgbeat.broker.publishing.publisher import publisher
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows import new_jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import Execution
from pgbeat.jobs.states import endings
from tests.support.jobs import new_job
from tests.support.processes import until
from tests.support.transport_workers import TransportWorkers


class Seen(NamedTuple):
    """A job and its executions, oldest first."""

    job: Job
    runs: list[Execution]


class TrackedWorkers(TransportWorkers):
    """Workers that record executions, and what becomes of jobs."""

    module = "tests.support.apps.recorded"

    def __init__(self, database: str, folder: Path) -> None:
        super().__init__(database, folder)
        self._engine = connections.engine(postgres_url(database), "tests tracked")
        self._publisher = publisher(self.app, Settings.load(self.app.conf), lambda: None)

    def launch(self, task: str, *args: Any, count: int = 1, **fields: Any) -> list[str]:
        """Makes jobs, with their messages unless `is_dispatched` is false; their ids."""
        name = task if "." in task else f"tests.{task}"
        new = [new_job(name, args, **fields) for _ in range(count)]
        ids = [str(job.id) for job in new]
        with self._engine.begin() as connection:
            self._publisher.prepare(connection)
            new_jobs.insert(connection, new)
            given = [job for job in jobs.find(connection, ids) if job.dispatched_at is not None]
            lifecycle.publish(connection, self._publisher, given)
        return ids

    def one(self, task: str, *args: Any, **fields: Any) -> str:
        return self.launch(task, *args, **fields)[0]

    def cancel(self, job_id: str) -> None:
        """Asks for its end, as anybody does."""
        with self._engine.begin() as connection:
            ended = lifecycle.cancel(connection, self._publisher, [job_id], by="me", reason="no")
            lifecycle.follow(connection, self._publisher, ended)

    def ask_to_end(self, job_id: str) -> None:
        """Notes that it is to end, where no worker can be told."""
        with self._engine.begin() as connection:
            endings.request_cancel(connection, [job_id], by="me")

    def see(self, job_id: str | UUID) -> Seen:
        """Returns the job as it is now."""
        with self._engine.begin() as connection:
            job = jobs.get(connection, job_id)
            return Seen(job, executions.of_job(connection, job_id)[::-1])

    def ended(self, *job_ids: str, seconds: float = 60.0) -> list[Seen]:
        """Returns the jobs, once they have ended."""

        def all_ended() -> list[Seen]:
            seen = [self.see(job_id) for job_id in job_ids]
            return seen if all(each.job.has_ended for each in seen) else []

        return until(all_ended, seconds, f"{len(job_ids)} jobs end")

    def runs(self, job_id: str, count: int = 1) -> list[Execution]:
        """Its executions, once there are so many."""
        return until(lambda: runs if len(runs := self.see(job_id).runs) >= count else [])

    def states(self) -> dict[str, int]:
        """Returns how many jobs are in each state."""
        return dict(self.sql("SELECT state, count(*) FROM pgbeat.jobs GROUP BY 1"))

    def released(self) -> int:
        """Returns the counter of stale claims."""
        rows = self.sql("SELECT value FROM pgbeat.counters WHERE metric = 'stale_claims_released'")
        return int(rows[0][0]) if rows else 0

    def close(self) -> None:
        self._engine.dispose()
        super().close()
