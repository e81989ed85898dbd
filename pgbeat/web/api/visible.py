"""Finds the jobs and groups that the caller may see; others don't exist for them."""

from uuid import UUID

from sqlalchemy import Connection

from pgbeat.errors import Forbidden, NotFound
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups.model import Group
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.results import lookup
from pgbeat.results.lookup import TaskResult
from pgbeat.web.calls import WebCall


def visible_job(connection: Connection, call: WebCall, job_id: UUID | str) -> Job:
    """Returns the job, masked. Raises `NotFound` if the actor may not see it."""
    job = jobs.get(connection, job_id, namespace=call.namespace)
    try:
        permissions.require(call.caller, "show", job)
    except Forbidden:
        raise NotFound(f"there is no job {job_id}") from None
    return call.redactor.row(job, job.task)


def visible_group(connection: Connection, call: WebCall, group_id: UUID) -> Group:
    """Returns the group. Raises `NotFound` if the actor may not see it."""
    group = groups.get(connection, group_id, namespace=call.namespace)
    try:
        permissions.require_group(call.caller, "show", group)
    except Forbidden:
        raise NotFound(f"there is no group {group_id}") from None
    return group


def visible_result(connection: Connection, call: WebCall, task_id: str) -> TaskResult:
    """Returns a task's result, masked. Raises `NotFound` if the actor may not see it.

    A job's result is visible to callers who may see the job, another task's result to callers who
    see everything.
    """
    missing = NotFound(f"there is no result of task {task_id}")
    task = None
    try:
        task = visible_job(connection, call, task_id).task
    except NotFound:
        if not call.caller.sees_all:
            raise missing from None
    prefix = lookup.prefix_of(call.backend.celery.conf)
    result = lookup.find(connection, task_id, prefix=prefix)
    if result is None:
        raise missing
    return call.redactor.row(result, task or result.task)
