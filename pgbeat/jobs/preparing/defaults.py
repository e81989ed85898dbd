"""Completes job policies and new jobs with what their templates, lanes and the settings say."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import Connection

from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.database.named_rows import missing
from pgbeat.errors import Forbidden, InvalidJob
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes.model import Lane
from pgbeat.jobs.policy import templates
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.jobs.policy.templates import Template
from pgbeat.jobs.rows.model import Job


class JobDefaults:
    """The templates and lanes that a batch of job policies names, read once.

    Without `checks_lanes`, the statement that writes the jobs must check that the lanes exist.
    """

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        policies: Iterable[JobPolicy],
        *,
        checks_lanes: bool = True,
    ) -> None:
        self.settings = settings
        self.connection = connection
        known = list(policies)
        names = {policy.template for policy in known if policy.template is not None}
        self._templates = templates.load(connection, names, namespace=settings.namespace)
        for template in self._templates.values():
            with suppress(InvalidJob):  # raised when its job is prepared
                known.append(template.policy)
        self._checks_lanes = checks_lanes
        names = {policy.lane for policy in known if checks_lanes and policy.lane is not None}
        self._lanes = lanes.load(connection, names, namespace=settings.namespace)

    @cached_property
    def now(self) -> datetime:
        """Returns the database's time, as of the start of the transaction."""
        return connections.now(self.connection)

    def template(self, name: str) -> Template:
        """Returns the template with that name. Raises `InvalidJob`."""
        if name not in self._templates:
            raise self._unknown("template", name)
        return self._templates[name]

    def lane(self, name: str) -> Lane:
        """Returns the lane with that name. Raises `InvalidJob`."""
        if name not in self._lanes:  # of a task's policy
            loaded = lanes.load(self.connection, [name], namespace=self.settings.namespace)
            self._lanes |= loaded
        if name not in self._lanes:
            raise self._unknown("lane", name)
        return self._lanes[name]

    def _unknown(self, noun: str, name: str) -> InvalidJob:
        error = missing(self.connection, noun, name, namespace=self.settings.namespace)
        return InvalidJob.of(noun, "unknown", str(error))

    def apply(self, job: Job, policy: JobPolicy) -> Job:
        """Returns the job with the fields that the policy and the settings determine.

        Raises `InvalidJob` if there is no such lane, or if the job needs arguments in JSON and
        they are not.
        """
        base, cap = backoff(policy, self.settings)
        changes: dict[str, Any] = {
            "template": policy.template,
            "lane": policy.lane,
            "priority": policy.priority or 0,
            "tags": policy.tags or (),
            "resources": policy.resources or {},
            "max_attempts": policy.max_attempts or self.settings.job_max_attempts,
            "retry_base": base,
            "retry_cap": cap,
            "unique_key": policy.unique_key,
        }
        if policy.has_deadlines:
            due_at = None if job.trigger == "backfill" else job.due_at
            start, end = policy.deadlines(due_at or job.run_at or self.now)
            changes |= {"must_start_by": start, "must_end_by": end}
        if policy.lane is not None:
            if self._checks_lanes:
                self.lane(policy.lane)
            changes["dispatched_at"] = None
        if policy.requires_approval:
            changes |= {
                "state": "paused",
                "awaits_approval": True,
                "requires_approval": True,
                "dispatched_at": None,
            }
        if job.args is not None:
            changes["unique_key"] = policy.key(job.task, job.args, job.kwargs or {})
        elif "dispatched_at" in changes or not job.is_dispatched:
            raise InvalidJob.of(
                "args", "malformed", "its arguments are not JSON, and it can't wait without them"
            )
        elif policy.unique_key is None and (policy.unique or policy.unique_for):
            raise InvalidJob.of(
                "unique_key", "required", "its arguments are not JSON; give it a unique_key"
            )
        return job._replace(**changes)


def complete(
    policy: JobPolicy,
    template: Template | None,
    task: str,
    task_policy: JobPolicy | None,
    *,
    may_waive: bool = True,
) -> JobPolicy:
    """Returns the policy of a job, completed by those of its template and its task.

    Raises `InvalidJob` if the template's is invalid, and `Forbidden` if the job's waives the
    approval that one of them requires, unless the actor `may_waive` it.
    """
    template_policy = None if template is None else template.policy
    for noun, name, by in (
        ("template", policy.template, template_policy),
        ("task", task, task_policy),
    ):
        if by is None:
            continue
        if by.requires_approval and policy.requires_approval is False and not may_waive:
            raise Forbidden(
                f"{noun} {name!r} requires approval, which only an administrator may waive; leave "
                "requires_approval out",
                field="requires_approval",
                is_for_admins=True,
            )
        policy = policy.over(by)
    return policy


def backoff(policy: JobPolicy, settings: Settings) -> tuple[timedelta, timedelta]:
    """Returns the time until a job's first retry, and the most until any."""
    base = _or_seconds(policy.retry_base, settings.job_retry_base)
    return base, max(base, _or_seconds(policy.retry_cap, settings.job_retry_cap))


def _or_seconds(span: timedelta | None, default: float) -> timedelta:
    return timedelta(seconds=default) if span is None else span
