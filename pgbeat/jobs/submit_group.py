"""Grouping: groups of jobs that a person or a program asks for, and asks to end."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from celery import Celery, current_app
from sqlalchemy.exc import DBAPIError

from pgbeat.access.actors import Actor, user
from pgbeat.broker.publishing.transaction import Opened
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings
from pgbeat.errors import InvalidInput, InvalidJob, InvalidTransition, NotUnique, PgbeatError
from pgbeat.jobs import dispatch, lifecycle, prepare, submissions
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups.model import Group, Mode, OnFailure
from pgbeat.jobs.model import Ended, Job
from pgbeat.jobs.permissions import require_group
from pgbeat.jobs.prepare import JobSpec, PreparedJob

#: Members of a group, at most.
MOST = 10_000
#: What an order says beside its job policy.
_KEYS = frozenset({"task", "args", "kwargs", "queue", "options", "run_at", "countdown",
    "description", "labels", "metadata"})  # fmt: skip


class SubmittedGroup(NamedTuple):
    """A group that was made, and its members by their positions."""

    group: Group
    jobs: list[Job]

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of the new group."""
        kind, subject, values = self.group.audited
        tasks = sorted({job.task for job in self.jobs})[:20]
        return kind, subject, {**values, "jobs": len(self.jobs), "tasks": tasks}


def order(member: Any) -> JobSpec:
    """What a member is to do: a task or its name, a signature of Celery's (`add.s(1, 2)`), or a
    mapping with what `pgbeat.submit` takes: `task`, `args`, `kwargs`, `queue`, `options`, `run_at`,
    `countdown` and the keys of a job policy. Raises `InvalidJob`."""
    if not isinstance(member, Mapping):
        return JobSpec(task=str(getattr(member, "name", member)))
    if "subtask_type" in member:
        return _of_signature(member)
    given = dict(member)
    values = {key: given.pop(key) for key in _KEYS & given.keys()}
    task = values.pop("task", None)
    countdown = values.pop("countdown", None)
    for key in ("args", "kwargs", "options", "labels", "metadata"):
        if values.get(key) is None:
            values.pop(key, None)
    if isinstance(values.get("run_at"), str):
        values["run_at"] = _moment(values["run_at"])
    return JobSpec(
        task=None if task is None else str(getattr(task, "name", task)),
        policy=job_policies.parse(given),
        countdown=prepare.length(countdown),
        **values,
    )


def _of_signature(member: Mapping[str, Any]) -> JobSpec:
    if member["subtask_type"] is not None:
        raise InvalidJob.of(
            "jobs", "malformed", f"a {member['subtask_type']} is no member of a group; a task's is"
        )
    options = dict(member["options"])
    run_at, countdown = options.pop("eta", None), options.pop("countdown", None)
    return JobSpec(
        member["task"], member["args"], member["kwargs"],
        options=options, run_at=run_at, countdown=prepare.length(countdown),
    )  # fmt: skip


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidJob.of(
            "run_at",
            "malformed",
            f"run_at is {text!r}, which is no time; write for example '2026-12-24T09:00Z'",
        ) from None


def draft_members(
    unit: UnitOfWork, members: Sequence[Any], *, mode: Mode, job_source: str
) -> list[PreparedJob]:
    """Returns the jobs of a group, for which nothing is written yet. Raises as `submit_group`, and
    `Forbidden` as `prepare.prepare`."""
    if not 0 < len(members) <= MOST:
        raise InvalidJob.of(
            "jobs",
            "out_of_range",
            f"a group has 1 to {MOST:,} members, and this one has {len(members):,}",
        )
    group_id, app = str(uuid4()), unit.require_app()
    orders = [_named(number, order, member) for number, member in enumerate(members)]
    stock = prepare.job_defaults(unit.connection, unit.settings, orders)
    made = []
    for number, each in enumerate(orders):
        draft: PreparedJob = _named(
            number, prepare.prepare, app, stock, each,
            created_by=unit.actor.name, job_source=job_source, actor=unit.actor,
        )  # fmt: skip
        job = draft.job._replace(group_id=group_id, group_position=number)
        if mode == "sequential" and number > 0:
            if job.args is None:
                raise InvalidJob.of(
                    "args",
                    "malformed",
                    f"member {number}: its arguments are not JSON, and it can't wait without them",
                )
            job = job._replace(blocked_by_group=True, is_dispatched=False)
        made.append(draft._replace(job=job))
    return made


def submit(
    unit: UnitOfWork,
    members: Sequence[Any],
    *,
    mode: Mode = "parallel",
    on_failure: OnFailure = "stop",
    name: str | None = None,
    job_source: str,
) -> SubmittedGroup:
    """Makes a group, the actor's, with its jobs and messages: all or none. Raises as
    `submit_group`."""
    groups.check(mode, on_failure, name)
    batch = draft_members(unit, members, mode=mode, job_source=job_source)
    group_id = str(batch[0].job.group_id)
    groups.create(
        unit.connection, group_id=group_id, namespace=unit.namespace, name=name, mode=mode,
        on_failure=on_failure, created_by=unit.actor.name, job_source=job_source,
    )  # fmt: skip
    written = submissions.write(unit, batch)
    for number, (job, is_new) in enumerate(written):
        if not is_new:
            raise NotUnique(
                f"member {number}: job {job.id}, which is {job.state}, has the same unique key"
            )
    made = SubmittedGroup(groups.get(unit.connection, group_id), [job for job, _ in written])
    submissions.follow(unit, made.jobs)
    unit.record("create", None, made)
    return made


