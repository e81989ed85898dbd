"""Reads the rows that make up the tree of a canvas, by bounded statements."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, select, text

from pgbeat.database import sql
from pgbeat.database.tables import groups, results
from pgbeat.errors import NotFound
from pgbeat.jobs.flow import dependencies
from pgbeat.jobs.rows.model import Job

#: The most jobs that are read, and how many generations of jobs that submit others.
MOST, _DEEPEST = 10_000, 10


class TreeJob(NamedTuple):
    """What a tree shows of a job."""

    id: UUID
    task: str
    state: str
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    attempt: int
    max_attempts: int
    retry_of: UUID | None
    group_id: UUID | None
    group_position: int | None
    is_blocked: bool
    unfinished_parents: int
    root_id: UUID | None
    parent_id: UUID | None
    callback_of: UUID | None
    canvas: dict[str, Any] | None

    def named(self, what: str) -> dict[str, str]:
        """Returns the id and the task of the `next` in its chain, or of its `chord`'s body."""
        places: dict[str, str] | None = (self.canvas or {}).get(what)
        return places or {}

    @property
    def canvas_group(self) -> str | None:
        """Returns the id of Celery's group that it is a member of."""
        return (self.canvas or {}).get("group")

    @property
    def order(self) -> tuple[int, datetime, str]:
        """Returns its place among its siblings."""
        index = (self.canvas or {}).get("index")
        place = self.group_position if index is None else index
        return (1 << 31) if place is None else place, self.created_at, str(self.id)


_COLUMNS = ", ".join(
    "left(j.error, 500) AS error" if name == "error" else f"j.{name}" for name in TreeJob._fields
)
_UP = text(sql.load("tree_rows.sql", "up", columns=_COLUMNS))
_DOWN = text(
    " UNION ALL ".join(
        sql.load("tree_rows.sql", "down", columns=_COLUMNS, table=table, key=key, more=more)
        for key in (
            "root_id = ANY (CAST(:ids AS uuid[]))",
            "retry_of = ANY (CAST(:ids AS uuid[]))",
            "group_id = ANY (CAST(:groups AS uuid[]))",
            "id = ANY (ARRAY(SELECT callback_id FROM pgbeat.groups "
            "WHERE id = ANY (CAST(:groups AS uuid[]))))",
        )
        for table, more in (
            ("unfinished_jobs", ""),
            ("ended_jobs", "AND finished_at >= CAST(:since AS timestamptz) - interval '1 hour'"),
        )
    )
)


class TreeRows(NamedTuple):
    """The jobs of a tree."""

    #: Of a job or, if it was sent as a part of them, of a group or of a task that is no job.
    root_id: UUID
    jobs: dict[UUID, TreeJob]
    #: False if there are more.
    is_whole: bool


def read(connection: Connection, job: Job) -> TreeRows:
    """Returns the jobs of the tree that a job is a part of.

    Raises `NotFound` if the job has been deleted since it was read.
    """
    above = [TreeJob(*row) for row in connection.execute(_UP, {"id": job.id})]
    if not above:
        raise NotFound(f"there is no job {job.id}")
    jobs_by_id = {row.id: row for row in above}
    top = above[0]
    root = top.root_id or top.id
    ids: set[UUID] = {root, *jobs_by_id}
    group_ids = {of for row in above for of in (row.group_id, row.callback_of) if of}
    for _ in range(_DEEPEST):
        is_at_top = root not in jobs_by_id
        values = {
            "ids": [str(job_id) for job_id in ids],
            "groups": [str(group_id) for group_id in group_ids],
            "namespace": job.namespace,
            "since": "-infinity" if is_at_top else top.created_at,
            "limit": MOST + 1,
        }
        rows = [TreeJob(*row) for row in connection.execute(_DOWN, values)]
        fresh = {row.id: row for row in rows if row.id not in jobs_by_id}
        room = MOST - len(jobs_by_id)
        if len(fresh) > room:
            jobs_by_id |= dict(list(fresh.items())[:room])
            return TreeRows(root, jobs_by_id, False)
        known = {row.group_id for row in jobs_by_id.values()}
        jobs_by_id |= fresh
        ids = set(fresh)
        group_ids = {row.group_id for row in fresh.values() if row.group_id} - known
        if not ids:
            break
    return TreeRows(root, jobs_by_id, not ids)


def open_parents(connection: Connection, rows: Collection[TreeJob]) -> dict[UUID, list[str]]:
    """Returns the ids of the jobs that each of these depends on, and that have not ended."""
    some = [row.id for row in rows if row.unfinished_parents and not row.finished_at]
    return {
        job_id: [str(parent.id) for parent in parents if parent.outcome is None]
        for job_id, parents in dependencies.of_jobs(connection, some).items()
    }


def group_rows(connection: Connection, group_ids: Collection[UUID]) -> Mapping[UUID, Any]:
    """Returns the rows of pgbeat's groups."""
    query = select(groups).where(groups.c.id.in_(group_ids))
    return {row.id: row for row in connection.execute(query)} if group_ids else {}


_CHORDS = text(
    "SELECT group_id, size, done, ended FROM pgbeat.chords "
    "WHERE group_id = ANY (CAST(:keys AS text[]))"
)


def chords(connection: Connection, group_ids: Collection[str], prefix: str) -> Mapping[str, Any]:
    """Returns the counts of Celery's chords that pgbeat's result backend keeps."""
    keys = [f"{prefix}{group_id}" for group_id in group_ids]
    rows = connection.execute(_CHORDS, {"keys": keys}) if keys else ()
    return {row.group_id.removeprefix(prefix): row for row in rows}


def statuses(connection: Connection, task_ids: Collection[str], prefix: str) -> Mapping[str, str]:
    """Returns Celery's states of tasks that have a result in pgbeat's backend."""
    keys = [f"{prefix}{task_id}" for task_id in task_ids]
    query = select(results.c.task_id, results.c.status).where(results.c.task_id.in_(keys))
    rows = connection.execute(query) if keys else ()
    return {row.task_id.removeprefix(prefix): row.status for row in rows}
