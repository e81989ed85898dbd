"""Makes jobs of tasks that have a policy, in the transaction that writes their messages.

`delay`, `apply_async`, links of chains and members of groups all end in `send`, which has Celery
make the message as ever, with a header that says how the job is made. What then writes the message
(a commit of its own, a caller's transaction, the end of a task) calls `write`, which inserts the
job. A job that waits, for its lane or an approval, keeps the message until it is dispatched.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast
from uuid import UUID, uuid4

from celery import Celery
from celery._state import get_current_worker_task
from sqlalchemy import Connection, text

from pgbeat.access import actors
from pgbeat.broker.messages import JOB_HEADER, Message, NewJob
from pgbeat.broker.publishing.template_sender import TemplateSender
from pgbeat.broker.transport.broker import Working
from pgbeat.config import settings_of
from pgbeat.config.app_state import state_of
from pgbeat.database.missing import missing
from pgbeat.database.prepared import Statement
from pgbeat.errors import InvalidJob, NotUnique
from pgbeat.jobs.flow import dispatch
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.messages import kept_messages
from pgbeat.jobs.messages.discarded_messages import end_discarded as end_discarded
from pgbeat.jobs.messages.envelopes import Envelope
from pgbeat.jobs.policy import task_policies
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.jobs.preparing.defaults import backoff
from pgbeat.jobs.rows import unique_keys
from pgbeat.jobs.writing import submissions
from pgbeat.jobs.writing.one_statement import array

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


class Written(NamedTuple):
    """What became of a message's job."""

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
    policy = task_policies.of_task(app, name)
    is_job = JOB_HEADER in (options.get("headers") or ())
    if policy is None or is_job or _is_running(options.get("task_id")):
        return sender.send_by_celery(name, args, kwargs, **options)
    task_id = str(options.get("task_id") or uuid4())
    _require_job_id(name, task_id)
    own = {**options, "task_id": task_id, "add_to_parent": False}
    if policy.priority is not None and own.get("priority") is None:
        own["priority"] = policy.priority
    new_job = _task_job(app, policy, any(map(options.get, _AWAITED)))
    try:
        result = sender.send(name, args, kwargs, own, new_job)
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


def _task_job(app: Celery, policy: JobPolicy, is_awaited: bool) -> TaskJob:
    """Returns how a task with that policy makes its job."""
    state = state_of(app)
    known = state.part(_KnownFields)
    key = id(policy), is_awaited
    if key not in known:
        if len(known) >= _MOST:
            known.clear()
        base, cap = (timedelta(seconds=each) for each in backoff(policy, state.settings))
        complete = policy._replace(retry_base=base, retry_cap=cap)
        fields = {
            "namespace": state.settings.namespace,
            "created_by": actors.user().name,
            "policy": complete.as_json(),
            "is_awaited": is_awaited,
        }
        known[key] = policy, complete, fields
    return TaskJob(*known[key][1:])


class _KnownFields(dict[tuple[int, bool], tuple[JobPolicy, JobPolicy, Mapping[str, Any]]]):
    """By a policy's identity: the policy, so that it is kept alive, and what a `TaskJob` takes."""


def _is_running(task_id: Any) -> bool:
    """Returns whether the running task sends itself: its retry, or what replaces it."""
    running = None if task_id is None else get_current_worker_task()
    return running is not None and running.request.id == task_id


def _dispatch(app: Celery, changed: frozenset[lanes.Room]) -> None:
    actor, settings = actors.user(), settings_of(app)
    with submissions.opened_unit(app, settings, actor, joins=False) as unit, unit.statement():
        dispatch.after_commit(unit, changed)


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
        elif (made := _write(connection, message, is_own)) is not None:
            left.append(made)
    return left


#: Types of the parameters of `write_job` that differ from job to job, in their order there.
_TYPES = {
    "id": "uuid", "namespace": "text", "task": "text", "args": "jsonb", "kwargs": "jsonb",
    "options": "jsonb", "queue": "text", "created_by": "text", "state": "text",
    "run_at": "timestamptz", "lane": "text", "priority": "smallint", "tags": "text[]",
    "resources": "jsonb", "max_attempts": "integer", "retry_base": "interval",
    "retry_cap": "interval", "unique_key": "text", "taken_for": "interval",
    "awaits_approval": "boolean", "payload": "text", "message_queue": "text",
    "message_priority": "smallint", "must_start_within": "interval",
    "must_end_within": "interval", "dispatched": "boolean", "message": "jsonb",
    "is_awaited": "boolean", "root_id": "uuid", "parent_id": "uuid", "canvas": "jsonb",
    "may_exist": "boolean",
}  # fmt: skip
_SQL = """
    SELECT id, made_at FROM pgbeat.write_job(
        {id}, {namespace}, {task}, {args}, {kwargs}, {options}, {queue}, NULL, 'user_api',
        {created_by}, {state}, {run_at}, {lane}, {priority}, {tags}, {resources}, {max_attempts},
        {retry_base}, {retry_cap}, {unique_key}, {taken_for}, {awaits_approval}, NULL, '{{}}',
        '{{}}', {payload}, {message_queue}, {message_priority}, {must_start_within},
        {must_end_within}, {dispatched}, {message}, {is_awaited}, {root_id}, {parent_id},
        {canvas}, {may_exist}, true)
"""
_WRITE = text(_SQL.format(**{name: f"CAST(:{name} AS {kind})" for name, kind in _TYPES.items()}))
_WRITE_AT_ONCE = Statement(
    "write_task_job",
    _SQL.format(**{f: f"CAST(${n} AS {kind})" for n, (f, kind) in enumerate(_TYPES.items(), 1)}),
)


