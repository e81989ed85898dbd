"""Steps of a running task: what ran once is not run again, and a sleep or a wait needs no process.

| a task calls | its effects, whatever is killed |
|---|---|
| `step(name, f, …)` | at least once: `f` is recorded after it has returned |
| `step(name, f, …, session=s)` | exactly once, those in the session: they commit with the record |
| `sleep(delay)` | it ends `delay` after it first began, or later |
| `wait_for(key)` | all attempts get the same event, or the same `TimedOut` |

What is recorded belongs to the job and its retries, not to a task that replaces its own: each
attempt begins at the top of the task, and gets what earlier ones have recorded. Only names count,
and their order: a step that comes out of the recorded order runs, or gets its record, as any other,
and the log and the execution's metadata say so.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from celery import current_app
from celery._state import get_current_task
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import scoped_session

from pgbeat.broker.messages import JOB_HEADER
from pgbeat.broker.publishing.transaction import Opened, opened
from pgbeat.config import Settings, delays_in_table, settings_of
from pgbeat.database import connections, identity, server_errors
from pgbeat.database.kept import kept
from pgbeat.errors import CannotStep, TimedOut
from pgbeat.jobs.policy.batches import is_batch
from pgbeat.jobs.running import steps
from pgbeat.jobs.running.steps import OF_NEXT, Kind, Step, StepKey, Suspension
from pgbeat.jobs.running.task_exceptions import LONGEST, Cancelled, Snooze, Suspended
from pgbeat.jobs.verbs import events
from pgbeat.results import values
from pgbeat.results.ending import running_again
from pgbeat.results.rows import Encoded
from pgbeat.worker.recording.attempts import Attempt, Progress
from pgbeat.worker.reporting import ATTEMPT, current_attempt, raise_suspended, report

logger = logging.getLogger("celery.worker.pgbeat")

T = TypeVar("T")


def step(
    name: str,
    function: Callable[..., T],
    /,
    *args: Any,
    session: Opened | None = None,
    **kwargs: Any,
) -> T:
    """Calls a function, and records what it returns: later attempts at the job get that instead.

        charge = pgbeat.step("charge", pay, order_id)
        pgbeat.step("book", book, session, charge, session=session)

    Returns the value as the task's serializer reads it back, so that it is the same in each
    attempt. The second step of a name in a run is recorded as `name#2`.

    Without `session`, the step may run again if its process dies before the record is written. With
    it, what the function writes in the session and the record are one transaction, which this
    commits: exactly once. If the function raises, or another run has recorded the step first,
    it is rolled back. It is the step's alone: commit what you have written before.

    Two attempts may run at once, if a worker is taken for dead. Whichever records a step first
    decides: the value of the other one is thrown away.

    If the database can't be reached, the message goes back to its queue: no attempt is spent.
    Called directly, eagerly or in another thread, the function is called, the session committed,
    and nothing recorded.

    Args:
        name: 1 to 200 printable characters.
        function: What to call. It may have no steps itself.
        args: Its arguments.
        session: A session or connection of SQLAlchemy's to pgbeat's database, not asyncio's.
        kwargs: Its keyword arguments.

    Raises:
        CannotStep: The task is no job, not acknowledged late, or a batch; its broker is not
            pgbeat's; this is within another step; the function ended the session's transaction.
        InvalidInput: The name is invalid.
        kombu.exceptions.EncodeError: The value can't be written by the task's serializer.
        ConfigError: The session is in another database than pgbeat's.
        SchemaError: The schema is older than 0002.
        Cancelled: The job must be cancelled.
    """
    steps.checked_name(name)
    run = _current()
    if run is None:
        return _called(function, args, kwargs, session)
    key = run.next("step", name)
    known = run.known.get(key)
    if known is not None:
        return run.decoded(known.encoded)  # type: ignore[no-any-return]
    began = time.monotonic()

    def encoded() -> Encoded:
        with run.inside(key):
            return run.encoded(function(*args, **kwargs))

    if session is not None:
        with _transaction(session, run.settings) as transaction:
            own = encoded()
            other = transaction.keep(run, key, own, began)
    else:
        own = encoded()
        other = run.do(lambda c: steps.record(c, run.chain, key, own, time.monotonic() - began))
    return run.decoded(own if other is None else other)  # type: ignore[no-any-return]


def sleep(delay: str | float | timedelta, *, name: str = "sleep") -> None:
    """Ends the attempt, and has the job run again after a delay: then this returns.

        pgbeat.sleep("3 days")

    Meanwhile nothing is held: no process, no slot of its lane, no message. No attempt is spent. The
    job keeps its id, its unique key and its place in a chord; it can be cancelled or paused. Its
    deadlines hold, but its message expires no more.

    It ends at a time that is recorded when it first begins, by the database's clock. Called
    directly or eagerly, it returns at once.

    Args:
        delay: Text such as `10 minutes`, seconds or a `timedelta`, up to 100 years.
        name: Under which it is recorded.

    Raises:
        ValueError, TypeError: The delay is invalid.
        CannotStep, InvalidInput, SchemaError, Cancelled: As for `step`.
    """
    seconds = Snooze(delay).delay.total_seconds()
    steps.checked_name(name)
    run = _current()
    if run is not None:
        key = run.next("sleep", name)
        known = run.known.get(key)
        if known is None or known.finished_at is None:
            run.suspend(key, seconds)


def wait_for(key: str, timeout: str | float | timedelta | None = None) -> Any:
    """Ends the attempt, and has the job run again once an event is emitted: then returns its value.

        paid = pgbeat.wait_for(f"paid/{order_id}", timeout="3 days")

    As for `sleep`, nothing is held meanwhile. `pgbeat.emit` emits the event; one that was emitted
    before is there at once. Each attempt gets the same value.

    Called directly or eagerly, it doesn't wait: the event is there, or it raises `TimedOut`.

    Args:
        key: The event's: 1 to 200 printable characters.
        timeout: As the delay of `sleep`, from when it first begins; `None` for no limit.

    Raises:
        TimedOut: The event has not come in time; so in each later attempt.
        ValueError, TypeError: The timeout is invalid.
        CannotStep, InvalidInput, SchemaError, Cancelled: As for `step`.
    """
    steps.checked_name(key, "key")
    seconds = None if timeout is None else Snooze(timeout).delay.total_seconds()
    run = _current()
    if run is None:
        return _at_once(key)
    known = run.known.get(own := run.next("wait", key))
    if known is None or known.finished_at is None:
        suspension = run.suspend(own, seconds)
        has_event, value = suspension.has_event, suspension.value
    else:
        has_event, value = known.has_event, known.event
    if not has_event or value is None:
        raise TimedOut(f"the event {key!r} has not come in time")
    return values.from_json(value)


class StepRun:
    """The steps of one attempt at a job."""

    def __init__(self, task: Any, attempt: Attempt) -> None:
        self._task, self._attempt = task, attempt
        self.settings: Settings = settings_of(task.app)
        self.chain = self.do(
            lambda c: steps.take(c, attempt.job_id, namespace=self.settings.namespace)
        )
        self._before = OF_NEXT * int(task.request.replaced_task_nesting or 0)
        #: What earlier attempts have recorded, and of that what this one has not met yet.
        self.known: dict[StepKey, Step] = {
            step.key: step
            for step in self.chain.steps
            if self._before < step.key.number < self._before + OF_NEXT
        }
        self._left = dict.fromkeys(self.known)
        self._counts: Counter[tuple[Kind, str]] = Counter()
        #: Whether all steps so far came in the recorded order.
        self.is_in_order = True
        #: The step that runs, and the progress that names it.
        self.running: StepKey | None = None
        self._progress: Progress | None = None

    def next(self, kind: Kind, name: str) -> StepKey:
        """Returns the key of a step that begins, and notes if it is out of the recorded order."""
        self._counts[kind, name] += 1
        key = StepKey(kind, name, self._before + self._counts[kind, name])
        expected = next(iter(self._left), key)
        self._left.pop(key, None)
        if key != expected and self.is_in_order:
            self.is_in_order = False
            message = f"{key} came where earlier attempts had {expected}"
            logger.warning("Steps of job %s are out of order: %s", self._attempt.job_id, message)
            report(steps_out_of_order=message)
        return key

    @contextmanager
    def inside(self, key: StepKey) -> Iterator[None]:
        """Runs a step's function as the block. Its name is the progress if its task has none."""
        self.running = key
        _, recorder = current_attempt()
        if recorder is not None and self._attempt.progress is self._progress:
            self._progress = self._attempt.progress = (None, None, str(key))
            recorder.outbox.add_progress(self._attempt)
        try:
            yield
        finally:
            self.running = None

    def do(self, call: Callable[[Connection], T]) -> T:
        """Calls a function with a connection in autocommit mode, again if that is lost.

        It must be such that it may be repeated. If the database is away for long, the message is
        requeued.
        """

        def connected() -> T:
            with kept(self.settings.url, "pgbeat submit") as connection:
                return call(connection)

        with running_again():
            return server_errors.persist(connected, self._warn)

    def _warn(self, error: BaseException) -> None:
        why = connections.first_line(error)
        logger.warning("Steps of job %s must wait: %s", self._attempt.job_id, why)

    def encoded(self, value: Any) -> Encoded:
        """Returns a value as the task's serializer writes it."""
        return values.encode(value, self._task.serializer)

    def decoded(self, value: Encoded) -> Any:
        """Returns such a value, if the app accepts what it was written by."""
        return values.decode(value, self._task.app.conf.accept_content)

    def suspend(self, key: StepKey, seconds: float | None) -> Suspension:
        """Returns a sleep or a wait that is over; otherwise raises what ends the attempt."""

        def suspended(connection: Connection) -> Suspension:
            try:
                with connections.transaction(connection):
                    return steps.suspend(connection, self.chain, key, seconds)
            except DBAPIError as error:
                if connections.sqlstate(error) != "55P03":  # a lock timeout
                    raise
            return steps.locked(connection)

        now = self.do(suspended)
        if now.is_over:
            return now
        left = LONGEST if now.seconds_left is None else min(max(now.seconds_left, 0.0), LONGEST)
        waits_for = {
            "step": now.id,
            "key": key.name if key.kind == "wait" else None,
            "since": now.since.isoformat(),
            "until": None if now.until is None else now.until.isoformat(),
        }
        self._attempt.suspended = Suspended(left, waits_for)
        raise self._attempt.suspended


