"""Builds the jobs that a decision launches, and their messages, without writing anything."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from celery import Celery

from pgbeat.beat.evaluation import Evaluation, Launch
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.config import Settings
from pgbeat.errors import ConditionError
from pgbeat.jobs.checks.task_checks import check_call, check_task
from pgbeat.jobs.messages import headers as job_headers
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy import task_policies
from pgbeat.jobs.policy.policies import JobPolicy, stored
from pgbeat.jobs.preparing import prepare
from pgbeat.jobs.preparing.defaults import JobDefaults, complete
from pgbeat.jobs.preparing.placeholders import Facts
from pgbeat.jobs.preparing.prepare import PreparedJob
from pgbeat.jobs.rows.model import NOW, Job
from pgbeat.schedules.launchers import JobRequest
from pgbeat.schedules.model import Schedule

#: As Celery's own beat marks what it sends.
_OF_BEAT = {"celery_beat_task": True}
#: Returns headers for a schedule's job, by its trigger and id, that the job and its retries keep
#: among their options. An integration sets it.
more_headers: Callable[[Schedule, str, str], Mapping[str, Any]] | None = None


def _build(
    app: Celery | None,
    settings: Settings,
    evaluation: Evaluation,
    request: JobRequest,
    facts: Facts,
    stock: JobDefaults | None,
) -> PreparedJob:
    """Returns the job, and its message, of a request of a launch.

    `facts` fill in placeholders. Raises `PgbeatError` for whatever is wrong with the row.
    """
    row = evaluation.schedule
    job_id = row.job_id(evaluation.due_at, request.run_key)
    if request.run_key is not None:
        facts = facts._replace(job_id=job_id)
    args, kwargs, options, queue, policy = _call(app, row, request, facts, stock)
    _check_task(app, row, request.task, {} if queue is None else {"queue": queue}, options)
    if more_headers is not None and (more := more_headers(row, evaluation.trigger, job_id)):
        options = {**options, "headers": {**(options.get("headers") or {}), **more}}
    job = Job(
        id=UUID(job_id),
        namespace=row.namespace,
        task=request.task,
        args=_if_json(row, list(args)),
        kwargs=_if_json(row, dict(kwargs)),
        job_source=evaluation.job_source,
        created_by=evaluation.created_by or f"system:scheduler:{row.launcher}",
        is_system_job=True,
        schedule_id=row.id,
        schedule=row.name,
        due_at=facts.due_at,
        trigger=evaluation.trigger,
        interval_start=facts.interval_start,
        interval_end=facts.last_due,
        dispatched_at=NOW,
        queue=queue,
        options=(_if_json(row, options) if options else None) or {},
        max_attempts=settings.job_max_attempts,
        retry_base=timedelta(seconds=settings.job_retry_base),
        retry_cap=timedelta(seconds=settings.job_retry_cap),
        labels=row.labels,
        run_key=request.run_key,
    )
    options = options if queue is None else {"queue": queue, **options}
    headers = {**_OF_BEAT, **job_headers.of_job(job)}
    message = TaskMessage(job_id, job.task, args, kwargs, options, headers)
    if stock is not None:
        job = stock.apply(job, policy)
    return PreparedJob(job, message, policy.unique_for)


def _call(
    app: Celery | None, row: Schedule, request: JobRequest, facts: Facts, stock: JobDefaults | None
) -> tuple[Sequence[Any], Mapping[str, Any], dict[str, Any], str | None, JobPolicy]:
    """Returns args, kwargs, options, queue and policy, completed by the template."""
    check_call(request.args, request.kwargs, request.options)
    policy = job_policies.parse(row.job_policy)
    args, kwargs, queue = request.args, request.kwargs, row.queue
    options = {**row.options, **request.options}
    if stock is not None:
        template = None if policy.template is None else stock.template(policy.template)
        if template is not None:
            args, kwargs = prepare.fill_template(template, args or None, kwargs, facts)
            options, queue = {**template.options, **options}, queue or template.queue
        task_policy = None if app is None else task_policies.of_task(app, request.task)
        policy = complete(policy, template, request.task, task_policy)
    if policy.priority is not None:
        options.setdefault("priority", policy.priority)
    return args, kwargs, options, queue, policy


def _check_task(
    app: Celery | None, row: Schedule, task: str, where: dict[str, str], options: dict[str, Any]
) -> None:
    """Checks rows that people write; Celery has checked those of the app's code."""
    if row.source == "code":
        return
    if app is not None and task not in app.tasks:
        check_task(app, task)
    if options or where:
        check_options({**where, **options}, None if app is None else app.conf)


def build_all(
    app: Celery | None, settings: Settings, evaluation: Evaluation, stock: JobDefaults | None
) -> list[PreparedJob]:
    """Returns the jobs of a launch, and their messages.

    `stock` is needed if the row or the task has a job policy. Without the app, tasks are not
    checked. Raises `PgbeatError` for whatever is wrong with the row, and `ConditionError` if two of
    the jobs have the same unique key by the schedule's policy.
    """
    if not isinstance(evaluation.result, Launch):
        return []
    requests, facts = evaluation.result
    new = [_build(app, settings, evaluation, request, facts, stock) for request in requests]
    keys = [job.job.key for job in new if job.job.key is not None]
    if len(keys) > len(set(keys)):
        raise ConditionError(
            f"the launcher asks for {len(new)} jobs, and at least two have the same unique key by "
            "the schedule's job policy, which only one unfinished job may have; instead of "
            "unique_key set `unique`, for a key by task and arguments, or launch one job"
        )
    return new


def _if_json(row: Schedule, value: Any) -> Any:
    """Returns the value if a JSON column can hold it, else `None`; what a row says always fits."""
    return value if row.is_plain else stored(value)
