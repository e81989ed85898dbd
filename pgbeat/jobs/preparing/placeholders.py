"""Fills in placeholders in arguments: `{{ due_at | date }}` becomes `2026-06-01` in the job.

This is the whole grammar (`docs/reference/placeholders.md` explains it):

    placeholder = "{{" source { "|" filter } "}}"
    source      = name | text
    filter      = name [ "(" text ")" ]
    text        = "'" characters "'" | '"' characters '"'

Placeholders are parsed here. They are never evaluated by Python, SQL or a template engine.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from pgbeat.errors import InvalidPlaceholder, InvalidTimetable, Problem
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import parse_duration, zone

#: The type of a value.
Kind = Literal["time", "text", "number"]


class Facts(NamedTuple):
    """The values that placeholders can name."""

    due_at: datetime
    #: The schedule's time zone, in which times are written.
    timezone: str
    job_id: str | None = None
    schedule: str | None = None
    trigger: str | None = None
    interval_start: datetime | None = None
    #: The timetable's last time, where `due_at` isn't one of its times.
    last_due: datetime | None = None

    @property
    def interval_end(self) -> datetime:
        """Returns the end of the interval: the due time, or the timetable's last one before it."""
        return self.last_due or self.due_at


_SOURCES: dict[str, Kind] = {
    "due_at": "time",
    "interval_start": "time",
    "interval_end": "time",
    "schedule": "text",
    "trigger": "text",
    "job_id": "text",
}
# The directives of `format` that no locale changes.
_DIRECTIVES = "YmdHMSjGVuyz%"


def _shift(moment: datetime, length: timedelta) -> datetime:
    """Adds whole days by the local clock, and any other length by elapsed time."""
    if not length % timedelta(days=1):
        return moment + length
    return (moment.astimezone(UTC) + length).astimezone(moment.tzinfo)


def _pattern(text: str) -> str:
    for directive in re.findall(r"%(.?)", text, re.S):
        if not directive or directive not in _DIRECTIVES:
            known = ", ".join(f"%{letter}" for letter in _DIRECTIVES)
            raise ValueError(f"%{directive} is not one of {known}")
    return text


class _Filter(NamedTuple):
    """A filter: the types of its input and output, and the parser of its argument, if any."""

    takes: Kind
    gives: Kind
    apply: Callable[..., Any]
    argument: Callable[[str], Any] | None = None
    example: str = ""


_FILTERS = {
    "date": _Filter("time", "text", lambda moment: moment.date().isoformat()),
    "time": _Filter("time", "text", lambda moment: moment.strftime("%H:%M:%S")),
    "iso": _Filter("time", "text", datetime.isoformat),
    "timestamp": _Filter("time", "number", lambda moment: int(moment.timestamp())),
    "format": _Filter("time", "text", datetime.strftime, _pattern, "%Y/%m/%d"),
    "timezone": _Filter("time", "time", datetime.astimezone, zone, "UTC"),
    "plus": _Filter("time", "time", _shift, parse_duration, "1 day"),
    "minus": _Filter("time", "time", lambda m, length: _shift(m, -length), parse_duration, "1 day"),
    "upper": _Filter("text", "text", str.upper),
    "lower": _Filter("text", "text", str.lower),
}
# The filter that replaces an unknown value of any type.
_DEFAULT = "default"


class _Expression(NamedTuple):
    """A parsed placeholder."""

    written: str
    #: A name of `_SOURCES`, or the text itself.
    source: str
    is_text: bool
    filters: tuple[tuple[str, Any], ...]

    def value(self, facts: Facts) -> Any:
        """Returns the value: text, a number, or `None` if it is not known."""
        value: Any = self.source if self.is_text else getattr(facts, self.source)
        if isinstance(value, datetime):
            value = value.astimezone(zone(facts.timezone))
        for name, argument in self.filters:
            if name == _DEFAULT:
                value = argument if value is None else value
            elif value is not None:
                kind = _FILTERS[name]
                value = kind.apply(value) if kind.argument is None else kind.apply(value, argument)
        return value.isoformat() if isinstance(value, datetime) else value


def in_use(value: Any) -> bool:
    """Returns whether a JSON value has a placeholder, or something like one."""
    todo = [value]  # no recursion: it may be nested as deeply as can be read
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            if "{{" in item:
                return True
        elif isinstance(item, list | tuple):
            todo.extend(item)
        elif isinstance(item, Mapping):
            todo.extend(item.values())
    return False


def fill(value: Any, facts: Facts, path: str = "") -> Any:
    """Returns the value with its placeholders filled in.

    A text that is only a placeholder becomes its value, which may be a number or null. In a longer
    text, the value becomes text, and must be known. Raises `InvalidPlaceholder`.
    """
    return _map(value, path, lambda text, at: _filled(text, facts, at) if "{{" in text else text)


def check(args: Any, kwargs: Any) -> None:
    """Raises `InvalidPlaceholder`, with all problems, if placeholders in arguments are invalid."""
    mistakes = [*problems(args, "args"), *problems(kwargs, "kwargs")]
    if mistakes:
        raise InvalidPlaceholder(mistakes)


def problems(value: Any, path: str) -> Iterator[Problem]:
    """Yields the problems of a value's placeholders."""
    for at, text in _texts(value, path):
        try:
            _parsed(text)
        except (ValueError, InvalidTimetable) as error:
            yield Problem(at, "malformed", f"{at}: {error}")


