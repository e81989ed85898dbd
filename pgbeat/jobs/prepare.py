"""Prepares jobs, and their messages, of what people and programs submit; writes nothing."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

from celery import Celery
from sqlalchemy import Connection

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing import reserved
from pgbeat.broker.publishing.json_values import as_json
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.config import Settings
from pgbeat.database.tables import JOB_SOURCES
from pgbeat.errors import InvalidJob
from pgbeat.jobs import permissions, placeholders
from pgbeat.jobs.defaults import JobDefaults
from pgbeat.jobs.details import Details
from pgbeat.jobs.model import NewJob, State
from pgbeat.jobs.placeholders import Facts
from pgbeat.jobs.policies import JobPolicy, stored
from pgbeat.jobs.task_checks import check_arguments, check_task
from pgbeat.jobs.templates import Template
from pgbeat.storable import is_storable


class JobSpec(NamedTuple):
    """What is to be done once, by a task or as a template has it."""

    #: Its registered name; `None`: the template's.
    task: str | None = None
    #: `None`: the template's.
    args: Sequence[Any] | None = None
    #: Beside the template's, and before them.
    kwargs: Mapping[str, Any] = {}
    policy: JobPolicy = JobPolicy()
    queue: str | None = None
    #: Celery's publish options.
    options: Mapping[str, Any] = {}
    #: Not before; aware.
    run_at: datetime | None = None
    #: Not before so much from now.
    countdown: timedelta | None = None
    #: What people write on it, to find it again.
    description: str | None = None
    labels: Mapping[str, str] = {}
    metadata: Mapping[str, Any] = {}


class PreparedJob(NamedTuple):
    """A job that is to be written, and its message."""

    job: NewJob
    message: TaskMessage
    unique_for: timedelta | None = None


def unique_keys(batch: Sequence[PreparedJob]) -> dict[str, timedelta | None]:
    """Returns the unique keys of jobs, and for how long after its making each is taken."""
    return {d.job.unique_key: d.unique_for for d in batch if d.job.unique_key is not None}


def job_defaults(
    connection: Connection, settings: Settings, batch: Sequence[JobSpec]
) -> JobDefaults:
    """The templates and lanes that orders name."""
    return JobDefaults(connection, settings, [spec.policy for spec in batch])


def prepare(
    app: Celery,
    defaults: JobDefaults,
    spec: JobSpec,
    *,
    created_by: str,
    job_source: str,
    is_system_job: bool = False,
    actor: Actor | None = None,
) -> PreparedJob:
    """The job of an spec, which nothing is written for yet. `actor` asks for it, where that is not
    the program itself.

    Raises `InvalidJob`, `UnknownTask` and `InvalidSchedule` for what it has wrong: a task that the
    app hasn't registered, arguments that it doesn't take, a template or a lane that isn't there;
    `Forbidden` for a task, options or a waiver of approval that the actor may not ask for.
    """
    check_call(spec.args or (), spec.kwargs, spec.options)
    _check_origin(created_by, job_source)
    Details(spec.description, spec.labels, spec.metadata).check()
    actor = actor or Actor(created_by)
    name, args, kwargs = spec.task, spec.args, dict(spec.kwargs)
    options, queue = dict(spec.options), spec.queue
    policy = defaults.policy(spec.policy, may_waive=actor.is_admin)
    job_id, run_at = str(uuid4()), _run_at(spec, defaults)
    if policy.template is not None:
        template = defaults.template(policy.template)
        if name not in (None, template.task):
            raise InvalidJob.of(
                "task",
                "conflict",
                f"template {template.name!r} is of task {template.task!r}, not {name!r}",
            )
        name = template.task
        zone = str(getattr(app.timezone, "key", None) or app.timezone)
        facts = Facts(run_at or defaults.now, zone, job_id, trigger="manual")
        args, kwargs = fill_template(template, args, kwargs, facts)
        options, queue = {**template.options, **options}, queue or template.queue
    if name is None:
        raise InvalidJob.of("task", "required", "a job of which task? Name a task or a template")
    args = () if args is None else args
    # First: which tasks there are is not for everybody to know.
    of_template = policy.template is not None
    permissions.require_task(actor, name, of_template=of_template)
    check_task(app, name)
    check_options(options if queue is None else {**options, "queue": queue}, app.conf)
    if "eta" in options or "countdown" in options:
        raise InvalidJob.of(
            "options", "conflict", "options has a time for it; give run_at or countdown instead"
        )
    own = spec.options if spec.queue is None else {**spec.options, "queue": spec.queue}
    require_call(actor, name, own, of_template=of_template)
    check_arguments(app, name, args, kwargs)
    serializer = _serializer(app, name, options)
    state: State = "pending" if run_at is None else "scheduled"
    job = defaults.apply(
        NewJob(
            id=job_id,
            namespace=defaults.settings.namespace,
            task=name,
            args=_plain(list(args), serializer),
            kwargs=_plain(kwargs, serializer),
            job_source=job_source,
            created_by=created_by,
            is_system_job=is_system_job,
            state=state,
            run_at=run_at,
            queue=queue,
            options=_plain({**options}, serializer) or None,
            description=spec.description,
            labels=spec.labels or None,
            metadata=spec.metadata or None,
        ),
        policy,
    )
    if queue is not None:
        options["queue"] = queue
    if job.priority:
        options.setdefault("priority", job.priority)
    if run_at is not None:
        options["eta"] = run_at
    return PreparedJob(job, TaskMessage(job.id, name, args, kwargs, options), policy.unique_for)


def require_call(
    actor: Actor, task: str | None, options: Mapping[str, Any], *, of_template: bool = False
) -> None:
    """Raises `Forbidden` unless the actor may have the task run, with these publish options and
    what they link to."""
    if task is not None:
        permissions.require_task(actor, task, of_template=of_template)
    if actor.tasks is None:
        return
    for signature in reserved.linked(options):
        permissions.require_task(actor, str(signature["task"]))
    if not actor.is_admin:
        reserved.check_for_user(options)


def fill_template(
    template: Template, args: Sequence[Any] | None, kwargs: Mapping[str, Any], facts: Facts
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Returns arguments over those of a template, whose own placeholders are filled in.

    Those given stay as they are: a caller's text may have braces in it.
    """
    if args is None:
        args = placeholders.fill(template.args, facts, "args")
    return args, {**placeholders.fill(template.kwargs, facts, "kwargs"), **kwargs}


