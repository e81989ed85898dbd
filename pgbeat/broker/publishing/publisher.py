"""Publishes jobs: Celery makes the messages, which on this Postgres become rows."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol

from celery import Celery
from celery.utils.time import maybe_iso8601
from kombu import Exchange, Queue
from kombu.exceptions import EncodeError, OperationalError
from sqlalchemy import Connection

from pgbeat.broker import external_brokers, messages, own_tables
from pgbeat.broker.messages import JOB_HEADER, Message, Withdrawn
from pgbeat.broker.payloads import JOB
from pgbeat.broker.publishing import predeclare, reserved
from pgbeat.broker.publishing.json_values import unreadable
from pgbeat.broker.publishing.message_templates import MessageTemplates, TaskMessage
from pgbeat.broker.queues import check_name
from pgbeat.broker.transport.outbox import OutboxConnection, declare_queue
from pgbeat.config import Settings, delays_in_table, is_own_broker
from pgbeat.database import connections
from pgbeat.errors import BrokerUnavailable, InvalidSchedule, Problems
from pgbeat.storable import is_storable

#: The keys of a row's `options`: those options of `Task.apply_async` that are data.
OPTIONS = reserved.OF_SIGNATURES | {
    *("shadow", "mandatory", "immediate", "timeout", "confirm_timeout")
}


#: Each returns a block around the making of a job's message. Integrations add theirs.
observers: list[Callable[[TaskMessage], AbstractContextManager[object]]] = []
_UNSEEN = nullcontext()


class Publisher(Protocol):
    """Turns launches into messages."""

    #: Whether messages commit with the transaction that they are flushed in.
    transactional: bool
    #: Whether `prepare` has nothing to do.
    is_prepared: bool

    def prepare(self, connection: Connection, *, again: bool = False) -> None:
        """Prepares the broker for messages, in a transaction that commits: once, or `again`."""

    def publish(self, message: TaskMessage) -> str | None:
        """Makes the message; returns the queue's name if it is known.

        Raises `BrokerUnavailable` if the broker can't be reached, and Celery's errors for a message
        that can't be made.
        """

    def flush(self, connection: Connection, job_ids: Iterable[str]) -> None:
        """Writes the messages of these jobs into the open transaction."""

    @property
    def app(self) -> Celery:
        """The app that makes the messages."""

    def withdraw(self, connection: Connection, job_ids: Sequence[str]) -> dict[str, Withdrawn]:
        """Deletes these jobs' unclaimed messages, and returns them by the jobs' ids.

        An external broker's can't be deleted.
        """

    def revoke(self, connection: Connection, job_ids: Sequence[str]) -> None:
        """Makes workers drop these jobs, or terminate them if they run.

        Has no effect on kombu's SQLAlchemy transport, which has no remote control.
        """

    def clear(self, job_ids: Iterable[str] | None = None) -> None:
        """Drops the messages made, of these jobs or of all."""


def publisher(app: Celery, settings: Settings, producer: Callable[[], Any]) -> Publisher:
    """Returns the publisher for the app's broker; `producer` returns one for an external broker."""
    if is_own_broker(app.conf, settings.url):
        return TransactionPublisher(app)
    return BrokerPublisher(app, producer)


def prepare_broker(app: Celery, settings: Settings) -> bool:
    """Creates the broker's tables and the app's queues; returns false for an external broker."""
    new = publisher(app, settings, lambda: None)
    if new.transactional:
        with connections.engine(settings.url, "pgbeat migrate").begin() as connection:
            new.prepare(connection)
    return new.transactional


def apply_async(app: Celery, message: TaskMessage, producer: Any) -> None:
    """Publishes a job through Celery, with the header by which workers recognize jobs.

    Raises `InvalidSchedule` for reserved options, however they got into the row.
    """
    reserved.check(message.options, app.conf)
    headers = {**(message.options.get("headers") or {}), **message.headers, JOB_HEADER: JOB}
    send_task(app, message._replace(options={**message.options, "headers": headers}), producer)


def send_task(app: Celery, message: TaskMessage, producer: Any) -> None:
    """Publishes through Celery: by the task's `apply_async`, or by name if it is not registered."""
    options = {**message.options, "task_id": message.job_id, "producer": producer}
    registered = app.tasks.get(message.task)
    if registered is not None:
        registered.apply_async(tuple(message.args), dict(message.kwargs), **options)
    else:
        app.send_task(message.task, tuple(message.args), dict(message.kwargs), **options)


@contextmanager
def _observed(message: TaskMessage) -> Iterator[None]:
    with ExitStack() as stack:
        for observe in observers:
            stack.enter_context(observe(message))
        yield


@contextmanager
def reaching_broker() -> Iterator[None]:
    """Raises `BrokerUnavailable` if the block can't reach the broker."""
    try:
        yield
    except OperationalError as error:
        message = connections.first_line(error)
        raise BrokerUnavailable(f"the broker can't be reached, or refused: {message}") from error


