"""Reads when a submitted job may run: at a time, or after a countdown."""

from datetime import datetime, timedelta
from typing import Any

from pgbeat.errors import InvalidJob


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


def _out_of_range() -> InvalidJob:
    return InvalidJob.of("countdown", "out_of_range", "countdown is out of range")


def run_at_of(run_at: Any, countdown: Any, now: datetime) -> datetime | None:
    """Returns when a job may run; `None` for now. Raises `InvalidJob`."""
    if countdown is not None:
        if run_at is not None:
            raise InvalidJob.of("run_at", "conflict", "run_at and countdown exclude each other")
        if not isinstance(countdown, timedelta):
            message = f"countdown must be seconds or a timedelta, got {countdown!r}"
            raise InvalidJob.of("countdown", "malformed", message)
        try:
            run_at = now + countdown
        except OverflowError:
            raise _out_of_range() from None
    if run_at is None:
        return None
    if not isinstance(run_at, datetime) or run_at.tzinfo is None:
        message = f"run_at must be a datetime with a time zone, got {run_at!r}"
        raise InvalidJob.of("run_at", "malformed", message)
    return run_at if run_at > now else None
