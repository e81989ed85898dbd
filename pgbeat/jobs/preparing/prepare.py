"""Prepares submitted jobs, and their messages, without writing anything."""

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from celery import Celery

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.carried import carried_headers, with_headers
from pgbeat.broker.publishing.json_values import as_json
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.config import Settings
from pgbeat.config.app_state import state_of
from pgbeat.database.tables import JOB_SOURCES
from pgbeat.errors import InvalidJob
from pgbeat.jobs.checks import user_limits
from pgbeat.jobs.checks.task_checks import check_arguments, check_call, check_request
from pgbeat.jobs.policy import pinned_queues, task_policies
from pgbeat.jobs.policy.policies import JobPolicy, stored
from pgbeat.jobs.policy.templates import Template
from pgbeat.jobs.preparing import placeholders
from pgbeat.jobs.preparing.defaults import JobDefaults, complete
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

    @property
    def is_alone(self) -> bool:
        """Returns whether it says nothing of other jobs."""
        is_default = self.depends_on_outcome == "completed"
        return is_default and not self.depends_on and self.key is None

    @property
    def publish_options(self) -> dict[str, Any]:
        """Returns Celery's publish options, with the queue."""
        return {**self.options} if self.queue is None else {**self.options, "queue": self.queue}


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


#: The most patterns that an app keeps.
_MOST = 1000


class _Patterns:
    #: The settings that were given last, with the patterns that hold for them.
    _last: tuple[Settings | None, dict[Any, "_Pattern"]] = (None, {})

    def of(self, settings: Settings) -> dict[Any, "_Pattern"]:
        """Returns those that hold for these settings."""
        last, patterns = self._last
        if last is not settings or len(patterns) >= _MOST:
            patterns = {}
            self._last = settings, patterns
        return patterns


class Preparer:
    """Prepares an actor's jobs, with what those have in common that are alike checked once.

    What one that `lasts` has checked holds for the app's later jobs, too. Its settings must be
    those of `settings_of`, and its `defaults` must not check lanes.
    """

    def __init__(
        self,
        app: Celery,
        defaults: JobDefaults,
        actor: Actor,
        job_source: str,
        *,
        lasts: bool = False,
    ) -> None:
        self._app, self._defaults = app, defaults
        self._actor, self._job_source = actor, job_source
        self._lasts = lasts
        self._patterns: dict[Any, _Pattern] = (
            state_of(app).part(_Patterns).of(defaults.settings) if lasts else {}
        )

    def prepare(self, spec: JobSpec) -> PreparedJob:
        """Returns the job of a spec, and its message.

        Raises `InvalidJob`, `UnknownTask` or `InvalidSchedule` if the spec is invalid, and
        `Forbidden` if the actor may not run the task, set the options or waive the approval.
        """
        check_call(spec.args or (), spec.kwargs, spec.options)
        job_id = uuid4()
        key = self._key(spec)
        try:
            pattern = self._patterns.get(key)
        except TypeError:  # resources, or one of a wrong type, can't be hashed
            key = pattern = None
        if pattern is None:
            shared = spec if key is None else spec._replace(args=None, kwargs={})  # may be large
            pattern = _Pattern(
                self._app, self._defaults, shared, self._actor, self._job_source, job_id
            )
            if key is not None:
                self._patterns[key] = pattern
        return pattern.prepare(self._defaults, job_id, pattern.spec if key is None else spec)

    def _key(self, spec: JobSpec) -> Hashable:
        """Returns what jobs have in common that may differ in their arguments; `None` for one."""
        if (
            spec.policy.template is not None
            or spec.options
            or spec.labels
            or spec.metadata
            or type(spec.task) is not str
        ):
            return None
        alike = spec.task, spec.queue, spec.description
        if not self._lasts:
            return *alike, id(spec.policy), spec.run_at, spec.countdown
        if spec.run_at is not None or spec.countdown is not None:
            return None
        task = self._app.tasks.get(spec.task)
        return *alike, task, spec.policy, self._actor, self._job_source


class _Pattern:
    """What jobs have in common that differ only in their arguments."""

    def __init__(
        self,
        app: Celery,
        defaults: JobDefaults,
        asked: JobSpec,
        actor: Actor,
        job_source: str,
        job_id: UUID,
    ) -> None:
        _check_origin(actor.name, job_source)
        Details(asked.description, asked.labels, asked.metadata).check()
        self._app, self._actor, self._job_source = app, actor, job_source
        #: What the actor asks for; so the id of its policy is no other's meanwhile.
        self._asked = asked
        self._run_at: datetime | None = None
        if asked.run_at is not None or asked.countdown is not None:
            self._run_at = run_at_of(asked.run_at, asked.countdown, defaults.now)
        spec, template = asked, None
        if asked.policy.template is not None:
            template = defaults.template(asked.policy.template)
            zone = str(getattr(app.timezone, "key", None) or app.timezone)
            facts = Facts(self._run_at or defaults.now, zone, str(job_id), trigger="manual")
            spec = _from_template(asked, template, facts)
        options = spec.publish_options
        self._task = check_request(app, actor, spec.task, options, of_template=template is not None)
        task_policy = task_policies.of_task(app, self._task)
        user_limits.check(actor, app, defaults, asked, self._task, self._run_at, task_policy)
        self._policy = complete(
            asked.policy, template, self._task, task_policy, may_waive=actor.is_admin
        )
        pinned = pinned_queues.send_options(app, self._task, ((), {}), options)
        #: Completed by the template, and by the version to which its task is pinned.
        self.spec = spec if pinned is options else spec._replace(queue=pinned["queue"])
        self._serializer = str(
            spec.options.get("serializer")
            or app.tasks[self._task].serializer
            or app.conf.task_serializer
        )
        #: Whether a job's fields depend on its arguments, or on the time.
        self._varies = self._policy.may_have_key or self._policy.has_deadlines
        #: The job and the message's options, unless they vary.
        self._made: tuple[Job, dict[str, Any]] | None = None

    def prepare(self, defaults: JobDefaults, job_id: UUID, call: JobSpec) -> PreparedJob:
        """Returns the job with the arguments of a call."""
        args, kwargs = call.args or (), dict(call.kwargs)
        check_arguments(self._app, self._task, args, kwargs)
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
        if self._actor.is_restricted and self._asked.policy.may_have_key and job.unique_key:
            job = job._replace(unique_key=user_limits.own_key(self._actor, job.unique_key))
        options = spec.publish_options
        if job.priority:
            options.setdefault("priority", job.priority)
        if self._run_at is not None:
            options["eta"] = self._run_at
        return job, options


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
