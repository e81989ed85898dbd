"""Checks the fields of a cron expression, and expands them to numbers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pgbeat.errors import InvalidTimetable

CRON_EXAMPLE = (
    'a cron expression is "minute hour day month weekday", '
    'for example "*/15 * * * *" or "0 2 * * mon-fri"'
)

#: The most lines of a timetable.
MOST_LINES = 20

_SPACES = " \t\n\r\f\v"
_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class CronFields:
    """The numbers that an expression stands for, in order."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    #: 1 to 31, and `LAST` for the last day of the month.
    days: tuple[int, ...]
    months: tuple[int, ...]
    #: 0 is Sunday, as in cron(8).
    weekdays: tuple[int, ...]
    #: Instead of weekdays: weekday and position in the month, 1 to 5, or 0 for the last.
    nth_weekdays: tuple[tuple[int, int], ...]
    #: Just 0 in an expression of five fields.
    seconds: tuple[int, ...]
    #: Whether minute or hour begins with `*`: it goes by elapsed time.
    repeats: bool
    #: Whether day and weekday must both match, since one of them begins with `*`.
    both: bool


#: The month's last day in `CronFields.days`.
LAST = 32


@dataclass(frozen=True, slots=True)
class _Field:
    label: str
    #: What is allowed, in words.
    words: str
    low: int
    high: int
    #: How many numbers there are before they start over.
    cycle: int
    #: Patterns of one number, and of what else may be an item of the list.
    number: str
    names: Mapping[str, int]
    extra: str = ""

    def is_valid(self, item: str) -> bool:
        """Returns whether one item of the list is well formed."""
        pattern = rf"(\*|{self.number}(-{self.number})?)(/0*[1-9][0-9]*)?{self.extra}"
        return bool(re.fullmatch(pattern, item))

    def numbers(self, items: Sequence[str]) -> tuple[int, ...]:
        """Returns the numbers of a list of numbers, ranges and steps.

        A range that ends before it begins wraps around, and so does its step.
        """
        result = set()
        for item in items:
            span, _, step = item.partition("/")
            start, _, end = span.partition("-")
            low = self.low if span == "*" else self._number(start)
            high = self.high if span == "*" or (step and not end) else self._number(end or start)
            if high < low:
                high += self.cycle
            for number in range(low, high + 1, _int(step or "1")):
                result.add(self.low + (number - self.low) % self.cycle)
        return tuple(sorted(result))

    def _number(self, text: str) -> int:
        return self.names[text] if text in self.names else _int(text)


def _int(digits: str) -> int:
    """Returns the number, or its first four digits: anything above 999 is out of range anyway."""
    return int(digits.lstrip("0")[:4] or "0")


_MONTHS = {
    "jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6, "jul": 7, "aug": 8, "sep": 9,
    "oct": 10, "nov": 11, "dec": 12,
}  # fmt: skip
_WEEKDAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_MONTH = f"(0*[1-9]|0*1[0-2]|{'|'.join(_MONTHS)})"
_WEEKDAY = f"(0*[0-7]|{'|'.join(_WEEKDAYS)})"
#: The database's `pgbeat.cron_problem` has the same.
_FIELDS = (
    _Field("minute", "0-59", 0, 59, 60, "0*[0-5]?[0-9]", {}),
    _Field("hour", "0-23", 0, 23, 24, "0*([0-9]|1[0-9]|2[0-3])", {}),
    _Field("day of month", "1-31", 1, 31, 31, "0*([1-9]|[12][0-9]|3[01])", {}, "|l"),
    _Field("month", "1-12 or jan-dec", 1, 12, 12, _MONTH, _MONTHS),
    _Field(
        "weekday", "0-7 or sun-sat", 0, 7, 7, _WEEKDAY, _WEEKDAYS, f"|l0*[0-7]|{_WEEKDAY}#[1-5]"
    ),
    _Field("second", "0-59", 0, 59, 60, "0*[0-5]?[0-9]", {}),
)


def check_cron(expression: str) -> None:
    """Raises `InvalidTimetable` unless each line is an expression."""
    lines = cron_lines(expression)
    problem = None
    if len(lines) > MOST_LINES:
        problem = f"it has {len(lines)} lines, and may have {MOST_LINES}"
    for number, line in enumerate(lines, 1):
        if problem is None and (problem := _problem(*_texts(line))) and len(lines) > 1:
            problem = f"line {number}: {problem}"
    if problem:
        message = f"cron {expression!r}: {problem}; {CRON_EXAMPLE}"
        raise InvalidTimetable.of("cron", "malformed", message)


