"""Writes ticks, with everything that follows from them, in one transaction for a batch."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery import Celery
from sqlalchemy import Connection

from pgbeat.beat import advancer, due
from pgbeat.beat.advancer import Advancer
from pgbeat.beat.evaluation import Decision, Evaluation, Failure
from pgbeat.beat.evaluator import LONGEST, Evaluator
from pgbeat.beat.pending_ticks import PendingTick, TickPreparer
from pgbeat.beat.plain_launches import PlainLaunches
from pgbeat.broker.publishing.publisher import Publisher, TransactionPublisher
from pgbeat.config import Settings
from pgbeat.database import connections, privileges, server_errors
from pgbeat.database.locks import batches, lock_waits
from pgbeat.jobs.flow import lifecycle
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows import new_jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.schedules import ticks
from pgbeat.schedules.ticks import Tick

#: Seconds that a batch which is written in parts may spend on parts that fail.
_IN_PARTS = 1.0
#: Called with decisions once they are committed, and when their writing began (nanoseconds since
#: the epoch). Integrations add theirs.
observers: list[Callable[[Sequence[Decision], int], None]] = []


class _KeyTaken(Exception):
    """Another transaction committed a job with a launch's unique key after that was checked."""


@dataclass(slots=True)
class WrittenTicks:
    """The outcome of writing a batch of evaluations."""

    decisions: list[Decision] = field(default_factory=list)
    #: Schedules (ids) that wait for the end of an unfinished job.
    waiting: set[int] = field(default_factory=set)
    #: Schedules (ids) that are left for later, and why.
    postponed: dict[int, str] = field(default_factory=dict)
    #: Lanes (namespace and name) in which there is something to dispatch.
    lanes: set[Room] = field(default_factory=set)

    def add(self, other: "WrittenTicks") -> None:
        """Adds the outcome of another part of the batch."""
        self.decisions += other.decisions
        self.waiting |= other.waiting
        self.postponed |= other.postponed
        self.lanes |= other.lanes


