"""Evaluates the schedules that are due, each as soon as its condition has answered."""

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from sqlalchemy import Connection

from pgbeat.beat import due
from pgbeat.beat.condition_pool import ConditionPool
from pgbeat.beat.due import DueSnapshot
from pgbeat.beat.enqueuer import Written
from pgbeat.beat.evaluation import Evaluation
from pgbeat.beat.evaluator import Evaluator
from pgbeat.config import Settings
from pgbeat.database.lock_waits import Postponed
from pgbeat.jobs.task_exceptions import Skip
from pgbeat.schedules import calendars
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Trigger

logger = logging.getLogger("celery.beat.pgbeat")

#: Conditions in SQL that are evaluated in one statement, at most.
_TOGETHER = 100
_LOCKED_ROW = "another transaction has locked its row"


class DueSchedules:
    """Evaluates what is due, on the leader's connection. Not for several threads.

    Schedules that are being evaluated, or postponed because their row is locked, are held: they are
    left out until there is a result, or for a moment.
    """

    def __init__(self, settings: Settings, evaluator: Evaluator, pool: ConditionPool) -> None:
        self._settings, self._evaluator, self._pool = settings, evaluator, pool
        self._postponed = Postponed()
        #: Those whose evaluation was dropped at the last commit.
        self._dropped: set[int] = set()
        #: Evaluations whose condition has answered, and those to ask again, by themselves.
        self._answered: list[Evaluation] = []
        self._undecided: list[Evaluation] = []

    def collect(self) -> list[int]:
        """Collects what conditions have answered. Returns the ids of schedules that are held."""
        results, expired = self._pool.collect()
        self._answered = [self._evaluator.time_out(each) for each in expired]
        self._answered += [each for each in results if each.is_decided]
        self._undecided = [each for each in results if not each.is_decided]
        known = [each.schedule.id for each in (*self._answered, *self._undecided)]
        postponed = [key for key in self._postponed.held() if isinstance(key, int)]
        return [*known, *self._pool.held, *postponed]

    def find(self, connection: Connection, now: datetime, held: list[int]) -> list[Schedule]:
        """Returns schedules that are due, but for those that are held."""
        return due.oldest(
            connection,
            now,
            limit=self._settings.batch_size,
            held=held,
            only_plain=not self._pool.room,
            namespace=self._settings.namespace,
        )

    def evaluate(
        self,
        connection: Connection,
        rows: Sequence[Schedule],
        snapshot: DueSnapshot,
        held: list[int],
    ) -> list[Evaluation]:
        """Evaluates schedules that are due, and starts to evaluate those with a condition.

        Returns what is decided, with what `collect` found.
        """
        now = snapshot.now
        decided = self._answered
        if snapshot.has_new:
            decided += self._schedule_new(connection, now, held)
        decided += self._begin(connection, rows, now)
        self._submit(self._undecided, now)
        self._answered, self._undecided = [], []
        return decided

    def suspects(self, evaluations: Sequence[Evaluation]) -> list[int]:
        """Returns the ids of schedules that were postponed, and may still be locked."""
        ids = [each.schedule.id for each in evaluations]
        return [key for key in ids if self._postponed.was_held(key)]

    def settle(self, evaluations: Sequence[Evaluation], written: Written) -> None:
        """Leaves schedules alone for a moment whose evaluation was not written.

        One that changed meanwhile is evaluated again at once. One that is dropped twice running is
        locked by another transaction, and postponed.
        """
        done = {each.schedule.id for each in written.decisions} | written.waiting
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
        """Drops what is under way: the next leader evaluates it."""
        self._pool.forget()
        self._postponed.clear()

    def _schedule_new(
        self, connection: Connection, now: datetime, held: list[int]
    ) -> list[Evaluation]:
        """Gives new rows their first time. Returns evaluations of those that have none."""
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

    def _begin(
        self, connection: Connection, rows: Sequence[Schedule], now: datetime
    ) -> list[Evaluation]:
        """Begins to evaluate schedules. Returns those that are decided without waiting."""
        named = {row.calendar for row in rows if row.calendar is not None}
        known = calendars.load(connection, named, namespace=self._settings.namespace)
        decided: list[Evaluation] = []
        later: list[due.Next] = []
        waiting: list[Evaluation] = []
        room = self._pool.room
        for row in rows:
            evaluation = self._evaluator.begin(row, now, known)
            if isinstance(evaluation, due.Next):
                later.append(evaluation)
            elif evaluation.is_decided:
                decided.append(evaluation)
            elif self._pool.is_stuck(row.id):
                message = "the condition of an earlier tick was given up and still runs"
                decided.append(self._evaluator.time_out(evaluation, message))
            elif room > 0:
                room -= 1
                waiting.append(evaluation)
        self._submit(waiting, now)
        self._set_next(connection, later)
        return decided

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
        """Writes next times; rows that are locked, or changed, are left alone for a moment."""
        given = due.set_next(connection, times)
        self._postponed.done(given)
        for moment in times:
            if moment.schedule.id not in given:
                self._postpone(moment.schedule, _LOCKED_ROW)

    def _postpone(self, row: Schedule, why: str) -> None:
        self._postponed.add(row.id, f"schedule '{row.name}'", why)
