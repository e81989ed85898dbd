"""On demand: `pgbeat.submit`, a job that a program asks for, in its transaction or its own."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery import Celery, current_app

from pgbeat.access import actors
from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.transaction import Opened
from pgbeat.config import Settings
from pgbeat.jobs import control, prepare, submissions
from pgbeat.jobs import model as jobs
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs.lanes import waiting
from pgbeat.jobs.model import Job
from pgbeat.jobs.prepare import JobSpec


def submit(
    task: Any = None,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    connection: Opened | None = None,
    app: Celery | None = None,
    queue: str | None = None,
    options: Mapping[str, Any] | None = None,
    run_at: datetime | None = None,
    countdown: float | timedelta | None = None,
    created_by: str | None = None,
    job_source: str = "user_api",
    description: str | None = None,
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **policy: Any,
) -> Job:
    """Makes a job that workers execute as any other: queued, tracked, retried.

        job = pgbeat.submit(resize, 17, kwargs={"width": 800}, lane="gpu", max_attempts=5)

    `task` is a task or the name of a registered one; left out, `template` names what to do. `args`
    and `kwargs` are the task's, `options` those of `apply_async`. `run_at` (aware) or `countdown`
    (seconds) puts it off. `policy` has the keys of a schedule's `job_policy`: `template`, `lane`,
    `priority`, `max_attempts`, `retry_base`, `retry_cap`, `tags`, `resources`, `unique`,
    `unique_key`, `unique_for`, `requires_approval`. `description`, `labels` (names and texts) and
    `metadata` (any JSON) are kept with the job; lists can be filtered by labels.

    With `connection`, an open SQLAlchemy session or connection on pgbeat's database, the job is
    there if and only if the caller's transaction commits; without, once this returns. `created_by`
    owns the job: by default the process's login.

    Returns the job; with a unique key that an unfinished job has, that one. Raises `InvalidJob`,
    `UnknownTask` or `InvalidSchedule` for what is not right with it, and `BrokerUnavailable`
    for a broker that is away.
    """
    found: Celery = app or getattr(task, "app", None) or current_app._get_current_object()
    # A signature is a mapping: its arguments would be lost.
    name: Any = task if isinstance(task, Mapping) else getattr(task, "name", task)
    settings = Settings.load(found.conf)
    order = JobSpec(
        name, args or None, kwargs or {}, job_policies.parse(policy), queue, options or {}, run_at,
        prepare.length(countdown), description, labels or {}, metadata or {},
    )  # fmt: skip
    actor = Actor(created_by) if created_by else actors.user()
    with submissions.opened_unit(found, settings, actor, connection) as unit:
        with unit.transaction():
            job = control.submit(unit, order, job_source=job_source).job
        # Its lane may have been dispatched meanwhile.
        is_ours = connection is None and waiting.is_waiting(job)
        return jobs.get(unit.connection, job.id) if is_ours else job
