"""Schedules, their health, and ticks."""

from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice

from sqlalchemy import Connection

from pgbeat.access.redaction import Redactor
from pgbeat.errors import InvalidPlaceholder
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.monitoring import statistics
from pgbeat.monitoring.schedule_health import Health
from pgbeat.schedules.forecast import Expected, call, of_schedule
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Entry, Stats, Tick
from pgbeat.views import View, readable
from pgbeat.views import jobs as job_views
from pgbeat.webhooks import check_ins

#: Columns that only pgbeat needs.
HIDDEN = {
    "uid", "upstream_ended", "after_done", "out_of_turn", "failed_due_at", "failures_from",
    "stale_at", "version",
}  # fmt: skip
#: What is shown instead of JSON that is nested too deeply.
_IF_DEEP: View = {"args": None, "cursor": None} | {
    name: {} for name in ("kwargs", "options", "job_policy", "metadata")
}
_RECENT = ("id", "state", "created_at", "finished_at")


def schedule(row: Schedule) -> View:
    """Returns a schedule."""
    columns = {name: value for name, value in row._asdict().items() if name not in HIDDEN}
    # Other fields tell what an active schedule waits for.
    state = "active" if row.state in ("waiting", "retrying") else row.state
    return readable(columns, _IF_DEEP) | {"state": state}


def with_health(row: Schedule, row_health: Health) -> View:
    """Returns a schedule with its health."""
    return schedule(row) | {"health": health(row_health)}


def health(row_health: Health) -> View:
    """Returns the health of a schedule."""
    fields = {name: value for name, value in row_health._asdict().items() if name != "job_task"}
    return fields | {"severity": row_health.severity}


def detail(connection: Connection, row: Schedule, row_health: Health, last: Entry | None) -> View:
    """Returns a schedule with its health, newest jobs, last tick and check-in."""
    newest = jobs.listing(connection, Filter(row.namespace, schedule_id=row.id), limit=10)
    check_in = check_ins.last(connection, row.id)
    return with_health(row, row_health) | {
        "recent_jobs": [{name: getattr(job, name) for name in _RECENT} for job in newest],
        "last_tick": last and tick(last),
        "last_check_in": check_in and check_in._asdict(),
        "runs": job_views.figures(statistics.of_schedule(connection, row.id)),
    }


#: What only the command line's tables show of its job.
UNTOLD = {"id", "job_attempt", "job_max_attempts", "job_run_at", "job_lane", "job_dispatched_at"}


def tick(entry: Entry) -> View:
    """Returns a tick of a schedule's history."""
    fields = {name: value for name, value in asdict(entry).items() if name not in UNTOLD}
    for job in fields["jobs"]:
        del job["task"]
    return fields


def made(decision: Tick) -> View:
    """Returns a tick that was just made, with the ids of all its jobs."""
    fields = decision._asdict()
    del fields["schedule_id"], fields["more_job_ids"]
    return fields | {"job_ids": decision.job_ids}


def outcomes(stats: Stats) -> View:
    """Returns the counts of a schedule's ticks."""
    return asdict(stats) | {"success_rate": stats.success_rate}


def upcoming(due: Expected, now: datetime) -> View:
    """Returns a due time to come."""
    at = max(due.at, now).astimezone(UTC)
    return {"at": at, "due_at": due.due_at.astimezone(UTC), "skip": due.skip}


def forecast(
    connection: Connection,
    row: Schedule,
    now: datetime,
    timezone: str,
    redactor: Redactor,
    count: int,
) -> View:
    """Returns the next due times of a schedule, with the arguments of its jobs, masked.

    There are none if it is disabled, or if its timetable is in the app's code.
    """
    timetable = row.timetable(timezone) if row.enabled else None
    times: list[View] = []
    if timetable is not None:
        due_times = of_schedule(connection, row, timetable, now, timezone)
        for due in islice(due_times, count):
            args, kwargs = None, None
            with suppress(InvalidPlaceholder):
                args, kwargs = call(due, timetable, timezone)
            times.append(
                upcoming(due, now)
                | {
                    "args": args and redactor.args(row.task, args),
                    "kwargs": kwargs and redactor.kwargs(row.task, kwargs),
                }
            )
    return {"schedule": row.name, "timezone": row.timezone or timezone, "times": times}
