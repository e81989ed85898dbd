"""Manual ticks: a schedule decided now because a person asks, whatever its timetable says."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from queue import Empty, SimpleQueue

from celery import Celery
from sqlalchemy import Connection

from pgbeat.access import audit
from pgbeat.access.audit import Author
from pgbeat.beat.enqueuer import Decision, Enqueuer
from pgbeat.beat.evaluator import Evaluation, Evaluator
from pgbeat.broker.publishing.publisher import publisher
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import BrokerUnavailable, Busy
from pgbeat.jobs import dispatch
from pgbeat.schedules import entries
from pgbeat.schedules import model as schedules

#: What writes beside a decision, in its transaction.
Note = Callable[[Connection, Sequence[Decision]], None]
#: Beyond a condition's own limit, for the database to say first that a statement took too long.
_GRACE = 0.5


def nothing(connection: Connection, decisions: Sequence[Decision]) -> None:
    """A `Note` of nothing."""


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
    note: Note = nothing,
) -> Decision:
    """Decides a schedule as if it were due now, and writes what follows from it.

    Conditions are checked as ever; a pause or being disabled doesn't matter. The timetable, and
    the count of failures unless it launches, stay as they are. `connection` is in autocommit mode.
    `job_source` and `created_by` go to the job; what `note` writes belongs to the decision's
    transaction. Raises `NotFound`, and `Busy` when the schedule
    changed while it was decided, twice: a tick of the beat's at the same time goes first.
    """
    with enqueuing(connection, app, settings) as (evaluator, enqueuer):
        enqueuer.note = note
        for again in (False, True):
            # The second time, whoever writes to the row is waited for.
            row = schedules.get(connection, name, namespace=settings.namespace, for_update=again)
            now = connections.now(connection)
            evaluation = Evaluation(
                row, now, "manual", now, job_source=job_source, created_by=created_by
            )
            evaluation = evaluate(evaluator, evaluation, now, settings.condition_timeout)
            decisions = enqueuer.commit(connection, [evaluation], now)
            if decisions:
                dispatch_lanes(connection, enqueuer)
                return decisions[0]
    raise Busy(f"schedule {name!r} changed while it was being decided; try again")


@contextmanager
def enqueuing(
    connection: Connection, app: Celery, settings: Settings
) -> Iterator[tuple[Evaluator, Enqueuer]]:
    """What decides and writes outside of beat. `connection` is in autocommit mode."""
    with ExitStack() as stack:
        broker = publisher(
            app, settings, lambda: stack.enter_context(app.producer_or_acquire(None))
        )
        conditions = connections.engine(settings.url, "pgbeat condition")
        evaluator = Evaluator(app, settings, conditions, entries.built_in(app))
        with connections.transaction(connection):
            broker.prepare(connection)
        yield evaluator, Enqueuer(app, settings, broker, evaluator)


def dispatch_lanes(connection: Connection, enqueuer: Enqueuer) -> None:
    """Hands out the free slots of the lanes that a commit put something into. While the broker is
    away that is left to beat. `connection` is in autocommit mode."""
    for lane in enqueuer.lanes:
        with suppress(BrokerUnavailable):
            dispatch.dispatch_lane(connection, enqueuer.publisher, *lane)
    enqueuer.lanes.clear()


def evaluate(
    evaluator: Evaluator, evaluation: Evaluation, now: datetime, timeout: float
) -> Evaluation:
    """The evaluation, or that its time (seconds) is up: a thread can't be stopped, but left."""
    evaluations: SimpleQueue[Evaluation] = SimpleQueue()
    threading.Thread(
        target=lambda: evaluations.put(evaluator.evaluate(evaluation, now)),
        name="pgbeat-condition",
        daemon=True,
    ).start()
    try:
        return evaluations.get(timeout=timeout + _GRACE)
    except Empty:
        return evaluator.overdue(evaluation)
