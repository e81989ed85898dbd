"""Provides `pgbeat.submit`, by which programs make jobs."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Unpack

from celery import Celery, current_app
from sqlalchemy.exc import DBAPIError

from pgbeat.access import actors
from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.transaction import Opened
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import settings_of
from pgbeat.database import privileges
from pgbeat.jobs.lanes import waiting
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy.policies import PolicyOptions
from pgbeat.jobs.preparing.prepare import JobSpec
from pgbeat.jobs.preparing.times import parse_countdown
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.verbs import control
from pgbeat.jobs.writing import one_statement, submissions


def submit(
    task: Any = None,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    connection: Opened | None = None,
    app: Celery | None = None,
    countdown: float | timedelta | None = None,
    created_by: str | None = None,
    job_source: str = "user_api",
    queue: str | None = None,
    options: Mapping[str, Any] | None = None,
    run_at: datetime | None = None,
    description: str | None = None,
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    depends_on: Sequence[Any] = (),
    depends_on_outcome: str = "completed",
    **policy: Unpack[PolicyOptions],
) -> Job:
    """Makes a job, which workers execute as any other: queued, recorded and retried.

        job = pgbeat.submit(resize, 17, kwargs={"width": 800}, lane="gpu", max_attempts=5)

    `task` is a task or the name of a registered one; without it, `template` names a template.
    `args` and `kwargs` are the task's, `options` those of `apply_async`. The job waits until
    `run_at`, which needs a time zone, or for `countdown` seconds. `policy` has the keys of a
    schedule's `job_policy`. `description`, `labels` (names and texts) and `metadata`
    (any JSON) are kept with the job; lists can be filtered by labels.

    `depends_on` are jobs, or their ids, that must have `completed` before this one runs; with
    `depends_on_outcome` `finished`, failed ones let it run, too. It is skipped when one of them
    ends otherwise.

    `connection` is an open SQLAlchemy session or connection on pgbeat's database. With it, the job
    exists if and only if the caller's transaction commits; without it, once this returns.
    `created_by` owns the job: by default the login name of the process.

    Returns the job, or the one that has its unique key. Raises `InvalidJob`, `UnknownTask` or
    `InvalidSchedule` for invalid input, `NotUnique` if another transaction keeps the key for
    seconds, `BrokerUnavailable`, and SQLAlchemy's `OperationalError` while the database is away.
    """
    app = app or getattr(task, "app", None) or current_app._get_current_object()
    # A signature is a mapping with a name: only that would be used, and its arguments be lost.
    name: Any = task if isinstance(task, Mapping) else getattr(task, "name", task)
    spec = JobSpec(
        name,
        args or None,
        kwargs or {},
        job_policies.parse(policy),
        queue,
        options or {},
        run_at,
        parse_countdown(countdown),
        description,
        labels or {},
        metadata or {},
        depends_on,
        depends_on_outcome,
    )
    actor = Actor(created_by) if created_by else actors.user()
    with submissions.opened_unit(app, settings_of(app), actor, connection) as unit:
        return _submit(unit, spec, job_source)


def _submit(unit: UnitOfWork, spec: JobSpec, job_source: str) -> Job:
    new = one_statement.submit(unit, spec, job_source=job_source)
    if new is None:
        with submissions.transaction(unit) as ids:
            new = control.submit(unit, spec, job_source=job_source)
            ids.append(str(new.job.id))
    # After our own commit, its lane was dispatched: the row may be another now.
    if unit.is_callers or not waiting.is_waiting(new.job):
        return new.job
    try:
        return jobs.get(unit.connection, new.job.id)
    except DBAPIError as error:
        if privileges.is_denied(error):  # the leading beat dispatches it
            return new.job
        raise
