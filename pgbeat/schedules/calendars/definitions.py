"""Reads definitions of calendars, in JSON, and reports every problem at once.

    {
      "timezone": "Europe/Oslo",
      "dates": ["2026-12-24", "12-25", "2026-12-24/2027-01-02", "12-24/01-02"],
      "weekdays": ["sat", "sun"],
      "holidays": {"country": "NO", "subdivision": null, "categories": ["public"]},
      "windows": [{"from": "22:00", "to": "06:00", "weekdays": ["mon-fri"]}],
      "only": {"weekdays": ["mon-fri"], "windows": [{"from": "09:00", "to": "17:00"}]}
    }

Each key is optional. The times in `only` are the only ones allowed; all others are excluded.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from pgbeat.errors import InvalidCalendar, Problem, Problems
from pgbeat.schedules.calendars.exclusions import (
    EVERY_DAY,
    WEEKDAY_NAMES,
    WEEKDAYS,
    DayRules,
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
#: Spellings of the days of the week, and their numbers.
_DAYS = {word.lower(): day for words in (WEEKDAYS, WEEKDAY_NAMES) for day, word in enumerate(words)}
_DATE = re.compile(r"(?:\d{4}-)?\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)


def parse(name: str, definition: object) -> Rules:
    """Returns the rules of a calendar. Raises `InvalidCalendar`, which lists every problem.

    A calendar with holidays needs the package `holidays` (the extra `calendars`).
    """
    reader = _Reader()
    rules = reader.rules(name, definition)
    reader.problems.raise_if_any(InvalidCalendar, subject=f"calendar {name!r}")
    return rules


@dataclass
class _Reader:
    """Reads as much as is valid, and collects the problems."""

    problems: Problems = field(default_factory=Problems)
    #: The key under which the current rules are: "only", or "" for the calendar's own.
    _section: str = ""

    def rules(self, name: str, definition: object) -> Rules:
        keys = self._object("", definition, KEYS, named="a calendar")
        local = None
        if keys.get("timezone") is not None:
            timezone = self._text("timezone", "timezone", keys["timezone"])
            with self.problems.within():
                local = zone(timezone) if timezone is not None else None
        days, windows = self._days(keys)
        only_days, only_windows = self._days({})
        if keys.get("only") is not None:
            self._section = "only"
            before = len(self.problems)
            only = self._object("", keys["only"], _RULES, named="it")
            only_days, only_windows = self._days(only)
            if len(self.problems) == before and not only_days and not only_windows:
                message = f"it is empty, which leaves no time at all; give it {_or(_RULES)}"
                self._add("", "required", message)
        return Rules(name, local, days, windows, only_days, only_windows)

    def _days(self, rules: Mapping[str, Any]) -> tuple[DayRules, tuple[Window, ...]]:
        spans = [self._span(*item) for item in self._items("dates", rules)]
        if isinstance(rules.get("holidays"), dict):
            holidays = [("holidays", rules["holidays"])]
        else:
            holidays = self._items("holidays", rules)
        regions = [self._region(*item) for item in holidays]
        windows = [self._window(*item) for item in self._items("windows", rules)]
        return DayRules(
            tuple(span for span in spans if span),
            self._weekdays("", rules),
            tuple(region for region in regions if region),
        ), tuple(window for window in windows if window)

    def _span(self, path: str, item: object) -> Span | None:
        text = self._text(path, "dates", item)
        if text is None:
            return None
        ends = [self._date(end) for end in text.split("/")]
        first, last = ends[0], ends[-1]
        if first is None or last is None or len(ends) > 2:
            problem = "is not a date"
        elif len(first) != len(last):
            problem = "has a year at one end only"
        elif len(first) == 3 and first > last:
            problem = "ends before it starts"
        else:
            return Span(first, last)
        message = (
            f"dates: {text!r} {problem}; write '2026-12-24', '12-25' (every year), "
            "'2026-12-24/2027-01-02' or '12-24/01-02'"
        )
        self._add(path, "malformed", message)
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

    def _weekdays(self, path: str, rules: Mapping[str, Any]) -> frozenset[int]:
        days: set[int] = set()
        for place, item in self._items("weekdays", rules, path):
            text = self._text(place, "weekdays", item)
            if text is None:
                continue
            ends = [_DAYS.get(end.strip()) for end in text.lower().split("-")]
            first, last = ends[0], ends[-1]
            if first is None or last is None or len(ends) > 2:
                hint = did_you_mean(text, (*WEEKDAYS, *WEEKDAY_NAMES))
                advice = hint or "write 'sat', 'saturday' or 'mon-fri'"
                message = f"weekdays: {text!r} is not a day of the week; {advice}"
                self._add(place, "malformed", message)
            else:
                days |= {(first + more) % 7 for more in range((last - first) % 7 + 1)}
        return frozenset(days)

    def _region(self, path: str, item: object) -> Region | None:
        before = len(self.problems)
        rules = self._object(path, item, ("country", "market", "subdivision", "categories"))
        values = {
            key: self._text(f"{path}.{key}", f"holidays: {key}", rules[key])
            for key in ("country", "market", "subdivision")
            if rules.get(key) is not None
        }
        categories = [
            self._text(place, "holidays: categories", category)
            for place, category in self._items("categories", rules, path)
        ]
        if len(self.problems) > before:
            return None
        if len(values.keys() & {"country", "market"}) != 1:
            message = (
                'holidays: give either country, for example {"country": "NO"}, '
                'or market, for example {"market": "NYSE"}'
            )
            self._add(path, "required", message)
            return None
        try:
            return region(
                values.get("country"),
                values.get("market"),
                values.get("subdivision"),
                tuple(category for category in categories if category is not None),
            )
        except InvalidCalendar as error:
            for problem in error.problems:
                field, code, message = problem.within(path)
                self._add(field, code, f"holidays: {message}")
        return None

    def _window(self, path: str, item: object) -> Window | None:
        before = len(self.problems)
        rules = self._object(path, item, ("from", "to", "weekdays"))
        if len(self.problems) > before:
            return None
        start, end = (self._time(path, key, rules.get(key)) for key in ("from", "to"))
        weekdays = EVERY_DAY
        if rules.get("weekdays") is not None:
            weekdays = self._weekdays(path, rules)
            if not weekdays and len(self.problems) == before:
                text = "windows: weekdays is empty; leave it out for every day"
                self._add(f"{path}.weekdays", "required", text)
        if start is not None and start == end:
            text = f"windows: it starts and ends at {rules['from']}; a whole day is 00:00 to 24:00"
            self._add(path, "conflict", text)
            return None
        return None if start is None or end is None else Window(start, end, weekdays)

    def _time(self, path: str, key: str, value: object) -> int | None:
        match = _TIME.fullmatch(value) if isinstance(value, str) else None
        if value == "24:00" and key == "to":
            return 86_400
        if match is None:
            what = "is missing" if value is None else f"{value!r} is not a time of day"
            message = f"windows: {key} {what}; write '09:00' or '17:30:00'"
            self._add(f"{path}.{key}", "required" if value is None else "malformed", message)
            return None
        hour, minute, second = (int(part or 0) for part in match.groups())
        return hour * 3600 + minute * 60 + second

    def _object(
        self, path: str, value: object, known: Collection[str], *, named: str = ""
    ) -> Mapping[str, Any]:
        rule = path.partition("[")[0]
        if not isinstance(value, dict):
            message = f"{named or rule} is {_kind(value)}; it must be an object with {_or(known)}"
            self._add(path, "malformed", message)
            return {}
        for key in value:
            if key not in known:
                hint = did_you_mean(str(key), known) or f"there are {', '.join(known)}"
                message = f"{rule and rule + ': '}there is no key {key!r}; {hint}"
                self._add(f"{path}.{key}" if path else str(key), "unknown_field", message)
        return value

    def _items(self, key: str, rules: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
        """Returns the items of a list with their paths."""
        value, path = rules.get(key), f"{path}.{key}" if path else key
        if value is None or isinstance(value, list):
            return [(f"{path}[{number}]", item) for number, item in enumerate(value or ())]
        kinds = "an object or an array of them" if key == "holidays" else "an array"
        self._add(path, "malformed", f"{key} is {_kind(value)}; it must be {kinds}")
        return []

    def _text(self, path: str, key: str, value: object) -> str | None:
        if isinstance(value, str):
            return value
        message = f"{key}: {json.dumps(value)} is {_kind(value)}; it must be a string"
        self._add(path, "malformed", message)
        return None

    def _add(self, path: str, code: str, sentence: str) -> None:
        section = self._section
        message = f"{section}: {sentence}" if section else sentence
        self.problems.append(Problem(path, code, message).within(section))


def _kind(value: object) -> str:
    """Returns what JSON calls a value."""
    return _KINDS.get(type(value), "a number")


_KINDS = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
}


def _or(words: Collection[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"
