"""Dispatch: verdicts on due schedules are written, with everything that follows from them."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery import Celery
from sqlalchemy import Connection

from pgbeat import db, drafts, due, jobs, lifecycle, orders, ticks
from pgbeat.config import Settings
from pgbeat.drafts import Draft
from pgbeat.errors import PgbeatError
from pgbeat.judge import LONGEST, Judge, Verdict
from pgbeat.publisher import Publisher
from pgbeat.schedules import COMPLETED, Schedule
from pgbeat.ticks import Tick

#: How long what waits for a job is left alone: the job's end wakes it, if workers tell of it.
_RECHECK = timedelta(minutes=1)


class Decision(NamedTuple):
    """A tick that is written, with what it did to its schedule."""

    tick: Tick
    schedule: Schedule
    retry_count: int
    next_run: datetime | None
    disabled_reason: str | None

    @property
    def is_complete(self) -> bool:
        """Whether it is disabled because it has nothing left to do."""
        return (self.disabled_reason or "").startswith(COMPLETED)


#: Told of decisions once they are committed, and when their writing began (nanoseconds since the
#: epoch): `pgbeat.tracing` sets it.
observe: Callable[[Sequence[Decision], int], None] | None = None


class Dispatcher:
    """Writes verdicts. One instance for one app; not for several threads."""

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        publisher: Publisher,
        judge: Judge,
        reached: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._app, self._settings, self.publisher, self._judge = app, settings, publisher, judge
        self._reached = reached
        #: Schedules (ids) that the last commit left waiting for an unfinished job.
        self.waiting: set[int] = set()
        #: Lanes (namespace and name) that have something new in them: for `lanes.dispatch`.
        self.lanes: set[tuple[str, str]] = set()
        #: What else is to be written of the decisions, in their transaction.
        self.note: Callable[[Connection, Sequence[Decision]], None] = lambda _, decisions: None

    def commit(
        self, connection: Connection, verdicts: Sequence[Verdict], now: datetime
    ) -> list[Decision]:
        """Writes verdicts with everything that follows from them, each all or nothing.

        One transaction for all; should it fail, one for each, and those that fail again become
        `failed`. Verdicts on rows that changed meanwhile are dropped.
        """
        self.waiting = set()
        try:
            try:
                return self._commit(connection, verdicts, now)
            except Exception as error:
                if db.is_lost(error):
                    raise
            decisions: list[Decision] = []
            for verdict in verdicts:
                try:
                    decisions += self._commit(connection, [verdict], now)
                except Exception as error:
                    if db.is_lost(error):
                        raise
                    failed = self._judge.broken(verdict, error)
                    decisions += self._commit(connection, [failed], now)
            return decisions
        finally:
            self.publisher.clear()

    def _commit(
        self, connection: Connection, verdicts: Sequence[Verdict], now: datetime
    ) -> list[Decision]:
        began = 0 if observe is None else time.time_ns()
        with db.transaction(connection):
            locked = due.lock(connection, [verdict.schedule for verdict in verdicts])
            live = [verdict for verdict in verdicts if verdict.schedule.id in locked]
            decisions = self.write(connection, live, now)
            self.note(connection, decisions)
            self._reached("before commit")
        self._reached("after commit")
        if observe is not None:
            observe(decisions, began)
        return decisions

    def write(
        self, connection: Connection, verdicts: Sequence[Verdict], now: datetime
    ) -> list[Decision]:
        """Writes verdicts into the open transaction, whose rows are locked: messages, jobs, ticks
        and the schedules' advance, in one statement each."""
        verdicts, waiting, outdone = self._overlaps(connection, verdicts, now)
        written = self._launches(connection, verdicts)
        fresh = ticks.record(connection, [tick for tick, _ in written])
        made = [job for _, job in written if job is not None and job.schedule_id in fresh]
        if outdone:
            reason = "cancelled: its schedule is due again"
            ended = lifecycle.cancel(
                connection, self.publisher, outdone, by="system:scheduler", reason=reason
            )
            self.lanes |= lifecycle.follow(connection, self.publisher, ended)
        jobs.create(connection, made)
        self.publisher.flush(connection, [job.id for job in made if job.is_dispatched])
        self.lanes.update((job.namespace, job.lane) for job in made if job.lane is not None)
        self._reached("after messages")

        self.waiting |= {advance.id for advance in waiting}
        decisions, advances = [], waiting
        for verdict, (tick, _) in zip(verdicts, written, strict=True):
            decision, advance = self._advance(verdict, tick, now)
            if advance is not None:
                advances.append(advance)
            if verdict.schedule.id in fresh:
                decisions.append(decision)
        due.advance(connection, advances, now)
        disabled = [d for d in decisions if d.disabled_reason]
        due.disable(
            connection,
            {d.schedule.id: str(d.disabled_reason) for d in disabled},
            [d.schedule.id for d in disabled if d.tick.outcome == "failed"],
            now,
        )
        return decisions

    def _overlaps(
        self, connection: Connection, verdicts: Sequence[Verdict], now: datetime
    ) -> tuple[list[Verdict], list[due.Advance], list[str]]:
        """Launches that meet an unfinished job of their schedule, by its policy: verdicts to write,
        schedules that wait for the job's end, and jobs to cancel."""
        careful = {
            v.schedule.id
            for v in verdicts
            if v.request is not None and v.schedule.overlap != "allow" and v.trigger != "backfill"
        }
        if not careful:
            return list(verdicts), [], []
        unfinished = jobs.unfinished(connection, careful)
        kept: list[Verdict] = []
        waiting: list[due.Advance] = []
        outdone: list[str] = []
        for verdict in verdicts:
            row = verdict.schedule
            before = unfinished.get(row.id) if verdict.request is not None else None
            if not before:
                kept.append(verdict)
            elif row.overlap == "cancel_previous":
                kept.append(verdict)
                outdone += [job.id for job in before]
            elif row.overlap == "queue_one" and verdict.trigger != "manual":
                waiting.append(
                    due.Advance(
                        row.id,
                        "waiting",
                        now + _RECHECK,
                        row.retry_count,
                        due_at=row.due_at or row.next_run,
                        waiting_for=before[-1].id,
                        ended=row.ended,
                    )
                )
            else:
                job = before[-1]
                reason = f"the job before it, {job.id}, is still {job.state}"
                kept.append(verdict._replace(request=None, skip=reason))
        return kept, waiting, outdone

    def _launches(
        self, connection: Connection, verdicts: Sequence[Verdict]
    ) -> list[tuple[Tick, jobs.NewJob | None]]:
        """The verdicts' ticks and, of those that launch, their jobs, the messages made."""
        made: dict[int, Draft] = {}
        errors: dict[int, str] = {}
        skips: dict[int, str] = {}
        stock = self._stock(connection, verdicts)
        for verdict in verdicts:
            if verdict.request is None:
                continue
            key = verdict.schedule.id
            try:
                made[key] = drafts.of_verdict(
                    self._app, self._settings, verdict, verdict.request, stock
                )
            except Exception as error:
                errors[key] = self._judge.explain(error)
                continue
            lane = made[key].job.lane
            if stock is not None and lane and stock.lane(lane).paused_at:
                skips[key] = f"lane {lane!r} is paused"
        if stock is not None:
            skips |= self._taken(connection, verdicts, made)
        return [
            self._publish(verdict, made.get(verdict.schedule.id), errors, skips)
            for verdict in verdicts
        ]

    def _stock(self, connection: Connection, verdicts: Sequence[Verdict]) -> orders.Stock | None:
        """Templates and lanes that the verdicts' rows name; `None` where none does."""
        asked = []
        for verdict in verdicts:
            if verdict.request is not None and verdict.schedule.job:
                with suppress(PgbeatError):  # told when its job is made
                    asked.append(orders.policy_of(verdict.schedule.job))
        return orders.Stock(connection, self._settings, asked) if asked else None

    def _taken(
        self,
        connection: Connection,
        verdicts: Sequence[Verdict],
        made: Mapping[int, Draft],
    ) -> dict[int, str]:
        """Launches (by schedule) whose unique key another job has, or an earlier one here."""
        keys: dict[str, timedelta | None] = {}
        skips: dict[int, str] = {}
        for verdict in verdicts:
            draft = made.get(verdict.schedule.id)
            if draft is None or draft.job.unique_key is None:
                continue
            if draft.job.unique_key in keys:
                skips[verdict.schedule.id] = "another job with its unique key is made just now"
            else:
                keys[draft.job.unique_key] = draft.unique_for
        taken = orders.same(connection, self._settings.namespace, keys)
        for key, draft in made.items():
            if draft.job.unique_key in taken:
                other, state = taken[draft.job.unique_key]
                skips[key] = f"job {other}, which has the same unique key, is {state}"
        return skips

    def _publish(
        self,
        verdict: Verdict,
        draft: Draft | None,
        errors: Mapping[int, str],
        skips: Mapping[int, str],
    ) -> tuple[Tick, jobs.NewJob | None]:
        """The verdict's tick and, where it launches, its job, the message made."""
        row = verdict.schedule
        head = Tick(
            row.id, row.name, verdict.trigger, verdict.due_at, "failed",
            missed=verdict.missed, note=verdict.note,
        )  # fmt: skip
        skip = verdict.skip or skips.get(row.id)
        if skip is not None:
            return head._replace(outcome="skipped", reason=skip[:LONGEST]), None
        if draft is None:
            return head._replace(error=verdict.error or errors.get(row.id)), None
        job = draft.job
        if job.is_dispatched:
            try:
                queue = self.publisher.publish(draft.launch)
            except Exception as error:
                if db.is_lost(error) and self.publisher.transactional:
                    raise
                return head._replace(error=self._judge.explain(error)), None
            job = job._replace(queue=queue or _queue_name(draft.launch.options))
        return head._replace(outcome="launched", job_id=job.id), job

    def _advance(
        self, verdict: Verdict, tick: Tick, now: datetime
    ) -> tuple[Decision, due.Advance | None]:
        """What a tick does to its schedule."""
        row, launched = verdict.schedule, tick.outcome == "launched"
        if verdict.trigger == "backfill":
            return Decision(tick, row, row.retry_count, row.next_run, None), None
        if verdict.trigger == "manual":
            # A person's trigger neither moves the timetable nor counts as a failure in a row.
            retry_count = 0 if launched else row.retry_count
            advance = due.Advance(
                row.id, tick.outcome, row.next_run, retry_count, tick.error, verdict.cursor,
                row.due_at, None if row.waiting_for is None else str(row.waiting_for), row.ended,
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
                due_at=verdict.then, ended=row.ended,
            )  # fmt: skip
            return Decision(tick, row, retry_count, next_run, disabled), advance
        then, disabled = self._then(verdict, launched, now)
        after = None if then is None else then.next_run
        advance = due.Advance(
            row.id, tick.outcome, after, 0, tick.error, verdict.cursor,
            None if then is None else then.due_at, runs=int(launched),
        )  # fmt: skip
        return Decision(tick, row, 0, after, disabled), advance

    def _then(
        self, verdict: Verdict, launched: bool, now: datetime
    ) -> tuple[due.Next | None, str | None]:
        """When a schedule is due next, and why it is disabled if it is."""
        row = verdict.schedule
        if row.max_runs is not None and row.run_count + launched >= row.max_runs:
            return None, f"{COMPLETED}launched {row.max_runs} times (max_runs)"
        if verdict.again is not None:
            return due.Next(row, self._again(verdict.again, now)), None
        if row.after is not None:
            return None, None
        try:
            found = self._judge.next(row, verdict.then, verdict.following)
        except PgbeatError as error:
            return due.Next(row, row.next_run or now, row.due_at), str(error)
        if found is None:
            return None, f"{COMPLETED}its timetable has no time left"
        return found, None

    def _again(self, wanted: timedelta | datetime, now: datetime) -> datetime:
        """When a launcher is asked again that says so itself, within bounds."""
        least = timedelta(seconds=self._settings.again_min)
        most = timedelta(seconds=self._settings.again_max)
        if isinstance(wanted, datetime):
            wanted -= now
        return now + min(max(wanted, least), most)


def _queue_name(options: Mapping[str, Any]) -> str | None:
    queue = options.get("queue")
    return None if queue is None else str(getattr(queue, "name", queue))
