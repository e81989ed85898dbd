"""Decides schedules outside of beat: now, because a person triggers them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime

from celery import Celery
from sqlalchemy import Connection

from pgbeat.access import audit
from pgbeat.access.audit import Author
from pgbeat.beat.condition_pool import evaluate_alone
from pgbeat.beat.enqueuer import Enqueuer, Note
from pgbeat.beat.evaluation import Decision, Evaluation
from pgbeat.beat.evaluator import Evaluator
from pgbeat.broker.publishing.publisher import publisher
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import BrokerUnavailable, Busy
from pgbeat.jobs import dispatch
from pgbeat.schedules import entries
from pgbeat.schedules import model as schedules
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Trigger


def recorded(author: Author, verb: str) -> Note:
    """Returns a `Note` that records decisions on schedules in the audit log."""

    def write(connection: Connection, decisions: Sequence[Decision]) -> None:
        audit.record_all(connection, author, [(verb, None, made.tick) for made in decisions])

    return write


def trigger(
    connection: Connection,
    app: Celery,
    settings: Settings,
    name: str,
    *,
    job_source: str,
    created_by: str,
    note: Note | None = None,
) -> Decision:
    """Decides a schedule as if it were due now, and writes what follows from it.

    Conditions are evaluated as always; it may be paused or disabled. The timetable stays as it is,
    and so does the count of failures unless it launches. `connection` is in autocommit mode. The
    job gets `job_source` and `created_by`; what `note` writes belongs to the decision's
    transaction. Raises `NotFound`, and `Busy` if the schedule changed twice while it was decided: a
    tick of beat's at the same time goes first.
    """
    with deciding(connection, app, settings, note) as decider:
        for row in attempts(connection, name, settings.namespace, 2):
            decision = decider.decide(row, "manual", job_source=job_source, created_by=created_by)
            if decision is not None:
                return decision
    raise AssertionError("unreachable")


def attempts(connection: Connection, name: str, namespace: str, most: int) -> Iterator[Schedule]:
    """Yields a schedule's row once for each attempt to decide it.

    The second time, and later, it waits for other writers of the row first. Raises `NotFound`, and
    `Busy` after so many attempts.
    """
    for number in range(most):
        yield schedules.get(connection, name, namespace=namespace, for_update=number > 0)
    raise Busy(f"schedule {name!r} changed while it was being decided; try again")


class Decider:
    """Evaluates and writes one due time after the other. `connection` is in autocommit mode."""

    def __init__(self, connection: Connection, evaluator: Evaluator, enqueuer: Enqueuer) -> None:
        self._connection, self._evaluator, self._enqueuer = connection, evaluator, enqueuer

    def decide(
        self,
        row: Schedule,
        trigger: Trigger,
        due_at: datetime | None = None,
        *,
        job_source: str,
        created_by: str,
        before_commit: Callable[[], object] = lambda: None,
    ) -> Decision | None:
        """Decides a schedule for a due time, `None` for now, whatever its policies on time say.

        Then it dispatches lanes in which there is something new. While the broker is away that is
        left to beat. Returns `None` if the row changed after it was read.
        """
        now = connections.now(self._connection)
        due_at = due_at or now
        evaluation = Evaluation(
            row, due_at, trigger, due_at, job_source=job_source, created_by=created_by
        )
        evaluation = evaluate_alone(self._evaluator, evaluation, now)
        before_commit()
        written = self._enqueuer.commit(self._connection, [evaluation], now)
        for lane in written.lanes:
            with suppress(BrokerUnavailable):
                dispatch.dispatch_lane(self._connection, self._enqueuer.publisher, *lane)
        return next(iter(written.decisions), None)


@contextmanager
def deciding(
    connection: Connection, app: Celery, settings: Settings, note: Note | None
) -> Iterator[Decider]:
    """Opens what decides outside of beat. `connection` is in autocommit mode."""
    with ExitStack() as stack:
        broker = publisher(
            app, settings, lambda: stack.enter_context(app.producer_or_acquire(None))
        )
        conditions = connections.engine(settings.url, "pgbeat condition")
        evaluator = Evaluator(app, settings, conditions, entries.built_in(app))
        with connections.transaction(connection):
            broker.prepare(connection)
        yield Decider(connection, evaluator, Enqueuer(app, settings, broker, evaluator, note=note))