class _Transaction:
    """The transaction of a step's session."""

    def __init__(self, session: Any) -> None:
        self._session = session() if isinstance(session, scoped_session) else session
        self.connection = opened(self._session)
        if not self.connection.in_transaction():
            self.connection.begin()
        self._own = self._session.get_transaction()

    def keep(self, run: StepRun, key: StepKey, value: Encoded, began: float) -> Encoded | None:
        """Commits with the record; rolls back if there is one, and returns its value."""
        if self._session.get_transaction() is not self._own:
            raise CannotStep(
                f"the function of step {key} has committed, rolled back or closed the session; "
                "leave that to pgbeat.step",
                code="committed",
            )
        with running_again():
            self.flush()
            seconds = time.monotonic() - began
            other = steps.record(self.connection, run.chain, key, value, seconds)
            (self._session.commit if other is None else self._session.rollback)()
        return other

    def flush(self) -> None:
        if not isinstance(self._session, Connection):
            self._session.flush()

    def commit(self) -> None:
        self._session.commit()

    def roll_back(self) -> None:
        with suppress(Exception):  # its connection may be lost
            self._session.rollback()


@contextmanager
def _transaction(session: Opened, settings: Settings | None) -> Iterator[_Transaction]:
    """Opens a session's transaction, which the block must commit; rolls back if it raises."""
    transaction = _Transaction(session)
    try:
        if settings is not None:
            identity.require(transaction.connection, [settings.url], whose="pgbeat's")
        yield transaction
    except BaseException:
        transaction.roll_back()
        raise


