"""A rehearsal: what would become of a schedule, were it due now. Launches and writes nothing."""

from datetime import datetime
from typing import Literal, NamedTuple

from celery import Celery
from sqlalchemy import Connection

from pgbeat.beat import launched_jobs
from pgbeat.beat.evaluator import Evaluation, Evaluator
from pgbeat.beat.manual import evaluate
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import PgbeatError
from pgbeat.jobs import defaults, prepare
from pgbeat.jobs import model as jobs
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import slots, waiting
from pgbeat.jobs.model import NewJob
from pgbeat.jobs.prepare import PreparedJob
from pgbeat.schedules import calendars, entries, policies
from pgbeat.schedules import model as schedules
from pgbeat.schedules.model import Schedule

Policy = Literal["window", "max_runs", "min_interval", "calendar", "overlap", "lane", "unique"]


Outcome = Literal["launched", "skipped", "failed", "waiting"]


class Objection(NamedTuple):
    """A policy that says no, whatever the launcher says, and why."""

    policy: Policy
    reason: str


class Rehearsal(NamedTuple):
    """What would become of a schedule."""

    schedule: Schedule
    #: A tick's outcome; `waiting` where it would wait for the job before it to end.
    outcome: Outcome
    #: Why it would be skipped or wait; why it would fail.
    reason: str | None
    error: str | None
    objections: list[Objection]
    #: What the launcher says.
    evaluation: Evaluation
    #: Its job and message, where they can be made.
    draft: PreparedJob | None = None
    #: Those of its other jobs, where it would launch several.
    more: tuple[PreparedJob, ...] = ()
    #: What its job would wait for.
    waits: str | None = None


def rehearse(
    connection: Connection, app: Celery | None, settings: Settings, name: str
) -> Rehearsal:
    """Asks the launcher of a schedule, as if it were due now, and the policies before it.

    Without the app a schedule can be asked that launches what its row says, on a condition in SQL;
    whether there is such a task is not checked then. Raises `NotFound`, and `InvalidSchedule` for
    a calendar that can't be understood.
    """
    row = schedules.get(connection, name, namespace=settings.namespace)
    now = connections.now(connection)
    asked = app or Celery("pgbeat", set_as_current=False)
    conditions = connections.engine(settings.url, "pgbeat condition")
    evaluator = Evaluator(asked, settings, conditions, {} if app is None else entries.built_in(app))
    objections = _objections(connection, row, now, evaluator.timezone)
    evaluation = Evaluation(row, now, "manual", now)
    evaluation = evaluate(evaluator, evaluation, now, settings.condition_timeout)
    overlap = _overlap(connection, row)
    outcome: Outcome = "skipped"
    reason = error = None
    if objections:
        reason = objections[0].reason
    elif evaluation.request is None:
        outcome = "failed" if evaluation.skip is None else "skipped"
        reason, error = evaluation.skip, evaluation.error
    elif overlap is not None:
        outcome = "waiting" if row.overlap in ("queue_one", "buffer_all") else "skipped"
        reason = overlap.reason
    else:
        outcome = "launched"
    planned: list[PreparedJob] = []
    waits = None
    if overlap is not None:
        objections.append(overlap)
    if evaluation.request is not None:
        planned, problem, refusal = _drafts(connection, app, settings, evaluation)
        if refusal is not None:
            objections.append(refusal)
        if outcome == "launched" and problem is not None:
            outcome, error = "failed", problem
        elif outcome == "launched" and refusal is not None:
            outcome, reason = "skipped", refusal.reason
    draft, more = (planned[0], tuple(planned[1:])) if planned else (None, ())
    if outcome == "launched" and draft is not None:
        waits = _waits(connection, draft.job)
    return Rehearsal(row, outcome, reason, error, objections, evaluation, draft, more, waits)


def _objections(
    connection: Connection, row: Schedule, now: datetime, timezone: str
) -> list[Objection]:
    """What says no before the launcher is asked, in the order in which beat looks at it."""
    found: list[Objection] = []
    if row.starts_at is not None and now < row.starts_at:
        found.append(Objection("window", f"its window begins at {_utc(row.starts_at)}"))
    if row.ends_at is not None and now > row.ends_at:
        found.append(Objection("window", f"its window ended at {_utc(row.ends_at)}"))
    if row.max_runs is not None and row.run_count >= row.max_runs:
        found.append(Objection("max_runs", f"launched {row.run_count} times (max_runs)"))
    soon = policies.too_soon(row, now)
    if soon is not None:
        found.append(Objection("min_interval", soon))
    if row.calendar is not None:
        known = calendars.load(connection, [row.calendar], namespace=row.namespace)
        excluded = calendars.exclusion(known, row.calendar, now, row.timezone or timezone)
        if excluded is not None:
            found.append(Objection("calendar", excluded))
    return found


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S%z}"


def _overlap(connection: Connection, row: Schedule) -> Objection | None:
    """The unfinished job that it would not be launched beside."""
    if row.overlap not in ("skip", "queue_one", "buffer_all"):
        return None
    unfinished = jobs.unfinished(connection, [row.id]).get(row.id)
    if not unfinished:
        return None
    return Objection("overlap", jobs.in_the_way(unfinished))


def _drafts(
    connection: Connection, app: Celery | None, settings: Settings, evaluation: Evaluation
) -> tuple[list[PreparedJob], str | None, Objection | None]:
    """The launch's jobs and messages; or what is wrong with it, as far as the app knows; and what
    their policy says against it."""
    row, stock = evaluation.schedule, None
    try:
        if row.job_policy:
            stock = defaults.JobDefaults(connection, settings, [defaults.policy_of(row.job_policy)])
        made = launched_jobs.build_all(app, settings, evaluation, stock)
    except PgbeatError as error:
        return [], str(error), None
    job = made[0].job
    if stock is not None and job.lane is not None and stock.lane(job.lane).paused_at is not None:
        return made, None, Objection("lane", f"lane {job.lane!r} is paused")
    keys = prepare.unique_keys(made)
    for other, state in defaults.find_taken(connection, settings.namespace, keys).values():
        reason = f"job {other}, which has the same unique key, is {state}"
        return made, None, Objection("unique", reason)
    return made, None, None


def _waits(connection: Connection, job: NewJob) -> str | None:
    """What the job would wait for before a worker could take it."""
    if job.awaits_approval:
        return "a person's approval"
    if job.lane is None:
        return None
    lane = lanes.get(connection, job.namespace, job.lane)
    ahead = waiting.length(connection, job.namespace, job.lane)
    is_full = (
        lane.max_running is not None and slots.count_running(connection, lane) >= lane.max_running
    )
    if not ahead and not is_full:
        return None
    slot = f"a slot of lane {lane.name!r}"
    return f"{slot}, behind {ahead} that wait already" if ahead else f"{slot}, which is full"
