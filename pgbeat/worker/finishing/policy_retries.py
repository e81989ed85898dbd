"""Retries tasks that were sent with a policy, as `max_attempts` of that policy says.

Celery's own retry does it, under the same id: a result, a chord and a chain wait for that one id.
(A job that was submitted is retried by a new job instead, by whichever process records its end.)

A retry that can't be sent, since the broker can't be reached, would end the task. A message that
is acknowledged late is requeued instead, and the same attempt runs again.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

from celery import Celery
from celery.exceptions import Ignore, OperationalError, Reject, Retry
from sqlalchemy.exc import SQLAlchemyError

from pgbeat.broker.messages import NEW_JOB_HEADER
from pgbeat.config import settings_of
from pgbeat.database import connections
from pgbeat.database.named_rows import missing
from pgbeat.errors import ConfigError
from pgbeat.jobs.policy import policies, task_policies
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.jobs.preparing.defaults import backoff
from pgbeat.results.ending import TaskEnding
from pgbeat.worker.reporting import raise_suspended

logger = logging.getLogger("pgbeat.worker")


def tasks(app: Celery) -> set[str]:
    """Returns the names of a worker's tasks that have policies.

    How often a run is retried is said by its message: by the policy with which it was sent. Raises
    `SystemExit`, with one line for each mistake, if policies are invalid.
    """
    try:
        known = task_policies.all_of(app)
    except ConfigError as error:
        lines = [f"pgbeat: {problem.field}: {problem.message}" for problem in error.problems]
        raise SystemExit("\n".join(lines)) from None
    _warn_of_missing_lanes(app, known)
    return set(known)


def _warn_of_missing_lanes(app: Celery, known: Mapping[str, JobPolicy]) -> None:
    """Warns of tasks that can't be sent; says nothing if the database can't be asked."""
    if all(policy.lane is None for policy in known.values()):
        return
    settings = settings_of(app)
    with (
        suppress(SQLAlchemyError),
        connections.engine(settings.url, "pgbeat worker").connect() as connection,
    ):
        gone = task_policies.missing_lanes(connection, known, namespace=settings.namespace)
        for lane, tasks in gone.items():
            logger.warning(
                "%s can't be sent, by policy: %s",
                ", ".join(map(repr, tasks)),
                missing(connection, "lane", lane, namespace=settings.namespace),
            )


def requeue_unsent(task: Any) -> None:
    """Replaces the task's `retry`, which rejects for good a message that it can't send.

    A task that sleeps or waits is not retried, though it has caught that as an error.
    """
    retry = task.retry

    @wraps(retry)
    def retry_or_requeue(*args: Any, **kwargs: Any) -> Any:
        raise_suspended(task.request)
        try:
            return retry(*args, **kwargs)
        except Reject as rejected:
            is_unsent = isinstance(rejected.reason, OperationalError)
            if rejected.requeue or not (is_unsent and task.acks_late):
                raise
            raise Reject(rejected.reason, requeue=True) from rejected

    task.retry = retry_or_requeue


def settle(task: Any, error: BaseException, ending: TaskEnding | None) -> None:
    """Raises Celery's `Retry` if the task is run again after an error."""
    if not isinstance(error, Exception) or isinstance(error, Retry | Ignore | Reject):
        return
    countdown = _countdown(task.app, task.request)
    if countdown is None:
        return
    if ending is not None and ending.keeps_message:
        raise Retry(exc=error, when=countdown) from error
    with _keeping_limit(task):
        raise task.retry(exc=error, countdown=countdown, max_retries=_MOST) from error


@contextmanager
def _keeping_limit(task: Any) -> Iterator[None]:
    """Keeps Celery from noting the limit of this retry as that of the task's own."""
    before = dict(vars(task))
    try:
        yield
    finally:
        vars(task).pop(_LIMIT, None)
        if _LIMIT in before:
            setattr(task, _LIMIT, before[_LIMIT])


#: Celery's own limit must not end the retries earlier.
_MOST = 1_000_000
#: Where `Task.retry` notes a limit that it is given.
_LIMIT = "override_max_retries"


def _countdown(app: Celery, request: Any) -> float | None:
    """Returns the seconds until the next attempt; `None` without one."""
    new_job: Mapping[str, Any] | None = getattr(request, NEW_JOB_HEADER, None)
    if new_job is None or request.called_directly or request.is_eager:
        return None
    policy, settings = policies.parse(new_job["policy"]), settings_of(app)
    retries = int(request.retries or 0)
    if retries + 1 >= (policy.max_attempts or 1):
        return None
    base, cap = backoff(policy, settings)
    return min(base.total_seconds() * 2.0 ** min(retries, 60), cap.total_seconds())
