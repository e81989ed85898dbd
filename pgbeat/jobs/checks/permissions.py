"""Decides which actor may do what with jobs and groups, for all interfaces.

Users see and cancel the jobs that they own. They may do anything else with those that no schedule
launched, except approve them. Only administrators approve jobs and change schedules, lanes and
templates; they may do everything. Viewers see everything; with a token or a sign-in for reading
only, nothing may be changed.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Table

from pgbeat.access.actors import Actor
from pgbeat.database.tables import groups as groups_table
from pgbeat.database.tables import jobs as jobs_table
from pgbeat.errors import Forbidden, NotFound, NotUnique
from pgbeat.jobs.checks import sql_jobs
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups.model import Group
from pgbeat.jobs.rows import ids
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.model import Job

Verb = Literal["show", "cancel", "retry", "pause", "resume", "approve", "update", "move", "delete"]

#: Those that can be done to all jobs that a filter matches (`pgbeat.jobs.verbs.bulk`).
BulkVerb = Literal["retry", "cancel", "pause", "resume", "update", "delete"]

# What users may do with their jobs that a schedule launched.
_OWN = {"show", "cancel"}
_HINT = "an administrator may"
_READ_ONLY = "your access is read-only"


def _for_admins(message: str) -> Forbidden:
    return Forbidden(f"{message}; {_HINT}", is_for_admins=True)


def require(actor: Actor, verb: Verb, job: Job) -> None:
    """Raises `Forbidden`, with the reason, unless the actor may do that with the job."""
    if verb != "show":
        require_change(actor, f"{verb} job {job.id}")
    reason = _objection(actor, verb, job)
    if reason is not None:
        raise _for_admins(f"can't {verb} job {job.id}: {reason}")


def sees(actor: Actor, job: Job) -> bool:
    """Returns whether the actor may know of the job."""
    return _objection(actor, "show", job) is None


def named(actor: Actor, job: Job) -> str:
    """Returns how a message calls a job: users aren't told which those of others are."""
    if actor.is_restricted and not sees(actor, job):
        return "a job of somebody else"
    return f"job {job.id}, which is {job.state},"


def _objection(actor: Actor, verb: Verb, job: Job) -> str | None:
    is_own = job.created_by == actor.name
    may = actor.sees_all if verb == "show" else actor.is_admin
    if may or (is_own and verb in _OWN):
        return None
    if job.is_system_job:
        of = "" if job.schedule is None else f" (of schedule {job.schedule!r})"
        return f"it is a system job{of}"
    if not is_own:
        return f"it is a job of {job.created_by!r}, and you are {actor.name!r}"
    return "it is your own job" if verb == "approve" else None


def require_change(actor: Actor, what: str) -> None:
    """Raises `Forbidden`, with the code `read_only`, if the actor may change nothing."""
    if actor.is_read_only:
        raise Forbidden(f"can't {what}: {_READ_ONLY}", code="read_only")


def require_view(actor: Actor, what: str) -> None:
    """Raises `Forbidden` unless the actor sees everything."""
    if not actor.sees_all:
        message = f"can't {what}: that is for administrators and viewers"
        raise Forbidden(message, is_for_admins=True)


def require_admin(actor: Actor, what: str) -> None:
    """Raises `Forbidden` unless the actor is an administrator.

    `what` is the action, such as `change lane 'gpu'`.
    """
    require_change(actor, what)
    if not actor.is_admin:
        raise Forbidden(f"can't {what}: that is for administrators", is_for_admins=True)


#: Tasks of Celery and pgbeat, which people may not run.
INTERNAL = ("celery.*", "pgbeat.*")


def _is_internal(task: str) -> bool:
    return any(fnmatchcase(task, glob) for glob in INTERNAL)


def may_run(actor: Actor, task: str, *, of_template: bool = False) -> bool:
    """Returns whether the actor may run a task. Everybody may run that of a template.

    Of pgbeat's own tasks, administrators may run the one that runs a statement in SQL.
    """
    if actor.tasks is None:
        return True
    if _is_internal(task):
        return actor.is_admin and task == sql_jobs.TASK
    return of_template or actor.is_admin or any(fnmatchcase(task, glob) for glob in actor.tasks)


