"""A rehearsal: what would become of a schedule, were it due now. Launches and writes nothing."""

from datetime import datetime
from typing import Literal, NamedTuple

from celery import Celery
from sqlalchemy import Connection

from pgbeat import calendars, db, entries, jobs, policies, schedules
from pgbeat.config import Settings
from pgbeat.dispatch import check_task
from pgbeat.errors import PgbeatError
from pgbeat.judge import Judge, Verdict
from pgbeat.launchers import JobRequest
from pgbeat.manual import evaluate
from pgbeat.publisher import check_options
from pgbeat.schedules import Schedule

Policy = Literal["window", "max_runs", "min_interval", "calendar", "overlap"]


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
    verdict: Verdict


def rehearse(
    connection: Connection, app: Celery | None, settings: Settings, name: str
) -> Rehearsal:
    """Asks the launcher of a schedule, as if it were due now, and the policies before it.

    Without the app a schedule can be asked that launches what its row says, on a condition in SQL;
    whether there is such a task is not checked then. Raises `NotFound`, and `InvalidSchedule` for
    a calendar that can't be understood.
    """
    row = schedules.get(connection, name, namespace=settings.namespace)
    now = db.now(connection)
    asked = app or Celery("pgbeat", set_as_current=False)
    conditions = db.engine(settings.url, "pgbeat condition")
    judge = Judge(asked, settings, conditions, {} if app is None else entries.built_in(app))
    objections = _objections(connection, row, now, judge.timezone)
    verdict = Verdict(row, now, "manual", now)
    verdict = evaluate(judge, verdict, now, settings.condition_timeout)
    overlap = _overlap(connection, row)
    outcome: Outcome = "skipped"
    reason = error = None
    if objections:
        reason = objections[0].reason
    elif verdict.request is None:
        outcome = "failed" if verdict.skip is None else "skipped"
        reason, error = verdict.skip, verdict.error
    elif overlap is not None:
        outcome = "waiting" if row.overlap == "queue_one" else "skipped"
        reason = overlap.reason
    else:
        error = _problem(app, row, verdict.request)
        outcome = "launched" if error is None else "failed"
    if overlap is not None:
        objections.append(overlap)
    return Rehearsal(row, outcome, reason, error, objections, verdict)


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
    if row.overlap not in ("skip", "queue_one"):
        return None
    unfinished = jobs.unfinished(connection, [row.id]).get(row.id)
    if not unfinished:
        return None
    job = unfinished[-1]
    return Objection("overlap", f"the job before it, {job.id}, is still {job.state}")


def _problem(app: Celery | None, row: Schedule, request: JobRequest) -> str | None:
    """Why it could not be published, as far as the app knows."""
    try:
        if app is not None and row.source != "code":
            check_task(app, request.task)
        check_options({**row.options, **request.options})
    except PgbeatError as error:
        return str(error)
    return None