def _current() -> StepRun | None:
    """Returns the steps of the running job; `None` outside of a worker's task.

    Raises `CannotStep` if it can't have any, and what ends it if it must end.
    """
    task = get_current_task()
    request = None if task is None else task.request
    if request is None or request.called_directly or request.is_eager:
        return None
    attempt: Attempt | None = getattr(request, ATTEMPT, None)
    is_checked = attempt is not None and attempt.steps is not None
    obstacle = None if is_checked else _obstacle(task)
    if obstacle is None and attempt is None:
        obstacle = "no_job", "this worker records no executions (pgbeat_track = 'off')"
    if obstacle is not None or attempt is None:
        code, message = obstacle or ("", "")
        raise CannotStep(f"task {task.name!r} can't have steps: {message}", code=code)
    raise_suspended(request)
    if attempt.cancel_asked:
        raise Cancelled("the job is cancelled")
    if attempt.steps is None:
        attempt.steps = StepRun(task, attempt)
    if attempt.steps.running is not None:
        message = f"step {attempt.steps.running} runs; a step can't have steps of its own"
        raise CannotStep(message, code="nested")
    return attempt.steps


def _obstacle(task: Any) -> tuple[str, str] | None:
    """Returns why a task can't have steps: a code, and a sentence."""
    if not delays_in_table(task.app.conf):
        message = "the broker is not pgbeat's (broker_url = 'pgbeat+postgresql://…')"
        return "not_pgbeats_broker", message
    if not getattr(task.request, JOB_HEADER, None):
        return "no_job", "it is no job; give it a policy, if only pgbeat={}, or use pgbeat.submit"
    if is_batch(task):
        return "batch", "it runs in batches"
    if not task.acks_late:
        return "not_late", "its message is acknowledged before it runs; set acks_late=True"
    return None


def _called(function: Callable[..., T], args: Any, kwargs: Any, session: Opened | None) -> T:
    """Does a step outside of a job."""
    if session is None:
        return function(*args, **kwargs)
    with _transaction(session, None) as transaction:
        value = function(*args, **kwargs)
        transaction.flush()
        transaction.commit()
    return value


def _at_once(key: str) -> Any:
    """Returns the value of an event that is there, outside of a job. Raises `TimedOut`."""
    task = get_current_task()
    app = current_app._get_current_object() if task is None else task.app
    settings = settings_of(app)
    with kept(settings.url, "pgbeat submit") as connection:
        value = events.find(connection, settings.namespace, key)
    if value is None:
        raise TimedOut(f"there is no event {key!r}; only a job waits for one")
    return values.from_json(value)
