"""Maps wall times to instants, across the changes of a zone's clock."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from pgbeat.timetables.zones import TICK, ClockChange, change_at, changes, instant, shown


class Wall(Protocol):
    """A set of wall times: naive, as a clock without a zone shows them."""

    def next(self, after: datetime) -> datetime | None:
        """Returns the first wall time strictly after another."""

    def last(self, until: datetime) -> datetime | None:
        """Returns the last wall time up to and including another."""

    def count(self, after: datetime, until: datetime) -> int:
        """Returns how many there are in (after, until]."""


#: No clock goes back further.
_LONGEST = timedelta(days=2)
_FIRST = datetime.min.replace(tzinfo=UTC) + _LONGEST
#: Two wall times, and the `fold` of those between them.
_Stretch = tuple[datetime, datetime, int]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Each wall time once: when the zone's clock first shows it or a later one.

    Wall times that are skipped when the clock goes forward all come at that moment, as one.
    """

    wall: Wall
    zone: ZoneInfo

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns when the clock reaches the next wall time that it hasn't shown yet."""
        try:
            return self._first(self.wall.next(self._reached(moment)))
        except OverflowError:
            return None

    def previous(self, moment: datetime) -> datetime | None:
        """Returns when the clock first reached the last wall time that it has shown."""
        try:
            return self._first(self.wall.last(self._reached(moment - TICK)))
        except OverflowError:
            return None

    def count(self, after: datetime, until: datetime) -> int:
        """Returns how many instants are in (after, until]; a gap and its end share one."""
        if until <= after:
            return 0
        total = self.wall.count(self._reached(after), self._reached(until))
        for change in changes(self.zone, after, until):
            if change.is_gap:
                total -= max(0, self.wall.count(change.start - TICK, change.end) - 1)
        return total

    def _reached(self, moment: datetime) -> datetime:
        """Returns the latest wall time that the clock has shown by a moment."""
        wall = shown(self.zone, moment)
        if wall.fold and (change := change_at(self.zone, wall)):
            return change.end - TICK
        return wall

    def _first(self, wall: datetime | None) -> datetime | None:
        if wall is None:
            return None
        change = change_at(self.zone, wall)
        return change.at if change and change.is_gap else instant(self.zone, wall)


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Every instant at which the zone's clock shows one of the wall times.

    There are none in a gap, and those of a repeated hour come twice.
    """

    wall: Wall
    zone: ZoneInfo

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the next instant at which the clock shows one of the wall times."""
        try:
            repeated, rest = self._ahead(shown(self.zone, moment))
            for after, end, fold in repeated:
                wall = self.wall.next(after)
                if wall is not None and wall < end:
                    return instant(self.zone, wall, fold)
            wall = self.wall.next(rest)
            while wall is not None:
                change = change_at(self.zone, wall)
                if not (change and change.is_gap):
                    return instant(self.zone, wall)
                wall = self.wall.next(change.end - TICK)
        except OverflowError:
            pass
        return None

    def previous(self, moment: datetime) -> datetime | None:
        """Returns the last instant at which the clock showed one of the wall times."""
        try:
            repeated, rest = self._behind(shown(self.zone, moment - TICK))
            for until, start, fold in repeated:
                wall = self.wall.last(until)
                if wall is not None and wall >= start:
                    return instant(self.zone, wall, fold)
            wall = self.wall.last(rest)
            while wall is not None:
                change = change_at(self.zone, wall)
                if not (change and change.is_gap):
                    return instant(self.zone, wall, fold=1)
                wall = self.wall.last(change.start - TICK)
        except OverflowError:
            pass
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """Returns how many instants are in (after, until].

        These are the wall times between the two, less the skipped ones, plus the repeated ones.
        """
        if until <= after:
            return 0
        first, last = shown(self.zone, after), shown(self.zone, until)
        # The clock may have gone back to before `first`.
        total = self.wall.count(first, last) - self.wall.count(last, first)
        for change in changes(self.zone, after, until):
            among = self.wall.count(change.start - TICK, change.end - TICK)
            total += -among if change.is_gap else among
        return total

    def _ahead(self, wall: datetime) -> tuple[list[_Stretch], datetime]:
        """Returns the rest of a repeated hour, and the wall time after which it is over.

        The stretches are (strictly after, before, fold), in the order that the clock shows.
        """
        change = change_at(self.zone, wall)
        if change is None:
            return [], wall
        left = [(wall, change.end, wall.fold)]
        if not wall.fold:
            left.append((change.start - TICK, change.end, 1))
        return left, change.end - TICK

    def _behind(self, wall: datetime) -> tuple[list[_Stretch], datetime]:
        """Returns the same, looking back: the stretches are (up to, from, fold)."""
        change = change_at(self.zone, wall)
        if change is None:
            return [], wall
        passed = [(wall, change.start, wall.fold)]
        if wall.fold:
            passed.append((change.end - TICK, change.start, 0))
        return passed, change.start - TICK


@dataclass(frozen=True, slots=True)
class Both:
    """Every instant of a fixed and of an elapsed clock of the same zone, each of them once."""

    fixed: Fixed
    elapsed: Elapsed
    #: The wall times of both.
    wall: Wall

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns the first of their next instants."""
        times = (self.fixed.next_after(moment), self.elapsed.next_after(moment))
        return min((at for at in times if at is not None), default=None)

    def previous(self, moment: datetime) -> datetime | None:
        """Returns the last of their previous instants."""
        times = (self.fixed.previous(moment), self.elapsed.previous(moment))
        return max((at for at in times if at is not None), default=None)

    def count(self, after: datetime, until: datetime) -> int:
        """Returns how many instants are in (after, until].

        These are all wall times by elapsed time, but for those that are only fixed where the
        clock changes.
        """
        if until <= after:
            return 0
        zone = self.elapsed.zone
        total = Elapsed(self.wall, zone).count(after, until)
        for change in changes(zone, max(after, _FIRST) - _LONGEST, until):
            if not change.is_gap:
                total -= self._repeated(change, after, until)
            elif after < change.at:
                total += self._skipped(change)
        return total

    def _skipped(self, change: ClockChange) -> int:
        """Returns 1 if fixed times in a gap come at its end, where nothing else is due."""
        before = change.end - TICK
        comes = self.fixed.wall.count(change.start - TICK, before) > 0
        return int(comes and not self.wall.count(before, change.end))

    def _repeated(self, change: ClockChange, after: datetime, until: datetime) -> int:
        """Returns how many times of (after, until] that are only fixed are shown again there."""
        over = change.at + (change.end - change.start) - TICK
        first, last = (
            moment.astimezone(UTC).replace(tzinfo=None) + change.after
            for moment in (max(after, change.at - TICK), min(until, over))
        )
        return self.wall.count(first, last) - self.elapsed.wall.count(first, last)