class Enqueuer:
    """Writes evaluations of one app's schedules. Not for several threads.

    `waits` is as for `TickPreparer`. `record` is called with decisions in their transaction.
    `reached` is called with the name of each step.
    """

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        publisher: Publisher,
        evaluator: Evaluator,
        *,
        waits: bool = True,
        record: Callable[[Sequence[Decision]], object] = lambda decisions: None,
        reached: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.publisher, self._evaluator = publisher, evaluator
        self._preparer = TickPreparer(app, settings, evaluator, waits=waits)
        self._advancer = Advancer(settings, evaluator)
        self._waits, self._record, self._reached = waits, record, reached
        self._plain: PlainLaunches | None = None
        if isinstance(publisher, TransactionPublisher) and not waits:
            self._plain = PlainLaunches(app, settings, publisher, self._advancer)

    def prepare(self, evaluations: Sequence[Evaluation], now: datetime) -> None:
        """Prepares what the next `commit` may be given. Uses no connection."""
        if self._plain is not None:
            self._plain.prepare(evaluations, now)

    def commit(
        self,
        connection: Connection,
        evaluations: Sequence[Evaluation],
        now: datetime,
        *,
        suspects: Collection[int] = (),
        meanwhile: Callable[[], object] = lambda: None,
    ) -> WrittenTicks:
        """Writes evaluations with everything that follows from them, each all or nothing.

        Plain launches are one statement; `meanwhile`, which must not use the connection, is called
        while the server works on it. The others are one transaction; should it fail, smaller ones.
        An evaluation that fails by itself becomes `failed`, or is postponed if another transaction
        holds a lock that it needs, or the server can't do it now. `suspects` are schedules (ids)
        for which that is likely: they come last, by themselves. Evaluations of rows that changed
        meanwhile are dropped.
        """
        written = WrittenTicks()
        able = []
        for evaluation in evaluations:
            if isinstance(evaluation.result, Failure) and evaluation.result.passes:
                written.postponed[evaluation.schedule.id] = evaluation.result.error
            else:
                able.append(evaluation)
        likely = [evaluation for evaluation in able if evaluation.schedule.id not in suspects]
        others = [evaluation for evaluation in able if evaluation.schedule.id in suspects]
        likely = self._launch_plain(connection, likely, now, meanwhile, written)
        try:
            try:
                if likely:
                    written.add(self._commit(connection, likely, now))
            except Exception as error:
                if connections.is_lost(error):
                    raise
                self._commit_in_parts(connection, likely, now, written)
            if others:
                self._commit_in_parts(connection, others, now, written)
            return written
        finally:
            self._forget_messages(evaluations, written.postponed)

    def _launch_plain(
        self,
        connection: Connection,
        evaluations: list[Evaluation],
        now: datetime,
        meanwhile: Callable[[], object],
        written: WrittenTicks,
    ) -> list[Evaluation]:
        """Launches plain schedules. Returns the evaluations that are not written."""
        if self._plain is None or observers:
            meanwhile()
            return evaluations
        others = self._plain.send(connection, evaluations, now)
        self._reached("after sending")
        try:
            meanwhile()
        finally:
            decisions, refused = self._plain.receive()
        written.decisions += decisions
        if decisions:
            self._reached("after commit")
        return [*others, *refused]

    def _commit_in_parts(
        self,
        connection: Connection,
        evaluations: Sequence[Evaluation],
        now: datetime,
        written: WrittenTicks,
    ) -> None:
        def write(part: Sequence[Evaluation]) -> None:
            if self.publisher.transactional:
                self.publisher.clear()
            written.add(self._commit(connection, part, now, is_brief=not self._waits))

        done = batches.in_parts(
            evaluations,
            write,
            may_fail=lambda error: not connections.is_lost(error),
            budget=_IN_PARTS,
        )
        for evaluation, error in done.failed:
            why = _why_to_wait(error)
            if why is None:
                try:
                    write([self._evaluator.fail(evaluation, error)])
                    continue
                except Exception as again:
                    why = _why_to_wait(again)
                    if why is None:
                        raise
            written.postponed[evaluation.schedule.id] = why

    def _forget_messages(
        self, evaluations: Sequence[Evaluation], postponed: Collection[int]
    ) -> None:
        """Forgets the messages that were made.

        An external broker has those of postponed decisions already: they must not be sent again.
        """
        if self.publisher.transactional or not postponed:
            self.publisher.clear()
            return
        done = [evaluation for evaluation in evaluations if evaluation.schedule.id not in postponed]
        self.publisher.clear(job_id for evaluation in done for job_id in evaluation.job_ids)

    def _commit(
        self,
        connection: Connection,
        evaluations: Sequence[Evaluation],
        now: datetime,
        *,
        is_brief: bool = False,
    ) -> WrittenTicks:
        began = time.time_ns() if observers else 0
        with connections.transaction(connection):
            if is_brief:
                lock_waits.briefly(connection)
            locked = due.lock(connection, [evaluation.schedule for evaluation in evaluations])
            live = [evaluation for evaluation in evaluations if evaluation.schedule.id in locked]
            written = self.write(connection, live, now)
            self._record(written.decisions)
            self._reached("before commit")
        self._reached("after commit")
        for observe in observers:
            observe(written.decisions, began)
        return written

    def write(
        self, connection: Connection, evaluations: Sequence[Evaluation], now: datetime
    ) -> WrittenTicks:
        """Writes evaluations into the open transaction, which has locked their rows.

        Ticks, jobs, messages and the schedules' advance take one statement each.
        """
        pending = self._preparer.prepare(connection, evaluations)
        for p in pending:
            self._publish(p)
        ticked = [(p, p.tick) for p in pending if p.tick is not None]
        fresh = ticks.record(connection, [tick for _, tick in ticked])
        lanes = self._write_jobs(connection, [p for p, _ in ticked if p.schedule.id in fresh])
        self._reached("after messages")
        waiting = [
            advancer.waiting(p.schedule, p.waits_for, now)
            for p in pending
            if p.waits_for is not None and p.postponed is None
        ]
        outcomes = [
            self._advancer.after(p.evaluation, _counted(tick, fresh), now) for p, tick in ticked
        ]
        changes = [change for _, change in outcomes if change is not None]
        due.advance(connection, [*waiting, *changes], now)
        decisions = [decision for decision, _ in outcomes if decision.schedule.id in fresh]
        due.disable(connection, decisions, now)
        return WrittenTicks(
            decisions,
            {advance.id for advance in waiting},
            {p.schedule.id: p.postponed for p in pending if p.postponed is not None},
            lanes,
        )

    def _publish(self, pending: PendingTick) -> None:
        """Makes a tick, and a launch's jobs and messages, unless it is postponed or waits."""
        outcome, why = pending.outcome
        if pending.postponed is not None or outcome == "waiting":
            return
        evaluation, row = pending.evaluation, pending.schedule
        tick = Tick(
            row.id,
            row.name,
            evaluation.trigger,
            evaluation.due_at,
            outcome,
            missed=evaluation.missed,
            note=evaluation.note,
        )
        if outcome == "skipped":
            pending.tick = tick._replace(reason=why[:LONGEST])
            return
        if outcome == "failed":
            pending.tick = tick._replace(error=why)
            return
        launched: list[Job] = []
        for job, message, *_ in pending.prepared:
            if job.is_dispatched:
                try:
                    queue = self.publisher.publish(message)
                except Exception as error:
                    if server_errors.is_passing(error) and self.publisher.transactional:
                        raise
                    why = self._evaluator.explain(error)
                    pending.tick = tick._replace(outcome="failed", error=why)
                    return
                job = job._replace(queue=queue or _queue_name(message.options))
            launched.append(job)
        pending.jobs = launched
        job_id, *more = [str(job.id) for job in launched]
        pending.tick = tick._replace(job_id=job_id, more_job_ids=more or None)

    def _write_jobs(self, connection: Connection, launched: Sequence[PendingTick]) -> set[Room]:
        """Writes the jobs and messages of ticks, and cancels the jobs that they supersede.

        Returns the lanes in which there is something to dispatch.
        """
        new = [job for tick in launched for job in tick.jobs]
        lanes = {Room(job.namespace, job.lane, job.id) for job in new if job.lane is not None}
        superseded = [job_id for tick in launched if tick.jobs for job_id in tick.superseded]
        if superseded:
            reason = "cancelled: its schedule is due again"
            ended = lifecycle.cancel(
                connection, self.publisher, superseded, by="system:scheduler", reason=reason
            )
            lanes |= lifecycle.follow(connection, self.publisher, ended)
        if new_jobs.insert(connection, new) < len(new):
            _check_keyed(connection, new)
        self.publisher.flush(connection, [str(job.id) for job in new if job.is_dispatched])
        return lanes


def _counted(tick: Tick, fresh: Collection[int]) -> Tick:
    """Returns what a tick does to its schedule: a launch of a due time decided before is none."""
    if tick.outcome == "launched" and tick.schedule_id not in fresh:
        return tick._replace(outcome="skipped")
    return tick


def _why_to_wait(error: Exception) -> str | None:
    """Returns why a decision that failed is for later; `None` if the failure is its own."""
    if lock_waits.is_lock_timeout(error) or isinstance(error, _KeyTaken):
        return lock_waits.LOCKED
    if privileges.is_refused(error):
        return f"the server can't do it now: {connections.first_line(error)}"
    return None


def _check_keyed(connection: Connection, new: Sequence[Job]) -> None:
    """Raises `_KeyTaken` if a job with a unique key was left out; one whose id exists may be."""
    keyed = {str(job.id) for job in new if job.unique_key is not None}
    if len(jobs.find(connection, keyed)) < len(keyed):
        raise _KeyTaken


def _queue_name(options: Mapping[str, Any]) -> str | None:
    queue = options.get("queue")
    return None if queue is None else str(getattr(queue, "name", queue))