def check_call(args: Any, kwargs: Any, options: Any) -> None:
    """Raises `InvalidJob` unless args is a list, and kwargs and options are mappings."""
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise InvalidJob.of("args", "malformed", f"args is {args!r}; it is to be a list")
    for what, value in (("kwargs", kwargs), ("options", options)):
        if not isinstance(value, Mapping):
            raise InvalidJob.of(what, "malformed", f"{what} is {value!r}; it is to be a mapping")


def _check_origin(created_by: Any, job_source: Any) -> None:
    if not isinstance(created_by, str) or not is_storable(created_by):
        raise InvalidJob.of(
            "created_by",
            "malformed",
            f"created_by is {created_by!r}; it is to be text that Postgres can keep",
        )
    if job_source not in JOB_SOURCES:
        raise InvalidJob.of(
            "job_source",
            "unknown",
            f"job_source {job_source!r} is not one of {', '.join(JOB_SOURCES)}",
        )


def length(countdown: Any) -> timedelta | None:
    """How long a job is put off: a timedelta, or seconds. Raises `InvalidJob` for others."""
    if countdown is None or isinstance(countdown, timedelta):
        return countdown
    if isinstance(countdown, bool) or not isinstance(countdown, int | float):
        raise InvalidJob.of(
            "countdown", "malformed", f"countdown is {countdown!r}; it is to be a number of seconds"
        )
    try:
        return timedelta(seconds=countdown)
    except (ValueError, OverflowError):
        raise InvalidJob.of(
            "countdown", "out_of_range", f"countdown is {countdown!r}; there is no such time"
        ) from None


def _run_at(spec: JobSpec, defaults: JobDefaults) -> datetime | None:
    if spec.countdown is not None:
        if spec.run_at is not None:
            raise InvalidJob.of("run_at", "conflict", "run_at and countdown exclude each other")
        try:
            run_at = defaults.now + spec.countdown
        except OverflowError:
            raise InvalidJob.of(
                "countdown", "out_of_range", "countdown: there is no such time any more"
            ) from None
        except TypeError:
            said = f"countdown is {spec.countdown!r}; it is to be seconds or a timedelta"
            raise InvalidJob.of("countdown", "malformed", said) from None
    elif spec.run_at is None:
        return None
    elif not isinstance(spec.run_at, datetime):
        raise InvalidJob.of(
            "run_at",
            "malformed",
            f"run_at is {spec.run_at!r}; it is to be a datetime with a time zone",
        )
    elif spec.run_at.tzinfo is None:
        raise InvalidJob.of(
            "run_at",
            "malformed",
            f"run_at is {spec.run_at.isoformat()}, without a time zone; give it one",
        )
    else:
        run_at = spec.run_at
    return run_at if run_at > defaults.now else None


def _serializer(app: Celery, task: str, options: Mapping[str, Any]) -> str:
    own = options.get("serializer") or app.tasks[task].serializer
    return str(own or app.conf.task_serializer)


def _plain(value: Any, serializer: str) -> Any:
    """The value as JSON has it; `None` if it can't. What kombu's JSON knows beyond JSON, times for
    one, is as kombu writes it: in a message, it is that again."""
    plain = stored(value)
    if plain is not None or serializer != "json":
        return plain
    try:
        found = as_json(value)
    except (TypeError, ValueError):
        return None
    return stored(found)
