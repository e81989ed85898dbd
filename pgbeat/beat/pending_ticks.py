"""Prepares ticks: applies the policies that need the database, and builds the jobs to launch.

`check_overlap`, `build` and `check_unique` run in this order, in the transaction that will write
the ticks, or in a dry run, which locks nothing.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from celery import Celery
from sqlalchemy import Connection

from pgbeat.beat import launched_jobs
from pgbeat.beat.evaluation import Evaluation, Failure, Launch, Objection
from pgbeat.beat.evaluator import Evaluator
from pgbeat.config import Settings
from pgbeat.errors import PgbeatError
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy import task_policies
from pgbeat.jobs.preparing import prepare
from pgbeat.jobs.preparing.defaults import JobDefaults
from pgbeat.jobs.preparing.prepare import PreparedJob
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows import unique_keys
from pgbeat.jobs.rows.model import Job, Unfinished
from pgbeat.jobs.rows.unique_keys import UniqueKey
from pgbeat.jobs.running.task_exceptions import Skip
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Tick

#: Overlap policies that wait for the end of the job before.
_WAITING = ("queue_one", "buffer_all")


@dataclass(slots=True)
class PendingTick:
    """An evaluation on its way to a tick, with what each step adds."""

    evaluation: Evaluation
    #: Policies that object to it, in the order in which they are checked.
    objections: list[Objection] = field(default_factory=list)
    #: What was raised when its jobs were built.
    error: str | None = None
    #: The unfinished job (id) whose end it waits for, undecided.
    waits_for: str | None = None
    #: Why it is left for later: a lock that another transaction holds.
    postponed: str | None = None
    #: Unfinished jobs (ids) that its launch cancels.
    superseded: Sequence[str] = ()
    #: The jobs that it launches, and their messages.
    prepared: Sequence[PreparedJob] = ()
    #: What is written; `None` if it waits or is postponed.
    tick: Tick | None = None
    jobs: Sequence[Job] = ()

    @property
    def schedule(self) -> Schedule:
        """Returns the schedule's row."""
        return self.evaluation.schedule

    @property
    def launches(self) -> bool:
        """Returns whether it launches, as far as is known."""
        return isinstance(self.evaluation.result, Launch) and not (
            self.objections or self.error or self.postponed
        )

    @property
    def outcome(self) -> tuple[Literal["launched", "skipped", "failed", "waiting"], str]:
        """Returns the outcome, and the reason or the error. What is checked first decides."""
        result = self.evaluation.result
        if isinstance(result, Failure):
            return "failed", result.error
        if isinstance(result, Skip):
            return "skipped", result.reason
        if self.objections:
            return "skipped" if self.waits_for is None else "waiting", self.objections[0].reason
        return ("launched", "") if self.error is None else ("failed", self.error)

    def check_overlap(self, unfinished: Sequence[Unfinished]) -> None:
        """Applies the overlap policy to a schedule that has these unfinished jobs, oldest first."""
        row = self.schedule
        if row.overlap == "cancel_previous":
            self.superseded = [job.id for job in unfinished]
            return
        self.objections.append(Objection("overlap", jobs.overlap_reason(unfinished)))
        # A person's trigger is skipped: it is for now.
        if row.overlap in _WAITING and not self.evaluation.is_asked_for:
            self.waits_for = unfinished[-1].id

    def jobs_to_lock(self) -> Sequence[str]:
        """Returns the jobs (ids) that must not change until the tick is written.

        Those that it cancels; and the one that the schedule waits for: if that ended between our
        query and our commit, its end would not see that the schedule waits.
        """
        return self.superseded if self.waits_for is None else [self.waits_for]


