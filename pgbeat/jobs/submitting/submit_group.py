"""Submits and cancels groups of jobs, for programs (`pgbeat.submit_group`) and people."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from celery import Celery, current_app
from sqlalchemy.exc import DBAPIError

from pgbeat.access.actors import Actor, user
from pgbeat.broker.publishing.transaction import Opened
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import settings_of
from pgbeat.database import connections
from pgbeat.errors import InvalidJob, NotUnique
from pgbeat.jobs.checks import user_limits
from pgbeat.jobs.checks.permissions import named, require_group
from pgbeat.jobs.flow import depends_on, dispatch, lifecycle
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups.model import CallbackOutcome, Group, Mode, OnFailure
from pgbeat.jobs.preparing import members as members_of
from pgbeat.jobs.preparing import prepare
from pgbeat.jobs.preparing.defaults import JobDefaults
from pgbeat.jobs.preparing.prepare import JobSpec, PreparedJob
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.states.endings import Ended
from pgbeat.jobs.writing import submissions

#: Members of a group, at most.
MOST = 10_000


class SubmittedGroup(NamedTuple):
    """A new group, and its members by their positions."""

    group: Group
    jobs: list[Job]
    #: The job that runs when the group has ended.
    callback: Job | None = None

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of the new group."""
        kind, subject, values = self.group.audited
        tasks = sorted({job.task for job in self.jobs})[:20]
        return kind, subject, {**values, "jobs": len(self.jobs), "tasks": tasks}


def prepare_members(
    unit: UnitOfWork, members: Sequence[Any], *, mode: Mode, callback: Any = None, job_source: str
) -> list[PreparedJob]:
    """Returns the jobs of a group, the last its callback if it has one, without writing anything.

    Raises as `Preparer.prepare`.
    """
    if not 0 < len(members) <= MOST:
        raise InvalidJob.of(
            "jobs",
            "out_of_range",
            f"a group has 1 to {MOST:,} members, and this one has {len(members):,}",
        )
    user_limits.require_few(unit.actor, unit.settings, len(members))
    group_id, app = uuid4(), unit.require_app()
    specs: list[JobSpec] = []
    links = 0
    with members_of.numbered() as at:
        for at.number, member in enumerate(members):
            specs.append(members_of.spec(member))
            links += user_limits.link_count(unit.actor, specs[-1].options)
    user_limits.require_few(unit.actor, unit.settings, len(members) + links)
    last = None if callback is None else _callback_spec(callback)
    policies = [spec.policy for spec in (*specs, *([] if last is None else [last]))]
    defaults = JobDefaults(unit.connection, unit.settings, policies)
    preparer = prepare.Preparer(app, defaults, unit.actor, job_source)
    prepared: list[PreparedJob] = []
    with members_of.numbered() as at:
        for at.number, spec in enumerate(specs):
            new = preparer.prepare(spec)
            job = new.job._replace(group_id=group_id, group_position=at.number)
            new = new._replace(job=job)
            if mode == "sequential" and spec.depends_on:
                message = "members of a sequential group wait for the one before; use mode parallel"
                raise InvalidJob.of("depends_on", "conflict", message)
            is_first = mode == "parallel" or at.number == 0
            prepared.append(new if is_first else prepare.blocked(new))
    parents = depends_on.of_members(unit, specs, [str(new.job.id) for new in prepared])
    with members_of.numbered() as at:
        for at.number, (new, spec) in enumerate(zip(prepared, specs, strict=True)):
            prepared[at.number] = depends_on.blocked(new, spec, parents[at.number])
    if last is not None:
        with members_of.named("callback"):
            prepared.append(prepare.blocked(preparer.prepare(last), callback_of=group_id))
    return prepared


def _callback_spec(callback: Any) -> JobSpec:
    with members_of.named("callback"):
        spec = members_of.spec(callback)
        for field in ("depends_on", "key"):
            if getattr(spec, field):
                message = "a callback waits for its group, and for nothing else"
                raise InvalidJob.of(field, "conflict", message)
    return spec


def submit(
    unit: UnitOfWork,
    members: Sequence[Any],
    *,
    mode: Mode = "parallel",
    on_failure: OnFailure = "stop",
    name: str | None = None,
    callback: Any = None,
    callback_outcome: CallbackOutcome = "finished",
    job_source: str,
) -> SubmittedGroup:
    """Makes a group of the actor's, with all its jobs. Raises as `submit_group`."""
    groups.check(mode, on_failure, name, callback_outcome)
    batch = prepare_members(unit, members, mode=mode, callback=callback, job_source=job_source)
    group_id = batch[0].job.group_id
    group = groups.create(
        unit.connection,
        as_owner=unit.submits_as_owner,
        id=group_id,
        namespace=unit.namespace,
        name=name,
        mode=mode,
        on_failure=on_failure,
        created_by=unit.actor.name,
        job_source=job_source,
        is_system_job=False,
        callback_id=None if callback is None else batch[-1].job.id,
        callback_outcome=callback_outcome,
    )
    written = submissions.write(unit, batch)
    for number, (job, is_new) in enumerate(written):
        if not is_new:
            which = f"member {number}" if number < len(members) else "callback"
            other = named(unit.actor, job)
            raise NotUnique(f"{which}: {other} has the same unique key")
    rows = [job for job, _ in written]
    last = None if callback is None else rows.pop()
    new = SubmittedGroup(group, rows, last)
    unit.record("create", None, new)
    return new


