"""Exclusions: which times a calendar excludes, and why. Pure functions of time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, date, datetime
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any
from zoneinfo import ZoneInfo

from pgbeat.errors import InvalidCalendar, Problems
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import zone

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEKDAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
EVERY_DAY = frozenset(range(7))


@dataclass(frozen=True, slots=True)
class Span:
    """A range of dates: `(year, month, day)`, or `(month, day)` for every year."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    def __contains__(self, day: date) -> bool:
        key = (day.year, day.month, day.day)[-len(self.first) :]
        if self.first <= self.last:
            return self.first <= key <= self.last
        return key >= self.first or key <= self.last

    def __str__(self) -> str:
        ends = ["-".join(f"{part:02}" for part in end) for end in (self.first, self.last)]
        every_year = " every year" if len(self.first) == 2 else ""
        return " to ".join(ends[: 1 + (self.first != self.last)]) + every_year


class Region:
    """The holidays of a country, a subdivision or a stock exchange."""

    def __init__(self, label: str, known: Any) -> None:
        self.label = label
        self._known = known
        self._years: set[int] = set()
        self._lock = Lock()

    def holiday(self, day: date) -> str | None:
        """Returns the holiday's name, in English if there is a translation."""
        if day.year not in self._years:
            # A holiday may be moved into the next year, and is known only with its own.
            with self._lock:
                for year in range(max(day.year - 1, MINYEAR), min(day.year + 1, MAXYEAR) + 1):
                    self._known.get(date(year, 1, 1))
                self._years.add(day.year)
        name: str | None = self._known.get(day)
        return name


@lru_cache(maxsize=256)
def region(
    country: str | None, market: str | None, subdivision: str | None, categories: tuple[str, ...]
) -> Region:
    """Returns the holidays of a country or market, shared by all calendars that name it.

    Raises `InvalidCalendar` for names that the package `holidays` doesn't know, and without it.
    """
    package = _holidays()
    code = country or market or ""
    known = sorted(
        package.list_supported_countries() if country else package.list_supported_financial()
    )
    if code not in known:
        kind = "country" if country else "market"
        example = "the ISO code, for example 'NO'" if country else "its code, for example 'NYSE'"
        message = f"{kind} {code!r} is not known; {did_you_mean(code, known) or 'give ' + example}"
        raise InvalidCalendar.of(kind, "unknown", message)
    holidays = getattr(package, code)
    language = "en_US" if "en_US" in holidays.supported_languages else holidays.default_language
    problems = Problems()
    for number, category in enumerate(categories):
        if category not in holidays.supported_categories:
            there_are = did_you_mean(category, holidays.supported_categories)
            there_are = there_are or _listed(holidays.supported_categories)
            message = f"category {category!r} is not one of {code}'s; {there_are}"
            problems.add(f"categories[{number}]", "unknown", message)
    parts = (*holidays.subdivisions, *holidays.subdivisions_aliases)
    if subdivision is not None and subdivision not in parts:
        there_are = did_you_mean(subdivision, parts) or (_listed(parts) if parts else "it has none")
        message = f"subdivision {subdivision!r} is not one of {code}'s; {there_are}"
        problems.add("subdivision", "unknown", message)
    problems.raise_if_any(InvalidCalendar)
    label = code if subdivision is None else f"{code}-{subdivision}"
    chosen = {"categories": categories} if categories else {}
    return Region(label, holidays(subdiv=subdivision, language=language, **chosen))


def _holidays() -> Any:
    try:
        import holidays
    except ImportError:
        message = "the package `holidays` is missing; install it with "
        raise InvalidCalendar(message + "`pip install 'pgbeat[calendars]'`") from None
    return holidays


def _listed(known: Iterable[str]) -> str:
    return f"there are {', '.join(known)}"


