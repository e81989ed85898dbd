"""Kinds of values in files: how they are read and written, and their JSON Schema."""

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pgbeat.errors import InvalidTimetable
from pgbeat.jobs.preparing import details
from pgbeat.schedules import MOST_UPSTREAMS, upstreams
from pgbeat.schedules.sync import faithful
from pgbeat.storable import EARLIEST, LATEST, UNSTORABLE, is_storable
from pgbeat.timetables import parse_duration


class Kind(ABC):
    """A kind of value. By default, a value is the same in a file and in a row."""

    def read(self, value: Any) -> Any:
        """Returns a row's value from a file's.

        Raises `ValueError` with a sentence that begins after the field's name: `is 5; …`.
        """
        return self._read(value)

    def plain(self, value: Any) -> Any:
        """Returns a file's value from a row's; `read` converts it back."""
        return self._plain(value)

    def schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of the file's value."""
        return self._schema()

    @abstractmethod
    def _read(self, value: Any) -> Any: ...

    def _plain(self, value: Any) -> Any:
        return value

    @abstractmethod
    def _schema(self) -> dict[str, Any]: ...


def shown(value: Any) -> str:
    """Returns a file's value as text for a sentence."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Text that is not blank."""

    example: str = ""
    longest: int = 1_000_000

    def _read(self, value: Any) -> str:
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

    def _schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, **_examples(self.example)}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema that also accepts null, which stands for the default."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]}


def _examples(example: Any) -> dict[str, Any]:
    return {"examples": [example]} if example else {}


_UNITS = (("week", 604_800), ("day", 86_400), ("hour", 3600), ("minute", 60))


@dataclass(frozen=True, slots=True)
class Duration(Kind):
    """A duration: seconds, or words such as `1 hour 30 minutes`."""

    example: str
    may_be_nothing: bool = True
    longest: timedelta = timedelta(days=36_500)

    def _read(self, value: Any) -> timedelta:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(
                f"is {shown(value)}, which is not a length of time; write seconds, or for example "
                f"{self.example!r}"
            )
        try:
            length = parse_duration(value) if isinstance(value, str) else timedelta(seconds=value)
        except InvalidTimetable as error:
            raise ValueError(str(error)) from None
        except (OverflowError, ValueError):  # infinite, not a number
            raise ValueError(f"is {shown(value)}, which is not a length of time") from None
        if length < timedelta(0) or not (length or self.may_be_nothing):
            least = "must not be negative" if self.may_be_nothing else "must be longer than nothing"
            raise ValueError(f"is {shown(value)}; it {least}")
        if length > self.longest:
            raise ValueError(f"is {shown(value)}; it must be {self.longest.days} days or less")
        return length

    def _plain(self, value: timedelta) -> str:
        whole, micros = divmod(value // timedelta(microseconds=1), 1_000_000)
        words = []
        for name, size in _UNITS:
            # Weeks only if nothing is left over: "10 days" is easier than "1 week 3 days".
            count, rest = divmod(whole, size)
            if count and not (name == "week" and (rest or micros)):
                words.append(f"{count} {name}{'s' * (count > 1)}")
                whole = rest
        if whole or micros or not words:
            seconds = f"{whole}.{micros:06}".rstrip("0") if micros else str(whole)
            words.append(f"{seconds} second{'s' * (seconds != '1')}")
        return " ".join(words)

    def _schema(self) -> dict[str, Any]:
        bound = "minimum" if self.may_be_nothing else "exclusiveMinimum"
        most = int(self.longest.total_seconds())
        return {
            "anyOf": [
                {"type": "number", bound: 0, "maximum": most},
                {"type": "string", "pattern": "^[0-9. ,a-zA-Z]*[0-9][0-9. ,a-zA-Z]*$"},
            ],
            **_examples(self.example),
        }


@dataclass(frozen=True, slots=True)
class Moment(Kind):
    """A time in ISO 8601. Without an offset it is wall time, and stays naive."""

    example: str = "2026-01-31T08:00:00Z"

    def _read(self, value: Any) -> datetime:
        try:
            moment = datetime.fromisoformat(value)
        except (ValueError, TypeError):
            raise ValueError(
                f"is {shown(value)}, which is no time; write ISO 8601, for example {self.example!r}"
            ) from None
        try:
            known = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
        except OverflowError:
            known = LATEST
        if not EARLIEST <= known < LATEST:
            raise ValueError(f"is {shown(value)}; it must be of the years 1 to 9999")
        return known if moment.tzinfo else moment

    def _plain(self, value: datetime) -> str:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")

    def _schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[0-9]{4}-?[0-9W]", **_examples(self.example)}


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A number."""

    least: float
    most: float

    def _read(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"is {shown(value)}, which is no number")
        return float(self._checked(value))

    def _checked(self, value: Any) -> Any:
        if not self.least <= value <= self.most:
            raise ValueError(f"is {shown(value)}; it must be {self.least} to {self.most}")
        return value

    def _schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.least, "maximum": self.most}


class Whole(Number):
    """A whole number."""

    def _read(self, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"is {shown(value)}, which is no whole number")
        return int(self._checked(value))

    def _schema(self) -> dict[str, Any]:
        return {**super()._schema(), "type": "integer"}


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of several words."""

    words: tuple[str, ...]

    def _read(self, value: Any) -> str:
        if value not in self.words:
            listed = f"{', '.join(self.words[:-1])} or {self.words[-1]}"
            raise ValueError(f"is {shown(value)}; it must be {listed}")
        return str(value)

    def _schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Switch(Kind):
    """True or false."""

    def _read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"is {shown(value)}; it must be true or false")
        return value

    def _schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Json(Kind):
    """A list or a mapping of any JSON values."""

    kind: type[list[Any]] | type[dict[str, Any]]
    example: Any

    def _read(self, value: Any) -> Any:
        name = "list" if self.kind is list else "mapping"
        if not isinstance(value, self.kind):
            example = json.dumps(self.example)
            raise ValueError(f"is {shown(value)}; it must be a {name}, for example {example}")
        try:
            return faithful(_as_kept(value))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"holds what can't be kept as JSON: {error}") from None

    def _schema(self) -> dict[str, Any]:
        type_name = "array" if self.kind is list else "object"
        return {"type": type_name, **_examples(self.example)}


