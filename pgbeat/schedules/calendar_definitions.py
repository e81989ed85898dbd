"""Definitions of calendars: JSON, read strictly, every mistake told at once.

    {
      "timezone": "Europe/Oslo",
      "dates": ["2026-12-24", "12-25", "2026-12-24/2027-01-02", "12-24/01-02"],
      "weekdays": ["sat", "sun"],
      "holidays": {"country": "NO", "subdivision": null, "categories": ["public"]},
      "windows": [{"from": "22:00", "to": "06:00", "weekdays": ["mon-fri"]}],
      "only": {"weekdays": ["mon-fri"], "windows": [{"from": "09:00", "to": "17:00"}]}
    }

Each key may be left out. What is in `only` is allowed and nothing else; the rest is excluded.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from pgbeat.errors import InvalidCalendar, InvalidTimetable
from pgbeat.schedules.exclusions import (
    EVERY_DAY,
    WEEKDAY_NAMES,
    WEEKDAYS,
    Days,
    Region,
    Rules,
    Span,
    Window,
    region,
)
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import zone

_RULES = ("dates", "weekdays", "holidays", "windows")
KEYS = ("timezone", *_RULES, "only")
#: Ways to write a day of the week, and its number.
_DAYS = {word.lower(): day for words in (WEEKDAYS, WEEKDAY_NAMES) for day, word in enumerate(words)}
_DATE = re.compile(r"(?:\d{4}-)?\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)


def parse(name: str, definition: object) -> Rules:
    """The rules of a calendar. Raises `InvalidCalendar`, which lists every mistake.

    A calendar with holidays needs the package of that name (the extra `calendars`).
    """
    reader = _Reader()
    rules = reader.rules(name, definition)
    if not reader.mistakes:
        return rules
    if len(reader.mistakes) == 1:
        raise InvalidCalendar(f"calendar {name!r}: {reader.mistakes[0]}")
    count, mistakes = len(reader.mistakes), "\n  ".join(reader.mistakes)
    raise InvalidCalendar(f"calendar {name!r} has {count} mistakes:\n  {mistakes}")


@dataclass
class _Reader:
    """Reads as far as it goes, and keeps what is wrong."""

    mistakes: list[str] = field(default_factory=list)
    #: Said before each mistake of the rules that are being read.
    _where: str = ""

    def rules(self, name: str, definition: object) -> Rules:
        found = self._object("a calendar", definition, KEYS)
        local = None
        if found.get("timezone") is not None:
            timezone = self._text("timezone", found["timezone"])
            try:
                local = zone(timezone) if timezone is not None else None
            except InvalidTimetable as error:
                self._mistake(str(error))
        days, windows = self._days(found)
        only_days, only_windows = self._days({})
        if found.get("only") is not None:
            self._where = "only: "
            before = len(self.mistakes)
            only = self._object("it", found["only"], _RULES)
            only_days, only_windows = self._days(only)
            if len(self.mistakes) == before and not only_days and not only_windows:
                self._mistake(f"it is empty, which leaves no time at all; give it {_or(_RULES)}")
        return Rules(
            name, local, days=days, windows=windows, only_days=only_days, only_windows=only_windows
        )

    def _days(self, found: Mapping[str, Any]) -> tuple[Days, tuple[Window, ...]]:
        spans = [self._span(item) for item in self._list("dates", found)]
        one = isinstance(found.get("holidays"), dict)
        holidays = [found["holidays"]] if one else self._list("holidays", found)
        regions = [self._region(item) for item in holidays]
        windows = [self._window(item) for item in self._list("windows", found)]
        return Days(
            tuple(span for span in spans if span),
            self._weekdays("weekdays", found),
            tuple(region for region in regions if region),
        ), tuple(window for window in windows if window)

    def _span(self, item: object) -> Span | None:
        text = self._text("dates", item)
        if text is None:
            return None
        ends = [self._date(end) for end in text.split("/")]
        first, last = ends[0], ends[-1]
        if first is None or last is None or len(ends) > 2:
            problem = "is no date"
        elif len(first) != len(last):
            problem = "has a year at one end only"
        elif len(first) == 3 and first > last:
            problem = "ends before it starts"
        else:
            return Span(first, last)
        self._mistake(
            f"dates: {text!r} {problem}; write '2026-12-24', '12-25' (every year), "
            "'2026-12-24/2027-01-02' or '12-24/01-02'"
        )
        return None

    @staticmethod
    def _date(text: str) -> tuple[int, ...] | None:
        if not _DATE.fullmatch(text):
            return None
        parts = tuple(map(int, text.split("-")))
        try:
            date(*(parts if len(parts) == 3 else (2000, *parts)))  # a year with a 29th of February
        except ValueError:
            return None
        return parts

    def _weekdays(self, key: str, found: Mapping[str, Any]) -> frozenset[int]:
        days: set[int] = set()
        for item in self._list(key, found):
            text = self._text(key, item)
            if text is None:
                continue
            ends = [_DAYS.get(end.strip()) for end in text.lower().split("-")]
            first, last = ends[0], ends[-1]
            if first is None or last is None or len(ends) > 2:
                hint = did_you_mean(text, (*WEEKDAYS, *WEEKDAY_NAMES))
                advice = hint or "write 'sat', 'saturday' or 'mon-fri'"
                self._mistake(f"{key}: {text!r} is no day of the week; {advice}")
            else:
                days |= {(first + more) % 7 for more in range((last - first) % 7 + 1)}
        return frozenset(days)

    def _region(self, item: object) -> Region | None:
        before = len(self.mistakes)
        found = self._object("holidays", item, ("country", "market", "subdivision", "categories"))
        values = {
            key: self._text(f"holidays: {key}", found[key])
            for key in ("country", "market", "subdivision")
            if found.get(key) is not None
        }
        categories = [
            self._text("holidays: categories", category)
            for category in self._list("categories", found)
        ]
        if len(self.mistakes) > before:
            return None
        if len(values.keys() & {"country", "market"}) != 1:
            self._mistake(
                'holidays: give either country, for example {"country": "NO"}, '
                'or market, for example {"market": "NYSE"}'
            )
            return None
        try:
            return region(
                values.get("country"),
                values.get("market"),
                values.get("subdivision"),
                tuple(category for category in categories if category is not None),
            )
        except InvalidCalendar as error:
            for problem in str(error).splitlines():
                self._mistake(f"holidays: {problem}")
        return None

    def _window(self, item: object) -> Window | None:
        before = len(self.mistakes)
        found = self._object("windows", item, ("from", "to", "weekdays"))
        if len(self.mistakes) > before:
            return None
        start, end = (self._time(key, found.get(key)) for key in ("from", "to"))
        weekdays = EVERY_DAY
        if found.get("weekdays") is not None:
            weekdays = self._weekdays("weekdays", found)
            if not weekdays and len(self.mistakes) == before:
                self._mistake("windows: weekdays is empty; leave it out for every day")
        if start is not None and start == end:
            self._mistake(
                f"windows: it starts and ends at {found['from']}; a whole day is 00:00 to 24:00"
            )
            return None
        return None if start is None or end is None else Window(start, end, weekdays)

    def _time(self, key: str, value: object) -> int | None:
        found = _TIME.fullmatch(value) if isinstance(value, str) else None
        if value == "24:00" and key == "to":
            return 86_400
        if found is None:
            what = "is missing" if value is None else f"{value!r} is no time of day"
            self._mistake(f"windows: {key} {what}; write '09:00' or '17:30:00'")
            return None
        hour, minute, second = (int(part or 0) for part in found.groups())
        return hour * 3600 + minute * 60 + second

    # -- shapes

    def _object(self, what: str, value: object, known: Collection[str]) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self._mistake(f"{what} is {_kind(value)}; it must be an object with {_or(known)}")
            return {}
        place = f"{what}: " if what in _RULES else ""
        for key in value:
            if key not in known:
                hint = did_you_mean(str(key), known) or f"there are {', '.join(known)}"
                self._mistake(f"{place}there is no key {key!r}; {hint}")
        return value

    def _list(self, key: str, found: Mapping[str, Any]) -> list[Any]:
        value = found.get(key)
        if value is None or isinstance(value, list):
            return value or []
        kinds = "an object or an array of them" if key == "holidays" else "an array"
        self._mistake(f"{key} is {_kind(value)}; it must be {kinds}")
        return []

    def _text(self, key: str, value: object) -> str | None:
        if isinstance(value, str):
            return value
        self._mistake(f"{key}: {json.dumps(value)} is {_kind(value)}; it must be a string")
        return None

    def _mistake(self, sentence: str) -> None:
        self.mistakes.append(f"{self._where}{sentence}")


def _kind(value: object) -> str:
    """What JSON calls it."""
    kinds = {
        dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null",
    }  # fmt: skip
    return kinds.get(type(value), "a number")


def _or(words: Collection[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"