def escape(value: Any) -> Any:
    """Returns the value with its braces escaped, so that filling it in gives the same value."""
    return _map(value, "", lambda text, _: text.replace("{{", "{{ '{{' }}"))


def _map(value: Any, path: str, change: Callable[[str, str], Any]) -> Any:
    """Returns the value with each text in it replaced by `change(text, path of the text)`."""
    if isinstance(value, str):
        return change(value, path)
    if isinstance(value, list | tuple):
        return [_map(item, f"{path}[{number}]", change) for number, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {key: _map(item, _below(path, key), change) for key, item in value.items()}
    return value


def _texts(value: Any, path: str) -> list[tuple[str, str]]:
    """Returns the path and the text of each text in a value."""
    texts: list[tuple[str, str]] = []
    _map(value, path, lambda text, at: texts.append((at, text)))
    return texts


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _filled(text: str, facts: Facts, path: str) -> Any:
    try:
        parts = _parsed(text)
        if len(parts) == 1 and isinstance(parts[0], _Expression):
            return parts[0].value(facts)
        written = []
        for part in parts:
            value = part.value(facts) if isinstance(part, _Expression) else part
            if value is None and isinstance(part, _Expression):
                raise ValueError(
                    f"{part.written} stands for nothing here; add | default('…'), or let it be the "
                    "whole text, which then is null"
                )
            written.append(str(value))
    except (ValueError, OverflowError, InvalidTimetable) as error:
        raise InvalidPlaceholder.of(path, "malformed", f"{path}: {error}") from None
    return "".join(written)


_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_]\w*)|'(?P<one>[^']*)'|"(?P<two>[^"]*)"|(?P<sign>[|()]|\}\}))"""
)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[str | _Expression, ...]:
    """Returns the parts of a text. Raises `ValueError` or `InvalidTimetable`."""
    parts: list[str | _Expression] = []
    position = 0
    while (start := text.find("{{", position)) >= 0:
        if start > position:
            parts.append(text[position:start])
        tokens, position = _tokens(text, start)
        parts.append(_expression(text[start:position], tokens))
    if position < len(text):
        parts.append(text[position:])
    return tuple(parts)


def _tokens(text: str, start: int) -> tuple[list[tuple[str, str]], int]:
    """Returns the tokens between the braces that begin at `start`, and the position after them."""
    tokens: list[tuple[str, str]] = []
    position = start + 2
    while match := _TOKEN.match(text, position):
        kind, position = str(match.lastgroup), match.end()
        value = match[kind]
        if value == "}}" and kind == "sign":
            return tokens, position
        tokens.append(("text" if kind in ("one", "two") else kind, value))
    shown = text[start : start + 40]
    raise ValueError(
        f"{shown!r} can't be read from {text[position : position + 10]!r} on; a placeholder looks "
        "like {{ due_at | date }}, and braces that are meant are written {{ '{{' }}"
    )


def _expression(written: str, tokens: list[tuple[str, str]]) -> _Expression:
    kind, source = tokens[0] if tokens else ("sign", "")
    if kind == "sign":
        raise ValueError(f"{written} names nothing; {_there_are(_SOURCES)}")
    if kind == "name" and source not in _SOURCES:
        raise ValueError(f"{written}: {source!r} is not known; {_hint(source, _SOURCES)}")
    gives: Kind = "text" if kind == "text" else _SOURCES[source]
    filters: list[tuple[str, Any]] = []
    rest = tokens[1:]
    while rest:
        if rest[0] != ("sign", "|") or len(rest) < 2 or rest[1][0] != "name":
            raise ValueError(f"{written}: a filter is written | NAME or | NAME('TEXT')")
        name, argument, rest = rest[1][1], None, rest[2:]
        if rest[:1] == [("sign", "(")]:
            if len(rest) < 3 or rest[1][0] != "text" or rest[2] != ("sign", ")"):
                raise ValueError(f"{written}: {name} takes one text, as in {name}('…')")
            argument, rest = rest[1][1], rest[3:]
        try:
            gives, value = _filter(name, argument, gives)
        except (ValueError, InvalidTimetable) as error:
            raise ValueError(f"{written}: {error}") from None
        filters.append((name, value))
    return _Expression(written, source, kind == "text", tuple(filters))


def _filter(name: str, argument: str | None, gives: Kind) -> tuple[Kind, Any]:
    """Returns the type of a filter's output, and its parsed argument."""
    if name == _DEFAULT:
        if argument is None:
            raise ValueError("default takes a text, as in default('none')")
        return gives, argument
    named_filter = _FILTERS.get(name)
    if named_filter is None:
        known = [*_FILTERS, _DEFAULT]
        raise ValueError(f"there is no filter {name!r}; {_hint(name, known)}")
    if named_filter.takes != gives:
        raise ValueError(f"{name} is for a {named_filter.takes}, and this is a {gives}")
    if named_filter.argument is None:
        if argument is not None:
            raise ValueError(f"{name} takes nothing in parentheses")
        return named_filter.gives, None
    if argument is None:
        raise ValueError(f"{name} takes a text, as in {name}('{named_filter.example}')")
    return named_filter.gives, named_filter.argument(argument)


def _hint(word: str, known: Any) -> str:
    return did_you_mean(word, known) or _there_are(known)


def _there_are(known: Any) -> str:
    return f"there are {', '.join(known)}"
