"""Limits what users ask of jobs: through the API and the console, those who don't administer.

An administrator chooses how jobs are made, by a template, or by the policy of a task; users give
arguments and a time.
"""

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery import Celery
from sqlalchemy import Connection

from pgbeat.access.actors import Actor
from pgbeat.broker import messages, own_tables
from pgbeat.broker.publishing import reserved
from pgbeat.config import Settings
from pgbeat.errors import Forbidden, InvalidJob
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.policy import task_policies
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.jobs.rows.model import Job
from pgbeat.storable import is_storable

if TYPE_CHECKING:
    from pgbeat.jobs.preparing.defaults import JobDefaults
    from pgbeat.jobs.preparing.prepare import JobSpec


def require_call(actor: Actor, task: str | None, options: Mapping[str, Any]) -> None:
    """Raises `Forbidden` unless the actor may run the task, and those to which the options link."""
    if actor.tasks is None:
        return
    linked = [str(signature["task"]) for signature in reserved.linked(options)]
    for name in linked if task is None else [task, *linked]:
        permissions.require_task(actor, name)


def check(
    actor: Actor,
    app: Celery,
    defaults: "JobDefaults",
    asked: "JobSpec",
    task: str,
    run_at: datetime | None,
    task_policy: JobPolicy | None,
) -> None:
    """Checks what an actor asks of a job of this task, which they may run.

    Raises `Forbidden` for tasks to which its options link and for what an administrator has chosen,
    and `InvalidJob` for too many links, a time that is too far away and queues that don't exist.
    """
    options = asked.publish_options
    require_call(actor, None, options)
    if not actor.is_restricted:
        return
    links = reserved.linked(options)
    require_few(actor, defaults.settings, 1 + len(links))
    if run_at is not None:
        require_time(defaults.settings, run_at, defaults.now)
    if asked.policy.template is not None:
        _require_of_template(asked)
    if queues := reserved.check_for_user(options):
        _require_queues(defaults.connection, defaults.settings, app, queues)
    if task_policy is not None and asked.policy.template is None:
        _require_of_policy(task, task_policy, asked.policy, options)
    for link in links:
        _require_of_link(app, link)


def _require_queues(
    connection: Connection, settings: Settings, app: Celery, queues: Collection[str]
) -> None:
    missing = set(queues) - app.amqp.queues.keys()
    if missing and own_tables.are_expected(settings.url, app.conf) and own_tables.exist(connection):
        missing -= messages.known(connection, filter(is_storable, missing))
    if missing:
        message = f"there is no queue {min(missing)!r}; users send only to queues that exist"
        raise InvalidJob.of("queue", "unknown", message)


def _require_of_template(asked: "JobSpec") -> None:
    others = [name for name in asked.policy.as_json() if name != "template"]
    others += ["queue"] if asked.queue is not None else []
    others += ["options"] if asked.options else []
    if others:
        raise _final(f"template {asked.policy.template!r}", others[0])


def _require_of_policy(
    task: str, task_policy: JobPolicy, job_policy: JobPolicy, options: Mapping[str, Any]
) -> None:
    job_policy = job_policy.over(JobPolicy(priority=options.get("priority")))
    for name, value in task_policy._asdict().items():
        asked = getattr(job_policy, name)
        if value is not None and asked is not None and asked != value:
            raise _final(f"the policy of task {task!r}", name)
    if task_policy.may_have_key and job_policy.may_have_key:
        raise _final(f"the policy of task {task!r}", "unique_key")


def _require_of_link(app: Celery, link: Mapping[str, Any]) -> None:
    """Raises `Forbidden` for a priority that differs from that of its task's policy."""
    policy = task_policies.of_task(app, str(link["task"]))
    asked = link["options"].get("priority")
    if policy is not None and asked is not None and policy.priority not in (None, asked):
        raise _final(f"the policy of task {link['task']!r}", "priority")


def direct_policy(actor: Actor, app: Celery, task: str, asked: JobPolicy) -> JobPolicy:
    """Returns by what a direct execution gets its slot; for users, the task's policy says it.

    Raises `Forbidden` if a user asks for something else, or if the policy can't be kept.
    """
    policy = task_policies.of_task(app, task) if actor.is_restricted else None
    if policy is None:
        return asked
    what = f"the policy of task {task!r}"
    if policy.requires_approval or policy.may_have_key:
        rule = "requires an approval" if policy.requires_approval else "allows one job at a time"
        message = f"{what} {rule}, which a direct execution doesn't heed; an administrator may"
        raise Forbidden(message, is_for_admins=True)
    for name in ("lane", "tags", "resources"):
        said, given = getattr(policy, name), getattr(asked, name)
        if said is not None and given not in (None, said):
            raise _final(what, name)
    return asked.over(policy)


def require_changes(actor: Actor, app: Celery | None, job: Job, names: Collection[str]) -> None:
    """Raises `Forbidden` if a user changes what the job's template or its task's policy says."""
    if not actor.is_restricted:
        return
    for name in names:
        if name not in JobPolicy._fields:
            continue
        if job.template is not None:
            raise _final(f"template {job.template!r}", name)
        policy = None if app is None else task_policies.of_task(app, job.task)
        if policy is not None and getattr(policy, name) is not None:
            raise _final(f"the policy of task {job.task!r}", name)


def _final(what: str, field: str) -> Forbidden:
    return Forbidden(
        f"{what} says how its jobs are made: users give arguments and a time, but not {field}; an "
        "administrator may",
        field=field,
        is_for_admins=True,
    )


def require_time(settings: Settings, run_at: datetime | None, now: datetime) -> None:
    """Raises `InvalidJob` for a time that is too far away for a user."""
    days = settings.web_user_days
    if run_at is not None and days and (run_at - now).total_seconds() > days * 86_400:
        message = f"users' jobs wait for at most {days:g} days (pgbeat_web_user_days)"
        raise InvalidJob.of("run_at", "out_of_range", message)


def require_few(actor: Actor, settings: Settings, count: int) -> None:
    """Raises `InvalidJob` for more jobs and links than a user may make at once."""
    most = settings.web_user_jobs
    if actor.is_restricted and most and count > most:
        message = f"users make at most {most:,} jobs at once, links included (pgbeat_web_user_jobs)"
        raise InvalidJob.of("jobs", "out_of_range", message)


def link_count(actor: Actor, options: Mapping[str, Any]) -> int:
    """Returns how many tasks a user's job sends when it ends. Raises as `reserved.linked`."""
    return len(reserved.linked(options)) if actor.is_restricted else 0


def own_key(actor: Actor, key: str) -> str:
    """Returns a unique key that a user gave as it is stored: with their name in front.

    So it keeps only the user's own jobs from being made. The quotes show where the name ends.
    """
    return f"{json.dumps(actor.name, ensure_ascii=False)} {key}"
