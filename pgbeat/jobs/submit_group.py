"""Grouping: groups of jobs that a person or a program asks for, and asks to end."""

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import kombu.exceptions
from celery import Celery, current_app
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.broker.publishing.transaction import Opened
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import InvalidJob, InvalidTransition, NotUnique, PgbeatError
from pgbeat.jobs import dispatch, drafts, lifecycle, submissions
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs.drafts import Draft, Order
from pgbeat.jobs.groups import model as groups
from pgbeat.jobs.groups.model import Group, Mode, OnFailure
from pgbeat.jobs.lanes import waiting
from pgbeat.jobs.model import Job
from pgbeat.jobs.permissions import Actor, require_group, user

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


def order(member: Any) -> Order:
    """What a member is to do: a task or its name, a signature of Celery's (`add.s(1, 2)`), or a
    mapping with what `pgbeat.submit` takes: `task`, `args`, `kwargs`, `queue`, `options`, `run_at`,
    `countdown` and the keys of a job policy. Raises `InvalidJob`."""
    if not isinstance(member, Mapping):
        return Order(task=str(getattr(member, "name", member)))
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
    return Order(
        task=None if task is None else str(getattr(task, "name", task)),
        policy=job_policies.parse(given),
        countdown=drafts.length(countdown),
        **values,
    )


def _of_signature(member: Mapping[str, Any]) -> Order:
    if member["subtask_type"] is not None:
        raise InvalidJob(f"a {member['subtask_type']} is no member of a group; a task's is")
    options = dict(member["options"])
    run_at, countdown = options.pop("eta", None), options.pop("countdown", None)
    return Order(
        member["task"], member["args"], member["kwargs"],
        options=options, run_at=run_at, countdown=drafts.length(countdown),
    )  # fmt: skip


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidJob(
            f"run_at is {text!r}, which is no time; write for example '2026-12-24T09:00Z'"
        ) from None


def draft_members(
    connection: Connection,
    app: Celery,
    settings: Settings,
    members: Sequence[Any],
    *,
    mode: Mode,
    created_by: str,
    job_source: str,
    actor: Actor | None = None,
) -> list[Draft]:
    """The jobs of a group, which nothing is written for yet. `actor` asks for them, where that is
    not the program itself. Raises as `submit_group`, and `Forbidden` as `drafts.of_order`."""
    if not 0 < len(members) <= MOST:
        raise InvalidJob(f"a group has 1 to {MOST:,} members, and this one has {len(members):,}")
    group_id = str(uuid4())
    orders = [_named(number, order, member) for number, member in enumerate(members)]
    stock = drafts.stock(connection, settings, orders)
    made = []
    for number, each in enumerate(orders):
        draft: Draft = _named(
            number, drafts.of_order, app, stock, each,
            created_by=created_by, job_source=job_source, actor=actor,
        )  # fmt: skip
        job = draft.job._replace(group_id=group_id, group_position=number)
        if mode == "sequential" and number > 0:
            if job.args is None:
                raise InvalidJob(
                    f"member {number}: its arguments are not JSON, and it can't wait without them"
                )
            job = job._replace(blocked_by_group=True, is_dispatched=False)
        made.append(draft._replace(job=job))
    return made


def place(
    connection: Connection,
    app: Celery,
    settings: Settings,
    publisher: Publisher,
    members: Sequence[Any],
    *,
    mode: Mode = "parallel",
    on_failure: OnFailure = "stop",
    name: str | None = None,
    created_by: str,
    job_source: str,
    actor: Actor | None = None,
    is_own: bool = True,
) -> SubmittedGroup:
    """Makes a group with its jobs and messages in the open transaction: all or none.

    `is_own` is whether the transaction is the publisher's own: in a caller's, what a broker
    elsewhere is to get waits for the commit. Raises as `submit_group`. Of members that wait in a
    lane, `allotment.allot` is to be told after the commit.
    """
    groups.check(mode, on_failure, name)
    batch = draft_members(
        connection, app, settings, members,
        mode=mode, created_by=created_by, job_source=job_source, actor=actor,
    )  # fmt: skip
    if not is_own:
        batch = [submissions.after_commit(connection, draft, publisher) for draft in batch]
    group_id = str(batch[0].job.group_id)
    groups.create(
        connection, group_id=group_id, namespace=settings.namespace, name=name, mode=mode,
        on_failure=on_failure, created_by=created_by, job_source=job_source,
    )  # fmt: skip
    written = submissions.write(connection, publisher, batch)
    for number, (job, is_new) in enumerate(written):
        if not is_new:
            raise NotUnique(
                f"member {number}: job {job.id}, which is {job.state}, has the same unique key"
            )
    return SubmittedGroup(groups.get(connection, group_id), [job for job, _ in written])


