"""Makes jobs of tasks that have a policy, in the transaction that writes their messages.

`delay`, `apply_async`, links of chains and members of groups all end in `send`, which has Celery
make the message as usual, with a header that says how the job is made. What then writes the message
(its own commit, a caller's transaction, the end of a task) calls `write`, which inserts the
job. A job that waits, for its lane, its batch or an approval, keeps the message until it is
dispatched.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast
from uuid import UUID, uuid4

from celery import Celery
from celery._state import get_current_worker_task
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgbeat.access import actors
from pgbeat.broker.messages import JOB_HEADER, Message, NewJob
from pgbeat.broker.publishing.template_sender import TemplateSender
from pgbeat.broker.transport.broker import Working
from pgbeat.config import settings_of
from pgbeat.config.app_state import state_of
from pgbeat.database import connections
from pgbeat.database.named_rows import missing
from pgbeat.database.prepared import PreparedConnection
from pgbeat.errors import InvalidJob, NotUnique
from pgbeat.jobs.flow import dispatch
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.messages import kept_messages
from pgbeat.jobs.messages.discarded_messages import end_discarded as end_discarded
from pgbeat.jobs.messages.envelopes import Envelope
from pgbeat.jobs.policy import batches, pinned_queues, task_policies
from pgbeat.jobs.policy.batches import BATCH, Batch
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.jobs.preparing.defaults import backoff
from pgbeat.jobs.rows import new_jobs
from pgbeat.jobs.rows.model import NOW, Job, State
from pgbeat.jobs.rows.new_jobs import NewRow
from pgbeat.jobs.writing import submissions
from pgbeat.storable import LATEST

logger = logging.getLogger("pgbeat.lanes")

#: Options of `apply_async` by which others know the task's id, or wait for what follows from it.
_AWAITED = (
    "task_id",
    "root_id",
    "parent_id",
    "group_id",
    "chord",
    "chain",
    "link",
    "link_error",
    "reply_to",
)


#: Options that say where a task goes, as its own retry does.
_PLACE = ("queue", "exchange", "routing_key")


class Written(NamedTuple):
    """The outcome of writing a message's job."""

    #: The job's: another one if there is one with its unique key.
    id: str
    #: What to dispatch once the job's transaction has committed.
    rooms: frozenset[lanes.Room] = frozenset()


