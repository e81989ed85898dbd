"""Ends a task in one transaction: its result, its message, and all that follows from them.

The task's message is deleted in the transaction that stores the result, publishes the callbacks and
the next link of a chain, and commits what the task itself wrote (`TaskEnding.adopt`). Only one run
can delete the message. A run whose claim has passed on finds none, and nothing of it is kept.

Celery publishes callbacks and the chain's next link before it has the result stored. What is
published in between, and a task's retry, is held back until then.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import celery
import psycopg
from celery import Celery
from celery.exceptions import Ignore, Reject
from kombu.exceptions import EncodeError
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from pgbeat.broker import message_ends
from pgbeat.broker.transport.held_messages import HeldMessages
from pgbeat.database import connections
from pgbeat.database.prepared import Parameter, array
from pgbeat.errors import CannotFinish
from pgbeat.results import chords, errbacks, statements
from pgbeat.results.store import Joined, is_temporary

if TYPE_CHECKING:
    from pgbeat.results.backend import ResultBackend

logger = logging.getLogger("pgbeat.results")

#: Where a task's request has its ending.
_ENDING = "pgbeat_ending"


class ClaimLost(Ignore):  # type: ignore[misc,unused-ignore]
    """Another worker has the task's message, or it is gone: nothing of this run is kept."""

    def __init__(
        self, reason: str = "its message was delivered to another worker or removed meanwhile"
    ) -> None:
        super().__init__(reason)


class CannotCommit(EncodeError):  # type: ignore[misc,unused-ignore]
    """A task that has callbacks could not commit its end.

    Celery has called them by then, and takes no other error for a failure of the task.
    """


class Claim(NamedTuple):
    """A task's message, as its worker has it."""

    message: int
    #: The id of the consumer that claimed it.
    consumer: int


class OwnWork(Protocol):
    """The task's own writes, in a transaction that is still open."""

    def connection(self) -> Connection:
        """Returns its connection. Raises `CannotFinish` if the transaction was ended meanwhile."""

    def commit(self) -> None:
        """Commits it."""

    def roll_back(self) -> None:
        """Rolls it back."""


class EndRecorder(Protocol):
    """Records the task's execution in the transaction that ends the task."""

    def succeeded(self, value: Any) -> None:
        """Notes what the task returned."""

    def raised(self, error: BaseException, traceback: Any) -> None:
        """Notes what the task raised: an error, or Celery's `Retry`."""

    def lost(self, error: BaseException) -> None:
        """Notes that nothing of it is kept, whatever Celery says of the task's end."""

    def write(self, working: Joined, *, is_once: bool) -> bool:
        """Writes it; returns whether it should have gone on, and its job has ended.

        With `is_once`, raises `ClaimLost` if its job has been completed before.
        """

    def committed(self) -> None:
        """Does what must wait for the commit."""


_current: ContextVar["TaskEnding | None"] = ContextVar("pgbeat_ending", default=None)


def ending_of(request: Any) -> "TaskEnding | None":
    """Returns how the task of a request ends, if that is in one transaction."""
    return getattr(request, _ENDING, None)


def abandon_current() -> None:
    """Rolls back what is still open in this thread, since its task is over."""
    ending = _current.get()
    if ending is not None:
        ending.abandon()


