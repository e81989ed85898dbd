"""Policies of a due schedule that need no database: catch-up, grace, minimum spacing."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pgbeat.jobs.preparing.placeholders import Facts
from pgbeat.schedules import upstreams
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import TICK, Timetable, last_interval, span

#: The default `grace` of schedules with `catch_up` of `none`.
GRACE = timedelta(minutes=1)


class Due(NamedTuple):
    """The one due time to decide now, of all that have passed."""

    at: datetime
    #: The time after which the timetable continues.
    then: datetime
    #: How many other due times this decision accounts for, and why.
    missed: int = 0
    note: str | None = None
    #: Why it must be skipped, whatever its condition says.
    skip: str | None = None
    #: The timetable's next time after `then`, if it is known already.
    following: datetime | None = None


def settle(row: Schedule, timetable: Timetable, now: datetime) -> Due:
    """Returns the due time to decide, by the catch-up policy of a schedule that is due.

    Never late are a retry, a launch after another schedule, and one that waited for the previous
    job.
    """
    next_run = row.next_run or now
    if row.after is not None:
        skip = None
        if row.waiting_for is None and not is_out_of_turn(row, timetable, next_run):
            due_at = row.failed_due_at if row.retry_count else None
            skip = next(outside_window(row, due_at or next_run, now), None)
        return Due(next_run, now, max(row.upstream_ended - 1, 0), _ended(row), skip)
    if row.retry_count:
        return _retry(row, timetable, next_run, now)
    nominal = row.due_at or next_run
    waited = row.waiting_for is not None
    # A delay by jitter is not lateness, not even if it lasts beyond the next due time. A launch by
    # hand is no such delay.
    free = max(next_run, min(row.last_run or next_run, nominal + row.jitter, now))
    clock = now if waited else now - max(free - nominal, timedelta(0))
    grace = row.grace if row.grace is not None or row.catch_up != "none" else GRACE
    if row.overlap == "buffer_all":
        return _all(row, timetable, nominal, clock, None)
    if row.catch_up == "all":
        return _all(row, timetable, nominal, clock, None if waited else grace)
    begin = _begin(row, nominal)
    following = timetable.next_after(begin)
    settled = Due(nominal, clock, following=following)
    if following is not None and following <= clock:
        missed = timetable.count(begin, clock)
        latest = timetable.previous(clock + TICK) or nominal
        settled = Due(max(latest, nominal), clock, missed, _missed(missed, nominal, row))
    late = clock - settled.at
    if grace is not None and late > grace and not waited:
        reason = f"{span(late)} late, more than its grace of {span(grace)}"
        return settled._replace(skip=reason)
    return settled


def is_out_of_turn(row: Schedule, timetable: Timetable, due_at: datetime) -> bool:
    """Returns whether a due time isn't the timetable's: somebody set `next_run`."""
    if not row.out_of_turn or row.retry_count:
        return False
    if row.after is not None:
        return not row.upstream_ended
    return row.has_timetable and timetable.previous(due_at + TICK) != due_at


def facts(
    row: Schedule, timetable: Timetable | None, timezone: str, trigger: str, due_at: datetime
) -> Facts:
    """Returns the facts that placeholders of a due time's jobs stand for.

    A decision that is made again stands for the due time that failed before, not for the moment of
    the retry; one out of turn for the last interval that is complete. `timezone` is for a row that
    names none.
    """
    nominal, start, end = due_at, None, None
    if trigger == "retry":
        nominal = retried(row, due_at)
    if timetable is not None:
        if trigger == "retry":
            nominal = timetable.previous(nominal + TICK) or nominal
        start, end = last_interval(timetable, nominal)
    last_due = None if end == nominal else end
    job_id, zone = row.job_id(due_at), row.timezone or timezone
    return Facts(nominal, zone, job_id, row.name, trigger, start, last_due)


def retried(row: Schedule, due_at: datetime) -> datetime:
    """Returns the due time that failed, and is decided again at `due_at`."""
    return row.failed_due_at or row.due_at or due_at


def _all(
    row: Schedule, timetable: Timetable, nominal: datetime, clock: datetime, grace: timedelta | None
) -> Due:
    """Returns the oldest missed time; those that are too old or too many are skipped together."""
    cutoff = nominal - TICK if grace is None else clock - grace - TICK
    reason = "" if grace is None else f"more than its grace of {span(grace)} late"
    begin = _begin(row, nominal)
    if timetable.count(begin, clock) >= row.catch_up_limit:
        oldest = clock + TICK
        for _ in range(row.catch_up_limit):
            oldest = timetable.previous(oldest) or oldest
        if oldest - TICK > cutoff:
            cutoff = oldest - TICK
            verb = "wait" if row.overlap == "buffer_all" else "are missed"
            reason = f"more than {row.catch_up_limit} times {verb}"
    if nominal > cutoff:
        return Due(nominal, nominal)
    missed = timetable.count(begin, cutoff)
    last = timetable.previous(cutoff + TICK) if missed else None
    last = max(last or nominal, nominal)
    policy = "overlap buffer_all" if row.overlap == "buffer_all" else "catch_up all"
    return Due(last, last, missed, _missed(missed, nominal, row), f"{reason} ({policy})")


def _retry(row: Schedule, timetable: Timetable, next_run: datetime, now: datetime) -> Due:
    """Returns a retry's own due time. Times since the failure are missed, or come after it."""
    if row.due_at is None:
        return Due(next_run, now)
    if row.catch_up == "all" or row.overlap == "buffer_all":
        return Due(next_run, row.due_at)
    missed = timetable.count(row.due_at, now)
    return Due(next_run, now, missed, _missed(missed, row.due_at, row))


def _begin(row: Schedule, nominal: datetime) -> datetime:
    """Returns the time after which due times count as missed: an interval begins with its row."""
    is_anchored = row.every is not None and row.starts_at is None
    return max(nominal, row.created_at) if is_anchored else nominal


def outside_window(row: Schedule, due_at: datetime, now: datetime) -> Iterator[str]:
    """Yields why the schedule's window forbids to launch a due time now, if it does."""
    if row.starts_at is not None and now < row.starts_at:
        yield f"its window begins at {row.starts_at:{_UTC}}"
    if row.ends_at is not None and due_at > row.ends_at:
        yield f"its window ended at {row.ends_at:{_UTC}}"


_UTC = "%Y-%m-%d %H:%M:%S%z"


def used_up(row: Schedule, more: int = 0) -> str | None:
    """Returns that the schedule was launched as often as it may be, with `more` launches, if so."""
    count = row.run_count + more
    if row.max_runs is None or count < row.max_runs:
        return None
    return f"launched {count} times (max_runs)"


def too_soon(row: Schedule, now: datetime) -> str | None:
    """Returns why the minimum spacing forbids a launch now, or `None`."""
    if row.min_interval is None or row.last_success is None:
        return None
    since = now - row.last_success
    if since >= row.min_interval:
        return None
    return f"launched {span(since)} ago, and min_interval is {span(row.min_interval)}"


def _missed(count: int, since: datetime, row: Schedule) -> str | None:
    if not count:
        return None
    times = "1 due time" if count == 1 else f"{count} due times"
    policy = "overlap buffer_all" if row.overlap == "buffer_all" else f"catch_up {row.catch_up}"
    return (
        f"{times} before it, since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, missed ({policy})"
    )


def _ended(row: Schedule) -> str | None:
    more = row.upstream_ended - 1
    names = ", ".join(map(repr, upstreams(row.after)))
    return f"{more} more jobs of {names} ended meanwhile" if more > 0 else None