def check_options(options: Mapping[str, Any], conf: Mapping[str, Any] | None = None) -> None:
    """Raises `InvalidSchedule` for wrong publish options; `conf` is the app's, if there is one."""
    problems = Problems()
    if names := ", ".join(map(repr, sorted(set(options) & reserved.IDENTITY))):
        problems.add("options", "reserved", f"options has {names}, which only Celery may set")
    if unknown := ", ".join(map(repr, sorted(set(options) - OPTIONS - reserved.IDENTITY))):
        known = ", ".join(sorted(OPTIONS))
        message = f"options has {unknown}, which is no publish option; there are {known}"
        problems.add("options", "unknown_field", message)
    for name, value in options.items():
        fits, wanted = _KINDS.get(name, (None, ""))
        if fits is not None and value is not None and not fits(value):
            message = f"options: {name} must be {wanted}, got {value!r}"
            problems.add(f"options.{name}", "malformed", message)
    problems.raise_if_any(InvalidSchedule)
    if (why := unreadable(options)) is not None:
        raise InvalidSchedule.of("options", "malformed", f"options: {why}")
    reserved.check(options, conf)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e11


def _is_limit(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_priority(value: Any) -> bool:
    return _is_limit(value) and isinstance(value, int) and value <= 255


def _is_expiry(value: Any) -> bool:
    try:
        return _is_number(value) or maybe_iso8601(value) is not None
    except (ValueError, TypeError):
        return False


def _are_signatures(value: Any) -> bool:
    return all(
        isinstance(item, Mapping) and {"task", "args", "kwargs", "options"} <= item.keys()
        for item in (value if isinstance(value, list | tuple) else [value])
    )


_OBJECT = (lambda value: isinstance(value, Mapping), "an object")
_LIMIT = (_is_limit, "a number of seconds")
_SIGNATURES = (
    _are_signatures,
    "a signature (an object: task, args, kwargs, options), or a list of them",
)
#: Checks of options, and what each must be: Celery drops wrong ones silently, or workers fail.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "queue": (
        lambda value: isinstance(value, Queue) or (isinstance(value, str) and is_storable(value)),
        "a queue's name that Postgres can keep (no NUL or half a pair)",
    ),
    "exchange": (lambda value: isinstance(value, str | Exchange), "an exchange's name"),
    "priority": (_is_priority, "a whole number from 0 to 255"),
    "countdown": (_is_number, "a number of seconds"),
    "expires": (_is_expiry, "a number of seconds, or a time such as '2026-12-24T09:00Z'"),
    "expiration": _LIMIT,
    "time_limit": _LIMIT,
    "soft_time_limit": _LIMIT,
    "headers": _OBJECT,
    "retry_policy": _OBJECT,
    "link": _SIGNATURES,
    "link_error": _SIGNATURES,
}


class HeldPublishes:
    """Collects messages and declarations until they are flushed."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.queues: set[str] = set()
        self.calls: dict[Hashable, predeclare.Call] = {}

    def write(self, message: Message) -> None:
        """Takes a message."""
        self.messages.append(message)

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Takes a declaration."""
        if function is declare_queue:
            self.queues.update(args)
        else:
            self.calls |= predeclare.call(function, *args, **kwargs)

    def declare(self, connection: Connection, app: Celery | None = None) -> None:
        """Makes the declarations: with an app, in the transaction of its caller."""
        if self.queues:
            predeclare.creator(app)(connection, self.queues)
        if app is not None:
            predeclare.declare(app, connection, self.calls)
        for call in self.calls.values():
            call(connection)
        self.queues, self.calls = set(), {}

    def clear(self) -> None:
        """Drops all of it."""
        self.messages.clear()
        self.queues, self.calls = set(), {}