def write_at_once(working: Working, message: Message) -> bool:
    """Writes the job of a message with its message in one statement, which commits by itself.

    Returns false if nothing was written: then `write` must do it, or raise.
    """
    is_at_once = message.ttl is None and message.available_at is None
    if message.queue is None or not is_at_once:
        return False
    new = _NewJob(message)
    if not new.waits:
        new.values |= {
            "payload": message.payload,
            "message_queue": message.queue,
            "message_priority": message.priority,
        }
    values = [new.values[name] for name in _TYPES]
    parameters = [None if value is None else str(value).encode() for value in values]
    with unique_keys.refusing():
        found = working.prepared.run(_WRITE_AT_ONCE, *parameters)
    job_id, made_at = found.get_value(0, 0), found.get_value(0, 1)
    if job_id is None:
        return False
    is_new = made_at is not None
    new.was_written(working.connection, job_id.decode(), is_new=is_new, is_own=True)
    return True


def _write(connection: Connection, message: Message, is_own: bool) -> Message | None:
    """Writes the job of a message; returns the message if it is to be written now."""
    new = _NewJob(message)
    with unique_keys.refusing():
        job_id, made_at = connection.execute(_WRITE, new.values).one()
    if job_id is None:
        raise new.refused(connection)
    is_new = made_at is not None
    new.was_written(connection, str(job_id), is_new=is_new, is_own=is_own)
    return message._replace(new_job=None) if is_new and not new.waits else None


class _NewJob:
    """The job that a message makes."""

    def __init__(self, message: Message) -> None:
        self._job = job = cast(TaskJob, message.new_job)
        found, policy = Envelope.of(message), job.policy
        is_later = _is_later(found.run_at)
        self._id, self._task, self._lane = found.id, found.task, policy.lane
        #: Whether its message is kept until it is dispatched.
        self.waits = policy.lane is not None or bool(policy.requires_approval)
        #: The parameters of the statement.
        self.values: dict[str, Any] = {
            **dict.fromkeys(_TYPES),
            "id": found.id,
            "task": found.task,
            "args": _json(found.args),
            "kwargs": _json(found.kwargs),
            "options": _json(found.options),
            "run_at": found.run_at if is_later else None,
            "namespace": job["namespace"],
            "created_by": job["created_by"],
            "queue": message.queue,
            "priority": message.priority,
            "state": _state(policy, is_later),
            "lane": policy.lane,
            "tags": array(policy.tags or ()),
            "resources": _json(policy.resources or {}),
            "unique_key": _key(policy, found),
            "taken_for": policy.unique_for,
            "awaits_approval": bool(policy.requires_approval),
            "must_start_within": policy.must_start_within,
            "must_end_within": policy.must_end_within,
            "dispatched": not self.waits,
            "max_attempts": policy.max_attempts or 1,
            "retry_base": policy.retry_base or timedelta(minutes=1),
            "retry_cap": policy.retry_cap or timedelta(hours=1),
            "message": _json(kept_messages.written(message))
            if self.waits or found.is_part
            else None,
            "is_awaited": job["is_awaited"],
            "root_id": found.place.root_id,
            "parent_id": found.place.parent_id,
            "canvas": _json(found.place.canvas),
            "may_exist": job.was_tried or not job.is_sending,
        }
        job.was_tried = True

    def was_written(
        self, connection: Connection, job_id: str, *, is_new: bool, is_own: bool
    ) -> None:
        """Notes for `send` what became of it, and has its lane dispatched after the commit.

        Raises `NotUnique` if there is another one with its key, and no `send` that can return it.
        """
        job = self._job
        if job_id != self._id and not job.is_sending:
            raise NotUnique(
                f"task {self._task!r} is unique, and job {job_id} is unfinished; its id can't be "
                "returned where messages are written later"
            )
        job.written = Written(job_id)
        # One that was written before may have lost its dispatch with the answer.
        is_mine = is_new or (job.is_sending and job_id == self._id)
        if not is_mine or self._lane is None or self.values["state"] != "pending":
            return
        if is_own and job.is_sending:
            room = lanes.Room(self.values["namespace"], self._lane, UUID(job_id))
            job.written = Written(job_id, frozenset([room]))
        else:
            lanes.announce(connection, self.values["namespace"], self._lane)

    def refused(self, connection: Connection) -> Exception:
        """Returns why it was not written."""
        name, namespace = self._lane, self.values["namespace"]
        if name is not None and not lanes.load(connection, [name], namespace=namespace):
            error = missing(connection, "lane", name, namespace=namespace)
            subject = f"task {self._task!r} can't be sent, by its policy"
            return InvalidJob.of("lane", "unknown", str(error), subject=subject)
        return NotUnique("a job with the same unique key was made at this moment; try again")


def _state(policy: JobPolicy, is_later: bool) -> str:
    if policy.requires_approval:
        return "paused"
    return "scheduled" if is_later else "pending"


def _is_later(run_at: str | None) -> bool:
    return run_at is not None and datetime.fromisoformat(run_at) > datetime.now().astimezone()


def _key(policy: JobPolicy, found: Envelope) -> str | None:
    if found.args is None or found.kwargs is None:
        if policy.unique_key is None and policy.may_have_key:
            raise InvalidJob.of(
                "unique_key",
                "required",
                f"the arguments of task {found.task!r} are not JSON; its policy needs a unique_key",
            )
        return policy.unique_key
    return policy.key(found.task, found.args, found.kwargs)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)