@dataclass(frozen=True, slots=True)
class DayRules:
    """Dates, days of the week and holidays; a day matches if it is any of them."""

    spans: tuple[Span, ...] = ()
    weekdays: frozenset[int] = frozenset()
    regions: tuple[Region, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.spans or self.weekdays or self.regions)

    def why(self, day: date) -> str | None:
        """Returns why the day matches, in words; `None` if it doesn't."""
        for region in self.regions:
            name = region.holiday(day)
            if name is not None:
                return f"{name} ({region.label})"
        for span in self.spans:
            if day in span:
                return str(day) if str(span) == str(day) else f"{day} ({span})"
        return WEEKDAY_NAMES[day.weekday()] if day.weekday() in self.weekdays else None

    def why_not(self, day: date) -> str | None:
        """Returns why the day doesn't match, in words; `None` if it does or there are no rules."""
        if not self or self.why(day) is not None:
            return None
        name = WEEKDAY_NAMES[day.weekday()]
        return f"{day} is not one of its days" if self.spans or self.regions else name

    def __str__(self) -> str:
        spans = [str(span) for span in self.spans]
        if len(spans) > 3:
            spans = [f"{len(spans)} dates"]
        holidays = [f"holidays of {region.label}" for region in self.regions]
        return ", ".join([*_runs(self.weekdays), *holidays, *spans])


def _runs(weekdays: frozenset[int]) -> list[str]:
    """Returns the names of the days, three or more in a row as `mon–fri`."""
    runs: list[list[int]] = []
    for day in sorted(weekdays):
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    words: list[str] = []
    for run in runs:
        names = [WEEKDAYS[day] for day in run]
        words += [f"{names[0]}–{names[-1]}"] if len(run) > 2 else names
    return words


@dataclass(frozen=True, slots=True)
class Window:
    """Hours of the day, in seconds since midnight by wall time, without `end`.

    If it ends before it starts, it lasts past midnight, and belongs to the weekday on which it
    starts.
    """

    start: int
    end: int
    weekdays: frozenset[int] = EVERY_DAY

    def holds(self, weekday: int, second: int) -> bool:
        """Returns whether it includes a second of a day (Monday is 0)."""
        if self.start < self.end:
            return self.start <= second < self.end and weekday in self.weekdays
        if second >= self.start:
            return weekday in self.weekdays
        return second < self.end and (weekday - 1) % 7 in self.weekdays

    def __str__(self) -> str:
        days = "" if self.weekdays == EVERY_DAY else f"{', '.join(_runs(self.weekdays))} "
        return f"{days}{_clock(self.start)}–{_clock(self.end)}"


def _clock(second: int) -> str:
    text = f"{second // 3600:02}:{second // 60 % 60:02}"
    return f"{text}:{second % 60:02}" if second % 60 else text


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of a calendar. Immutable; answers are cached by the day."""

    name: str
    zone: ZoneInfo | None
    days: DayRules
    windows: tuple[Window, ...]
    only_days: DayRules
    only_windows: tuple[Window, ...]

    @cached_property
    def _of_day(self) -> Callable[[date], str | None]:
        return lru_cache(maxsize=1024)(
            lambda day: self.days.why(day) or self.only_days.why_not(day)
        )

    def exclusion(self, moment: datetime, timezone: str) -> str | None:
        """Returns why the calendar excludes an (aware) moment; `None` if it doesn't.

        `timezone` is the schedule's, for a calendar that has none. Raises `InvalidTimetable`.
        """
        local = moment.astimezone(self.zone or zone(timezone))
        reason = self._of_day(local.date()) or self._of_time(local)
        return f"calendar {self.name!r}: {reason}" if reason else None

    def _of_time(self, local: datetime) -> str | None:
        if not self.windows and not self.only_windows:
            return None
        weekday, second = local.weekday(), local.hour * 3600 + local.minute * 60 + local.second
        for window in self.windows:
            if window.holds(weekday, second):
                return f"within {window}"
        if self.only_windows and not any(
            window.holds(weekday, second) for window in self.only_windows
        ):
            return f"outside {', '.join(map(str, self.only_windows))}"
        return None

    def __str__(self) -> str:
        excluded = ", ".join(filter(None, map(str, (self.days, *self.windows))))
        hours = ", ".join(map(str, self.only_windows))
        only = " at ".join(filter(None, (str(self.only_days), hours)))
        parts = (f"only {only}" if only else "", f"not {excluded}" if excluded else "")
        return "; ".join(filter(None, parts)) or "nothing is excluded"
