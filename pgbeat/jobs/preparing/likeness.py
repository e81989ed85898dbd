"""Describes a new job that is like an earlier one, but for what is given."""

from sqlalchemy import Connection

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import Redactor
from pgbeat.errors import Forbidden, InvalidJob
from pgbeat.jobs.policy import templates
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.jobs.preparing.prepare import JobSpec
from pgbeat.jobs.rows.model import Job


def complete(
    connection: Connection, redactor: Redactor, actor: Actor, job: Job, spec: JobSpec
) -> JobSpec:
    """Returns a specification, with what it leaves out taken from a job.

    Given keyword arguments and options are added to the job's. The new job has no time, deadlines,
    unique key and parents but those that are given. If the job has a template, that says all else
    of a user's.
    Raises `Forbidden`, with the code `masked`, if the actor doesn't see all that would be taken,
    and `InvalidJob` if the job's arguments were not kept.
    """
    shown = redactor.row(job, job.task)
    if (shown.args, shown.kwargs, shown.options) != (job.args, job.kwargs, job.options):
        raise Forbidden(
            f"can't run a job like {job.id}: you don't see its arguments; an administrator may",
            code="masked",
            is_for_admins=True,
        )
    if job.args is None and spec.args is None:
        message = f"the arguments of job {job.id} are not JSON, and were not kept; give others"
        raise InvalidJob.of("args", "required", message)
    policy = _policy(connection, job, spec)
    is_of_template = actor.is_restricted and policy.template is not None
    if is_of_template:
        policy, queue, options = JobPolicy(template=policy.template), spec.queue, spec.options
    else:
        queue, options = spec.queue or job.queue, {**job.options, **spec.options}
    return spec._replace(
        task=spec.task or job.task,
        args=job.args if spec.args is None else spec.args,
        kwargs={**(job.kwargs or {}), **spec.kwargs},
        policy=spec.policy.over(policy),
        queue=queue,
        options=options,
        description=spec.description or job.description,
        labels=spec.labels or job.labels,
        metadata=spec.metadata or job.metadata,
    )


def _policy(connection: Connection, job: Job, spec: JobSpec) -> JobPolicy:
    """Returns the job's policy; with its template, if that exists and is of the same task."""
    template = None
    if job.template is not None and spec.task in (None, job.task):
        known = templates.load(connection, [job.template], namespace=job.namespace)
        if job.template in known and known[job.template].task == job.task:
            template = job.template
    return JobPolicy(
        template=template,
        lane=job.lane,
        priority=job.priority or None,
        max_attempts=job.max_attempts,
        retry_base=job.retry_base,
        retry_cap=job.retry_cap,
        tags=tuple(job.tags) or None,
        resources=job.resources or None,
        requires_approval=job.requires_approval or None,
    )