def _named(number: int, what: Any, *args: Any, **kwargs: Any) -> Any:
    """What it returns; where it raises, with the member's position."""
    try:
        return what(*args, **kwargs)
    except PgbeatError as error:
        error.args = (f"member {number}: {error}",)
        raise


def lanes(jobs: Sequence[Job]) -> set[tuple[str, str]]:
    """The lanes (namespace and name) in whose lines jobs are."""
    return {(job.namespace, str(job.lane)) for job in jobs if waiting.is_waiting(job)}


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
    values: dict[str, Any] = {
        "mode": mode, "on_failure": on_failure, "name": name,
        "created_by": created_by or user().name, "job_source": job_source,
    }  # fmt: skip
    with submissions.publishing(found, settings) as broker:
        if connection is not None:
            inside = submissions.enlist(connection, settings, broker)
            made = place(inside, found, settings, broker, members, **values, is_own=False)
            for job in made.jobs:
                submissions.announce(inside, job)
            return made
        with submissions.session(settings) as own:
            return run(own, found, settings, broker, members, **values)


def run(
    connection: Connection,
    app: Celery,
    settings: Settings,
    publisher: Publisher,
    members: Sequence[Any],
    *,
    note: Callable[[Connection, SubmittedGroup], None] | None = None,
    **values: Any,
) -> SubmittedGroup:
    """`place` in a transaction of its own, in which `note` writes too, on a connection in
    autocommit mode; then lanes' free slots are handed out."""
    with connections.transaction(connection):
        publisher.prepare(connection)
        made = place(connection, app, settings, publisher, members, **values)
        for job in made.jobs:
            if job.state == "scheduled":
                submissions.announce(connection, job)
        if note is not None:
            note(connection, made)
    _allot(connection, publisher, lanes(made.jobs))
    return made


def _app(members: Sequence[Any]) -> Celery | None:
    for member in members:
        task = member.get("task") if type(member) is dict else member
        app = getattr(task, "app", None)
        if app is not None:
            return app
    return None


def _allot(connection: Connection, publisher: Publisher, changed: Set[tuple[str, str]]) -> None:
    with suppress(kombu.exceptions.OperationalError):  # beat does it later
        for namespace, lane in changed:
            dispatch.allot(connection, publisher, namespace, lane)


class Cancelled(NamedTuple):
    """What the end of a group meant for its members."""

    group: Group
    #: Members that ended now, and those that run, whose workers were asked to end them.
    ended: int
    asked: int


#: Looks for members that were passed by because somebody held them, or are new.
_LOOKS = 5


def cancel(
    connection: Connection,
    publisher: Publisher,
    actor: Actor,
    group_id: str | UUID,
    *,
    namespace: str | None = None,
    note: Callable[[Connection], None] | None = None,
) -> Cancelled:
    """Ends a group: members that wait are cancelled, of those that run the workers are asked to end
    them. Again, they are asked again. The connection is in autocommit mode; `note` writes in the
    transaction that marks the group.

    Raises `NotFound`, `Forbidden`, and `InvalidTransition` for one that has ended.
    """
    group = groups.get(connection, group_id, namespace=namespace)
    require_group(actor, "cancel", group)
    if group.state != "running":
        raise InvalidTransition(group.id, group.state, "cancelled", "it has ended", noun="group")
    reason = f"its group was cancelled by {actor.name}"
    ended = 0
    changed: set[tuple[str, str]] = set()
    for look in range(_LOOKS):
        left = groups.unfinished(connection, group.id, with_asked=look == 0)
        if look and not left:
            break
        try:
            with connections.transaction(connection):
                gone = lifecycle.cancel(connection, publisher, left, by=actor.name, reason=reason)
                groups.mark_cancelled(connection, group.id, actor.name)
                if note is not None:
                    note(connection)
                changed |= lifecycle.follow(connection, publisher, gone, {group.id})
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != "40P01" or look == _LOOKS - 1:
                raise  # else a deadlock with a worker that told of several members: once more
            continue
        finally:
            publisher.clear()
        ended, note = ended + len(gone), None
    _allot(connection, publisher, changed)
    asked = groups.unfinished(connection, group.id, with_asked=True)
    return Cancelled(groups.get(connection, group.id), ended, len(asked))