@dataclass(frozen=True, slots=True)
class Names(Kind):
    """One name or a list of several; a row has each on a line of its own."""

    name: Text

    def _read(self, value: Any) -> str:
        items = upstreams(value) if isinstance(value, str) else value
        items = items if isinstance(items, list) else [items]
        names = list(dict.fromkeys(map(self.name.read, items)))
        if not names:
            raise ValueError("is empty; leave it out for none")
        if len(names) > MOST_UPSTREAMS:
            raise ValueError(f"has {len(names)} names; it may have {MOST_UPSTREAMS}")
        return "\n".join(names)

    def _plain(self, value: str) -> str | list[str]:
        names = upstreams(value)
        return names if len(names) > 1 else value

    def _schema(self) -> dict[str, Any]:
        name = self.name.schema()
        return {"anyOf": [name, {"type": "array", "items": name, "maxItems": MOST_UPSTREAMS}]}


@dataclass(frozen=True, slots=True)
class ListOf(Kind):
    """A list of texts that is not empty."""

    item: Text

    def _read(self, value: Any) -> list[str]:
        if not isinstance(value, list) or not value:
            raise ValueError(f"is {shown(value)}; it must be a list, as [{self.item.example}]")
        return [self.item.read(item) for item in value]

    def _schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(), "minItems": 1}


@dataclass(frozen=True, slots=True)
class Labels(Kind):
    """Labels: a mapping of names to texts."""

    def _read(self, value: Any) -> dict[str, str]:
        problem = details.labels_problem(value)
        if problem is not None:
            raise ValueError(problem)
        return dict(value)

    def _schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "maxProperties": details.MOST_LABELS,
            "propertyNames": {"pattern": f"^{details.NAME.pattern}$"},
            "additionalProperties": {"type": "string", "maxLength": details.LONGEST_VALUE},
            **_examples({"team": "billing"}),
        }


def _as_kept(value: Any) -> Any:
    """Returns the value as `jsonb` stores it, such as 1e22 as a whole number."""
    if isinstance(value, float) and math.isfinite(value):
        if value == 0:
            return 0.0
        return int(Decimal(repr(value))) if "e" in repr(value) and value.is_integer() else value
    if isinstance(value, list):
        return [_as_kept(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_kept(item) for key, item in value.items()}
    return value
