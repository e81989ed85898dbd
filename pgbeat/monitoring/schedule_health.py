"""Judges the health of schedules by the outcomes of their ticks and jobs.

`Schedule.state` says whether a schedule is in service; its health says whether it achieves
anything. Nothing is counted through: each schedule costs a few lookups by the indexes
`ended_jobs_outcomes` and `jobs_by_schedule`, and two in `ticks` if it is skipping, however many
rows are kept. Of jobs that are tried again, the last attempt counts.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Row, text

from pgbeat.database import sql
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import span

#: Failures in a row are counted so far, and schedules are looked at whose jobs have failed.
MOST_FAILURES, MOST_SCHEDULES = 1_000, 10_000
#: Unfinished jobs of a schedule that are looked at.
_UNFINISHED = 20
#: A job that no worker has taken after this long is worth a remark.
PATIENCE = timedelta(minutes=5)

Code = Literal[
    "late",
    "stale",
    "launch_failing",
    "failing",
    "waiting",
    "retrying",
    "never_launched",
    "skipping",
    "no_outcome",
    "new",
    "ok",
]
Severity = Literal["ok", "warn", "fail"]
#: What each code means, the worst first.
MEANINGS: dict[Code, str] = {
    "late": "it is due and has not been decided",
    "stale": "it is in service, and no job has completed within its `fresh_within`",
    "launch_failing": "its decisions fail, or it was disabled because they did",
    "failing": "the newest job that has ended failed",
    "waiting": "no worker has taken its job for five minutes",
    "retrying": "a job failed and is being retried",
    "never_launched": "every decision was a skip or failed",
    "skipping": "it has launched, but since then decisions were skips; nothing is wrong with that",
    "no_outcome": "no job has ended yet",
    "new": "it has not been decided yet",
    "ok": "its newest job completed",
}
_SEVERITIES: dict[Code, Severity] = {
    "late": "fail",
    "stale": "fail",
    "launch_failing": "fail",
    "failing": "fail",
    "waiting": "warn",
    "retrying": "warn",
    "never_launched": "warn",
}
_ORDER = tuple(MEANINGS)


class Health(NamedTuple):
    """The health of a schedule."""

    code: Code
    #: The same in a sentence without a full stop.
    summary: str
    #: Jobs that failed in a row, or failed decisions where the code is `launch_failing`; counted no
    #: further than `MOST_FAILURES`.
    failures: int = 0
    #: Since when it is so, where that is known.
    since: datetime | None = None
    #: What the last failure said.
    error: str | None = None
    #: The newest job that the code is about.
    job_id: UUID | None = None
    #: Why the last decision was a skip, where the code is `stale`, `skipping` or
    #: `never_launched`.
    reason: str | None = None
    #: The task of the job whose `error` it is.
    job_task: str | None = None

    @property
    def severity(self) -> Severity:
        """Returns how bad it is: `fail` if the schedule achieves nothing."""
        return _SEVERITIES.get(self.code, "ok")

    @property
    def rank(self) -> tuple[int, int]:
        """Returns a key that sorts the worst first, and of those the one with most failures."""
        return _ORDER.index(self.code), -self.failures

    @property
    def short(self) -> str:
        """Returns the code in a word or two, for a table."""
        if self.code == "failing":
            return f"failing ({_count(self.failures)})"
        return _SHORT.get(self.code, self.code.replace("_", " "))

    @property
    def brief(self) -> str:
        """Returns the code and the error or the reason, for a line."""
        message = self.error or self.reason
        kept = message.strip().partition("\n")[0] if message else ""
        if self.code == "failing":
            since = f" since {self.since.astimezone(UTC):%H:%M}" if self.since else ""
            number = f"failing, {_count(self.failures)} in a row{since}"
            return f"{number}: {kept}" if kept else number
        if self.code == "launch_failing":
            return f"not launched: {kept}"
        return self.summary


_SHORT: dict[Code, str] = {"new": "-", "no_outcome": "-", "launch_failing": "not launched"}


class _Outcomes(NamedTuple):
    """The outcomes of a schedule's jobs."""

    completed_at: datetime | None = None
    failed_at: datetime | None = None
    failed_id: UUID | None = None
    error: str | None = None
    task: str | None = None
    failures: int = 0
    since: datetime | None = None
    #: Unfinished ones, up to `_UNFINISHED`; of those, when the oldest that no worker has taken was
    #: given to the broker, and the one that is tried again.
    unfinished: int = 0
    waiting_since: datetime | None = None
    retried_id: UUID | None = None
    attempt: int | None = None
    max_attempts: int | None = None


