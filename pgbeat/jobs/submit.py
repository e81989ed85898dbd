"""On demand: `pgbeat.submit`, a job that a program asks for, in its transaction or its own."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery import Celery, current_app
from sqlalchemy import Connection

from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.broker.publishing.transaction import Opened
from pgbeat.config import Settings
from pgbeat.jobs import control, drafts, permissions, submissions
from pgbeat.jobs import model as jobs
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs.drafts import Order
from pgbeat.jobs.model import Job
from pgbeat.jobs.permissions import Actor


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
    is whose job it is; the process's login, unless given.

    Returns the job; with a unique key that an unfinished job has, that one. Raises `InvalidJob`,
    `UnknownTask` or `InvalidSchedule` for what is not right with it, and kombu's `OperationalError`
    for a broker that is away.
    """
    found: Celery = app or getattr(task, "app", None) or current_app._get_current_object()
    # A signature is a mapping: its arguments would be lost.
    name: Any = task if isinstance(task, Mapping) else getattr(task, "name", task)
    settings = Settings.load(found.conf)
    order = Order(
        name, args or None, kwargs or {}, job_policies.parse(policy), queue, options or {}, run_at,
        drafts.length(countdown), description, labels or {}, metadata or {},
    )  # fmt: skip
    actor = Actor(created_by) if created_by else permissions.user()
    with submissions.publishing(found, settings) as broker:
        if connection is not None:
            return _inside(connection, found, settings, broker, actor, order, job_source)
        with submissions.session(settings) as own:

            def make(open_one: Connection) -> control.Change:
                broker.prepare(open_one)
                return control.submit(
                    open_one, found, settings, broker, actor, order, job_source=job_source
                )

            change = control.act(own, broker, make)
            return jobs.get(own, change.job.id) if change.lanes else change.job


def _inside(
    session: Opened,
    app: Celery,
    settings: Settings,
    broker: Publisher,
    actor: Actor,
    order: Order,
    job_source: str,
) -> Job:
    """Makes the job in the caller's transaction. Where the broker is elsewhere, beat hands it out
    after the commit."""
    connection = submissions.enlist(session, settings, broker)
    stock = drafts.stock(connection, settings, [order])
    made = drafts.of_order(
        app, stock, order, created_by=actor.name, job_source=job_source, actor=actor
    )
    made = submissions.after_commit(connection, made, broker)
    [(job, is_new)] = submissions.write(connection, broker, [made])
    if is_new:
        submissions.announce(connection, job)
    return job
