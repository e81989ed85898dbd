"""Reads lanes: named limits on what runs at once, each with a waiting line in front of it."""

import re
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, select, text

from pgbeat.database import sql
from pgbeat.database.named_rows import NamedRows
from pgbeat.database.tables import lanes
from pgbeat.errors import InvalidJob, InvalidTimetable
from pgbeat.timetables import parse_duration, span

#: SQL conditions on a job `j` of a lane: it has a slot, or waits for one.
HAS_SLOT = "j.dispatched_at IS NOT NULL AND j.state IN ('pending', 'scheduled', 'running')"
IS_WAITING = "j.dispatched_at IS NULL AND j.state = 'pending' AND NOT j.is_blocked"


class Lane(NamedTuple):
    """A row of `pgbeat.lanes`."""

    namespace: str
    name: str
    #: The number of slots; `None` for no limit.
    max_running: int | None
    #: Name of a registered `ConcurrencyPolicy`, and its options.
    policy: str | None
    options: dict[str, Any]
    #: Jobs that may be dispatched within the period, for each `rate_key` or for the lane.
    rate_limit: int | None
    rate_period: timedelta | None
    rate_key: str | None
    #: The resource whose amount a job takes of the rate; `None`: each job takes 1.
    rate_unit: str | None
    #: The rate that holds instead until then.
    temporary_limit: int | None
    temporary_period: timedelta | None
    temporary_until: datetime | None
    #: Jobs of each such key take turns: `task`, `tag`, `tag:PREFIX`, `created_by` or `kwargs.NAME`.
    fair_by: str | None
    #: The number of slots of each of these keys; `None` for no limit.
    max_per_key: int | None
    paused_at: datetime | None
    created_at: datetime
    updated_at: datetime

    @property
    def identity(self) -> dict[str, str]:
        """Returns the parameters by which statements find it."""
        return {"namespace": self.namespace, "lane": self.name}

    @property
    def rate(self) -> str | None:
        """Returns the rate for people: `10/minute of each task`."""
        return self._rate(self.rate_limit, self.rate_period)

    @property
    def temporary_rate(self) -> str | None:
        """Returns the rate that holds until `temporary_until`, for people."""
        return self._rate(self.temporary_limit, self.temporary_period)

    def _rate(self, limit: int | None, length: timedelta | None) -> str | None:
        if limit is None or length is None:
            return None
        unit = "" if self.rate_unit is None else f" {self.rate_unit}"
        period = PERIODS.get(length) or span(length, units=4)
        per_key = "" if self.rate_key is None else f" of each {self.rate_key}"
        return f"{limit}{unit}/{period}{per_key}"

    def at(self, now: datetime) -> "Lane":
        """Returns the lane with the rate that holds at a moment."""
        if self.temporary_until is None or self.temporary_until <= now:
            return self._replace(temporary_limit=None, temporary_period=None, temporary_until=None)
        return self._replace(rate_limit=self.temporary_limit, rate_period=self.temporary_period)

    @property
    def fairness(self) -> str | None:
        """Returns for people which keys take turns: `turns by tenant (2 slots each)`."""
        if self.fair_by is None:
            return None
        name = self.fair_by.removeprefix("kwargs.")
        if self.max_per_key is None:
            return f"turns by {name}"
        return (
            f"turns by {name} ({self.max_per_key} slot{'' if self.max_per_key == 1 else 's'} each)"
        )

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "lane", self.name, {name: getattr(self, name) for name in _AUDITED}


#: Lengths of time that have a word of their own.
PERIODS = {
    timedelta(seconds=1): "second",
    timedelta(minutes=1): "minute",
    timedelta(hours=1): "hour",
    timedelta(days=1): "day",
}
_AUDITED = (
    "max_running",
    "rate",
    "temporary_rate",
    "temporary_until",
    "fair_by",
    "max_per_key",
    "policy",
    "options",
    "paused_at",
)
COLUMNS = [lanes.c[name] for name in Lane._fields]


_rows = NamedRows("lane", Lane, COLUMNS)
get, load, is_lane = _rows.get, _rows.load, _rows.is_named


