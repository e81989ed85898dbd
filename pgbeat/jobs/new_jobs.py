"""Inserts jobs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database.connections import recordset
from pgbeat.jobs.model import COLUMNS, Job, State
from pgbeat.jobs.unique_keys import UniqueKey


class NewJob(NamedTuple):
    """A job to insert. A field that is `None` gets the column's default."""

    id: str
    namespace: str
    task: str
    #: `None` if the arguments are not JSON.
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    job_source: str
    created_by: str
    is_system_job: bool
    #: Whether its message is sent in this transaction.
    is_dispatched: bool = True
    state: State = "pending"
    schedule_id: int | None = None
    schedule: str | None = None
    due_at: datetime | None = None
    queue: str | None = None
    #: Celery's publish options, as JSON.
    options: Mapping[str, Any] | None = None
    template: str | None = None
    run_at: datetime | None = None
    lane: str | None = None
    priority: int | None = None
    tags: Sequence[str] | None = None
    resources: Mapping[str, float] | None = None
    max_attempts: int | None = None
    #: Seconds.
    retry_base: float | None = None
    retry_cap: float | None = None
    retry_of: str | None = None
    group_id: str | None = None
    group_position: int | None = None
    #: It waits for the job before it in its group, or for those that it depends on.
    is_blocked: bool | None = None
    unfinished_parents: int | None = None
    unique_key: str | None = None
    awaits_approval: bool | None = None
    checkpoint: Any = None
    #: Why its schedule launched it, and the interval that it is for, as in `Job`.
    trigger: str | None = None
    interval_start: datetime | None = None
    interval_end: datetime | None = None
    #: Written by people (`pgbeat.jobs.details`).
    description: str | None = None
    labels: Mapping[str, str] | None = None
    metadata: Mapping[str, Any] | None = None
    #: Distinguishes the jobs of one tick, if its launcher launches several.
    run_key: str | None = None
    #: Seconds after its due time, or `run_at`, or its creation.
    must_start_within: float | None = None
    must_end_within: float | None = None
    #: Of a job that a task submits (`pgbeat.jobs.canvas`).
    root_id: str | None = None
    parent_id: str | None = None
    #: The group whose callback it is.
    callback_of: str | None = None

    @property
    def key(self) -> UniqueKey | None:
        """Returns its unique key, with the task that it is one of."""
        return None if self.unique_key is None else UniqueKey(self.task, self.unique_key)


_INSERT = """
    INSERT INTO pgbeat.unfinished_jobs AS j
           (id, namespace, task, args, kwargs, job_source, created_by, is_system_job, dispatched_at,
            state, schedule_id, schedule, due_at, queue, options, template, run_at, lane, priority,
            tags, resources, max_attempts, retry_base, retry_cap, retry_of, group_id,
            group_position, is_blocked, unfinished_parents, unique_key, awaits_approval,
            requires_approval, checkpoint, trigger, interval_start, interval_end, description,
            labels, metadata, run_key, must_start_by, must_end_by, next_deadline, root_id,
            parent_id, callback_of)
    SELECT id, namespace, task, args, kwargs, job_source, created_by, is_system_job,
           CASE WHEN is_dispatched THEN now() END,
           state, schedule_id, schedule, due_at, queue, coalesce(options, '{}'), template, run_at,
           lane, coalesce(priority, 0), coalesce(tags, '{}'), coalesce(resources, '{}'),
           coalesce(max_attempts, 1), coalesce(retry_base, 60) * interval '1 second',
           coalesce(retry_cap, 3600) * interval '1 second', retry_of, group_id, group_position,
           coalesce(is_blocked, false), coalesce(unfinished_parents, 0), unique_key,
           coalesce(awaits_approval, false),
           coalesce(awaits_approval, false), checkpoint, trigger, interval_start, interval_end,
           description, coalesce(labels, '{}'), coalesce(metadata, '{}'), run_key,
           base + must_start_within * interval '1 second',
           base + must_end_within * interval '1 second',
           base + least(must_start_within, must_end_within) * interval '1 second',
           root_id, parent_id, callback_of
      FROM json_to_recordset(CAST(:batch AS json)) AS d (
               id uuid, namespace text, task text, args jsonb, kwargs jsonb, job_source text,
               created_by text, is_system_job boolean, is_dispatched boolean, state text,
               schedule_id bigint, schedule text, due_at timestamptz, queue text, options jsonb,
               template text, run_at timestamptz, lane text, priority smallint, tags text[],
               resources jsonb, max_attempts integer, retry_base float8, retry_cap float8,
               retry_of uuid, group_id uuid, group_position integer, is_blocked boolean,
               unfinished_parents integer, unique_key text, awaits_approval boolean,
               checkpoint jsonb, trigger text, interval_start timestamptz,
               interval_end timestamptz, description text, labels jsonb, metadata jsonb,
               run_key text, must_start_within float8, must_end_within float8, root_id uuid,
               parent_id uuid, callback_of uuid),
           coalesce(CASE WHEN trigger IS DISTINCT FROM 'backfill' THEN due_at END, run_at, now())
               AS base
    ON CONFLICT DO NOTHING
"""
#: Inserts the jobs of schedules that launch what their rows say: those of a relation `launch`, with
#: columns of the schedules and of the launches.
OF_SCHEDULES = """
    INSERT INTO pgbeat.unfinished_jobs
           (id, namespace, task, args, kwargs, job_source, created_by, is_system_job, dispatched_at,
            schedule_id, schedule, due_at, queue, options, max_attempts, retry_base, retry_cap,
            trigger, interval_start, labels)
    SELECT job_id, namespace, task, args, kwargs, 'scheduled_task',
           'system:scheduler:' || launcher, true, now(), id, name, due_at, queue, options,
           max_attempts, retry_base, retry_cap, 'timetable', interval_start, labels
      FROM launch
"""
_COUNT, _RETURN = text(_INSERT), text(f"{_INSERT} RETURNING {COLUMNS}")


def insert(connection: Connection, batch: Sequence[NewJob]) -> int:
    """Inserts jobs, and returns how many are new.

    Leaves out a job whose id or unique key an unfinished job has.
    """
    return connection.execute(_COUNT, {"batch": recordset(batch)}).rowcount if batch else 0


def insert_returning(connection: Connection, batch: Sequence[NewJob]) -> list[Job]:
    """Inserts jobs as `insert` does, and returns the new rows, in no order."""
    rows = connection.execute(_RETURN, {"batch": recordset(batch)}) if batch else ()
    return [Job(*row) for row in rows]
