"""Reads templates: named tasks with arguments and a job policy, from which jobs are made.

A job has a copy of the values: later changes of the template don't affect it.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, select

from pgbeat.database.missing import missing
from pgbeat.database.tables import schedules, templates
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy.policies import JobPolicy


class Template(NamedTuple):
    """A row of `pgbeat.templates`."""

    namespace: str
    name: str
    description: str | None
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    #: Celery's publish options.
    options: dict[str, Any]
    queue: str | None
    #: JSON.
    job_policy: dict[str, Any]
    created_by: str | None
    created_at: datetime
    updated_at: datetime

    @property
    def policy(self) -> JobPolicy:
        """Returns the job policy. Raises `InvalidJob`."""
        return job_policies.parse(self.job_policy)

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "template", self.name, {name: getattr(self, name) for name in _AUDITED}


_AUDITED = ("description", "task", "args", "kwargs", "options", "queue", "job_policy", "created_by")
COLUMNS = [templates.c[name] for name in Template._fields]
#: The template that a schedule names, in SQL.
NAMED = schedules.c.job_policy["template"].astext


def load(connection: Connection, names: Iterable[str], *, namespace: str) -> dict[str, Template]:
    """Returns the templates with these names that exist."""
    wanted = list(names)
    if not wanted:
        return {}
    query = select(*COLUMNS).where(templates.c.namespace == namespace, templates.c.name.in_(wanted))
    return {row.name: Template(*row) for row in connection.execute(query)}


def is_template(name: str, namespace: str) -> ColumnElement[bool]:
    """Returns the SQL condition that selects a template."""
    return (templates.c.name == name) & (templates.c.namespace == namespace)


def get(connection: Connection, name: str, *, namespace: str, for_update: bool = False) -> Template:
    """Returns the template with that name. Raises `NotFound`, with the most similar name."""
    query = select(*COLUMNS).where(is_template(name, namespace))
    row = connection.execute(query.with_for_update() if for_update else query).one_or_none()
    if row is None:
        raise missing(connection, "template", name, namespace=namespace)
    return Template(*row)


def listing(connection: Connection, *, namespace: str) -> list[Template]:
    """Returns all templates, by name."""
    query = select(*COLUMNS).where(templates.c.namespace == namespace).order_by(templates.c.name)
    return [Template(*row) for row in connection.execute(query)]


def users(connection: Connection, *, namespace: str) -> dict[str, list[str]]:
    """Returns the names of the schedules that name each template, without unused templates."""
    query = select(NAMED, schedules.c.name).where(
        schedules.c.namespace == namespace, NAMED.is_not(None)
    )
    by_template: dict[str, list[str]] = {}
    for template, schedule in connection.execute(query.order_by(schedules.c.name)):
        by_template.setdefault(template, []).append(schedule)
    return by_template
