"""Computes what a tick does to its schedule: when it is due next, or why it is disabled."""

from datetime import datetime, timedelta

from pgbeat.beat import due
from pgbeat.beat.evaluation import Decision, Evaluation
from pgbeat.beat.evaluator import Evaluator
from pgbeat.config import Settings
from pgbeat.errors import PgbeatError
from pgbeat.jobs.running.task_exceptions import Skip
from pgbeat.schedules import policies
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Tick

#: How long a schedule that waits for a job is left alone. The job's end wakes it, if recorded.
_RECHECK = timedelta(minutes=1)
_NO_TIME_LEFT = "its timetable has no time left"


class Advancer:
    """Computes the run state that ticks leave behind."""

    def __init__(self, settings: Settings, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._snooze_min = timedelta(seconds=settings.snooze_min)
        self._snooze_max = timedelta(seconds=settings.snooze_max)

    def after(
        self, evaluation: Evaluation, tick: Tick, now: datetime
    ) -> tuple[Decision, due.RunState | None]:
        """Returns the tick's decision and the schedule's new state, if it changes."""
        row, launched = evaluation.schedule, tick.outcome == "launched"
        if not launched and not isinstance(evaluation.result, Skip):
            # A policy or an error stopped what the launcher asked for: it will ask again.
            evaluation = evaluation._replace(cursor=None, snooze=None)
        if evaluation.trigger == "backfill":
            return Decision(tick, row, row.retry_count, row.next_run, None), None
        if evaluation.is_asked_for:
            # A person's trigger neither moves the timetable nor counts as a failure in a row. Its
            # launch resets the count, but a retry is still to come.
            retry_count = min(row.retry_count, int(row.enabled)) if launched else row.retry_count
            advance = due.RunState(
                row.id,
                tick.outcome,
                row.next_run,
                retry_count,
                error=tick.error,
                cursor=evaluation.cursor,
                due_at=row.due_at,
                failed_due_at=row.failed_due_at,
                waiting_for=None if row.waiting_for is None else str(row.waiting_for),
                upstream_ended=row.upstream_ended,
                out_of_turn=row.out_of_turn,
            )
            return Decision(tick, row, retry_count, row.next_run, None), advance
        if tick.outcome == "failed":
            return self._after_failure(evaluation, tick, now)
        following, disabled = self._following(evaluation, launched, now)
        next_run, due_at = (None, None) if following is None else following[1:]
        advance = due.RunState(
            row.id,
            tick.outcome,
            next_run,
            retry_count=0,
            cursor=evaluation.cursor,
            due_at=due_at,
            runs=int(launched),
        )
        is_complete = disabled is not None and following is None
        return Decision(tick, row, 0, next_run, disabled, is_complete), advance

    def _after_failure(
        self, evaluation: Evaluation, tick: Tick, now: datetime
    ) -> tuple[Decision, due.RunState]:
        row = evaluation.schedule
        retry_count, next_run, disabled = row.retry_count + 1, now + row.backoff(), None
        if retry_count >= row.max_retries:
            disabled = f"failed {retry_count} times in a row; last: {tick.error}"
        # The retry must find what was not launched after all.
        advance = due.RunState(
            row.id,
            "failed",
            next_run,
            retry_count,
            error=tick.error,
            due_at=evaluation.then,
            failed_due_at=evaluation.nominal,
            upstream_ended=row.upstream_ended,
        )
        return Decision(tick, row, retry_count, next_run, disabled), advance

    def _following(
        self, evaluation: Evaluation, launched: bool, now: datetime
    ) -> tuple[due.Next | None, str | None]:
        """Returns when a schedule is due next, and why it is disabled.

        It is disabled without a next time if nothing is left to do.
        """
        row = evaluation.schedule
        if reason := policies.used_up(row, launched):
            return None, reason
        if evaluation.snooze is not None or row.after is not None:
            at = now if evaluation.snooze is None else self._snoozed(evaluation.snooze, now)
            if row.ends_at is not None and at > row.ends_at:
                return None, _NO_TIME_LEFT
            return None if evaluation.snooze is None else due.Next(row, at), None
        try:
            following = self._evaluator.next(row, evaluation.then, evaluation.following)
        except PgbeatError as error:
            return due.Next(row, row.next_run or now, row.due_at), str(error)
        return following, None if following else _NO_TIME_LEFT

    def _snoozed(self, snooze: timedelta | datetime, now: datetime) -> datetime:
        """Returns when a snoozed launcher is evaluated next, within the settings' bounds."""
        if isinstance(snooze, datetime):
            snooze -= now
        return now + min(max(snooze, self._snooze_min), self._snooze_max)


def waiting(row: Schedule, job_id: str, now: datetime) -> due.RunState:
    """Returns the change of a schedule whose due time waits for a job's end."""
    return due.RunState(
        row.id,
        "waiting",
        now + _RECHECK,
        row.retry_count,
        due_at=row.due_at or row.next_run,
        failed_due_at=row.failed_due_at,
        waiting_for=job_id,
        upstream_ended=row.upstream_ended,
        out_of_turn=row.out_of_turn,
    )