class TaskEnding:
    """How one run of a task ends. Made when it begins, in the thread (greenlet) that runs it."""

    #: Whether its job keeps the message, from which it runs again: nothing else is sent for that.
    keeps_message = False
    #: Whether what calls the task awaits it, so that its event loop goes on when it ends.
    is_awaited = False

    def __init__(
        self, backend: "ResultBackend", task: Any, claim: Claim, *, is_always: bool
    ) -> None:
        """Without `is_always`, the end of a task that wrote nothing (`adopt`) is left to Celery.

        Unless it fails, or sends a message for itself.
        """
        self._backend, self._task, self._claim = backend, task, claim
        self._is_always = is_always
        self._request = task.request
        self._own: OwnWork | None = None
        self._held = HeldMessages(self._request.id)
        #: The task's execution, if this worker records it.
        self.execution: EndRecorder | None = None
        #: Whether it is committed, given up, or left to Celery.
        self.is_over = self.has_committed = False
        #: Whether one statement stores the result and acknowledges the message.
        self._is_stored_alone = False
        #: Whether its run has returned, or raised: then `__call__` of its class may run it again.
        self._has_returned = self.has_raised = False
        #: Whether Celery continues with it, which expects no `Ignore` any more.
        self._is_with_celery = False
        setattr(self._request, _ENDING, self)
        _current.set(self)

    @property
    def app(self) -> Celery:
        """The task's app."""
        return self._backend.app

    @property
    def engine(self) -> Engine:
        """The engine of the result backend, in the same database as the task's own work."""
        return self._backend.store.engine

    def check_adopts(self) -> None:
        """Raises `CannotFinish` if the task has given a session already."""
        if self._own is not None:
            raise CannotFinish("the task has one pgbeat.finish block already; one session fits in")

    def adopt(self, work: OwnWork) -> None:
        """Makes what the task wrote part of the transaction."""
        self.check_adopts()
        self._own = work

    # ----- the task returned

    def succeed(self, value: Any) -> None:
        """Ends the task, which returned a value; if it has callbacks, Celery calls `done`.

        Raises:
            ClaimLost: The claim of its message has passed on.
            celery.exceptions.Reject: The database could not commit; the task runs again.
        """
        request = self._request
        self._has_returned = True
        has_more = self.execution or request.chord or request.callbacks or request.chain
        has_result = not ignores_result(self._task, request)
        if not (self._own or self._held):
            if not self._is_always or not (has_more or has_result):
                self._leave()  # Celery stores the result, and the worker acknowledges the message
                return
            self._is_stored_alone = not has_more
        if self.execution is not None:
            self.execution.succeeded(value)
        if request.callbacks or request.chain:
            self._is_with_celery = self._held.takes_all = True
            return
        with running_again():
            self._backend.mark_as_done(request.id, value, request, has_result)

    def done(self, mark: Callable[[], None], value: Any) -> bool:
        """Stores the result by `mark`, with all that belongs to it; false if that is Celery's."""
        if self.is_over:
            return self.has_committed
        if not self._has_returned:  # the `__call__` of its class has handled what it raised
            self._has_returned = self._is_with_celery = True
            if self.execution is not None:
                self.execution.succeeded(value)
        self._held.takes_all = False
        try:
            if self._is_stored_alone:
                mark()
                self.has_committed = True
                self._leave()
            else:
                self._commit(mark)
        except ClaimLost as lost:
            self._lose(lost)
            if not self._is_with_celery:
                raise
        except EncodeError:
            raise
        except Exception as error:
            if not self._is_with_celery:
                raise
            self._tell_celery(error)
        return True

    def _tell_celery(self, error: Exception) -> NoReturn:
        """Raises what makes Celery run the task again, or store its failure."""
        try:
            with running_again():
                raise error
        except Reject as again:
            if self.execution is not None:
                self.execution.lost(again)
            self.abandon()
            raise
        except Exception:
            cause = f"{type(error).__name__}: {connections.first_line(error)}"
            raise CannotCommit(f"the task's end can't be committed: {cause}") from error

    def store(self, parameters: tuple[Parameter, ...]) -> bool:
        """Stores the result if that acknowledges the message, too; else returns false."""
        if not self._is_stored_alone or self.is_over:
            return False
        statement = statements.STORE_AND_ACKNOWLEDGE
        claim = (b"%d" % self._claim.message, b"%d" % self._claim.consumer)
        stored = self._backend.store.run(statement, *parameters, *claim)
        if stored.get_value(0, 0) != b"t":
            raise ClaimLost
        return True

    @property
    def is_durable(self) -> bool:
        """Whether the commit must wait for the disk, as the task's own commits would.

        Otherwise a crash of the server may undo all of it, and the task runs again.
        """
        return self._own is not None

    # ----- it raised

    def give_up(self) -> None:
        """Rolls back what the task wrote."""
        work, self._own = self._own, None
        if work is not None:
            work.roll_back()

    def replaced(self, error: BaseException) -> None:
        """Ends a task that raised `Retry` or `Ignore` with the message that it sent for itself."""
        if not self._held:
            return
        if self.execution is not None:
            self.execution.raised(error, None)
        try:
            with running_again():
                self._commit(lambda: None)
        except Exception:
            self._held.clear()
            raise

    def failed(self, mark: Callable[[], None], error: BaseException, traceback: Any) -> bool:
        """Stores a failure by `mark`, with what follows from it; false if that is Celery's."""
        if self.has_committed:  # and was interrupted after that
            return True
        self.give_up()
        if self._has_returned:  # what would follow from its success
            self._held.clear()
        if not self.is_over and self._acknowledges_failures() and not self._calls_errbacks():
            self._is_stored_alone = self._has_returned = self._held.takes_all = False
            if self.execution is not None:
                self.execution.raised(error, traceback)
            try:
                self._commit(mark)
            except ClaimLost as lost:
                self._lose(lost)
                return True
            except (DBAPIError, psycopg.Error) as refused:
                if not is_temporary(refused):
                    raise
            else:
                return True
        self._leave()
        self._held.publish()
        return False

    def _acknowledges_failures(self) -> bool:
        """Returns whether Celery acknowledges the message of a task that failed."""
        acks = getattr(self._task, "acks_on_failure", None)
        return bool(self._task.acks_on_failure_or_timeout if acks is None else acks)

    def _calls_errbacks(self) -> bool:
        """Returns whether Celery calls errbacks in this process, which no transaction undoes."""
        return bool(self._request.errbacks) and bool(
            errbacks.separated(self.app, self._request)[1].errbacks
        )

    def abandon(self) -> None:
        """Rolls back what is still open."""
        if not self.is_over:
            self.give_up()
            self._leave()
        _current.set(None)
        self._held.close()  # in this context too, if the task was awaited in another one

    # ----- the transaction

    def _commit(self, mark: Callable[[], None]) -> None:
        publishes = self._publishes()

        def end(working: Joined) -> None:
            self._record(working)
            with self._block(working) if publishes else nullcontext() as block:
                self._publish(mark, block)

        if self._own is None:
            self._backend.store.atomically(end, runs_again=True)
        else:
            work = self._own
            with self._backend.store.transaction(work.connection(), work.commit) as working:
                end(working)
        self.has_committed = True
        self._leave()
        if self.execution is not None:
            self.execution.committed()

    def _publishes(self) -> bool:
        request = self._request
        fails = not self._has_returned and (request.errbacks or request.chord)
        return bool(self._held or fails)

    def _record(self, working: Joined) -> None:
        # The job before its message and its result, as whoever else ends a job locks them.
        self._write(working)
        self._acknowledge(working)

    def _write(self, working: Joined) -> None:
        """Writes the execution. What the task sends for a job that has ended is dropped."""
        is_once = self._own is not None
        if self.execution is not None and self.execution.write(working, is_once=is_once):
            self._held.clear()

    def _publish(self, mark: Callable[[], None], block: Any) -> None:
        mark()
        self._held.publish(block)

    def _block(self, working: Joined) -> Any:
        return chords.published_in(self._backend, working.connection)

    def _acknowledge(self, working: Joined) -> None:
        parameters = array([self._claim.message]), b"%d" % self._claim.consumer
        if working.prepared.run(message_ends.ACK, *parameters).command_tuples != 1:
            raise ClaimLost

    def _lose(self, lost: ClaimLost) -> None:
        if self.execution is not None:
            self.execution.lost(lost)
        self.abandon()
        logger.warning("Nothing of task %s is kept: %s", self._request.id, lost)

    def _leave(self) -> None:
        self.is_over = True
        self._held.close()


def ignores_result(task: Any, request: Any) -> bool:
    """Returns whether Celery drops the task's result, by the rule of its version."""
    if celery.VERSION < (5, 6):
        return bool(task.ignore_result or request.ignore_result)
    # What the class of requests says is only a default.
    asked = vars(request).get("ignore_result")
    return bool(task.ignore_result if asked is None else asked)


@contextmanager
def running_again() -> Iterator[None]:
    """Makes a task run again if the database could not commit for a reason that passes."""
    try:
        yield
    except (DBAPIError, psycopg.Error) as error:
        if not is_temporary(error):
            raise
        reason = connections.first_line(error)
        logger.warning("A task runs again, since the database could not commit: %s", reason)
        raise Reject(reason, requeue=True) from error
