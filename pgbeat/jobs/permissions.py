"""Permissions: who may do what with which job. Command line, API and page ask here, nowhere else.

A person sees and cancels the jobs that they made, and does anything else to those of them that no
schedule launched. An administrator does everything, and alone approves jobs and changes schedules,
lanes and templates.
"""

from fnmatch import fnmatchcase
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, select

from pgbeat.access.actors import Actor
from pgbeat.database.tables import jobs as jobs_table
from pgbeat.errors import Forbidden, NotFound
from pgbeat.jobs import model as jobs
from pgbeat.jobs.groups.model import Group
from pgbeat.jobs.model import Filter, Job

Verb = Literal[
    "show", "cancel", "retry", "pause", "resume", "approve", "update", "move", "delete"
]  # fmt: skip

#: What a person may do with their own job, although a schedule launched it.
_OWN = {"show", "cancel"}
#: What no owner may do.
_ADMINS = {"approve"}
_HINT = "an administrator may"


def require(actor: Actor, verb: Verb, job: Job) -> None:
    """Raises `Forbidden`, with the reason, unless the actor may do that with the job."""
    reason = _objection(actor, verb, job)
    if reason is not None:
        raise Forbidden(f"can't {verb} job {job.id}: {reason}; {_HINT}", is_for_admins=True)


def _objection(actor: Actor, verb: Verb, job: Job) -> str | None:
    is_own = job.created_by == actor.name
    if actor.is_admin or (is_own and verb in _OWN):
        return None
    if job.is_system_job:
        of = "" if job.schedule is None else f" (of schedule {job.schedule!r})"
        return f"it is a system job{of}"
    if not is_own:
        return f"it is a job of {job.created_by!r}, and you are {actor.name!r}"
    return "nobody approves their own jobs" if verb in _ADMINS else None


def require_admin(actor: Actor, what: str) -> None:
    """Raises `Forbidden` for others than administrators. `what` is what it takes one for, such as
    `change lane 'gpu'`."""
    if not actor.is_admin:
        raise Forbidden(f"can't {what}: that is for administrators; {_HINT}", is_for_admins=True)


#: Tasks of Celery's and pgbeat's own, which are not for people to run.
INTERNAL = ("celery.*", "pgbeat.*")


def is_internal_task(name: str) -> bool:
    """Returns whether a task is Celery's or pgbeat's own."""
    return any(fnmatchcase(name, glob) for glob in INTERNAL)


def may_run(actor: Actor, task: str, *, of_template: bool = False) -> bool:
    """Returns whether the actor may have a task run. A template's task is free to all: an
    administrator chose it."""
    if actor.tasks is None:
        return True
    if is_internal_task(task):
        return False
    return of_template or actor.is_admin or any(fnmatchcase(task, glob) for glob in actor.tasks)


def require_task(actor: Actor, task: str, *, of_template: bool = False) -> None:
    """Raises `Forbidden` unless the actor may have the task run."""
    if may_run(actor, task, of_template=of_template):
        return
    if is_internal_task(task):
        said = f"can't run task {task!r}: it is internal to Celery or pgbeat"
        raise Forbidden(said, field="task")
    raise Forbidden(
        f"can't run task {task!r}: users may run jobs of templates and the tasks that the setting "
        "pgbeat_web_tasks names; an administrator can make a template of it, or extend that",
        field="task",
    )


def visible(actor: Actor, which: Filter) -> Filter:
    """Of the jobs asked for, those that the actor may see. Raises `Forbidden` where it asks for
    another's."""
    if actor.is_admin:
        return which
    if which.created_by not in (None, actor.name):
        raise Forbidden(
            f"can't list jobs of {which.created_by!r}: you are {actor.name!r}; {_HINT}",
            is_for_admins=True,
        )
    return which._replace(created_by=actor.name)


def require_group(actor: Actor, verb: Literal["show", "cancel"], group: Group) -> None:
    """Raises `Forbidden` unless the actor may do that with the group: it is theirs."""
    if actor.is_admin or group.created_by == actor.name:
        return
    whose = f"it is a group of {group.created_by!r}, and you are {actor.name!r}"
    raise Forbidden(f"can't {verb} group {group.id}: {whose}; {_HINT}", is_for_admins=True)


def find(
    connection: Connection, actor: Actor, text: str, *, namespace: str, verb: Verb = "show"
) -> Job:
    """The job of an id, or of the beginning of one: 4 characters or more. Among several that begin
    so, it is the actor's own. Raises `NotFound`, and `Forbidden` for one that they may not see,
    which says what they wanted to do with it (`verb`)."""
    digits = text.replace("-", "").lower()
    if not 4 <= len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        raise NotFound(f"{text!r} is no job's id, nor the beginning of one (4 characters or more)")
    ids = jobs_table.c.id
    query = select(ids).where(
        ids >= UUID(digits.ljust(32, "0")), ids <= UUID(digits.ljust(32, "f")),
        jobs_table.c.namespace == namespace,
    )  # fmt: skip
    found = jobs.find(connection, list(connection.scalars(query.limit(_SEVERAL))))
    several = [job for job in found if actor.is_admin or job.created_by == actor.name] or found
    if not several:
        raise NotFound(f"there is no job {text}" + ("" if len(digits) == 32 else "…"))
    if len(several) > 1:
        listed = ", ".join(sorted(str(job.id) for job in several)[:5])
        raise NotFound(f"{text!r} begins the ids of several jobs: {listed}; write more of it")
    reason = _objection(actor, "show", several[0])
    if reason is not None:
        raise Forbidden(f"can't {verb} job {several[0].id}: {reason}; {_HINT}", is_for_admins=True)
    return several[0]


_SEVERAL = 50


def whose_groups(actor: Actor, created_by: str | None) -> str | None:
    """Whose groups the actor may see of those asked for; `None`: everybody's. Raises `Forbidden`
    where it asks for another's."""
    if actor.is_admin:
        return created_by
    if created_by not in (None, actor.name):
        raise Forbidden(
            f"can't list groups of {created_by!r}: you are {actor.name!r}; {_HINT}",
            is_for_admins=True,
        )
    return actor.name
