"""Reads queries for jobs, such as `state:failed task:prices* tag:eu arg.site=x error:503 since:2h`.

`TERMS` explains the terms, to users of the console and readers of the documentation.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from pgbeat.database.tables import JOB_STATES
from pgbeat.errors import InvalidInput, InvalidTimetable, Problems
from pgbeat.jobs.rows.filters import Filter
from pgbeat.storable import UNSTORABLE, is_storable
from pgbeat.suggest import did_you_mean
from pgbeat.timetables.durations import parse_duration

#: Examples of each kind of term, and which jobs it finds.
TERMS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("prices",), "with this in the task's name, or whose id begins so"),
    (("state:failed", "state:failed,cancelled"), "in one of these states"),
    (("task:shop.sync", "task:shop.*"), "of this task, or of those that a glob matches"),
    (("schedule:", "lane:", "template:", "group:"), "of this schedule, lane …"),
    (("queue:",), "of this queue: the one that a job names, or else its task's route"),
    (("by:user:alice",), "that this actor made"),
    (
        ("error:503", 'error:"timed out"', "error:*503*"),
        "with this in the error, or the whole error as a glob; failed ones unless you give a state",
    ),
    (
        ("arg.site=x", "arg.order.id=5", "arg.0=x"),
        "with this keyword argument, a value inside one, or the first positional argument: "
        "as text, or as JSON",
    ),
    (("label:team=billing", "tag:eu"), "with this label or tag"),
    (("since:2h", "before:3d", "since:2026-12-24T09:00Z"), "created in that time, or before"),
    (("is:late", "is:system"), "that missed a deadline; that are the system's"),
    (("is:final", "is:retried"), "that no retry has replaced, or that one has"),
)
#: Where problems are reported.
FIELD = "q"
_MOST_TERMS, _LONGEST = 20, 1000
_TOKEN = re.compile(r'(?:"(?:[^"\\]|\\.)*"?|[^\s"])+')
_ARGUMENT = re.compile(r"(arg\.[^\s=:\"]+)[=:](.*)", re.DOTALL)
_KEYED = re.compile(r"([a-z_]+):(.*)", re.DOTALL)
#: Keys whose value is compared with a column of the same or another name.
_COLUMNS = {
    "task": "task",
    "lane": "lane",
    "queue": "queue",
    "template": "template",
    "by": "created_by",
    "error": "error",
}
_MARKS: dict[str, tuple[str, bool]] = {
    "late": ("late", True),
    "retried": ("is_retried", True),
    "final": ("is_retried", False),
    "system": ("is_system_job", True),
}
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
#: Which of two bounds holds.
_BOUNDS = {"created_from": max, "created_until": min}
#: Keys that stand once; of the others, all values must match.
_ALONE = ("state", "schedule", "group", "since", "before", *_COLUMNS)
KEYS = (*_ALONE, "label", "tag", "is", "arg")


class Term(NamedTuple):
    """A part of a query. The key of a word on its own is `word`."""

    key: str
    value: str

    def __str__(self) -> str:
        value = self.value
        if not value or re.search(r'[\s"]', value) or (self.key == "word" and ":" in value):
            value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if self.key == "word":
            return value
        return f"{self.key}{'=' if self.key.startswith('arg.') else ':'}{value}"


class Query(NamedTuple):
    """The terms of a search."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def get(self, key: str) -> str:
        """Returns the value of a term, the first; without one, nothing."""
        return next((term.value for term in self.terms if term.key == key), "")

    def without(self, *keys: str) -> "Query":
        """Returns the query without the terms that have one of these keys."""
        return Query(tuple(term for term in self.terms if term.key not in keys))

    def less(self, term: Term) -> "Query":
        """Returns the query without a term."""
        return Query(tuple(other for other in self.terms if other != term))

    def having(self, **values: str) -> "Query":
        """Returns the query with other values of some keys; an empty one removes its term."""
        changed = tuple(Term(key, value) for key, value in values.items() if value)
        return Query(self.without(*values).terms + changed)

    def also(self, key: str, value: str | None) -> "Query":
        """Returns the query with one more term, if there is a value."""
        more = (Term(key, value),) if value else ()
        return Query(tuple(dict.fromkeys(self.terms + more)))

    def filter(self, namespace: str, now: datetime, beside: Mapping[str, Any] = {}) -> Filter:
        """Returns the filter, but for the schedule, whose id is unknown.

        Jobs must match the fields `beside` it, too; those that are `None` say nothing. Times such
        as `2h` count from `now`. Raises `InvalidInput` with all mistakes.
        """
        given = {name: value for name, value in beside.items() if value is not None}
        columns, problems = self._read(now)
        if "error" in columns and not {"state", "states"} & {*columns, *given}:
            columns["state"] = "failed"
        for name, value in given.items():
            if not _narrow(columns, name, value):
                message = f"{name} is another in the query and beside it; give one of them"
                problems.add(FIELD, "conflict", message)
        if problems:
            raise InvalidInput(problems)
        return Filter(namespace, **columns)

    def _read(self, now: datetime) -> tuple[dict[str, Any], Problems]:
        """Returns the fields of the filter, and the mistakes."""
        problems = Problems()
        columns: dict[str, Any] = {}
        for key in _ALONE:
            if sum(other.key == key for other in self.terms) > 1:
                problems.add(FIELD, "conflict", f"{key}: is there twice")
        for term in self.terms:
            try:
                self._add(columns, term, now)
            except ValueError as error:
                problems.add(FIELD, "malformed", f"{term}: {error}")
        return columns, problems

    def _add(self, columns: dict[str, Any], term: Term, now: datetime) -> None:
        key, value = term
        if key in _COLUMNS:
            columns[_COLUMNS[key]] = value
        elif key == "state":
            states = value.split(",")
            for state in states:
                if state not in JOB_STATES:
                    parts = (f"there is no state {state!r}", did_you_mean(state, JOB_STATES))
                    raise ValueError("; ".join(filter(None, parts)))
            columns |= {"state": value} if len(states) == 1 else {"states": tuple(states)}
        elif key == "group":
            try:
                columns["group_id"] = str(UUID(value))
            except ValueError:
                raise ValueError("write the whole id") from None
        elif key in ("since", "before"):
            columns["created_from" if key == "since" else "created_until"] = _moment(value, now)
        elif key == "is":
            if value not in _MARKS:
                raise ValueError(f"write one of {', '.join(f'is:{mark}' for mark in _MARKS)}")
            name, wanted = _MARKS[value]
            if columns.setdefault(name, wanted) is not wanted:
                raise ValueError("another term says the opposite")
        elif key == "label":
            name, separator, label = value.partition("=")
            if not separator or not name:
                raise ValueError("write label:NAME=VALUE")
            if not _narrow(columns, "labels", {name: label}):
                raise ValueError("another term gives it another value")
        elif key == "tag":
            columns.setdefault("tags", []).append(value)
        elif key.startswith("arg."):
            columns.setdefault("arguments", []).append((key.removeprefix("arg."), value))
        elif key == "word":
            columns.setdefault("words", []).append(value)