class _Skips(NamedTuple):
    """The skips of a schedule since its last launch: the time of the first, the newest reason."""

    since: datetime | None
    reason: str | None


_OUTCOMES = text(sql.load("schedule_health.sql", "outcomes"))

_SKIPS = text(sql.load("schedule_health.sql", "skips"))


def of_schedules(
    connection: Connection, rows: Collection[Schedule], patience: timedelta
) -> dict[int, Health]:
    """Returns the health of each schedule by its id.

    `patience` is for how long a schedule may be due while all is well (`beats.patience`).
    """
    by_id = {row.id: row for row in rows}
    values = {"ids": list(by_id), "most": MOST_FAILURES, "unfinished": _UNFINISHED}
    skips = _skips(connection, rows)
    healths: dict[int, Health] = {}
    for key, now, *outcomes in connection.execute(_OUTCOMES, values) if rows else ():
        healths[key] = _judge(by_id[key], _Outcomes(*outcomes), skips.get(key), now, patience)
    return healths


def _skips(connection: Connection, rows: Collection[Schedule]) -> dict[int, _Skips]:
    """Returns the skips of the schedules whose last decision was one."""
    skipping = [row for row in rows if _is_skipping(row)]
    if not skipping:
        return {}
    values = {
        "ids": [row.id for row in skipping],
        "launches": [row.last_success or row.created_at for row in skipping],
    }
    return {key: _Skips(*skips) for key, *skips in connection.execute(_SKIPS, values)}


def _is_skipping(row: Schedule) -> bool:
    """Returns whether its last decision was neither a launch nor a failure."""
    return row.last_run is not None and row.last_run not in (row.last_success, row.last_failure)


def of_schedule(connection: Connection, row: Schedule, patience: timedelta) -> Health:
    """Returns the health of one schedule."""
    return of_schedules(connection, [row], patience)[row.id]


def _judge(
    row: Schedule, jobs: _Outcomes, skips: _Skips | None, now: datetime, patience: timedelta
) -> Health:
    """Returns the first code that applies, the worst first."""
    is_active = row.enabled and row.paused_at is None
    if is_active and row.next_run is not None and now - row.next_run > patience:
        late = span(now - row.next_run)
        return Health("late", f"has been due for {late} and is not decided", since=row.next_run)
    if is_active and (stale := _stale(row, jobs, skips, now)):
        return stale
    is_given_up = not row.enabled and row.patience <= row.retry_count
    if row.retry_count and (is_active or is_given_up):
        words = f"launching it failed {row.retry_count} of {row.patience} times in a row"
        words = _with(f"disabled: {words}" if is_given_up else words, row.last_error)
        return Health(
            "launch_failing", words, row.retry_count, row.last_failure, error=row.last_error
        )
    if jobs.failures:
        since = "" if jobs.since is None else f", since {jobs.since.astimezone(UTC):%F %T} UTC"
        words = f"{_count(jobs.failures)} jobs in a row failed{since}"
        if jobs.failures == 1:
            words = f"its last job failed, at {(jobs.since or now).astimezone(UTC):%F %T} UTC"
        words = _with(words, jobs.error)
        return Health(
            "failing",
            words,
            jobs.failures,
            jobs.since,
            jobs.error,
            jobs.failed_id,
            job_task=jobs.task,
        )
    if jobs.waiting_since is not None and now - jobs.waiting_since > PATIENCE:
        others = f", one of {_count(jobs.unfinished, _UNFINISHED)} unfinished"
        words = f"a job has waited for a worker for {span(now - jobs.waiting_since)}"
        words += others if jobs.unfinished > 1 else ""
        return Health("waiting", words, since=jobs.waiting_since)
    if jobs.retried_id is not None:
        words = f"a job failed and is tried again, attempt {jobs.attempt} of {jobs.max_attempts}"
        return Health("retrying", words, job_id=jobs.retried_id)
    return _without_trouble(row, jobs, skips)


