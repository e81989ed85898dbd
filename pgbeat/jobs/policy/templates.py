"""Reads templates: named tasks with arguments and a job policy, from which jobs are made.

A job has a copy of the values: later changes of the template don't affect it.
"""

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from pgbeat.database.named_rows import NamedRows
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


_rows = NamedRows("template", Template, COLUMNS, NAMED)
get, load, listing, is_template = _rows.get, _rows.load, _rows.listing, _rows.is_named
users, lock_unused = _rows.users, _rows.lock_unused


def hold(connection: Connection, namespace: str) -> None:
    """Keeps templates from getting other tasks until the transaction ends.

    Whoever changes what schedules name does this before locking them: a template that gets another
    task is locked before its schedules.
    """
    query = select(templates.c.name).where(templates.c.namespace == namespace)
    connection.execute(query.order_by(templates.c.name).with_for_update(read=True, key_share=True))