def _named(number: int, what: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns what the function returns; what it raises is given the member's position."""
    try:
        return what(*args, **kwargs)
    except InvalidInput as error:
        head = f"member {number}: {error.subject and error.subject + ': '}"
        found = [each._replace(message=head + each.message) for each in error.problems]
        raise type(error)([each.within(f"jobs[{number}]") for each in found]) from None
    except PgbeatError as error:
        error.args, error.field = (f"member {number}: {error}",), f"jobs[{number}]"
        raise


def submit_group(
    members: Sequence[Any],
    *,
    mode: Mode = "parallel",
    on_failure: OnFailure = "stop",
    name: str | None = None,
    connection: Opened | None = None,
    app: Celery | None = None,
    created_by: str | None = None,
    job_source: str = "user_api",
) -> SubmittedGroup:
    """Makes a group of jobs, all at once or one after the other.

        pgbeat.submit_group([load.s("a"), load.s("b"), merge.s()], mode="sequential")

    A member is a task or its name, a signature, or a mapping with what `pgbeat.submit` takes:
    `{"task": "shop.load", "args": ["a"], "lane": "db", "max_attempts": 5}`. `parallel` members go
    all at once; of `sequential` ones, each goes when the one before it has ended for good, its
    retries included. `on_failure` says what becomes of the rest once one has failed for good:
    `stop` (the rest is cancelled), `skip_remaining` (skipped) or `continue`.

    With `connection`, an open SQLAlchemy session or connection on pgbeat's database, the group is
    there if and only if the caller's transaction commits; without, once this returns.

    Raises `InvalidJob`, `UnknownTask` or `InvalidSchedule` for what is not right with a member,
    `NotUnique` where another job has the unique key of one: nothing is made then.
    """
    if not isinstance(members, Sequence) or isinstance(members, str | bytes):
        raise TypeError(f"submit_group wants a list of members, not {members!r}")
    found: Celery = app or _app(members) or current_app._get_current_object()
    found.loader.import_default_modules()
    settings = Settings.load(found.conf)
    actor = Actor(created_by) if created_by else user()
    with (
        submissions.opened_unit(found, settings, actor, connection) as unit,
        unit.transaction(),
    ):
        return submit(
            unit, members, mode=mode, on_failure=on_failure, name=name, job_source=job_source
        )


def _app(members: Sequence[Any]) -> Celery | None:
    for member in members:
        task = member.get("task") if type(member) is dict else member
        app = getattr(task, "app", None)
        if app is not None:
            return app
    return None


class Cancelled(NamedTuple):
    """What the end of a group meant for its members."""

    group: Group
    #: Members that ended now, and those that run, whose workers were asked to end them.
    ended: int
    asked: int


#: Looks for members that were passed by because somebody held them, or are new.
_LOOKS = 5


def cancel(unit: UnitOfWork, group_id: str | UUID) -> Cancelled:
    """Ends a group: members that wait are cancelled, and the workers of those that run are asked to
    end them; asked again, they are sent the request again.

    The unit has no transaction open: this takes as many as it needs. Raises `NotFound`,
    `Forbidden`, and `InvalidTransition` for a group that has ended.
    """
    connection, by = unit.connection, unit.actor.name
    group = groups.get(connection, group_id, namespace=unit.namespace)
    require_group(unit.actor, "cancel", group)
    if group.state != "running":
        raise InvalidTransition.of(group.id, group.state, "cancelled", "it has ended", noun="group")
    ended, is_recorded = 0, False
    for look in range(_LOOKS):
        left = groups.unfinished(connection, group.id, with_asked=look == 0)
        if look and not left:
            break
        try:
            with unit.transaction():
                gone = _cancel_members(unit, group, left)
                if not is_recorded:
                    unit.record("cancel", group, group._replace(cancelled_by=by))
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != "40P01" or look == _LOOKS - 1:
                raise  # else a deadlock with a worker that recorded several members: once more
        else:
            ended, is_recorded = ended + len(gone), True
    asked = groups.unfinished(connection, group.id, with_asked=True)
    return Cancelled(groups.get(connection, group.id), ended, len(asked))


def _cancel_members(unit: UnitOfWork, group: Group, job_ids: Sequence[str]) -> list[Ended]:
    """Cancels members, and marks the group; returns the jobs that ended."""
    publisher, connection, by = unit.publisher, unit.connection, unit.actor.name
    reason = f"its group was cancelled by {by}"
    gone = lifecycle.cancel(connection, publisher, job_ids, by=by, reason=reason)
    groups.mark_cancelled(connection, group.id, by)
    dispatch.after_commit(unit, lifecycle.follow(connection, publisher, gone, {group.id}))
    return gone