def require_task(actor: Actor, task: str, *, of_template: bool = False) -> None:
    """Raises `Forbidden` unless the actor may run the task."""
    if may_run(actor, task, of_template=of_template):
        return
    reason = (
        "only administrators may, since its argument is a statement"
        if task == sql_jobs.TASK
        else "it is internal to Celery or pgbeat"
        if _is_internal(task)
        else "users may run jobs of templates and the tasks that the setting pgbeat_web_tasks "
        "names; an administrator can make a template of it, or extend that setting"
    )
    raise Forbidden(f"can't run task {task!r}: {reason}", field="task")


def visible(actor: Actor, which: Filter) -> Filter:
    """Returns the filter, limited to jobs that the actor may see.

    Raises `Forbidden` if it asks for jobs of another owner.
    """
    return which._replace(created_by=visible_owner(actor, which.created_by, "jobs"))


def visible_owner(actor: Actor, created_by: str | None, noun: str) -> str | None:
    """Returns the owner whose jobs or groups to list; `None` for all owners.

    Raises `Forbidden` if the actor may not see those of `created_by`.
    """
    if actor.sees_all:
        return created_by
    if created_by not in (None, actor.name):
        raise _for_admins(f"can't list {noun} of {created_by!r}: you are {actor.name!r}")
    return actor.name


def require_group(actor: Actor, verb: Literal["show", "cancel"], group: Group) -> None:
    """Raises `Forbidden` unless the actor owns the group, or is an administrator."""
    if verb != "show":
        require_change(actor, f"{verb} group {group.id}")
    may = actor.sees_all if verb == "show" else actor.is_admin
    if not may and group.created_by != actor.name:
        reason = f"it is a group of {group.created_by!r}, and you are {actor.name!r}"
        raise _for_admins(f"can't {verb} group {group.id}: {reason}")


def find(
    connection: Connection, actor: Actor, beginning: str, *, namespace: str, verb: Verb = "show"
) -> Job:
    """Returns the job whose id begins so, with 4 characters or more; of several, the actor's own.

    Raises `NotFound` as `ids.find`, and `Forbidden` if the actor may not see the job. The message
    says that they can't do what the `verb` says.
    """
    about = (jobs_table.c.task, jobs_table.c.state)
    job_id = _find(connection, actor, jobs_table, beginning, "job", namespace, about)
    job = jobs.get(connection, job_id)
    reason = _objection(actor, "show", job)
    if reason is not None:
        raise _for_admins(f"can't {verb} job {job.id}: {reason}")
    return job


def find_group(connection: Connection, actor: Actor, beginning: str, *, namespace: str) -> Group:
    """Returns the group whose id begins so, as `find` does a job."""
    about = (groups_table.c.name, groups_table.c.state)
    group_id = _find(connection, actor, groups_table, beginning, "group", namespace, about)
    group = groups.get(connection, group_id)
    require_group(actor, "show", group)
    return group


def _find(
    connection: Connection,
    actor: Actor,
    table: Table,
    beginning: str,
    noun: str,
    namespace: str,
    about: Sequence[ColumnElement[str]],
) -> UUID:
    """Returns the id that begins so: of what the actor owns, or else of all."""
    of_all = table.c.namespace == namespace
    if not actor.sees_all:
        own_only = table.c.created_by == actor.name
        try:
            return ids.find(connection, table, beginning, noun, of_all, own_only, about=about)
        except NotFound as error:
            if error.code != NotFound.code:
                raise
    return ids.find(connection, table, beginning, noun, of_all, about=about)


def require_own_key(actor: Actor, job: Job) -> None:
    """Raises `NotUnique` if a job that has the same unique key is not the actor's."""
    if not actor.is_admin and job.created_by != actor.name:
        raise NotUnique("a job of somebody else has the same unique key")
