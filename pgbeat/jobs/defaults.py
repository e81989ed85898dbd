"""Orders: from what a schedule, a template or a person says, the job that is to be made."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, text

from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import Forbidden, InvalidJob
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs import templates
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes.model import Lane
from pgbeat.jobs.model import NewJob
from pgbeat.jobs.policies import JobPolicy
from pgbeat.jobs.templates import Template


class JobDefaults:
    """The templates and lanes of a batch of orders, as they are in this transaction."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        policies: Iterable[JobPolicy],
    ) -> None:
        self.settings = settings
        self._connection = connection
        asked = list(policies)
        named = {policy.template for policy in asked if policy.template is not None}
        namespace = settings.namespace
        self._templates = templates.load(connection, named, namespace=namespace)
        asked += self._of_templates()
        wanted = {policy.lane for policy in asked if policy.lane is not None}
        self._lanes = lanes.load(connection, wanted, namespace=namespace)

    def _of_templates(self) -> Iterator[JobPolicy]:
        for template in self._templates.values():
            with suppress(InvalidJob):  # told when its job is made
                yield template.policy

    @cached_property
    def now(self) -> datetime:
        """The database's clock, at the start of the transaction."""
        return connections.now(self._connection)

    def template(self, name: str) -> Template:
        """The template of that name. Raises `InvalidJob`."""
        if name not in self._templates:
            raise InvalidJob.of(
                "template",
                "unknown",
                f"there is no template {name!r}; `pgbeat templates list` shows those there are",
            )
        return self._templates[name]

    def lane(self, name: str) -> Lane:
        """The lane of that name. Raises `InvalidJob`."""
        if name not in self._lanes:
            raise InvalidJob.of(
                "lane",
                "unknown",
                f"there is no lane {name!r}; `pgbeat lanes set {name} --limit 1` makes it",
            )
        return self._lanes[name]

    def policy(self, given: JobPolicy, *, may_waive: bool = True) -> JobPolicy:
        """Returns the policy completed by its template's. Raises `InvalidJob`; and `Forbidden` for
        one that waives the approval that its template requires, unless that is allowed."""
        if given.template is None:
            return given
        template = self.template(given.template).policy
        if template.requires_approval and given.requires_approval is False and not may_waive:
            raise Forbidden(
                f"template {given.template!r} requires approval, which only an administrator may "
                "waive; leave requires_approval out",
                field="requires_approval",
                is_for_admins=True,
            )
        return given.over(template)

    def apply(self, job: NewJob, policy: JobPolicy) -> NewJob:
        """The job as the policy wants it: in its lane, waiting for approval, with a unique key.

        Raises `InvalidJob` for a lane that isn't there, or arguments that are not JSON where the
        job has to wait.
        """
        changes: dict[str, Any] = {
            "template": policy.template,
            "lane": policy.lane,
            "priority": policy.priority,
            "tags": policy.tags or None,
            "resources": policy.resources or None,
            "max_attempts": policy.max_attempts or self.settings.job_max_attempts,
            "retry_base": _seconds(policy.retry_base, self.settings.job_retry_base),
            "retry_cap": _seconds(policy.retry_cap, self.settings.job_retry_cap),
        }
        changes["retry_cap"] = max(changes["retry_cap"], changes["retry_base"])
        if policy.lane is not None:
            self.lane(policy.lane)
            changes["is_dispatched"] = False
        if policy.requires_approval:
            changes |= {"state": "paused", "awaits_approval": True, "is_dispatched": False}
        if not changes.get("is_dispatched", job.is_dispatched) and job.args is None:
            raise InvalidJob.of(
                "args", "malformed", "its arguments are not JSON, and it can't wait without them"
            )
        if job.args is not None:
            changes["unique_key"] = policy.key(job.task, job.args, job.kwargs or {})
        elif policy.unique or policy.unique_for:
            raise InvalidJob.of(
                "unique_key", "required", "its arguments are not JSON; give it a unique_key"
            )
        else:
            changes["unique_key"] = policy.unique_key
        return job._replace(**changes)


def _seconds(given: timedelta | None, otherwise: float) -> float:
    return otherwise if given is None else given.total_seconds()


# The lock is for those who make one of the same key at the same time.
_LOCK = text(
    "SELECT pg_advisory_xact_lock(hashtextextended(CAST(:namespace AS text) || '/' || key, 1050)) "
    "FROM (SELECT DISTINCT key FROM unnest(CAST(:keys AS text[])) AS key ORDER BY key) AS k"
)
_TRY_LOCK = text(
    "SELECT key, pg_try_advisory_xact_lock("
    "hashtextextended(CAST(:namespace AS text) || '/' || key, 1050)) "
    "FROM (SELECT DISTINCT key FROM unnest(CAST(:keys AS text[])) AS key ORDER BY key) AS k"
)
_OTHER = text(
    """
    SELECT k.key, j.id, j.state
      FROM unnest(CAST(:keys AS text[]), CAST(:seconds AS float8[])) AS k (key, seconds)
           CROSS JOIN LATERAL (
               SELECT id, state FROM pgbeat.jobs
                WHERE namespace = :namespace AND unique_key = k.key
                  AND (state IN ('pending', 'scheduled', 'running', 'paused')
                       OR created_at > now() - k.seconds * interval '1 second')
                ORDER BY created_at DESC LIMIT 1) AS j
    """
)


def try_lock_keys(connection: Connection, namespace: str, keys: Iterable[str]) -> set[str]:
    """Locks unique keys, as `find_conflicts` does, without waiting.

    Returns those that another transaction has locked: it is making a job with that key.
    """
    names = list(keys)
    if not names:
        return set()
    rows = connection.execute(_TRY_LOCK, {"namespace": namespace, "keys": names})
    return {key for key, is_locked in rows if not is_locked}


def find_conflicts(
    connection: Connection, namespace: str, keys: Mapping[str, timedelta | None]
) -> dict[str, tuple[str, str]]:
    """Of unique keys, each with the time within which there is to be no other job, those that are
    taken: by which job (id and state). Others who ask for the same keys wait for this
    transaction."""
    if keys:
        connection.execute(_LOCK, {"namespace": namespace, "keys": list(keys)})
    return find_taken(connection, namespace, keys)


def find_taken(
    connection: Connection, namespace: str, keys: Mapping[str, timedelta | None]
) -> dict[str, tuple[str, str]]:
    """Returns the same without a lock: what is taken now, as far as it is committed."""
    if not keys:
        return {}
    names = list(keys)
    seconds = [0.0 if (span := keys[name]) is None else span.total_seconds() for name in names]
    rows = connection.execute(_OTHER, {"namespace": namespace, "keys": names, "seconds": seconds})
    return {key: (str(job_id), state) for key, job_id, state in rows}


def policy_of(given: Mapping[str, Any]) -> JobPolicy:
    """The policy of a row's JSON. Raises `InvalidJob`."""
    return job_policies.parse(given) if given else _NONE


_NONE = JobPolicy()