def submit_group(
    members: Sequence[Any],
    *,
    mode: Mode = "parallel",
    on_failure: OnFailure = "stop",
    name: str | None = None,
    callback: Any = None,
    callback_outcome: CallbackOutcome = "finished",
    connection: Opened | None = None,
    app: Celery | None = None,
    created_by: str | None = None,
    job_source: str = "user_api",
) -> SubmittedGroup:
    """Makes a group of jobs that run in parallel, in order, or as a graph.

        pgbeat.submit_group([load.s("a"), load.s("b"), merge.s()], mode="sequential")

    A member is a task or its name, a signature, or a mapping with what `pgbeat.submit` takes:
    `{"task": "shop.load", "args": ["a"], "lane": "db", "max_attempts": 5}`. `parallel` members
    start at once; a `sequential` one starts when the member before it and its retries have ended.
    `on_failure` says what happens to the rest after a member and its retries have failed: `stop`
    cancels it, `skip_remaining` skips it, and `continue` lets it run.

    A parallel member can have a `key`, and with `depends_on` wait for others: their keys, their
    positions from 0, or jobs that exist. With `continue`, those that depend on a failed member are
    skipped, unless their `depends_on_outcome` is `finished`.

    `callback` is a member that runs once, when the group has ended and `completed`, `failed` or,
    with `finished`, either; otherwise it is skipped. `pgbeat.current().callback_of` is the group.

    `connection` is an open SQLAlchemy session or connection on pgbeat's database. With it, the
    group exists if and only if the caller's transaction commits; without it, once this returns.

    Makes all jobs or none. Raises `InvalidJob`, `UnknownTask` or `InvalidSchedule` for an invalid
    member, and `NotUnique` if another job has the unique key of a member.
    """
    if not isinstance(members, Sequence) or isinstance(members, str | bytes):
        raise TypeError(f"members must be a list, got {members!r}")
    app = app or members_of.app_of(members) or current_app._get_current_object()
    app.loader.import_default_modules()
    actor = Actor(created_by) if created_by else user()
    with (
        submissions.opened_unit(app, settings_of(app), actor, connection) as unit,
        submissions.transaction(unit) as ids,
    ):
        new = submit(
            unit,
            members,
            mode=mode,
            on_failure=on_failure,
            name=name,
            callback=callback,
            callback_outcome=callback_outcome,
            job_source=job_source,
        )
        ids += [str(job.id) for job in new.jobs]
    return new


class CancelledGroup(NamedTuple):
    """A group that was cancelled."""

    group: Group
    #: Members that ended now, and those that run, whose workers were asked to end them.
    ended: int
    asked: int


# How often to look for members that were locked, or that are new.
_LOOKS = 5


def cancel(unit: UnitOfWork, group_id: str | UUID) -> CancelledGroup:
    """Cancels the members of a group that wait, and asks workers to end those that run.

    The unit must have no transaction open: several may be needed. Raises `NotFound`, `Forbidden`,
    and `InvalidTransition` if the group has ended.
    """
    connection, by = unit.connection, unit.actor.name
    group = groups.get(connection, group_id, namespace=unit.namespace)
    require_group(unit.actor, "cancel", group)
    groups.require_running(group)
    ended, is_recorded = 0, False
    for look in range(_LOOKS):
        left = groups.unfinished(connection, group.id, with_requested=look == 0)
        if look and not left:
            break
        try:
            with unit.transaction():
                gone = _cancel_members(unit, group, left)
                if not is_recorded:
                    unit.record("cancel", group, group._replace(cancelled_by=by))
        except DBAPIError as error:
            if connections.sqlstate(error) != "40P01" or look == _LOOKS - 1:
                raise  # otherwise a deadlock with a worker that recorded several members
        else:
            ended, is_recorded = ended + len(gone), True
    asked = groups.unfinished(connection, group.id)
    return CancelledGroup(groups.get(connection, group.id), ended, len(asked))


def _cancel_members(unit: UnitOfWork, group: Group, job_ids: Sequence[str]) -> list[Ended]:
    """Cancels members, marks the group, and returns the jobs that ended."""
    publisher, connection, by = unit.publisher, unit.connection, unit.actor.name
    reason = f"its group was cancelled by {by}"
    gone = lifecycle.cancel(connection, publisher, job_ids, by=by, reason=reason)
    groups.mark_cancelled(connection, group.id, by)
    dispatch.after_commit(unit, lifecycle.follow(connection, publisher, gone, {group.id}))
    return gone
