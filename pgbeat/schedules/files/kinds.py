"""Kinds of values: as a file has them, as a row has them, and their JSON Schema."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

from pgbeat.errors import InvalidTimetable
from pgbeat.jobs import details
from pgbeat.schedules.sync import faithful
from pgbeat.storable import UNSTORABLE, is_storable
from pgbeat.timetables import parse_duration


class Kind(Protocol):
    """A kind of value, as a file has it and as a row has it."""

    def read(self, value: Any) -> Any:
        """A row's value from a file's. Raises `ValueError` with a sentence that begins after the
        field's name: `is 5; …`."""

    def plain(self, value: Any) -> Any:
        """A file's value from a row's. `read` gives it back."""

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the file's value."""


def shown(value: Any) -> str:
    """A file's value in a sentence."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


class _Same:
    """Kinds whose values are the same in a file and in a row."""

    def plain(self, value: Any) -> Any:
        return value


@dataclass(frozen=True, slots=True)
class Text(_Same):
    """A line or more of text, not blank."""

    example: str = ""
    longest: int = 1_000_000

    def read(self, value: Any) -> str:
        if not isinstance(value, str):
            hint = f" '{value}'" if isinstance(value, int | float) else ""
            advice = f"; put it in quotes{hint}" if not isinstance(value, dict | list) else ""
            raise ValueError(f"is {shown(value)}, which is no text{advice or self._example()}")
        if not value.strip():
            raise ValueError(f"is empty; leave it out for none{self._example(', or write')}")
        if not is_storable(value):
            raise ValueError(f"holds {UNSTORABLE}")
        if len(value) > self.longest:
            raise ValueError(f"has {len(value)} characters; it may have {self.longest}")
        return value

    def _example(self, words: str = "; write") -> str:
        return f"{words} for example {self.example!r}" if self.example else ""

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, **_examples(self.example)}


def _examples(example: Any) -> dict[str, Any]:
    return {"examples": [example]} if example else {}


_UNITS = (("week", 604_800), ("day", 86_400), ("hour", 3600), ("minute", 60))


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time: seconds, or words such as `1 hour 30 minutes`."""

    example: str
    may_be_nothing: bool = True
    longest: timedelta = timedelta(days=36_500)

    def read(self, value: Any) -> timedelta:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(
                f"is {shown(value)}, which is no length of time; write seconds, or for example "
                f"{self.example!r}"
            )
        try:
            length = parse_duration(value) if isinstance(value, str) else timedelta(seconds=value)
        except InvalidTimetable as error:
            raise ValueError(str(error)) from None
        except (OverflowError, ValueError):  # infinite, not a number
            raise ValueError(f"is {shown(value)}, which is no length of time") from None
        if length < timedelta(0) or not (length or self.may_be_nothing):
            least = "must not be negative" if self.may_be_nothing else "must be longer than nothing"
            raise ValueError(f"is {shown(value)}; it {least}")
        if length > self.longest:
            raise ValueError(f"is {shown(value)}; it must be {self.longest.days} days or less")
        return length

    def plain(self, value: timedelta) -> str:
        whole, micros = divmod(value // timedelta(microseconds=1), 1_000_000)
        words = []
        for name, size in _UNITS:
            # Weeks only where nothing is left over: "10 days" is easier than "1 week 3 days".
            count, rest = divmod(whole, size)
            if count and not (name == "week" and (rest or micros)):
                words.append(f"{count} {name}{'s' * (count > 1)}")
                whole = rest
        if whole or micros or not words:
            seconds = f"{whole}.{micros:06}".rstrip("0") if micros else str(whole)
            words.append(f"{seconds} second{'s' * (seconds != '1')}")
        return " ".join(words)

    def schema(self) -> dict[str, Any]:
        bound = "minimum" if self.may_be_nothing else "exclusiveMinimum"
        most = int(self.longest.total_seconds())
        return {
            "anyOf": [
                {"type": "number", bound: 0, "maximum": most},
                {"type": "string", "pattern": "^[0-9. ,a-zA-Z]*[0-9][0-9. ,a-zA-Z]*$"},
            ],
            **_examples(self.example),
        }


#: What the table holds.
_FIRST = datetime(1, 1, 2, tzinfo=UTC)
_LAST = datetime(9999, 12, 30, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time, ISO 8601. Without an offset it is wall time, and stays naive."""

    example: str = "2026-01-31T08:00:00Z"

    def read(self, value: Any) -> datetime:
        try:
            moment = datetime.fromisoformat(value)
        except (ValueError, TypeError):
            raise ValueError(
                f"is {shown(value)}, which is no time; write ISO 8601, for example {self.example!r}"
            ) from None
        try:
            known = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
        except OverflowError:
            known = _LAST
        if not _FIRST <= known < _LAST:
            raise ValueError(f"is {shown(value)}; it must be of the years 1 to 9999")
        return known if moment.tzinfo else moment

    def plain(self, value: datetime) -> str:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[0-9]{4}-?[0-9W]", **_examples(self.example)}


@dataclass(frozen=True, slots=True)
class Whole(_Same):
    """A whole number."""

    least: int
    most: int

    def read(self, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"is {shown(value)}, which is no whole number")
        if not self.least <= value <= self.most:
            raise ValueError(f"is {value}; it must be {self.least} to {self.most}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Number(_Same):
    """A number."""

    least: float
    most: float

    def read(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"is {shown(value)}, which is no number")
        if not self.least <= value <= self.most:
            raise ValueError(f"is {shown(value)}; it must be {self.least:g} to {self.most:g}")
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Choice(_Same):
    """One of several words."""

    words: tuple[str, ...]

    def read(self, value: Any) -> str:
        if value not in self.words:
            listed = f"{', '.join(self.words[:-1])} or {self.words[-1]}"
            raise ValueError(f"is {shown(value)}; it must be {listed}")
        return str(value)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Switch(_Same):
    """True or false."""

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"is {shown(value)}; it must be true or false")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Json(_Same):
    """A list (an array in JSON) or a mapping (an object) of anything that JSON has."""

    kind: type[list[Any]] | type[dict[str, Any]]
    example: Any

    def read(self, value: Any) -> Any:
        name = "list" if self.kind is list else "mapping"
        if not isinstance(value, self.kind):
            example = json.dumps(self.example)
            raise ValueError(f"is {shown(value)}; it must be a {name}, for example {example}")
        try:
            return faithful(_as_kept(value))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"holds what can't be kept as JSON: {error}") from None

    def schema(self) -> dict[str, Any]:
        type_name = "array" if self.kind is list else "object"
        return {"type": type_name, **_examples(self.example)}


@dataclass(frozen=True, slots=True)
class Labels(_Same):
    """A mapping of labels' names to texts."""

    def read(self, value: Any) -> dict[str, str]:
        problem = details.labels_problem(value)
        if problem is not None:
            raise ValueError(problem)
        return dict(value)

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "maxProperties": details.MOST_LABELS,
            "propertyNames": {"pattern": f"^{details.NAME.pattern}$"},
            "additionalProperties": {"type": "string", "maxLength": details.LONGEST_VALUE},
            **_examples({"team": "billing"}),
        }


def _as_kept(value: Any) -> Any:
    """As `jsonb` gives it back: 1e22 as a whole number."""
    if isinstance(value, float) and math.isfinite(value):
        if value == 0:
            return 0.0
        return int(Decimal(repr(value))) if "e" in repr(value) and value.is_integer() else value
    if isinstance(value, list):
        return [_as_kept(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_kept(item) for key, item in value.items()}
    return value
