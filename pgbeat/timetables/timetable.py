"""The protocol of timetables, and the simple ones: one time, no time, a window of another."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from pgbeat.timetables.zones import TICK


class Timetable(Protocol):
    """When a schedule is due. Instances are immutable and compare by value; moments are aware."""

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the first due time strictly after `moment`, in UTC, if any."""

    def previous(self, moment: datetime) -> datetime | None:
        """Returns the last due time strictly before `moment`, in UTC, if any."""

    def count(self, after: datetime, until: datetime) -> int:
        """Returns how many due times are in (after, until]."""


@dataclass(frozen=True, slots=True)
class Once:
    """A single time."""

    at: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the time if it is still to come."""
        return self.at.astimezone(UTC) if self.at > moment else None

    def previous(self, moment: datetime) -> datetime | None:
        """Returns the time if it has passed."""
        return self.at.astimezone(UTC) if self.at < moment else None

    def count(self, after: datetime, until: datetime) -> int:
        """Returns 1 if the time is in (after, until]."""
        return int(after < self.at <= until)


@dataclass(frozen=True, slots=True)
class Never:
    """No time at all: for schedules that other events launch."""

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns `None`."""
        return None

    def previous(self, moment: datetime) -> datetime | None:
        """Returns `None`."""
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """Returns 0."""
        return 0


NEVER = Never()


def last_interval(
    timetable: Timetable, moment: datetime
) -> tuple[datetime | None, datetime | None]:
    """Returns the last interval that is complete at a moment: two due times, as far as there are.

    It ends at the moment itself if that is a due time.
    """
    end = timetable.previous(moment + TICK)
    return (None if end is None else timetable.previous(end)), end


def bounded(
    timetable: Timetable, starts_at: datetime | None, ends_at: datetime | None
) -> Timetable:
    """Returns the timetable without the times before `starts_at` or after `ends_at`."""
    if starts_at is None and ends_at is None:
        return timetable
    return Bounded(timetable, starts_at or _FIRST, ends_at or _LAST)


_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounded:
    """A timetable within a window that includes both its ends."""

    timetable: Timetable
    starts_at: datetime
    ends_at: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the next due time in the window."""
        due_at = self.timetable.next_after(max(moment, self._before))
        return due_at if due_at is not None and due_at <= self.ends_at else None

    def previous(self, moment: datetime) -> datetime | None:
        """Returns the last due time in the window."""
        due_at = self.timetable.previous(min(moment, self._after))
        return due_at if due_at is not None and due_at >= self.starts_at else None

    def count(self, after: datetime, until: datetime) -> int:
        """Returns how many due times of the window are in (after, until]."""
        return self.timetable.count(max(after, self._before), min(until, self.ends_at))

    @property
    def _before(self) -> datetime:
        return self.starts_at - TICK if self.starts_at > _FIRST else _FIRST

    @property
    def _after(self) -> datetime:
        return self.ends_at + TICK if self.ends_at < _LAST else _LAST