class TransactionPublisher:
    """Publishes to a broker in the same database, kombu's or pgbeat's: one message a launch."""

    transactional = True

    def __init__(
        self, app: Celery, send: Callable[[Celery, TaskMessage, Any], None] = apply_async
    ) -> None:
        self.app, self._send = app, send
        #: Whether the transport is pgbeat's, which keeps messages until they are acknowledged.
        self.keeps_claimed = delays_in_table(app.conf)
        self._outbox = HeldPublishes()
        self._connection = OutboxConnection(self._outbox, delays=self.keeps_claimed)
        self._producer = app.amqp.Producer(self._connection, auto_declare=False)
        # The app's own control would publish at once, over the app's pool.
        self._control = type(app.control)(app)
        self._control.mailbox.producer_pool = None
        self._templates = MessageTemplates(app)
        self._made: dict[str, list[Message]] = {}
        self.is_prepared = False

    def prepare(self, connection: Connection, *, again: bool = False) -> None:
        """Creates the broker's tables and the app's queues and bindings, if missing."""
        if self.is_prepared and not again:
            return
        self.is_prepared = True
        own_tables.adopt(connection)
        for name, queue in self.app.amqp.queues.items():
            try:
                check_name(name)
            except ValueError:  # Celery keeps invalid names, too; their publish has failed
                continue
            queue(self._connection.default_channel).declare()
        self._outbox.declare(connection)

    def publish(self, message: TaskMessage) -> str | None:
        """Makes the message, by a template if possible."""
        published = self._made.get(message.job_id)
        if published is None:
            with _observed(message) if observers else _UNSEEN:
                published = self._made[message.job_id] = self._make(message)
        return published[0].queue if published else None

    def take(self, job_id: str, message: Message) -> None:
        """Takes a job's message that was made before."""
        self._made[job_id] = [message]

    def quick(self, message: TaskMessage) -> Message | None:
        """Returns the message if a template makes it, unobserved.

        With `None`, `publish` makes it, or raises.
        """
        try:
            return None if observers else self._templates.message(message)
        except (TypeError, ValueError, RecursionError, EncodeError):
            return None

    def _make(self, message: TaskMessage) -> list[Message]:
        quick = self._templates.message(message)
        if quick is not None:
            return [quick]
        self._outbox.messages.clear()
        with reaching_broker():
            self._send(self.app, message, self._producer)
        published = list(self._outbox.messages)
        self._templates.learn(message, published)
        return published

    @property
    def has_envelopes(self) -> bool:
        """Returns whether messages may be made without Celery, by `envelope`."""
        return not observers and self._templates.are_usable

    def envelope(self, message: TaskMessage, varying: Sequence[str]) -> Message | None:
        """Returns the message with gaps in its payload, to be filled by the operator `%`.

        The gaps are `%(id)s`, the job's id, and the headers in `varying`, as JSON. Returns `None`
        if Celery must make each message. Raises what `publish` raises.
        """
        if message.job_id not in self._made and not self._templates.knows(message):
            self.publish(message)
        return self._templates.envelope(message, varying)

    def flush(self, connection: Connection, job_ids: Iterable[str]) -> None:
        """Writes the messages of these jobs, and their queues."""
        self.put(connection, (m for job_id in job_ids for m in self._made.get(job_id, ())))

    def put(self, connection: Connection, batch: Iterable[Message]) -> None:
        """Writes messages, and before them their queues."""
        # Any other connection than pgbeat's own is the caller's, whose transaction may stay open.
        app = None if connections.is_autocommit(connection) else self.app
        self._outbox.declare(connection, app)
        messages.put(connection, list(batch), predeclare.creator(app))

    def withdraw(self, connection: Connection, job_ids: Sequence[str]) -> dict[str, Withdrawn]:
        """Deletes these jobs' unclaimed messages, and returns them by the jobs' ids."""
        return messages.withdraw(connection, job_ids)

    def revoke(self, connection: Connection, job_ids: Sequence[str]) -> None:
        """Writes a message to the workers that revokes these jobs."""
        if not job_ids or not self.keeps_claimed:
            return
        self._outbox.messages.clear()
        self._control.revoke(list(job_ids), terminate=True, connection=self._connection)
        self.put(connection, self._outbox.messages)

    def clear(self, job_ids: Iterable[str] | None = None) -> None:
        """Drops the messages made, of these jobs or of all."""
        if job_ids is None:  # a declaration that failed must not fail the next publish, too
            self._outbox.clear()
        for job_id in list(self._made if job_ids is None else job_ids):
            self._made.pop(job_id, None)
        self._outbox.messages.clear()
        self._connection.forget_declared()


class BrokerPublisher:
    """Publishes to an external broker, before the commit: at least once, under one task id."""

    transactional = False
    is_prepared = True

    def __init__(self, app: Celery, producer: Callable[[], Any]) -> None:
        self.app = app
        self._producer = producer
        self._sent: set[str] = set()

    def prepare(self, connection: Connection, *, again: bool = False) -> None:
        """Does nothing: the broker is another server."""

    def publish(self, message: TaskMessage) -> str | None:
        """Publishes the message, once; the queue is not known."""
        if message.job_id not in self._sent:
            with _observed(message) if observers else _UNSEEN, reaching_broker():
                apply_async(self.app, message, self._producer())
            self._sent.add(message.job_id)
        return None

    def flush(self, connection: Connection, job_ids: Iterable[str]) -> None:
        """Records that the messages are elsewhere.

        Their jobs don't count as lost after the app has moved to pgbeat's transport.
        """
        external_brokers.note(connection, list(job_ids))

    def withdraw(self, connection: Connection, job_ids: Sequence[str]) -> dict[str, Withdrawn]:
        """Returns nothing: published messages stay."""
        return {}

    def revoke(self, connection: Connection, job_ids: Sequence[str]) -> None:
        """Makes workers revoke these jobs."""
        if job_ids:
            with reaching_broker():
                self.app.control.revoke(
                    list(job_ids), terminate=True, connection=self._producer().connection
                )

    def clear(self, job_ids: Iterable[str] | None = None) -> None:
        """Forgets that these jobs, or any, were published."""
        self._sent.difference_update(list(self._sent if job_ids is None else job_ids))