def lock(connection: Connection, namespace: str, name: str, *, wait: bool = True) -> Lane | None:
    """Locks a lane, so that no other transaction dispatches it, and returns it.

    Returns `None` if it doesn't exist. Without `wait`, raises the error of a lock timeout if
    another transaction has locked it.
    """
    query = select(*COLUMNS).where(is_lane(name, namespace))
    query = query.with_for_update(key_share=True, nowait=not wait)
    row = connection.execute(query).one_or_none()
    return None if row is None else Lane(*row)


class Room(NamedTuple):
    """A lane in which there may be something to dispatch."""

    namespace: str
    name: str
    #: A job that left its slot or came into the line; `None` if any job may have a slot now.
    job_id: UUID | None = None


def by_lane(rooms: Iterable[Room]) -> dict[tuple[str, str], Collection[UUID] | None]:
    """Returns the jobs of each lane, by namespace and name; `None` if any may have a slot now."""
    ids_by_lane: dict[tuple[str, str], set[UUID | None]] = {}
    for namespace, name, job_id in rooms:
        ids_by_lane.setdefault((namespace, name), set()).add(job_id)
    return {
        lane: None if None in ids else [job_id for job_id in ids if job_id is not None]
        for lane, ids in sorted(ids_by_lane.items())
    }


class LaneUsage(NamedTuple):
    """A lane, and how many jobs and direct executions are in it."""

    lane: Lane
    #: Those that have a slot.
    running: int
    #: Those that wait for one, and since when the first has waited.
    waiting: int
    waiting_since: datetime | None


_LISTING = text(
    sql.load(
        "model.sql",
        "listing",
        columns=", ".join(f"l.{name}" for name in Lane._fields),
        has_slot=HAS_SLOT,
        is_waiting=IS_WAITING,
    )
)


def listing(connection: Connection, namespace: str) -> list[LaneUsage]:
    """Returns all lanes, by name."""
    rows = connection.execute(_LISTING, {"namespace": namespace})
    width = len(Lane._fields)
    return [LaneUsage(Lane(*row[:width]), *row[width:]) for row in rows]


_RATE = re.compile(r"\s*(\d+)\s*(?:/|\bper\b|\ba\b|\ban\b)\s*(.+)")


def parse_rate(written: str) -> tuple[int, timedelta]:
    """Returns the number of jobs and the period of a rate: `10/minute`, `100/15 minutes`.

    Raises `InvalidJob`.
    """
    match = _RATE.fullmatch(written)
    try:
        if match is None:
            raise ValueError
        length = match[2] if re.match(r"[\d.]", match[2]) else f"1 {match[2]}"
        count, period = int(match[1]), parse_duration(length)
    except (ValueError, InvalidTimetable):
        raise InvalidJob.of(
            "rate",
            "malformed",
            f"a rate must look like '10/minute' or '100/15 minutes', got {written!r}",
        ) from None
    if not 1 <= count <= 1_000_000 or not timedelta(0) < period <= timedelta(days=366):
        raise InvalidJob.of(
            "rate",
            "out_of_range",
            f"a rate must be 1 to 1000000 jobs in up to 366 days, got {written!r}",
        )
    return count, period


_HAS_WAITING = text(sql.load("model.sql", "has_waiting", is_waiting=IS_WAITING))


def has_waiting(connection: Connection, namespace: str, name: str) -> bool:
    """Returns whether jobs wait in the lane, or direct executions are in it."""
    values = {"namespace": namespace, "lane": name}
    return bool(connection.execute(_HAS_WAITING, values).scalar_one())


_TO_DISPATCH = text(sql.load("model.sql", "to_dispatch", is_waiting=IS_WAITING))


def to_dispatch(connection: Connection, namespace: str) -> list[str]:
    """Returns the names of the lanes to dispatch now and then.

    Those are the lanes for which `has_waiting` is true, unless they are paused, and also those that
    were removed. The process that should have dispatched them may have died.
    """
    return list(connection.scalars(_TO_DISPATCH, {"namespace": namespace}))


_ANNOUNCE = text("SELECT pgbeat.announce_lane(:namespace, :lane)")


def announce(connection: Connection, namespace: str, name: str) -> None:
    """Notifies beat, and direct executions that wait, that the lane changed, after the commit."""
    connection.execute(_ANNOUNCE, {"namespace": namespace, "lane": name})
