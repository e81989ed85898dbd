"""Reads when a submitted job may run: at a time, or after a countdown."""

from datetime import datetime, timedelta
from typing import Any

from pgbeat.errors import InvalidJob
from pgbeat.storable import EARLIEST, LATEST


def parse_countdown(countdown: Any) -> timedelta | None:
    """Returns a countdown, a timedelta or seconds, as a timedelta. Raises `InvalidJob`."""
    if countdown is None or isinstance(countdown, timedelta):
        return countdown
    if isinstance(countdown, bool) or not isinstance(countdown, int | float):
        raise InvalidJob.of(
            "countdown", "malformed", f"countdown must be a number of seconds, got {countdown!r}"
        )
    try:
        return timedelta(seconds=countdown)
    except (ValueError, OverflowError):
        raise _out_of_range() from None


def _out_of_range(field: str = "countdown") -> InvalidJob:
    return InvalidJob.of(field, "out_of_range", f"{field} is out of the years 1 to 9999")


def after(now: datetime, countdown: timedelta) -> datetime:
    """Returns when a countdown ends. Raises `InvalidJob`."""
    try:
        run_at = now + countdown
    except OverflowError:
        raise _out_of_range() from None
    if run_at > LATEST:
        raise _out_of_range()
    return run_at


def check_run_at(run_at: Any) -> datetime:
    """Returns the time if a job can wait for it. Raises `InvalidJob`."""
    if not isinstance(run_at, datetime) or run_at.tzinfo is None:
        message = f"run_at must be a datetime with a time zone, got {run_at!r}"
        raise InvalidJob.of("run_at", "malformed", message)
    if run_at > LATEST:
        raise _out_of_range("run_at")
    return max(run_at, EARLIEST)


def run_at_of(run_at: Any, countdown: Any, now: datetime) -> datetime | None:
    """Returns when a job may run; `None` for now. Raises `InvalidJob`."""
    if countdown is not None:
        if run_at is not None:
            raise InvalidJob.of("run_at", "conflict", "run_at and countdown exclude each other")
        if not isinstance(countdown, timedelta):
            message = f"countdown must be seconds or a timedelta, got {countdown!r}"
            raise InvalidJob.of("countdown", "malformed", message)
        run_at = after(now, countdown)
    if run_at is None:
        return None
    return run_at if check_run_at(run_at) > now else None