def _narrow(columns: dict[str, Any], name: str, value: Any) -> bool:
    """Adds a field to those of a filter; returns whether a job can match both."""
    if name == "labels":
        labels = columns.setdefault(name, {})
        return all(labels.setdefault(label, text) == text for label, text in value.items())
    if name == "state" and "states" in columns:
        return value in columns.pop("states") and _narrow(columns, name, value)
    if name in _BOUNDS:
        columns[name] = _BOUNDS[name](columns.get(name, value), value)
        return True
    return bool(columns.setdefault(name, value) == value)


def _moment(value: str, now: datetime) -> datetime:
    try:
        ago = parse_duration(value)
    except InvalidTimetable:
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("write for example 2h, 3d or 2026-12-24T09:00Z") from None
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    try:
        return now - min(ago, timedelta(days=36_500))
    except OverflowError:
        raise ValueError("it is too long ago") from None


def parse(text: str) -> Query:
    """Returns a query. Raises `InvalidInput` with all mistakes, in the field `q`."""
    if len(text) > _LONGEST:
        raise InvalidInput.of(FIELD, "too_long", f"a query has at most {_LONGEST:,} characters")
    if not is_storable(text):
        raise InvalidInput.of(FIELD, "unstorable", f"the query holds {UNSTORABLE}")
    terms, problems = [], Problems()
    for token in _TOKEN.findall(text):
        term = _term(token)
        if isinstance(term, Term):
            terms.append(term)
        else:
            problems.add(FIELD, "unknown", term)
    if len(terms) > _MOST_TERMS:
        problems.add(FIELD, "too_long", f"a query has at most {_MOST_TERMS} terms")
    query = Query(tuple(dict.fromkeys(terms)))
    if problems:
        # `filter` finds mistakes in values, but it isn't called.
        raise InvalidInput(problems + query._read(_ANY_TIME)[1])
    return query


def _term(token: str) -> Term | str:
    """Returns a term, or what is wrong with it."""
    if token.startswith('"'):
        return Term("word", _unquoted(token))
    if argument := _ARGUMENT.fullmatch(token):
        return Term(argument[1], _unquoted(argument[2]))
    keyed = _KEYED.fullmatch(token)
    if keyed is None:
        return Term("word", _unquoted(token))
    key, value = keyed[1], _unquoted(keyed[2])
    if key == "arg" or key not in KEYS:
        if key == "arg":
            return "write arg.NAME=VALUE, or arg.0=VALUE for the first positional argument"
        meant = did_you_mean(key, KEYS) or "put text with a colon in double quotes"
        return f"{token}: there is no key {key!r}; {meant}"
    return Term(key, value) if value else f"{token}: the value is missing"


def _unquoted(text: str) -> str:
    """Returns a value without double quotes, and with what they protect."""
    return re.sub(r'"((?:[^"\\]|\\.)*)"?', lambda match: re.sub(r"\\(.)", r"\1", match[1]), text)


def of(values: Mapping[str, str]) -> Query:
    """Returns the query with these terms, by key; empty values are left out."""
    return Query(tuple(Term(key, value) for key, value in values.items() if value))


def join(queries: Iterable[Query]) -> Query:
    """Returns one query with the terms of all; later values replace those of the same key."""
    joined = Query()
    for query in queries:
        alone = {term.key for term in query.terms if term.key in _ALONE}
        kept = joined.without(*alone).terms
        joined = Query(tuple(dict.fromkeys(kept + query.terms)))
    return joined