def _stale(row: Schedule, jobs: _Outcomes, skips: _Skips | None, now: datetime) -> Health | None:
    """Returns the health of a stale schedule, also if no beat has looked; `None` for others."""
    begun = (jobs.completed_at, row.created_at, row.failures_from, row.starts_at)
    last = max(moment for moment in begun if moment is not None)
    if row.fresh_within is None or (row.stale_since is None and now - last <= row.fresh_within):
        return None
    last_job = "none of its jobs has completed"
    if jobs.completed_at is not None:
        last_job = f"no job has completed since {jobs.completed_at.astimezone(UTC):%F %T} UTC"
    words = f"{last_job}, and fresh_within is {span(row.fresh_within)}"
    error, reason = jobs.error if jobs.failures else None, skips and skips.reason
    since = row.stale_since or last + row.fresh_within
    words = _with(words, error or reason)
    return Health("stale", words, jobs.failures, since, error, jobs.failed_id, reason, jobs.task)


def _without_trouble(row: Schedule, jobs: _Outcomes, skips: _Skips | None) -> Health:
    reason = None if skips is None else skips.reason
    if row.last_run is None:
        if jobs.completed_at is None:
            return Health("new", "it has not been decided yet")
    elif row.last_success is None and jobs.completed_at is None:
        return Health(
            "never_launched",
            "it was never launched: each time, it was skipped or failed",
            since=row.created_at,
            error=row.last_error,
            reason=reason,
        )
    elif skips is not None:
        since = skips.since or row.last_run
        words = f"skipping since {since.astimezone(UTC):%F %T} UTC"
        words += "" if reason is None else f": {reason}"
        return Health("skipping", words, since=since, reason=reason)
    if jobs.completed_at is not None:
        return Health("ok", "its last job completed", since=jobs.completed_at)
    return Health("no_outcome", "none of its jobs has ended yet")


def _with(words: str, error: str | None) -> str:
    return words if error is None else f"{words}; last: {error}"


def _count(number: int, most: int = MOST_FAILURES) -> str:
    return f"{number}" if number < most else f"{most} or more"


_STALE = text(sql.load("schedule_health.sql", "stale"))


def stale(connection: Connection, namespace: str) -> Sequence[Row[Any]]:
    """Returns `name` and `stale_since` of stale schedules in service, as beat saw them last."""
    return connection.execute(_STALE, {"namespace": namespace, "most": MOST_SCHEDULES}).all()


class Failing(NamedTuple):
    """A schedule whose newest job failed."""

    id: int
    name: str
    failures: int
    since: datetime
    error: str | None
    is_paused: bool
    is_enabled: bool


_FAILING = text(sql.load("schedule_health.sql", "failing"))


def failing(connection: Connection, namespace: str) -> Sequence[Failing]:
    """Returns the schedules whose newest job failed, those with the most failures first.

    Only the first `MOST_SCHEDULES` that have any failed job are looked at.
    """
    values = {"namespace": namespace, "most": MOST_FAILURES, "schedules": MOST_SCHEDULES}
    return [Failing(*row) for row in connection.execute(_FAILING, values)]
