"""Queries for the console's summary and lists. Each reads a bounded number of rows."""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from pgbeat.database import sql
from pgbeat.monitoring.rollups.error_patterns import pattern
from pgbeat.monitoring.rollups.errors import ErrorReport, Mask, errors
from pgbeat.schedules.model import Schedule

#: Ticks of a schedule in its sparkline.
SPARKS = 20
#: Ticks that the summary reads, and jobs of a state that it counts.
NEWEST, MOST = 2000, 1000
#: Failures and skips that it shows.
_SHOWN = 5


class Spark(NamedTuple):
    """A tick in a sparkline."""

    outcome: str
    due_at: datetime
    #: Why it was skipped or failed.
    why: str | None
    job_state: str | None

    @property
    def kind(self) -> str:
        """The outcome of the tick and its job: `good`, `skipped`, `bad` or `going`."""
        if self.outcome == "skipped":
            return "skipped"
        if self.outcome == "failed" or self.job_state == "failed":
            return "bad"
        ended = self.job_state in ("completed", None)
        if not ended and self.job_state in ("cancelled", "skipped"):
            return "skipped"
        return "good" if ended else "going"

    @property
    def said(self) -> str:
        """The outcome in words."""
        if self.outcome != "launched":
            return f"{self.outcome}: {(self.why or '').splitlines()[0] if self.why else ''}"[:200]
        return "launched" + (f", job {self.job_state}" if self.job_state else "")


_SPARKS = text(sql.load("summaries.sql", "sparks"))


def sparks(
    connection: Connection, schedules: Collection[Schedule], mask: Mask
) -> dict[int, list[Spark]]:
    """Returns the last ticks of each schedule, oldest first, masked."""
    tasks = {row.id: row.task for row in schedules}
    ticks: dict[int, list[Spark]] = {schedule_id: [] for schedule_id in tasks}
    if tasks:
        values = {"ids": list(tasks), "most": SPARKS}
        for schedule_id, *row in connection.execute(_SPARKS, values):
            spark = Spark(*row)
            if spark.outcome == "failed" and spark.why is not None:
                spark = spark._replace(why=mask(tasks[schedule_id], spark.why))
            ticks[schedule_id].append(spark)
    return ticks


class LikeTicks(NamedTuple):
    """Ticks with the same outcome for reasons that are alike."""

    outcome: str
    #: The reason, or what those of several have in common.
    why: str
    times: int
    #: When the last of them was decided.
    at: datetime
    #: The schedule of the last, and the ids of all.
    schedule: str
    schedules: set[int]


class Summary(NamedTuple):
    """The last day."""

    #: Ticks by outcome: launched, skipped, failed.
    ticks: dict[str, int]
    #: When the first of the ticks was decided, if they are not all of the day.
    since: datetime | None
    skips: list[LikeTicks]
    failures: list[LikeTicks]
    #: Jobs that run, and that are pending, by state, up to `MOST`.
    jobs: dict[str, int]
    #: Why jobs failed.
    errors: ErrorReport


_TICKS = text(sql.load("summaries.sql", "ticks"))
_JOBS = text(sql.load("summaries.sql", "jobs"))


def _merged(listed: Iterable[LikeTicks], key: Callable[[LikeTicks], Any]) -> list[LikeTicks]:
    """Returns the ticks with those as one whose reasons have the same pattern; the first few."""
    kinds: dict[str, LikeTicks] = {}
    for ticks in listed:
        kind = pattern(ticks.why)
        if other := kinds.get(kind):
            last = max(other, ticks, key=lambda one: one.at)
            schedules = other.schedules | ticks.schedules
            ticks = last._replace(why=kind, times=other.times + ticks.times, schedules=schedules)
        kinds[kind] = ticks
    return sorted(kinds.values(), key=key, reverse=True)[:_SHOWN]


def summary(connection: Connection, namespace: str, mask: Mask) -> Summary:
    """Counts the ticks and jobs of the last day, with the reasons of skips and failures."""
    counts = {"launched": 0, "skipped": 0, "failed": 0}
    alike: dict[str, list[LikeTicks]] = {"launched": [], "skipped": [], "failed": []}
    since = None
    values: dict[str, Any] = {"namespace": namespace, "newest": NEWEST}
    for outcome, why, times, at, schedule, ids, begins in connection.execute(_TICKS, values):
        since = begins
        if outcome is not None:
            why = mask(None, why) if outcome == "failed" else why  # of schedules of several tasks
            counts[outcome] += times
            alike[outcome].append(LikeTicks(outcome, why, times, at, schedule, set(ids)))
    states = connection.execute(_JOBS, {"namespace": namespace, "most": MOST})
    return Summary(
        counts,
        since,
        _merged(alike["skipped"], lambda one: (one.times, one.at)),
        _merged(alike["failed"], lambda one: one.at),
        {str(state): int(count) for state, count in states},
        errors(connection, namespace, limit=_SHOWN, mask=mask),
    )


class DeliverySummary(NamedTuple):
    """The deliveries of a webhook."""

    #: Up to `MOST`.
    pending: int
    failed: int
    #: The newest delivery.
    event: str | None
    state: str | None
    at: datetime | None
    #: Its last attempt, as in its log.
    last: dict[str, Any] | None


_DELIVERIES = text(sql.load("summaries.sql", "deliveries"))


def deliveries(connection: Connection, webhook_ids: Collection[int]) -> dict[int, DeliverySummary]:
    """Returns the summaries of these webhooks by their ids."""
    if not webhook_ids:
        return {}
    rows = connection.execute(_DELIVERIES, {"ids": list(webhook_ids), "most": MOST})
    return {webhook_id: DeliverySummary(*row) for webhook_id, *row in rows}
