"""What every timetable can say, and a timetable within a window."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from pgbeat.timetables.zones import TICK


class Timetable(Protocol):
    """When a schedule is due. Instances are immutable and compare by value; moments are aware."""

    def next_after(self, moment: datetime) -> datetime | None:
        """The first due time strictly after `moment`, in UTC; `None` when there is none."""
        ...

    def previous(self, moment: datetime) -> datetime | None:
        """The last due time strictly before `moment`, in UTC; `None` when there is none."""
        ...

    def count(self, after: datetime, until: datetime) -> int:
        """How many due times are after a moment and up to another: in (after, until]."""
        ...


@dataclass(frozen=True, slots=True)
class Once:
    """One time."""

    at: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        """The time, while it is to come."""
        return self.at.astimezone(UTC) if self.at > moment else None

    def previous(self, moment: datetime) -> datetime | None:
        """The time, once it has been."""
        return self.at.astimezone(UTC) if self.at < moment else None

    def count(self, after: datetime, until: datetime) -> int:
        """1 when the time is in (after, until]."""
        return int(after < self.at <= until)


@dataclass(frozen=True, slots=True)
class Never:
    """No time at all: what is due for another reason than the time."""

    def next_after(self, moment: datetime) -> datetime | None:
        """None."""
        return None

    def previous(self, moment: datetime) -> datetime | None:
        """None."""
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """None."""
        return 0


NEVER = Never()


def bounded(
    timetable: Timetable, starts_at: datetime | None, ends_at: datetime | None
) -> Timetable:
    """The timetable without what is before `starts_at` or after `ends_at`; what falls on them
    stays."""
    if starts_at is None and ends_at is None:
        return timetable
    return Bounded(timetable, starts_at or _FIRST, ends_at or _LAST)


_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounded:
    """A timetable within a window, both ends of which belong to it."""

    timetable: Timetable
    starts_at: datetime
    ends_at: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        """The next due time in the window."""
        found = self.timetable.next_after(max(moment, self._before))
        return found if found is not None and found <= self.ends_at else None

    def previous(self, moment: datetime) -> datetime | None:
        """The last due time in the window."""
        found = self.timetable.previous(min(moment, self._after))
        return found if found is not None and found >= self.starts_at else None

    def count(self, after: datetime, until: datetime) -> int:
        """How many due times of the window are in (after, until]."""
        return self.timetable.count(max(after, self._before), min(until, self.ends_at))

    @property
    def _before(self) -> datetime:
        return self.starts_at - TICK if self.starts_at > _FIRST else _FIRST

    @property
    def _after(self) -> datetime:
        return self.ends_at + TICK if self.ends_at < _LAST else _LAST