class TickPreparer:
    """Prepares the ticks of one app.

    With `waits`, locks that other transactions hold are waited for. Beat doesn't wait: what needs
    such a lock is `postponed`. A `dry_run` takes no locks, and checks every policy even if one
    objects. Without the app, tasks are not checked.
    """

    def __init__(
        self,
        app: Celery | None,
        settings: Settings,
        evaluator: Evaluator,
        *,
        waits: bool = True,
        dry_run: bool = False,
    ) -> None:
        self._app, self._settings, self._evaluator = app, settings, evaluator
        self._waits, self._dry_run = waits, dry_run

    def prepare(
        self, connection: Connection, evaluations: Sequence[Evaluation]
    ) -> list[PendingTick]:
        """Takes evaluations through all policies, each as far as it gets, and builds their jobs."""
        pending = [PendingTick(evaluation) for evaluation in evaluations]
        self._check_overlaps(connection, pending)
        stock = self._build(connection, pending)
        if stock is not None:  # unique keys come from job policies
            self._check_unique(connection, pending)
        return pending

    def _launching(self, pending: Sequence[PendingTick]) -> list[PendingTick]:
        if self._dry_run:
            return [tick for tick in pending if isinstance(tick.evaluation.result, Launch)]
        return [tick for tick in pending if tick.launches]

    def _check_overlaps(self, connection: Connection, pending: Sequence[PendingTick]) -> None:
        careful = {
            tick.schedule.id: tick
            for tick in (pending if self._dry_run else self._launching(pending))
            if tick.schedule.overlap != "allow" and tick.evaluation.trigger != "backfill"
        }
        if not careful:
            return
        for schedule_id, unfinished in jobs.unfinished(connection, careful.keys()).items():
            careful[schedule_id].check_overlap(unfinished)
        self._lock_jobs(connection, list(careful.values()))

    def _lock_jobs(self, connection: Connection, pending: Sequence[PendingTick]) -> None:
        wanted = [job_id for tick in pending for job_id in tick.jobs_to_lock()]
        if self._dry_run or not wanted:
            return
        if self._waits:
            jobs.lock(connection, wanted)
            return
        locked = jobs.try_lock(connection, wanted)
        for tick in pending:
            if not locked.issuperset(tick.jobs_to_lock()):
                tick.postponed = "another transaction changes the job before it"

    def _build(self, connection: Connection, pending: Sequence[PendingTick]) -> JobDefaults | None:
        """Builds the jobs of launches. Returns the templates and lanes that their policies name.

        `None` if no row and no task has a job policy.
        """
        launching = self._launching(pending)
        policies = []
        for tick in launching:
            if tick.schedule.job_policy:
                with suppress(PgbeatError):  # raised again when its job is built
                    policies.append(job_policies.parse(tick.schedule.job_policy))
        stock = None
        if policies or any(map(self._has_policy, launching)):
            stock = JobDefaults(connection, self._settings, policies)
        for tick in launching:
            try:
                tick.prepared = launched_jobs.build_all(
                    self._app, self._settings, tick.evaluation, stock
                )
            except Exception as error:
                tick.error = self._evaluator.explain(error)
                continue
            for lane in dict.fromkeys(prepared.job.lane for prepared in tick.prepared):
                if stock is not None and lane and stock.lane(lane).paused_at:
                    tick.objections.append(Objection("lane", f"lane {lane!r} is paused"))
        return stock

    def _has_policy(self, pending: PendingTick) -> bool:
        """Returns whether a task that it launches has a policy."""
        result = pending.evaluation.result
        if self._app is None or not isinstance(result, Launch):
            return False
        try:
            policies = [task_policies.of_task(self._app, job.task) for job in result.requests]
        except PgbeatError:  # raised again when its job is built
            return True
        return any(policy is not None for policy in policies)

    def _check_unique(self, connection: Connection, pending: Sequence[PendingTick]) -> None:
        """Objects to launches with a unique key that another job has, or an earlier launch here.

        None of their jobs is made.
        """
        keyed = [
            (tick, keys)
            for tick in self._launching(pending)
            if (keys := prepare.unique_keys(tick.prepared))
        ]
        spans = {key: span for _, keys in reversed(keyed) for key, span in keys.items()}
        namespace, busy = self._settings.namespace, set[UniqueKey]()
        find: Mapping[UniqueKey, tuple[str, str]]
        if self._dry_run:
            find = unique_keys.find(connection, namespace, spans)
        else:
            if not self._waits:
                busy = unique_keys.try_lock(connection, namespace, spans)
            free = {key: span for key, span in spans.items() if key not in busy}
            find = unique_keys.lock_and_find(connection, namespace, free)
        used: set[UniqueKey] = set()
        for tick, keys in keyed:
            if locked := next((key for key in keys if key in busy), None):
                tick.postponed = (
                    f"another transaction makes a job with its unique key {locked.key!r}"
                )
            elif taken := next((find[key] for key in keys if key in find), None):
                other, state = taken
                reason = f"job {other}, which has the same unique key, is {state}"
                tick.objections.append(Objection("unique", reason))
            elif not used.isdisjoint(keys):
                reason = "another job with its unique key is made just now"
                tick.objections.append(Objection("unique", reason))
            else:
                used.update(keys)
