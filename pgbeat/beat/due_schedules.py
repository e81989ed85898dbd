"""Evaluates the schedules that are due, each as soon as its condition has answered."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from pgbeat.beat import due
from pgbeat.beat.condition_pool import ConditionPool
from pgbeat.beat.due import DueSnapshot
from pgbeat.beat.enqueuer import WrittenTicks
from pgbeat.beat.evaluation import Evaluation
from pgbeat.beat.evaluator import Evaluator
from pgbeat.config import Settings
from pgbeat.database import connections, server_errors
from pgbeat.database.locks import batches
from pgbeat.database.locks.lock_waits import Postponed
from pgbeat.jobs.running.task_exceptions import Skip
from pgbeat.schedules.calendars import model as calendars
from pgbeat.schedules.calendars.model import Calendar
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Trigger

logger = logging.getLogger("celery.beat.pgbeat")

#: Conditions in SQL that are evaluated in one statement, at most.
_TOGETHER = 100
_LOCKED_ROW = "another transaction has locked its row"
#: For how long an evaluation ahead of its pass holds.
_AHEAD = timedelta(seconds=1)


class DueBatch(NamedTuple):
    """Schedules that are due, oldest first, as read at one moment."""

    rows: Sequence[Schedule]
    calendars: Mapping[str, Calendar]
    #: By the database's clock.
    now: datetime


class DueSchedules:
    """Evaluates what is due, on the leader's connection. Not for several threads.

    Schedules that are being evaluated, or postponed because their row is locked, are held: they are
    left out until there is a result, or for a moment.
    """

    def __init__(self, settings: Settings, evaluator: Evaluator, pool: ConditionPool) -> None:
        self._settings, self._evaluator, self._pool = settings, evaluator, pool
        self._postponed = Postponed()
        #: Schedules whose evaluation was dropped at the last commit.
        self._dropped: set[int] = set()
        #: Evaluations whose condition has answered, and those to ask again, by themselves.
        self._answered: list[Evaluation] = []
        self._undecided: list[Evaluation] = []
        #: What `begin` has decided, and rows that are due later after all.
        self._begun: list[Evaluation] = []
        self._later: list[due.Next] = []
        #: By the database's clock; `None` if nothing has begun.
        self._begun_at: datetime | None = None
        #: Whether more may be due than was read last.
        self._is_full = False

    def collect(self) -> list[int]:
        """Collects the answers of conditions. Returns the ids of schedules that are held."""
        results, expired = self._pool.collect()
        self._answered = [self._evaluator.time_out(evaluation) for evaluation in expired]
        self._answered += [evaluation for evaluation in results if evaluation.is_decided]
        self._undecided = [evaluation for evaluation in results if not evaluation.is_decided]
        known = [evaluation.schedule.id for evaluation in (*self._answered, *self._undecided)]
        return [*known, *self._pool.held, *self._held()]

    def _held(self) -> list[int]:
        return [key for key in self._postponed.held() if isinstance(key, int)]

    def read(self, connection: Connection, now: datetime, held: Sequence[int]) -> DueBatch:
        """Returns schedules that are due and not held."""
        limit, namespace = self._settings.batch_size, self._settings.namespace
        rows = due.oldest(
            connection,
            now,
            limit=limit,
            held=held,
            only_plain=self._pool.room < limit,
            namespace=namespace,
        )
        self._is_full = len(rows) == limit
        named = {row.calendar for row in rows if row.calendar is not None}
        return DueBatch(rows, calendars.load(connection, named, namespace=namespace), now)

    def read_ahead(
        self, connection: Connection, now: datetime, evaluations: Sequence[Evaluation]
    ) -> DueBatch | None:
        """Returns the due schedules besides these evaluations, if the last batch was full."""
        if not self._is_full:
            return None
        held = [*self._pool.held, *self._held(), *(e.schedule.id for e in evaluations)]
        return self.read(connection, now, held)

    def is_ahead(self, now: datetime) -> bool:
        """Returns whether a batch has begun already. It is forgotten if that was long ago."""
        if self._begun_at is not None and now - self._begun_at > _AHEAD:
            self._forget_begun()
        return self._begun_at is not None

    def begin(self, batch: DueBatch) -> Sequence[Evaluation]:
        """Evaluates schedules that are due, and starts to evaluate those with a condition.

        Returns what is decided, as `take` will. Uses no connection.
        """
        waiting: list[Evaluation] = []
        self._begun_at = batch.now
        for row in batch.rows:
            evaluation = self._evaluator.begin(row, batch.now, batch.calendars)
            if isinstance(evaluation, due.Next):
                self._later.append(evaluation)
            elif evaluation.is_decided:
                self._begun.append(evaluation)
            elif self._pool.is_stuck(row.id):
                message = "the condition of an earlier tick was given up and still runs"
                self._begun.append(self._evaluator.time_out(evaluation, message))
            else:
                waiting.append(evaluation)
        self._submit(waiting, batch.now)
        return self._begun

    def take(
        self, connection: Connection, snapshot: DueSnapshot, held: list[int]
    ) -> list[Evaluation]:
        """Returns the decided evaluations: of `begin`, answered conditions and new rows."""
        now = snapshot.now
        decided = self._answered
        if snapshot.has_new:
            decided += self._schedule_new(connection, now, held)
        decided += self._begun
        self._set_next(connection, self._later)
        self._submit(self._undecided, now)
        self._answered, self._undecided = [], []
        self._forget_begun()
        return decided

    def suspects(self, evaluations: Sequence[Evaluation]) -> list[int]:
        """Returns the ids of schedules that were postponed, and may still be locked."""
        ids = [evaluation.schedule.id for evaluation in evaluations]
        return [key for key in ids if self._postponed.was_held(key)]

    def settle(self, evaluations: Sequence[Evaluation], written: WrittenTicks) -> None:
        """Leaves schedules alone for a moment whose evaluation was not written.

        One that changed meanwhile is evaluated again at once. One that is dropped twice running is
        locked by another transaction, and postponed.
        """
        done = {decision.schedule.id for decision in written.decisions} | written.waiting
        self._postponed.done(done)
        dropped = {e.schedule.id: e.schedule for e in evaluations if e.schedule.id not in done}
        for key, row in dropped.items():
            if key in written.postponed or key in self._dropped:
                self._postpone(row, written.postponed.get(key, _LOCKED_ROW))
        self._dropped = dropped.keys() - written.postponed.keys()

    def wake_in(self) -> float | None:
        """Returns the seconds until a retry of something postponed, or a condition's timeout.

        `None` if there is neither.
        """
        limits = (self._pool.next_deadline(), self._postponed.wake_in())
        return min((limit for limit in limits if limit is not None), default=None)

    def forget(self) -> None:
        """Drops evaluations under way: the next leader repeats them."""
        self._pool.forget()
        self._forget_begun()
        self._postponed.clear()

    def _forget_begun(self) -> None:
        self._begun, self._later, self._begun_at = [], [], None

    def _schedule_new(
        self, connection: Connection, now: datetime, held: list[int]
    ) -> list[Evaluation]:
        """Gives new rows their first time. Returns evaluations of the rows that have none."""
        evaluations: list[Evaluation] = []
        times: list[due.Next] = []
        limit, namespace = self._settings.batch_size, self._settings.namespace
        for row in due.new(connection, limit=limit, held=held, namespace=namespace):
            trigger: Trigger = "retry" if row.retry_count else "timetable"
            try:
                first = self._evaluator.first(row, now)
            except Exception as error:
                evaluation = Evaluation(row, now, trigger, now)
                evaluations.append(self._evaluator.fail(evaluation, error))
                continue
            if first is None:
                skip = Skip("its timetable has no time left")
                evaluations.append(Evaluation(row, now, trigger, now, result=skip))
            else:
                times.append(first)
        self._set_next(connection, times)
        return evaluations

    def _submit(self, evaluations: Sequence[Evaluation], now: datetime) -> None:
        """Gives conditions to the pool: quick ones in SQL together, others by themselves."""
        together: list[Evaluation] = []
        for evaluation in evaluations:
            if self._evaluator.is_quick(evaluation.schedule):
                together.append(evaluation)
            else:
                self._pool.submit([evaluation], partial(self._evaluate_one, evaluation, now))
        for first in range(0, len(together), _TOGETHER):
            batch = together[first : first + _TOGETHER]
            self._pool.submit(batch, partial(self._evaluator.evaluate_together, batch))

    def _evaluate_one(self, evaluation: Evaluation, now: datetime) -> list[Evaluation]:
        return [self._evaluator.evaluate(evaluation, now)]

    def _set_next(self, connection: Connection, times: Sequence[due.Next]) -> None:
        """Writes next times; rows that are locked, or changed, are left alone for a moment.

        So are those that can't have theirs, such as one of the year 10000.
        """
        done = batches.in_parts(
            times, partial(due.set_next, connection), may_fail=server_errors.is_of_rows
        )
        ids = set[int]().union(*done.results)
        self._postponed.done(ids)
        why = {moment.schedule.id: connections.first_line(error) for moment, error in done.failed}
        for moment in times:
            key = moment.schedule.id
            if key not in ids:
                self._postpone(moment.schedule, why.get(key, _LOCKED_ROW))

    def _postpone(self, row: Schedule, why: str) -> None:
        self._postponed.add(row.id, f"schedule '{row.name}'", why)
