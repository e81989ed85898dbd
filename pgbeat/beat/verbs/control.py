"""Control of decisions and history: what people do besides the timetable, a function for each verb.

Each takes a unit of work that has no transaction open. Conditions are evaluated outside of one, and
each decision, or each step of a prune, commits by itself, with its record in the audit log.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from pgbeat.access import audit
from pgbeat.beat.condition_pool import evaluate_alone
from pgbeat.beat.enqueuer import Enqueuer
from pgbeat.beat.evaluation import Decision, Evaluation
from pgbeat.beat.evaluator import Evaluator
from pgbeat.beat.maintenance.pruner import Pruner
from pgbeat.beat.verbs import missed
from pgbeat.broker.publishing.pool import publishing
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import BrokerUnavailable, Busy
from pgbeat.jobs.flow import dispatch
from pgbeat.schedules import entries
from pgbeat.schedules import model as schedules
from pgbeat.schedules.launchers import condition_engine
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Tick

#: Attempts to decide a schedule that changes meanwhile.
_TRIGGER_ATTEMPTS, _BACKFILL_ATTEMPTS = 2, 5


def trigger(unit: UnitOfWork, name: str, *, job_source: str) -> Decision:
    """Decides a schedule as if it were due now, and writes what follows from it.

    Conditions are evaluated as always; it may be paused or disabled. The timetable stays as it is,
    and so does a retry that is to come; a launch resets the count of failures. Raises `NotFound`,
    and `Busy` if the schedule changed twice while it was decided: a tick of beat's at the same
    time goes first.
    """
    with _deciding(unit, "trigger", job_source) as decider:
        for row in _attempts(unit, name, _TRIGGER_ATTEMPTS):
            decision = decider.decide(row)
            if decision is not None:
                return decision
    raise AssertionError("unreachable")


@dataclass
class BackfillRun:
    """What a backfill decided."""

    ticks: list[Tick] = field(default_factory=list)
    #: Failures in a row, at the end.
    failures: int = 0
    #: Due times that are left.
    remaining: int = 0


def after(seconds: float) -> Callable[[BackfillRun], bool]:
    """Returns a function that says whether so many seconds have passed since."""
    until = time.monotonic() + seconds
    return lambda done: time.monotonic() > until


def backfill(
    unit: UnitOfWork,
    name: str,
    times: Sequence[datetime],
    *,
    job_source: str,
    is_over: Callable[[BackfillRun], bool] = lambda done: False,
) -> BackfillRun:
    """Decides due times of a schedule in the order given.

    Conditions are evaluated as things are now, with `due_at` of then. The schedule's run state
    stays, and so does what was launched meanwhile. It ends early after as many failures in a row as
    the schedule has retries, and when `is_over`, which is called after each decision, says so.
    Raises `NotFound`, and `Busy` for a schedule that keeps changing.
    """
    connection, done = unit.connection, BackfillRun(remaining=len(times))
    patience = schedules.get(connection, name, namespace=unit.namespace).patience
    with _deciding(unit, "backfill", job_source) as decider:
        for due_at in times:
            done.remaining -= 1
            for row in _attempts(unit, name, _BACKFILL_ATTEMPTS):
                if missed.is_launched(connection, row, due_at):
                    break
                decision = decider.decide(row, due_at)
                if decision is not None:
                    done.ticks.append(decision.tick)
                    has_failed = decision.tick.outcome == "failed"
                    done.failures = done.failures + 1 if has_failed else 0
                    if is_over(done) or done.failures >= patience:
                        return done
                    break
    return done


def _attempts(unit: UnitOfWork, name: str, most: int) -> Iterator[Schedule]:
    """Yields a schedule's row once for each attempt to decide it.

    The second time, and later, it waits for other writers of the row first. Raises `NotFound`, and
    `Busy` after so many attempts.
    """
    for number in range(most):
        yield schedules.get(unit.connection, name, namespace=unit.namespace, for_update=number > 0)
    raise Busy(f"schedule {name!r} changed while it was being decided; try again")


class _Decider:
    """Evaluates and writes one due time after the other."""

    def __init__(
        self, unit: UnitOfWork, evaluator: Evaluator, enqueuer: Enqueuer, job_source: str
    ) -> None:
        self._unit, self._evaluator, self._enqueuer = unit, evaluator, enqueuer
        self._job_source = job_source

    def decide(self, row: Schedule, due_at: datetime | None = None) -> Decision | None:
        """Decides a schedule for a due time in the past, or for now.

        Its policies on time don't count. Afterwards, lanes with something new are dispatched; beat
        does that if the broker is away. Returns `None` if the row changed after it was read.
        """
        connection = self._unit.connection
        now = connections.now(connection)
        moment = due_at or now
        evaluation = Evaluation(
            row,
            moment,
            "manual" if due_at is None else "backfill",
            moment,
            job_source=self._job_source,
            created_by=self._unit.actor.name,
        )
        evaluation = evaluate_alone(self._evaluator, evaluation, now)
        if due_at is not None:
            missed.forget(connection, row, due_at)
        written = self._enqueuer.commit(connection, [evaluation], now)
        with suppress(BrokerUnavailable):
            dispatch.dispatch_lanes(connection, self._enqueuer.publisher, written.lanes)
        return next(iter(written.decisions), None)


@contextmanager
def _deciding(unit: UnitOfWork, verb: str, job_source: str) -> Iterator[_Decider]:
    """Opens a decider, whose decisions are recorded as that verb."""
    app, settings, connection = unit.require_app(), unit.settings, unit.connection

    def record(decisions: Sequence[Decision]) -> None:
        unit.record_all([(verb, None, decision.tick) for decision in decisions])

    evaluator = Evaluator(app, settings, condition_engine(settings), entries.built_in(app))
    with publishing(app, settings) as publisher:
        with connections.transaction(connection):
            publisher.prepare(connection)
        enqueuer = Enqueuer(app, settings, publisher, evaluator, record=record)
        yield _Decider(unit, evaluator, enqueuer, job_source)


class Pruned(NamedTuple):
    """What a prune deleted, or would delete."""

    #: Of what it kept: `days`, `count`, `event_days` and `audit_days`.
    kept: dict[str, float]
    #: Rows by table.
    deleted: dict[str, int]


def prune(
    unit: UnitOfWork,
    *,
    days: float | None = None,
    count: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], object] = lambda scanned, deleted: None,
) -> Pruned:
    """Deletes records that are older than the retention, which `days` and `count` override.

    Interrupted, it has deleted what it had got to. The audit log has it as one change. `progress`
    is called after each step with the number of rows that were scanned and deleted so far.
    """
    settings = unit.settings
    if days is not None:
        settings = replace(settings, retention_days=days)
    if count is not None:
        settings = replace(settings, retention_count=count)
    pruner = Pruner(settings, dry_run=dry_run)
    change: int | None = None
    scanned = 0
    while True:
        before = pruner.deleted.total()
        with unit.transaction():
            step = pruner.step(unit.connection)
            if pruner.deleted.total() > before and not dry_run:
                change = _record_prune(unit, change, _pruned(settings, pruner))
        if not step:
            return _pruned(settings, pruner)
        scanned += step
        progress(scanned, pruner.deleted.total())


def _pruned(settings: Settings, pruner: Pruner) -> Pruned:
    kept = {
        "days": settings.retention_days,
        "count": settings.retention_count,
        "event_days": settings.event_days,
        "audit_days": settings.audit_days,
    }
    return Pruned(kept, {name: pruner.deleted[name] for name in pruner.names})


def _record_prune(unit: UnitOfWork, change: int | None, done: Pruned) -> int | None:
    """Records the prune as one change, with the rows deleted so far; returns the record's id."""
    deleted = {table: number for table, number in done.deleted.items() if number}
    after: dict[str, Any] = {"kept": done.kept, "deleted": deleted}
    if change is None:
        return unit.record_action("prune", "history", "", None, after)
    audit.amend(unit.connection, change, after)
    return change
