"""Evaluates a schedule as if it were due now, and writes nothing."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from celery import Celery
from sqlalchemy import Connection

from pgbeat.beat.condition_pool import evaluate_alone
from pgbeat.beat.evaluation import Evaluation, Objection
from pgbeat.beat.evaluator import Evaluator
from pgbeat.beat.pending_ticks import TickPreparer
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import slots, waiting
from pgbeat.jobs.preparing.prepare import PreparedJob
from pgbeat.jobs.rows.model import Job
from pgbeat.schedules import entries, policies
from pgbeat.schedules import model as schedules
from pgbeat.schedules.calendars import model as calendars
from pgbeat.schedules.launchers import condition_engine
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Trigger

Outcome = Literal["launched", "skipped", "failed", "waiting"]


class DryRun(NamedTuple):
    """The decision that a schedule would get."""

    schedule: Schedule
    #: A tick's outcome; `waiting` if it would wait for the job before it to end.
    outcome: Outcome
    #: Why it would be skipped or wait; why it would fail.
    reason: str | None
    error: str | None
    #: The policies that object, whatever the launcher says.
    objections: list[Objection]
    #: What the launcher says.
    evaluation: Evaluation
    #: Its jobs and their messages, if they can be made.
    prepared: Sequence[PreparedJob]
    #: What its first job would wait for.
    waits_for: str | None


def dry_run(connection: Connection, app: Celery | None, settings: Settings, name: str) -> DryRun:
    """Evaluates the launcher of a schedule, as if it were due now, and all of its policies.

    Without the app this works for a `GenericLauncher`; whether its task is registered is not
    checked then. Raises `NotFound`, and `InvalidSchedule` for a calendar that is invalid.
    """
    row = schedules.get(connection, name, namespace=settings.namespace)
    return dry_run_of(connection, app, settings, row)


def dry_run_of(
    connection: Connection, app: Celery | None, settings: Settings, row: Schedule
) -> DryRun:
    """Evaluates a schedule, which need not be stored, as `dry_run` does."""
    now = connections.now(connection)
    evaluator = Evaluator(
        app or Celery("pgbeat", set_as_current=False),
        settings,
        condition_engine(settings),
        {} if app is None else entries.built_in(app),
    )
    objections = _objections(connection, evaluator, row, now)
    trigger: Trigger = "timetable" if row.after is None else "after"
    evaluation = evaluate_alone(evaluator, Evaluation(row, now, trigger, now), now)
    preparer = TickPreparer(app, settings, evaluator, dry_run=True)
    [pending] = preparer.prepare(connection, [evaluation])
    # What beat checks first decides.
    outcome, why = pending.outcome if not objections else ("skipped", objections[0].reason)
    reason = why if outcome in ("skipped", "waiting") else None
    error = why if outcome == "failed" else None
    waits_for = None
    if outcome == "launched":
        waits_for = _waits(connection, pending.prepared[0].job)
    objections += pending.objections
    return DryRun(row, outcome, reason, error, objections, evaluation, pending.prepared, waits_for)


def _objections(
    connection: Connection, evaluator: Evaluator, row: Schedule, now: datetime
) -> list[Objection]:
    """Returns the policies' objections before any condition, in the order of beat's checks."""
    objections = [Objection("window", why) for why in policies.outside_window(row, now, now)]
    named = [] if row.calendar is None else [row.calendar]
    known = calendars.load(connection, named, namespace=row.namespace)
    return [*objections, *evaluator.objections(row, now, now, known)]


def _waits(connection: Connection, job: Job) -> str | None:
    """Returns what the job would wait for before a worker could claim its message."""
    if job.awaits_approval:
        return "a person's approval"
    if job.lane is None:
        return None
    lane = lanes.get(connection, job.lane, namespace=job.namespace)
    ahead = waiting.length(connection, job.namespace, job.lane)
    is_full = (
        lane.max_running is not None and slots.count_running(connection, lane) >= lane.max_running
    )
    if not ahead and not is_full:
        return None
    slot = f"a slot of lane {lane.name!r}"
    return f"{slot}, behind {ahead} that wait already" if ahead else f"{slot}, which is full"
