"""Follows jobs as they change, for `pgbeat jobs tail` and `run --wait`."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from rich.text import Text
from sqlalchemy import Connection

from pgbeat.access.redaction import Redactor
from pgbeat.cli.jobs import job_views
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.printing import line, styled
from pgbeat.database import connections
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.running import executions
from pgbeat.views import jobs as views

#: Jobs that are looked at in a query.
_MANY = 1000
#: Seconds between two queries.
INTERVAL = 0.5


class _Seen(NamedTuple):
    """The printed values of a job."""

    state: str
    has_ended: bool = False
    number: int | None = None
    progress: str = ""
    error: str | None = None


def follow(connection: Connection, job: Job, redactor: Redactor) -> Job:
    """Prints each change of a job and of its retries until the last has ended; returns that one.

    The connection must be in autocommit mode.
    """
    seen: _Seen | None = None
    while True:
        seen = _print_change(connection, job, seen, redactor)
        if job.has_ended:
            following = None if job.retried_by is None else jobs.find(connection, [job.retried_by])
            if not following:
                return job
            job, seen = following[0], None
            continue
        time.sleep(INTERVAL)
        job = jobs.get(connection, job.id)


def follow_all(connection: Connection, which: Filter, redactor: Redactor, *, limit: int) -> None:
    """Prints changes of jobs, from the newest `limit` on, until it is interrupted."""
    seen: dict[UUID, _Seen] = {}
    for job in _changing(connection, which, limit, seen):
        seen[job.id] = _print_change(connection, job, seen.get(job.id), redactor)


#: New jobs whose transactions take longer than this may be missed until they begin to run.
_LATE = timedelta(seconds=30)


def _changing(
    connection: Connection, which: Filter, limit: int, seen_by_id: dict[UUID, _Seen]
) -> Iterator[Job]:
    """Yields jobs that may have changed: new, running and unfinished ones."""
    since = connections.now(connection) - _LATE
    newest = jobs.listing(connection, which, limit=_MANY)
    old = {job.id for job in newest if job.created_at > since}
    seen_by_id.update(
        (job.id, _Seen(job_views.state(job))) for job in newest[limit:] if not job.has_ended
    )
    yield from reversed(newest[:limit])
    while True:
        time.sleep(INTERVAL)
        now = connections.now(connection)
        newest = jobs.listing(connection, which, limit=_MANY)
        fresh = [job for job in newest if job.created_at > since and job.id not in old]
        running = jobs.listing(connection, which._replace(state="running"), limit=_MANY)
        open_ones = [job_id for job_id, seen in seen_by_id.items() if not seen.has_ended]
        changed = {job.id: job for job in [*fresh, *running, *jobs.find(connection, open_ones)]}
        yield from sorted(changed.values(), key=lambda job: job.created_at)
        since = now - _LATE
        for job_id in [i for i, seen in seen_by_id.items() if seen.has_ended]:
            del seen_by_id[job_id]
            old.add(job_id)


def _print_change(
    connection: Connection, job: Job, before: _Seen | None, redactor: Redactor
) -> _Seen:
    """Prints a job if it has changed; returns the printed values."""
    run, job = None, redactor.row(job, job.task)
    if job.started_at is not None:
        run = redactor.row(executions.newest(connection, [job.id]).get(job.id), job.task)
    progress = job_views.progress(run) if run is not None else ""
    number = None if run is None else run.number
    seen = _Seen(job_views.state(job), job.has_ended, number, progress, job.error)
    if seen == before:
        return seen
    if printing.is_json():
        change = {
            "at": connections.now(connection),
            "id": job.id,
            "task": job.task,
            "state": job.state,
            "attempt": job.attempt,
            "execution": seen.number,
            "worker": job.worker,
            "progress": None if run is None else views.progress_of(run),
            "error": job.error,
            "retried_by": job.retried_by,
        }
        printing.echo_json(change, indent=None)
        return seen
    parts = [progress if job.state == "running" else "", job.error or ""]
    if job.state == "running" and job.worker:
        parts.insert(0, f"on {job.worker}")
    if job.state == "scheduled" and job.run_at is not None:
        parts.append(f"{printing.relative(job.run_at, connections.now(connection))}")
    text = "; ".join(line(part) for part in parts if part)
    attempt = f", attempt {job.attempt}" if job.attempt > 1 else ""
    at = printing.utc(connections.now(connection))[11:]
    head = f"{at} {str(job.id)[:8]} {line(job.task)}{attempt}: "
    printing.show(Text.assemble(head, styled(seen.state), f": {text}" if text else ""))
    return seen