class TaskJob(NewJob):
    """How the message of a task that is sent makes its job."""

    def __init__(self, policy: JobPolicy, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.policy = policy
        self.key = id(policy), fields["is_awaited"]
        #: Whether `send` waits for what becomes of it. Otherwise the message was kept till later.
        self.is_sending = True
        #: Whether it was written before, though perhaps in vain: the answer was lost.
        self.was_tried = False
        #: What became of it, for `send`.
        self.written: Written | None = None


#: The most policies that are kept as headers.
_MOST = 1000


def has_policy(app: Celery, name: str) -> bool:
    """Returns whether sending a task makes a job. Raises `InvalidJob` for an invalid policy."""
    return task_policies.of_task(app, name) is not None


def send(
    app: Celery, sender: TemplateSender, name: str, args: Any, kwargs: Any, options: dict[str, Any]
) -> Any:
    """Sends a task with a policy, and returns its result.

    That of the unfinished job, if there is one with the task's unique key. Raises `InvalidJob` for
    an invalid policy, a lane that doesn't exist, or an id that is not a UUID.
    """
    known = task_policies.known(app, name)
    policy = known.policy
    job = (options.get("headers") or {}).get(JOB_HEADER)
    takes_place = job is False or _is_running(options.get("task_id"))
    if policy is None or job is not None or takes_place:
        if known.is_pinned and takes_place and not any(map(options.get, _PLACE)):
            options = pinned_queues.send_options(app, name, (args, kwargs), options)
        return sender.send_by_celery(name, args, kwargs, **options)
    task_id = str(options.get("task_id") or uuid4())
    _require_job_id(name, task_id)
    if known.is_pinned:
        options = pinned_queues.send_options(app, name, (args, kwargs), options)
    send_options = {**options, "task_id": task_id, "add_to_parent": False}
    if policy.priority is not None and send_options.get("priority") is None:
        send_options["priority"] = policy.priority
    new_job = _task_job(app, policy, known.batch, any(map(options.get, _AWAITED)))
    try:
        result = sender.send(name, args, kwargs, send_options, new_job)
    finally:
        new_job.is_sending = False
    written = new_job.written or Written(task_id)
    if written.rooms:
        _dispatch(app, written.rooms)
    if written.id != task_id:
        ignored, result = result.ignored, (options.get("result_cls") or app.AsyncResult)(written.id)
        result.ignored = ignored
    parent = app.current_worker_task
    if options.get("add_to_parent", True) and parent:
        parent.add_trail(result)
    return result


def _require_job_id(name: str, task_id: str) -> None:
    """Raises `InvalidJob` unless the id of a task can be that of a job."""
    try:
        UUID(task_id)
    except ValueError:
        raise InvalidJob.of(
            "task_id",
            "malformed",
            f"task {name!r} has a policy, so its task_id is the id of a job, which must be a UUID; "
            f"got {task_id!r}",
        ) from None


def _task_job(app: Celery, policy: JobPolicy, batch: Batch | None, is_awaited: bool) -> TaskJob:
    """Returns how a task with that policy makes its job."""
    state = state_of(app)
    known = state.part(_KnownFields)
    key = id(policy), is_awaited
    if key not in known:
        if len(known) >= _MOST:
            known.clear()
        base, cap = backoff(policy, state.settings)
        complete = policy._replace(retry_base=base, retry_cap=cap)
        fields: dict[str, Any] = {
            "namespace": state.settings.namespace,
            "created_by": actors.user().name,
            "policy": complete.as_json(),
            "is_awaited": is_awaited,
        }
        if batch is not None:
            fields[BATCH] = batch.as_json()
        known[key] = policy, complete, fields
    return TaskJob(*known[key][1:])


class _KnownFields(dict[tuple[int, bool], tuple[JobPolicy, JobPolicy, Mapping[str, Any]]]):
    """By a policy's identity: the policy, so that it is kept alive, and what a `TaskJob` takes."""


def _is_running(task_id: Any) -> bool:
    """Returns whether the running task sends itself: its retry, or what replaces it."""
    running = None if task_id is None else get_current_worker_task()
    return running is not None and running.request.id == task_id


def _dispatch(app: Celery, changed: frozenset[lanes.Room]) -> None:
    """Dispatches lanes that a job has entered. It is written: beat does the rest, if need be."""
    actor, settings = actors.user(), settings_of(app)
    try:
        with submissions.opened_unit(app, settings, actor, joins=False) as unit, unit.statement():
            dispatch.after_commit(unit, changed)
    except DBAPIError as error:
        logger.warning("Beat must dispatch a lane: %s", connections.first_line(error))


# ----- where messages are written


def write(
    connection: Connection, batch: Sequence[Message], *, is_own: bool = False
) -> list[Message]:
    """Writes the jobs that messages make, and returns the messages to write now.

    These are without those of jobs that wait, and of jobs that exist already. Lanes are dispatched
    after the commit: by `send` if the transaction `is_own`, else by the leading beat.
    """
    left = []
    for message in batch:
        if message.new_job is None:
            left.append(message)
        elif (written := _write(connection, message, is_own)) is not None:
            left.append(written)
    return left


def write_at_once(working: Working, message: Message) -> bool:
    """Writes the job of a message with its message in one statement, which commits by itself.

    Returns false if nothing was written: then `write` must do it, or raise.
    """
    if message.queue is None or message.ttl is not None or message.available_at is not None:
        return False
    if cast(TaskJob, message.new_job).policy.has_deadlines:  # so long after its creation
        return False
    new = _MessageJob(working.connection, message)
    row = new.write(working.prepared, None if new.waits else message)
    if row.id is None:
        return False
    new.was_written(row, is_own=True)
    return True


def _write(connection: Connection, message: Message, is_own: bool) -> Message | None:
    """Writes the job of a message; returns the message if it must be written now."""
    new = _MessageJob(connection, message)
    row = new.write(connection, None)
    if row.id is None:
        raise new.refused()
    new.was_written(row, is_own=is_own)
    is_new = row.created_at is not None
    return message._replace(new_job=None) if is_new and not new.waits else None


class _MessageJob:
    """The job that a message makes."""

    def __init__(self, connection: Connection, message: Message) -> None:
        self._connection = connection
        self._task_job = task_job = cast(TaskJob, message.new_job)
        envelope, policy = Envelope.of(message), task_job.policy
        run_at = None if envelope.run_at is None else datetime.fromisoformat(envelope.run_at)
        if run_at is not None:
            run_at = None if run_at <= datetime.now().astimezone() else min(run_at, LATEST)
        requires_approval = bool(policy.requires_approval)
        #: Whether its message is kept until it is dispatched.
        batch = task_job.get(BATCH)
        self.waits = policy.lane is not None or requires_approval or batch is not None
        kept = kept_messages.written(message) if self.waits or envelope.is_part else None
        if kept is not None and batch is not None:
            kept[BATCH] = batches.place(batch, envelope.args, envelope.kwargs)
        start_by, end_by = (
            policy.deadlines(run_at or connections.now(connection))
            if policy.has_deadlines
            else (None, None)
        )
        place = envelope.place
        self._job = Job(
            id=UUID(envelope.id),
            namespace=task_job["namespace"],
            task=envelope.task,
            job_source="user_api",
            created_by=task_job["created_by"],
            args=envelope.args,
            kwargs=envelope.kwargs,
            options=envelope.options,
            queue=message.queue,
            state=_state(requires_approval, is_later=run_at is not None),
            run_at=run_at,
            dispatched_at=None if self.waits else NOW,
            lane=policy.lane,
            priority=message.priority,
            tags=policy.tags or (),
            resources=policy.resources or {},
            max_attempts=policy.max_attempts or 1,
            retry_base=policy.retry_base or timedelta(minutes=1),
            retry_cap=policy.retry_cap or timedelta(hours=1),
            unique_key=_key(policy, envelope),
            awaits_approval=requires_approval,
            requires_approval=requires_approval,
            must_start_by=start_by,
            must_end_by=end_by,
            message=kept,
            root_id=_uuid(place.root_id),
            parent_id=_uuid(place.parent_id),
            canvas=place.canvas,
            keeps_id=True,
        )
        self._may_exist = task_job.was_tried or not task_job.is_sending
        task_job.was_tried = True

    def write(self, session: Connection | PreparedConnection, message: Message | None) -> NewRow:
        """Writes it, and the message if there is one. Raises as `new_jobs.write`."""
        return new_jobs.write(
            session,
            self._job,
            message,
            self._task_job.policy.unique_for,
            is_awaited=self._task_job["is_awaited"],
            may_exist=self._may_exist,
        )

    def was_written(self, row: NewRow, *, is_own: bool) -> None:
        """Notes for `send` what became of it, and has its lane dispatched after the commit.

        Raises `NotUnique` if there is another one with its key, and no `send` that can return it.
        """
        job, task_job = self._job, self._task_job
        if row.id != job.id and not task_job.is_sending:
            raise NotUnique(
                f"task {job.task!r} is unique, and job {row.id} is unfinished; its id can't be "
                "returned where messages are written later"
            )
        task_job.written = Written(str(row.id))
        # One that was written before may have lost its dispatch with the answer.
        is_mine = row.created_at is not None or (task_job.is_sending and row.id == job.id)
        if not is_mine or job.lane is None or job.state != "pending":
            return
        if is_own and task_job.is_sending:
            room = lanes.Room(job.namespace, job.lane, job.id)
            task_job.written = Written(str(row.id), frozenset([room]))
        else:
            lanes.announce(self._connection, job.namespace, job.lane)

    def refused(self) -> Exception:
        """Returns why it was not written."""
        name, namespace = self._job.lane, self._job.namespace
        if name is not None and not lanes.load(self._connection, [name], namespace=namespace):
            error = missing(self._connection, "lane", name, namespace=namespace)
            subject = f"task {self._job.task!r} can't be sent, by its policy"
            return InvalidJob.of("lane", "unknown", str(error), subject=subject)
        return NotUnique("a job with the same unique key was made at this moment; try again")


def _state(requires_approval: bool, *, is_later: bool) -> State:
    if requires_approval:
        return "paused"
    return "scheduled" if is_later else "pending"


def _key(policy: JobPolicy, call: Envelope) -> str | None:
    if call.args is None or call.kwargs is None:
        if policy.unique_key is None and policy.may_have_key:
            raise InvalidJob.of(
                "unique_key",
                "required",
                f"the arguments of task {call.task!r} are not JSON; its policy needs a unique_key",
            )
        return policy.unique_key
    return policy.key(call.task, call.args, call.kwargs)


def _uuid(value: str | None) -> UUID | None:
    return None if value is None else UUID(value)
