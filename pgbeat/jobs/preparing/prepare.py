"""Prepares submitted jobs, and their messages, without writing anything."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from celery import Celery

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.carried import carried_headers, with_headers
from pgbeat.broker.publishing.json_values import as_json
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.config import Settings
from pgbeat.config.app_state import state_of
from pgbeat.database.tables import JOB_SOURCES
from pgbeat.errors import InvalidJob
from pgbeat.jobs.checks import permissions, user_limits
from pgbeat.jobs.checks.task_checks import check_arguments, check_call, check_task
from pgbeat.jobs.policy import pinned_queues, task_policies
from pgbeat.jobs.policy.policies import JobPolicy, stored
from pgbeat.jobs.policy.templates import Template
from pgbeat.jobs.preparing import placeholders
from pgbeat.jobs.preparing.defaults import JobDefaults, of_task
from pgbeat.jobs.preparing.details import Details
from pgbeat.jobs.preparing.placeholders import Facts
from pgbeat.jobs.preparing.times import run_at_of
from pgbeat.jobs.rows.model import NOW, Job
from pgbeat.jobs.rows.unique_keys import UniqueKey
from pgbeat.storable import is_storable


class JobSpec(NamedTuple):
    """A job as a person or a program describes it."""

    #: Name of the task; `None` for the template's.
    task: str | None = None
    #: `None` for the template's.
    args: Sequence[Any] | None = None
    #: Added to the template's, and stronger.
    kwargs: Mapping[str, Any] = {}
    policy: JobPolicy = JobPolicy()
    queue: str | None = None
    #: Celery's publish options.
    options: Mapping[str, Any] = {}
    #: The job waits for this time, which has a time zone, …
    run_at: datetime | None = None
    #: … or for so long.
    countdown: timedelta | None = None
    #: Written by people (`pgbeat.jobs.preparing.details`).
    description: str | None = None
    labels: Mapping[str, str] = {}
    metadata: Mapping[str, Any] = {}
    #: The jobs that it waits for, and how they must end (`pgbeat.jobs.flow.dependencies`).
    depends_on: Sequence[Any] = ()
    depends_on_outcome: str = "completed"
    #: The name by which other members of its group depend on it.
    key: str | None = None


class PreparedJob(NamedTuple):
    """A job that can be written, and its message."""

    job: Job
    message: TaskMessage
    unique_for: timedelta | None = None
    #: The ids of the jobs that it depends on, and how they must end.
    parents: tuple[str, ...] = ()
    needs: str = "completed"


def blocked(new: PreparedJob, **changes: Any) -> PreparedJob:
    """Returns a job that waits for others, with these changes. Raises `InvalidJob`."""
    if new.job.args is None:
        message = "its arguments are not JSON, and it can't wait without them"
        raise InvalidJob.of("args", "malformed", message)
    return new._replace(job=new.job._replace(is_blocked=True, dispatched_at=None, **changes))


def unique_keys(batch: Sequence[PreparedJob]) -> dict[UniqueKey, timedelta | None]:
    """Returns the unique keys of jobs, with the time for which each stays taken."""
    return {new.job.key: new.unique_for for new in batch if new.job.key is not None}


def prepare(
    app: Celery, defaults: JobDefaults, spec: JobSpec, actor: Actor, job_source: str
) -> PreparedJob:
    """Returns the actor's job, and its message.

    Raises `InvalidJob`, `UnknownTask` or `InvalidSchedule` if the spec is invalid, and `Forbidden`
    if the actor may not run the task, set the options or waive the approval.
    """
    check_call(spec.args or (), spec.kwargs, spec.options)
    job_id = uuid4()
    pattern = _Pattern(app, defaults, spec, actor, job_source, job_id)
    return pattern.prepare(defaults, job_id, pattern.spec.args or (), pattern.spec.kwargs)


#: The most patterns that an app keeps.
_MOST = 1000


def prepare_again(
    app: Celery, defaults: JobDefaults, spec: JobSpec, actor: Actor, job_source: str
) -> PreparedJob:
    """Returns a job as `prepare` does, with what it shares with earlier ones checked only then.

    The settings must be those of `settings_of`, and `defaults` must not check lanes.
    """
    if not _is_repeated(spec) or spec.run_at is not None or spec.countdown is not None:
        return prepare(app, defaults, spec, actor, job_source)
    check_call(spec.args or (), spec.kwargs, spec.options)
    patterns = state_of(app).part(_Patterns).of(defaults.settings)
    task = app.tasks.get(spec.task)
    key = spec.task, task, spec.queue, spec.description, spec.policy, actor, job_source
    job_id = uuid4()
    try:
        pattern = patterns.get(key)
    except TypeError:  # resources can't be hashed
        return prepare(app, defaults, spec, actor, job_source)
    if pattern is None:
        shared = spec._replace(args=None, kwargs={})  # these may be large
        pattern = patterns[key] = _Pattern(app, defaults, shared, actor, job_source, job_id)
    return pattern.prepare(defaults, job_id, spec.args or (), spec.kwargs)


class _Patterns:
    """An app's patterns."""

    #: The settings that were given last, with the patterns that hold for them.
    _last: tuple[Settings | None, dict[Any, "_Pattern"]] = (None, {})

    def of(self, settings: Settings) -> dict[Any, "_Pattern"]:
        """Returns those that hold for these settings."""
        last, patterns = self._last
        if last is not settings or len(patterns) >= _MOST:
            patterns = {}
            self._last = settings, patterns
        return patterns


