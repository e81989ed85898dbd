"""Reads incidents, and decides which of their failures are sent."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, select, tuple_

from pgbeat.database.tables import incidents

#: For so long after a failure was sent, others of its incident are not: at first, and at most. Each
#: time it is twice as long. Less than a day, so that each failure of a nightly job is sent.
FIRST, LONGEST = timedelta(minutes=10), timedelta(hours=12)
#: A task is well again when a job has completed and for so long none has failed.
QUIET = timedelta(minutes=10)

Kind = Literal["schedule", "task"]


class Key(NamedTuple):
    """What tells incidents apart."""

    webhook_id: int
    kind: Kind
    #: Of the schedule or task.
    name: str


class FailureEvent(NamedTuple):
    """A failure on its way to a webhook."""

    event: str
    at: datetime
    #: When the job that failed for good was made; `None` of other failures.
    made_at: datetime | None
    #: Whether the webhook gets this event, or has it only to learn when the failure is over.
    is_wanted: bool
    #: Whether the webhook gets an incident's failures at growing intervals, rather than each.
    per_incident: bool


class Incident(NamedTuple):
    """A row of `pgbeat.incidents`."""

    webhook_id: int
    #: What fails: a schedule, or a task without one.
    kind: Kind
    name: str
    #: The events that were its failures.
    events: list[str]
    #: How many there were, and how many of these were sent.
    failures: int
    alerts: int
    began_at: datetime
    failed_at: datetime
    #: When the last job that failed for good was made.
    made_at: datetime | None
    #: Failures of the same events before that are not sent.
    next_alert_at: datetime

    def after(self, failure: FailureEvent) -> tuple["Incident", bool]:
        """Returns it after another failure, and whether that is sent.

        A failure is sent when the time has come, or if there was no such event yet.
        """
        is_due = failure.event not in self.events or failure.at >= self.next_alert_at
        is_sent = failure.is_wanted and (is_due or not failure.per_incident)
        alerts = self.alerts + is_sent
        wait = min(FIRST * 2 ** min(alerts - 1, 10), LONGEST) if is_sent else None
        known = self._replace(
            events=list(dict.fromkeys([*self.events, failure.event])),
            failures=self.failures + 1,
            alerts=alerts,
            failed_at=max(self.failed_at, failure.at),
            made_at=failure.made_at or self.made_at,
            next_alert_at=self.next_alert_at if wait is None else failure.at + wait,
        )
        return known, is_sent

    @property
    def shown(self) -> dict[str, Any]:
        """Returns what an alert says of it, as JSON."""
        return {
            "failures": self.failures,
            "alerts": self.alerts,
            "began_at": self.began_at.isoformat(),
            "next_alert_at": self.next_alert_at.isoformat(),
        }


def new(key: Key, at: datetime) -> Incident:
    """Returns an incident that begins then, without a failure yet."""
    return Incident(*key, [], 0, 0, at, at, None, at)


#: By which a webhook's are listed.
ORDER = ("began_at", "kind", "name")


def listing(
    connection: Connection,
    webhook_id: int,
    *,
    after: tuple[datetime, str, str] | None = None,
    limit: int = 100,
) -> Sequence[Incident]:
    """Returns a webhook's open incidents, the oldest first.

    For the next page, `after` is (`began_at`, `kind`, `name`) of the last one.
    """
    columns = [incidents.c[name] for name in Incident._fields]
    query = select(*columns).where(incidents.c.webhook_id == webhook_id)
    order = [incidents.c[name] for name in ORDER]
    if after is not None:
        query = query.where(tuple_(*order) > tuple_(*after))
    return [Incident(*row) for row in connection.execute(query.order_by(*order).limit(limit))]
