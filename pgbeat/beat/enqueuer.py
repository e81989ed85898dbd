"""Writes evaluations of due schedules, with everything that follows from them."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery import Celery
from sqlalchemy import Connection

from pgbeat.beat import due, launched_jobs
from pgbeat.beat.evaluator import LONGEST, Evaluation, Evaluator
from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.config import Settings
from pgbeat.database import connections, lock_waits
from pgbeat.errors import PgbeatError
from pgbeat.jobs import defaults, lifecycle, prepare
from pgbeat.jobs import model as jobs
from pgbeat.jobs.prepare import PreparedJob
from pgbeat.schedules import ticks
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Tick

#: How long what waits for a job is left alone: the job's end wakes it, if workers tell of it.
_RECHECK = timedelta(minutes=1)
#: Overlaps that wait for the end of the job before.
_WAITING = ("queue_one", "buffer_all")


class Decision(NamedTuple):
    """A tick that is written, with what it did to its schedule."""

    tick: Tick
    schedule: Schedule
    retry_count: int
    next_run: datetime | None
    disabled_reason: str | None
    #: Whether it is disabled because nothing is left to do.
    is_complete: bool = False


#: Told of decisions once they are committed, and when their writing began (nanoseconds since the
#: epoch): `pgbeat.tracing` sets it.
observe: Callable[[Sequence[Decision], int], None] | None = None


class Enqueuer:
    """Writes evaluations. One instance for one app; not for several threads."""

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        publisher: Publisher,
        evaluator: Evaluator,
        reached: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._app, self._settings, self.publisher, self._evaluator = (
            app,
            settings,
            publisher,
            evaluator,
        )
        self._reached = reached
        #: Whether locks that other transactions hold are waited for. A beat does not wait: what
        #: needs such a lock is `postponed`.
        self.waits = True
        #: Schedules (ids) whose decision the last commit left for later, and why.
        self.postponed: dict[int, str] = {}
        #: Schedules (ids) that the last commit left waiting for an unfinished job.
        self.waiting: set[int] = set()
        #: Lanes (namespace and name) that have something new in them: for `lanes.dispatch`.
        self.lanes: set[tuple[str, str]] = set()
        #: What else is to be written of the decisions, in their transaction.
        self.note: Callable[[Connection, Sequence[Decision]], None] = lambda _, decisions: None

    def commit(
        self,
        connection: Connection,
        evaluations: Sequence[Evaluation],
        now: datetime,
        *,
        suspects: Collection[int] = (),
    ) -> list[Decision]:
        """Writes evaluations with everything that follows from them, each all or nothing.

        One transaction for all; should it fail, smaller ones. An evaluation that fails by itself
        becomes `failed`, or is `postponed` if another transaction holds a lock that it needs.
        `suspects` are schedules (ids) of which that is likely: they come last, by themselves.
        Evaluations on rows that changed meanwhile are dropped.
        """
        self.waiting, self.postponed = set(), {}
        likely = [v for v in evaluations if v.schedule.id not in suspects]
        others = [v for v in evaluations if v.schedule.id in suspects]
        try:
            try:
                decisions = self._commit(connection, likely, now) if likely else []
            except Exception as error:
                if connections.is_lost(error):
                    raise
                decisions = self._commit_in_parts(connection, likely, now)
            if others:
                decisions += self._commit_in_parts(connection, others, now)
            return decisions
        finally:
            self._forget_messages(evaluations)

    def _commit_in_parts(
        self, connection: Connection, evaluations: Sequence[Evaluation], now: datetime
    ) -> list[Decision]:
        decisions: list[Decision] = []

        def write(part: Sequence[Evaluation]) -> None:
            if self.publisher.transactional:
                self.publisher.clear()
            decisions.extend(self._commit(connection, part, now, is_brief=not self.waits))

        def give_up(evaluation: Evaluation, error: Exception) -> None:
            if not lock_waits.is_lock_timeout(error):
                try:
                    write([self._evaluator.broken(evaluation, error)])
                    return
                except Exception as again:
                    if not lock_waits.is_lock_timeout(again):
                        raise
            self.postponed[evaluation.schedule.id] = (
                "another transaction holds a lock that it needs"
            )

        lock_waits.in_parts(evaluations, write, give_up)
        return decisions

    def _forget_messages(self, evaluations: Sequence[Evaluation]) -> None:
        """Forgets the messages that were made, but for those that an external broker has already
        and whose decision is postponed: they must not be sent again."""
        if self.publisher.transactional or not self.postponed:
            self.publisher.clear()
            return
        self.publisher.clear(
            job_id
            for v in evaluations
            if v.schedule.id not in self.postponed
            for job_id in v.job_ids
        )

    def _commit(
        self,
        connection: Connection,
        evaluations: Sequence[Evaluation],
        now: datetime,
        *,
        is_brief: bool = False,
    ) -> list[Decision]:
        began = 0 if observe is None else time.time_ns()
        for evaluation in evaluations:
            self.postponed.pop(evaluation.schedule.id, None)
        with connections.transaction(connection):
            if is_brief:
                lock_waits.briefly(connection)
            locked = due.lock(connection, [evaluation.schedule for evaluation in evaluations])
            live = [evaluation for evaluation in evaluations if evaluation.schedule.id in locked]
            decisions = self.write(connection, live, now)
            self.note(connection, decisions)
            self._reached("before commit")
        self._reached("after commit")
        if observe is not None:
            observe(decisions, began)
        return decisions

    def write(
        self, connection: Connection, evaluations: Sequence[Evaluation], now: datetime
    ) -> list[Decision]:
        """Writes evaluations into the open transaction, which has locked their rows: messages,
        jobs, ticks and the schedules' advance, in one statement each."""
        evaluations, waiting, previous = self._overlaps(connection, evaluations, now)
        written = self._launches(connection, evaluations)
        fresh = ticks.record(connection, [tick for _, tick, _ in written])
        made = [job for _, tick, new in written if tick.schedule_id in fresh for job in new]
        launched = {job.schedule_id for job in made} & previous.keys()
        superseded = [job_id for schedule_id in launched for job_id in previous[schedule_id]]
        if superseded:
            reason = "cancelled: its schedule is due again"
            ended = lifecycle.cancel(
                connection, self.publisher, superseded, by="system:scheduler", reason=reason
            )
            self.lanes |= lifecycle.follow(connection, self.publisher, ended)
        jobs.create(connection, made)
        self.publisher.flush(connection, [job.id for job in made if job.is_dispatched])
        self.lanes.update((job.namespace, job.lane) for job in made if job.lane is not None)
        self._reached("after messages")

        self.waiting |= {advance.id for advance in waiting}
        decisions, advances = [], waiting
        for evaluation, tick, _ in written:
            decision, advance = self._advance(evaluation, tick, now)
            if advance is not None:
                advances.append(advance)
            if evaluation.schedule.id in fresh:
                decisions.append(decision)
        due.advance(connection, advances, now)
        disabled = [d for d in decisions if d.disabled_reason]
        due.disable(
            connection,
            {d.schedule.id: str(d.disabled_reason) for d in disabled},
            [d.schedule.id for d in disabled if d.tick.outcome == "failed"],
            [d.schedule.id for d in disabled if d.is_complete],
            now,
        )
        return decisions

    def _overlaps(
        self, connection: Connection, evaluations: Sequence[Evaluation], now: datetime
    ) -> tuple[list[Evaluation], list[due.Advance], dict[int | None, list[str]]]:
        """Applies the overlap policy to launches whose schedule has an unfinished job.

        Returns evaluations to write, schedules that wait for the job's end, and jobs to cancel by
        schedule."""
        careful = {
            v.schedule.id
            for v in evaluations
            if v.request is not None and v.schedule.overlap != "allow" and v.trigger != "backfill"
        }
        if not careful:
            return list(evaluations), [], {}
        unfinished = jobs.unfinished(connection, careful)
        held = self._lock_jobs(connection, evaluations, unfinished)
        kept: list[Evaluation] = []
        waiting: list[due.Advance] = []
        superseded: dict[int | None, list[str]] = {}
        for evaluation in evaluations:
            row = evaluation.schedule
            before = unfinished.get(row.id) if evaluation.request is not None else None
            if not before:
                kept.append(evaluation)
            elif not held.issuperset(_jobs_to_lock(evaluation, before)):
                self.postponed[row.id] = "another transaction changes the job before it"
            elif row.overlap == "cancel_previous":
                kept.append(evaluation)
                superseded[row.id] = [job.id for job in before]
            elif row.overlap in _WAITING and evaluation.trigger != "manual":
                waiting.append(
                    due.Advance(
                        row.id,
                        "waiting",
                        now + _RECHECK,
                        row.retry_count,
                        due_at=row.due_at or row.next_run,
                        waiting_for=before[-1].id,
                        upstream_ended=row.upstream_ended,
                    )
                )
            else:
                reason = jobs.in_the_way(before)
                kept.append(evaluation._replace(request=None, more=(), skip=reason))
        return kept, waiting, superseded

    def _lock_jobs(
        self,
        connection: Connection,
        evaluations: Sequence[Evaluation],
        unfinished: Mapping[int, Sequence[jobs.Unfinished]],
    ) -> set[str]:
        """Locks the unfinished jobs that the evaluations concern; those that it could lock, if it
        does not wait."""
        wanted = [
            job_id
            for evaluation in evaluations
            if evaluation.request is not None
            for job_id in _jobs_to_lock(evaluation, unfinished.get(evaluation.schedule.id, ()))
        ]
        if not wanted:
            return set()
        if not self.waits:
            return jobs.try_lock(connection, wanted)
        jobs.lock(connection, wanted)
        return set(wanted)

    def _launches(
        self, connection: Connection, evaluations: Sequence[Evaluation]
    ) -> list[tuple[Evaluation, Tick, list[jobs.NewJob]]]:
        """Returns the evaluations with their ticks and, of those that launch, their jobs, the
        messages made; without those that are postponed."""
        made: dict[int, list[PreparedJob]] = {}
        errors: dict[int, str] = {}
        skips: dict[int, str] = {}
        stock = self._stock(connection, evaluations)
        for evaluation in evaluations:
            if evaluation.request is None:
                continue
            key = evaluation.schedule.id
            try:
                made[key] = launched_jobs.build_all(self._app, self._settings, evaluation, stock)
            except Exception as error:
                errors[key] = self._evaluator.explain(error)
                continue
            lane = made[key][0].job.lane  # the same of all: the row's policy has it
            if stock is not None and lane and stock.lane(lane).paused_at:
                skips[key] = f"lane {lane!r} is paused"
        if stock is not None:
            skips |= self._taken(connection, evaluations, made)
        return [
            (
                evaluation,
                *self._publish(evaluation, made.get(evaluation.schedule.id, ()), errors, skips),
            )
            for evaluation in evaluations
            if evaluation.schedule.id not in self.postponed
        ]

    def _stock(
        self, connection: Connection, evaluations: Sequence[Evaluation]
    ) -> defaults.JobDefaults | None:
        """Templates and lanes that the evaluations' rows name; `None` where none does."""
        asked = []
        for evaluation in evaluations:
            if evaluation.request is not None and evaluation.schedule.job_policy:
                with suppress(PgbeatError):  # told when its job is made
                    asked.append(defaults.policy_of(evaluation.schedule.job_policy))
        return defaults.JobDefaults(connection, self._settings, asked) if asked else None

    def _taken(
        self,
        connection: Connection,
        evaluations: Sequence[Evaluation],
        made: Mapping[int, Sequence[PreparedJob]],
    ) -> dict[int, str]:
        """Launches (by schedule) whose unique key another job has, or an earlier one here: none of
        the jobs of such a launch is made."""
        keys: dict[str, timedelta | None] = {}
        skips: dict[int, str] = {}
        for evaluation in evaluations:
            own = prepare.unique_keys(made.get(evaluation.schedule.id, ()))
            if own.keys() & keys.keys():
                skips[evaluation.schedule.id] = "another job with its unique key is made just now"
            else:
                keys |= own
        namespace = self._settings.namespace
        busy = set() if self.waits else defaults.try_lock_keys(connection, namespace, keys)
        free = {key: span for key, span in keys.items() if key not in busy}
        taken = defaults.find_conflicts(connection, namespace, free)
        for schedule_id, batch in made.items():
            for key in prepare.unique_keys(batch):
                if key in busy:
                    self.postponed[schedule_id] = (
                        f"another transaction makes a job with its unique key {key!r}"
                    )
                elif key in taken:
                    other, state = taken[key]
                    skips[schedule_id] = f"job {other}, which has the same unique key, is {state}"
        return skips

    def _publish(
        self,
        evaluation: Evaluation,
        made: Sequence[PreparedJob],
        errors: Mapping[int, str],
        skips: Mapping[int, str],
    ) -> tuple[Tick, list[jobs.NewJob]]:
        """The evaluation's tick and, where it launches, its jobs, the messages made."""
        row = evaluation.schedule
        head = Tick(
            row.id, row.name, evaluation.trigger, evaluation.due_at, "failed",
            missed=evaluation.missed, note=evaluation.note,
        )  # fmt: skip
        skip = evaluation.skip or skips.get(row.id)
        if skip is not None:
            return head._replace(outcome="skipped", reason=skip[:LONGEST]), []
        if not made:
            return head._replace(error=evaluation.error or errors.get(row.id)), []
        ready: list[jobs.NewJob] = []
        for draft in made:
            job = draft.job
            if job.is_dispatched:
                try:
                    queue = self.publisher.publish(draft.message)
                except Exception as error:
                    if connections.is_lost(error) and self.publisher.transactional:
                        raise
                    return head._replace(error=self._evaluator.explain(error)), []
                job = job._replace(queue=queue or _queue_name(draft.message.options))
            ready.append(job)
        more = [job.id for job in ready[1:]] or None
        return head._replace(outcome="launched", job_id=ready[0].id, more_job_ids=more), ready

    def _advance(
        self, evaluation: Evaluation, tick: Tick, now: datetime
    ) -> tuple[Decision, due.Advance | None]:
        """What a tick does to its schedule."""
        row, launched = evaluation.schedule, tick.outcome == "launched"
        if evaluation.trigger == "backfill":
            return Decision(tick, row, row.retry_count, row.next_run, None), None
        if evaluation.trigger == "manual":
            # A person's trigger neither moves the timetable nor counts as a failure in a row.
            retry_count = 0 if launched else row.retry_count
            advance = due.Advance(
                row.id, tick.outcome, row.next_run, retry_count, tick.error, evaluation.cursor,
                row.due_at, None if row.waiting_for is None else str(row.waiting_for),
                row.upstream_ended,
            )  # fmt: skip
            return Decision(tick, row, retry_count, row.next_run, None), advance
        if tick.outcome == "failed":
            retry_count = row.retry_count + 1
            disabled = None
            if retry_count >= row.max_retries:
                disabled = f"failed {retry_count} times in a row; last: {tick.error}"
            next_run = now + row.backoff()
            # What was not launched after all is to be found again by the retry.
            advance = due.Advance(
                row.id, "failed", next_run, retry_count, tick.error,
                due_at=evaluation.then, upstream_ended=row.upstream_ended,
            )  # fmt: skip
            return Decision(tick, row, retry_count, next_run, disabled), advance
        then, disabled = self._then(evaluation, launched, now)
        after = None if then is None else then.next_run
        advance = due.Advance(
            row.id, tick.outcome, after, 0, tick.error, evaluation.cursor,
            None if then is None else then.due_at, runs=int(launched),
        )  # fmt: skip
        is_complete = disabled is not None and then is None
        return Decision(tick, row, 0, after, disabled, is_complete), advance

    def _then(
        self, evaluation: Evaluation, launched: bool, now: datetime
    ) -> tuple[due.Next | None, str | None]:
        """Returns when a schedule is due next, and why it is disabled, if so: with no next time,
        because nothing is left to do."""
        row = evaluation.schedule
        if row.max_runs is not None and row.run_count + launched >= row.max_runs:
            return None, f"launched {row.max_runs} times (max_runs)"
        if evaluation.snooze is not None:
            return due.Next(row, self._snoozed(evaluation.snooze, now)), None
        if row.after is not None:
            return None, None
        try:
            found = self._evaluator.next(row, evaluation.then, evaluation.following)
        except PgbeatError as error:
            return due.Next(row, row.next_run or now, row.due_at), str(error)
        if found is None:
            return None, "its timetable has no time left"
        return found, None

    def _snoozed(self, snooze: timedelta | datetime, now: datetime) -> datetime:
        """Returns when a snoozed launcher is evaluated next, within the settings' bounds."""
        least = timedelta(seconds=self._settings.snooze_min)
        most = timedelta(seconds=self._settings.snooze_max)
        if isinstance(snooze, datetime):
            snooze -= now
        return now + min(max(snooze, least), most)


def _jobs_to_lock(evaluation: Evaluation, unfinished: Sequence[jobs.Unfinished]) -> list[str]:
    """Jobs (ids) that must not change until the evaluation is committed.

    A job that is to be cancelled; and one that the schedule waits for: if its end committed between
    our look at it and our commit, the end would not see that the schedule waits.
    """
    overlap = evaluation.schedule.overlap
    if evaluation.trigger == "backfill" or not unfinished:
        return []
    if overlap == "cancel_previous":
        return [job.id for job in unfinished]
    return [unfinished[-1].id] if overlap in _WAITING and evaluation.trigger != "manual" else []


def _queue_name(options: Mapping[str, Any]) -> str | None:
    queue = options.get("queue")
    return None if queue is None else str(getattr(queue, "name", queue))