def cron_lines(expression: str) -> list[str]:
    """Returns the lines of a cron timetable, without those that are blank."""
    lines = [line.strip(_SPACES) for line in expression.split("\n")]
    return [line for line in lines if line] or [""]


def cron_on_one_line(expression: str) -> str:
    """Returns a cron timetable as people read it in a list."""
    return "; ".join(cron_lines(expression))


def _texts(line: str) -> tuple[str, list[str]]:
    """Returns a line as it is without names, and its fields."""
    plain = plain_cron(line)
    return plain, re.findall(r"\S+", plain, re.ASCII)


@lru_cache(maxsize=16_384)
def parse_cron(expression: str) -> CronFields:
    """Returns the fields of an expression of one line. Raises `InvalidTimetable`."""
    check_cron(expression)
    texts = _texts(expression)[1]
    if len(texts) == 5:
        texts.append("0")
    texts = [text.replace("?", "*") for text in texts]
    lists = [text.split(",") for text in texts]
    lasts = [item for item in lists[2] if item == "l"]
    lists[2] = [item for item in lists[2] if item != "l"]
    nths = [item for item in lists[4] if re.search("[#l]", item)]
    lists[4] = [item for item in lists[4] if item not in nths]
    minutes, hours, days, months, weekdays, seconds = (
        kind.numbers(items) for kind, items in zip(_FIELDS, lists, strict=True)
    )
    return CronFields(
        minutes=minutes,
        hours=hours,
        days=(*days, LAST) if lasts else days,
        months=months,
        weekdays=weekdays,
        nth_weekdays=tuple(sorted(_nth(item) for item in nths)),
        seconds=seconds,
        repeats=texts[0].startswith("*") or texts[1].startswith("*"),
        both=texts[2].startswith("*") or texts[4].startswith("*"),
    )


def _nth(item: str) -> tuple[int, int]:
    """Returns `fri#2` as (5, 2), and `l5` as (5, 0)."""
    weekday, _, number = item.removeprefix("l").partition("#")
    return _FIELDS[4].numbers([weekday])[0], int(number or "0")


def plain_cron(expression: str) -> str:
    """Returns an expression in lower case, without space around it, names replaced by fields."""
    expression = expression.strip(_SPACES).lower()
    return _NAMES.get(expression, expression)


def _problem(plain: str, texts: Sequence[str]) -> str | None:
    if plain.startswith("@"):
        return f"no such name; there are {', '.join(_NAMES)}"
    if len(texts) not in (5, 6):
        counted = "1 field" if len(texts) == 1 else f"{len(texts)} fields"
        return f"it has {counted}, not 5 (or 6, with seconds last)"
    problem = _problem_of(texts)
    if len(texts) == 5 or not (problem or _may_end_in_weekday(texts)):
        return problem
    turned = [*texts[1:], texts[0]]
    if _problem_of(turned):
        return problem
    first = " ".join(turned[:5] if texts[0] == "0" else [*turned[:5], _second(texts[0])])
    if problem:
        return f"{problem}; seconds come last: {first!r}"
    last = " ".join([*texts[:5], _second(texts[5])])
    return (
        "it is not evident whether seconds are first or, as here, last: "
        f"write {last!r} if they are last, {first!r} if they were first"
    )


_ITEM = "[0-7](-[0-7])?(/[0-9]+)?"
_MAYBE_WEEKDAYS = re.compile(f"{_ITEM}(,{_ITEM})*")


def _may_end_in_weekday(texts: Sequence[str]) -> bool:
    """Returns whether six fields look as where seconds come first: in Quartz, or Spring."""
    first, last = texts[0], texts[5]
    if last == "*":
        return first != "*"
    return first[0] != "*" and _MAYBE_WEEKDAYS.fullmatch(last) is not None


def _second(text: str) -> str:
    """Returns a field that can be nothing but seconds."""
    return "0-59" if text == "*" else re.sub(r"\b[0-7]\b", r"0\g<0>", text)


def _problem_of(texts: Sequence[str]) -> str | None:
    for text, kind in zip(texts, _FIELDS, strict=False):
        for item in () if text == "?" and kind.extra else text.split(","):
            if not kind.is_valid(item):
                return (
                    f"{kind.label} {item!r} is not valid: numbers are {kind.words}, "
                    "with lists, ranges and steps"
                )
    if len({bool(re.search("[#l]", item)) for item in texts[4].split(",")}) > 1:
        return f"weekday {texts[4]!r} mixes weeks of the month (mon#1, l5) with every week"
    return None
