"""Reads the check-ins of schedules: requests that tell a monitor elsewhere of each run.

The database inserts them as deliveries in the transaction of the decision or the job's end.
"""

from datetime import datetime
from typing import Literal, NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql


class CheckIn(NamedTuple):
    """The last request for a schedule."""

    #: What it reports: `start`, `ok` or `fail`.
    status: str
    #: Of the delivery: `pending`, `delivered` or `failed`.
    state: str
    created_at: datetime
    #: What went wrong in the last attempt.
    error: str | None

    @property
    def words(self) -> str:
        """Returns the report and its delivery in words, such as `success delivered`."""
        return f"{_STATUS[self.status]} {_STATE[self.state]}"


_STATUS = {"start": "start", "ok": "success", "fail": "failure"}
_STATE = {"pending": "not delivered yet", "delivered": "delivered", "failed": "not delivered"}


_LAST = text(
    """
    SELECT d.payload ->> 'status', d.state, d.created_at,
           coalesce(w.disabled_reason, CASE WHEN d.state <> 'delivered' THEN
               d.log -> -1 ->> 'error' END)
      FROM pgbeat.webhooks w JOIN pgbeat.deliveries d ON d.webhook_id = w.id
     WHERE w.schedule_id = :schedule_id
     ORDER BY d.created_at DESC, d.id DESC LIMIT 1
    """
)


def last(connection: Connection, schedule_id: int) -> CheckIn | None:
    """Returns the newest check-in of a schedule that is kept; `None` without one."""
    row = connection.execute(_LAST, {"schedule_id": schedule_id}).one_or_none()
    return None if row is None else CheckIn(*row)


_FAILING = text(sql.load("check_ins.sql", "failing"))


def check(connection: Connection, namespace: str) -> tuple[Literal["warn"], str, str] | None:
    """Returns the result, what was found, and what to do about it; `None` if no check-in fails."""
    failing = connection.execute(_FAILING, {"namespace": namespace}).all()
    if not failing:
        return None
    listed = "; ".join(f"{name}: {error}" for name, error in failing)
    return (
        "warn",
        f"the last requests to monitors failed: {listed}",
        ("Correct the schedules' check_in_url, or let beat's host reach the monitor."),
    )