def _is_repeated(spec: JobSpec) -> bool:
    """Returns whether other jobs may differ from this one only in their arguments."""
    return not (
        spec.policy.template is not None
        or spec.options
        or spec.labels
        or spec.metadata
        or type(spec.task) is not str
    )


class Preparer:
    """Prepares many jobs of an actor's, with what they have in common checked once."""

    def __init__(
        self, app: Celery, defaults: JobDefaults, policy: JobPolicy, actor: Actor, job_source: str
    ) -> None:
        self._app, self._defaults, self._policy = app, defaults, policy
        self._actor, self._job_source = actor, job_source
        self._patterns: dict[Any, _Pattern] = {}

    def prepare(self, spec: JobSpec) -> PreparedJob:
        """Returns a job as `prepare` does, and raises the same."""
        if spec.policy is not self._policy or not _is_repeated(spec):
            return prepare(self._app, self._defaults, spec, self._actor, self._job_source)
        check_call(spec.args or (), spec.kwargs, spec.options)
        job_id = uuid4()
        key = (spec.task, spec.queue, spec.run_at, spec.countdown, spec.description)
        try:
            pattern = self._patterns.get(key)
        except TypeError:  # one of them is of a wrong type
            pattern = None
        if pattern is None:
            pattern = self._patterns[key] = _Pattern(
                self._app, self._defaults, spec, self._actor, self._job_source, job_id
            )
        return pattern.prepare(self._defaults, job_id, spec.args or (), spec.kwargs)


class _Pattern:
    """What jobs have in common that differ only in their arguments."""

    def __init__(
        self,
        app: Celery,
        defaults: JobDefaults,
        spec: JobSpec,
        actor: Actor,
        job_source: str,
        job_id: UUID,
    ) -> None:
        _check_origin(actor.name, job_source)
        Details(spec.description, spec.labels, spec.metadata).check()
        self._app = app
        self._policy = defaults.policy(spec.policy, may_waive=actor.is_admin)
        self._run_at = run_at_of(spec.run_at, spec.countdown, defaults.now)
        own_options = _with_queue(spec)
        #: Whether its unique key is the actor's own.
        self._has_own_key = actor.is_restricted and spec.policy.may_have_key
        if actor.is_restricted:
            user_limits.require_time(defaults.settings, self._run_at, defaults.now)
            if spec.policy.template is not None:
                user_limits.require_of_template(spec.policy, spec.queue, spec.options)
        if self._policy.template is not None:
            zone = str(getattr(app.timezone, "key", None) or app.timezone)
            facts = Facts(self._run_at or defaults.now, zone, str(job_id), trigger="manual")
            spec = _from_template(spec, defaults.template(self._policy.template), facts)
        #: Completed by the template.
        self.spec = spec
        queues = _check_task(
            app, spec, actor, own_options, of_template=self._policy.template is not None
        )
        defaults.require_queues(app, queues)
        self._actor, self._job_source = actor, job_source
        self._task = str(spec.task)
        options = _with_queue(spec)
        pinned = pinned_queues.send_options(app, self._task, ((), {}), options)
        if pinned is not options:
            self.spec = spec._replace(queue=pinned["queue"])
        if actor.is_restricted:
            task_policy = task_policies.of_task(app, self._task)
            user_limits.require_of_policy(self._task, task_policy, self._policy, own_options)
        self._policy = of_task(self._policy, app, self._task, may_waive=actor.is_admin)
        self._serializer = str(
            spec.options.get("serializer")
            or app.tasks[self._task].serializer
            or app.conf.task_serializer
        )
        #: Whether a job's fields depend on its arguments, or on the time.
        self._varies = self._policy.may_have_key or self._policy.has_deadlines
        #: The job and the message's options, unless they vary.
        self._made: tuple[Job, dict[str, Any]] | None = None

    def prepare(
        self, defaults: JobDefaults, job_id: UUID, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PreparedJob:
        """Returns the job with these arguments."""
        check_arguments(self._app, self._task, args, kwargs)
        kwargs = dict(kwargs)
        stored_args = _as_stored(list(args), self._serializer)
        stored_kwargs = _as_stored(kwargs, self._serializer)
        if self._made is None or stored_args is None:
            job, options = self._make(defaults, job_id, stored_args, stored_kwargs)
            if stored_args is not None and not self._varies:
                self._made = job._replace(args=None, kwargs=None), options
        else:
            job, options = self._made
            job = job._replace(id=job_id, args=stored_args, kwargs=stored_kwargs)
        if headers := carried_headers():
            job = job._replace(options=with_headers(job.options, headers))
            options = with_headers(options, headers)
        message = TaskMessage(str(job_id), self._task, args, kwargs, options)
        return PreparedJob(job, message, self._policy.unique_for)

    def _make(
        self, defaults: JobDefaults, job_id: UUID, args: Any, kwargs: Any
    ) -> tuple[Job, dict[str, Any]]:
        """Returns a job, and the options of its message."""
        spec = self.spec
        job = Job(
            id=job_id,
            namespace=defaults.settings.namespace,
            task=self._task,
            args=args,
            kwargs=kwargs,
            job_source=self._job_source,
            created_by=self._actor.name,
            state="pending" if self._run_at is None else "scheduled",
            dispatched_at=NOW,
            run_at=self._run_at,
            queue=spec.queue,
            options=_as_stored({**spec.options}, self._serializer) or {},
            description=spec.description,
            labels=spec.labels,
            metadata=spec.metadata,
        )
        job = defaults.apply(job, self._policy)
        if self._has_own_key and job.unique_key is not None:
            job = job._replace(unique_key=user_limits.own_key(self._actor, job.unique_key))
        options = _with_queue(spec)
        if job.priority:
            options.setdefault("priority", job.priority)
        if self._run_at is not None:
            options["eta"] = self._run_at
        return job, options


def _with_queue(spec: JobSpec) -> dict[str, Any]:
    return {**spec.options} if spec.queue is None else {**spec.options, "queue": spec.queue}


def _from_template(spec: JobSpec, template: Template, facts: Facts) -> JobSpec:
    if spec.task not in (None, template.task):
        raise InvalidJob.of(
            "task",
            "conflict",
            f"template {template.name!r} is of task {template.task!r}, not {spec.task!r}",
        )
    args, kwargs = fill_template(template, spec.args, spec.kwargs, facts)
    return spec._replace(
        task=template.task,
        args=args,
        kwargs=kwargs,
        options={**template.options, **spec.options},
        queue=spec.queue or template.queue,
    )


def fill_template(
    template: Template, args: Sequence[Any] | None, kwargs: Mapping[str, Any], facts: Facts
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Returns the given arguments, completed by those of a template with placeholders filled in.

    The given arguments have no placeholders: their text may contain braces.
    """
    if args is None:
        args = placeholders.fill(template.args, facts, "args")
    return args, {**placeholders.fill(template.kwargs, facts, "kwargs"), **kwargs}


def _check_task(
    app: Celery, spec: JobSpec, actor: Actor, own_options: Mapping[str, Any], *, of_template: bool
) -> set[str]:
    """Checks the task and its options; returns the queues that a user names.

    `own_options` are the actor's.
    """
    if spec.task is None:
        raise InvalidJob.of("task", "required", "task is required: name a task or a template")
    # Before anything else: not everybody may know which tasks exist.
    permissions.require_task(actor, spec.task, of_template=of_template)
    check_task(app, spec.task, actor)
    check_options(_with_queue(spec), app.conf)
    if "eta" in spec.options or "countdown" in spec.options:
        raise InvalidJob.of(
            "options", "conflict", "options can't set the time; give run_at or countdown instead"
        )
    return user_limits.require_call(actor, spec.task, own_options, of_template=of_template)


def _check_origin(created_by: Any, job_source: Any) -> None:
    if not isinstance(created_by, str) or not is_storable(created_by):
        message = f"created_by must be text that Postgres can store, got {created_by!r}"
        raise InvalidJob.of("created_by", "malformed", message)
    if job_source not in JOB_SOURCES:
        known = ", ".join(JOB_SOURCES)
        raise InvalidJob.of(
            "job_source", "unknown", f"job_source must be one of {known}, got {job_source!r}"
        )


def _as_stored(value: Any, serializer: str) -> Any:
    """Returns the value as a JSON column holds it; `None` if it is not JSON.

    Values that kombu's JSON knows beyond JSON, such as times, are encoded as kombu does: a worker
    decodes them from the message.
    """
    encoded = stored(value)
    if encoded is not None or serializer != "json":
        return encoded
    try:
        return stored(as_json(value))
    except (TypeError, ValueError):
        return None
