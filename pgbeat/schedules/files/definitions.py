"""Definitions of schedules, as files give them, and mistakes in them."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pgbeat.errors import InvalidTimetable
from pgbeat.jobs.policy.policies import JobPolicy
from pgbeat.jobs.preparing import placeholders
from pgbeat.schedules.files.documents import Mistake
from pgbeat.schedules.files.fields import FIELDS
from pgbeat.schedules.model import TIMETABLES
from pgbeat.schedules.writes import PARSERS
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import zone

#: A line and a column, from 1.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Definition:
    """A schedule in a file: a value for every field, and the places of those that it gives."""

    name: str
    values: dict[str, Any]
    place: Place
    #: The places of its fields, and of those in the file's defaults.
    places: Mapping[str, Place]
    default_places: Mapping[str, Place] = dataclasses.field(default_factory=dict)
    #: What the file calls fields that it gives by another name.
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: What it defines, if not a schedule: `lane`.
    noun: str = ""

    def mistake(self, field: str, sentence: str) -> Mistake:
        """Returns a mistake in a field, or (with "") in the definition as a whole."""
        if field in self.default_places and field not in self.places:
            return Mistake(*self.default_places[field], f"defaults: {sentence}")
        return Mistake(*self.places.get(field, self.place), f"{self.label}: {sentence}")

    @property
    def label(self) -> str:
        """Returns what its mistakes begin with."""
        return f"{self.noun} {self.name!r}" if self.noun else self.name

    def nearest(self, *fields: str) -> str:
        """Returns the first of the fields that it has itself, else that the defaults have."""
        both = (self.places, self.default_places)
        return next((name for places in both for name in fields if name in places), "")


_LAUNCHER = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*", re.ASCII)


def misfit(field: str, value: Any) -> str | None:
    """Returns what is wrong with a value beyond its kind; `None` if it is valid."""
    if field in ("args", "kwargs"):
        return "; ".join(problem.message for problem in placeholders.problems(value, field)) or None
    if field in PARSERS:
        try:
            PARSERS[field](value)
        except InvalidTimetable as error:
            return str(error)
    if field == "launcher" and not _LAUNCHER.fullmatch(value):
        return f"launcher {value!r} is not a launcher's name; use the name that it is registered by"
    if field == "task" and (re.search(r"[\x00-\x1f\x7f-\x9f]", value) or value.strip() != value):
        return f"task {value!r} is not a task's name; use the name that it is registered by"
    return None


_NO_TIMETABLE = (
    "it has no timetable; set cron (for example '0 2 * * *') or every (for example '15 minutes'), "
    "or once_at, solar, rrule or after"
)
_NO_TRIGGER = "it has no timetable; set cron (for example '0 2 * * *') or interval_minutes"
_NO_TASK = (
    "it has no task; set task to a registered task's name (for example "
    "'tasks.maintenance.backup'), or job_policy to {template: NAME}"
)


def problems(definition: Definition, unfit: set[str]) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with fields in combination: a field, or "", and a sentence.

    Fields that are `unfit` by themselves are ignored. Times without a zone get the schedule's.
    """
    values = definition.values
    chosen = [field for field in TIMETABLES if values[field] is not None or field in unfit]
    if not chosen:
        yield "", _NO_TRIGGER if definition.words else _NO_TIMETABLE
    elif len(chosen) > 1:
        yield chosen[1], too_many([definition.words.get(field, field) for field in chosen])
    if values["launcher"] == "GenericJobLauncher":  # an alias
        values["launcher"] = "GenericLauncher"
    is_generic = values["launcher"] == "GenericLauncher" and "launcher" not in unfit
    has_task = values["task"] is not None or has_template(values)
    if is_generic and not has_task and not unfit & {"task", "job_policy"}:
        yield "", _NO_TASK
    for field in ("once_at", "starts_at", "ends_at"):
        moment, timezone = values[field], values["timezone"]
        if isinstance(moment, datetime) and moment.tzinfo is None:
            local = UTC if timezone is None else zone(timezone)
            values[field] = moment.replace(tzinfo=local).astimezone(UTC)
            if timezone is None and "timezone" not in unfit:
                message = f"{field} is {moment.isoformat()}, and of no zone"
                yield field, f"{message}; add Z or an offset, such as +01:00, or set timezone"
    for low, high, relation in _ORDERED:
        if None in (values[low], values[high]) or unfit & {low, high}:
            continue
        if values[high] < values[low]:
            least, most = (FIELDS[field].kind.plain(values[field]) for field in (low, high))
            yield (
                definition.nearest(high, low),
                f"{high} ({most}) must not be {relation} {low} ({least})",
            )


_ORDERED = (("retry_base", "retry_cap", "below"), ("starts_at", "ends_at", "before"))


def has_template(values: Mapping[str, Any]) -> bool:
    """Returns whether a template fills in what the definition leaves open."""
    return bool((values.get("job_policy") or {}).get("template"))


def timetables(values: Mapping[str, Any]) -> list[str]:
    """Returns the timetable fields that have a value."""
    return [field for field in TIMETABLES if values.get(field) is not None]


def too_many(chosen: list[str]) -> str:
    """Returns what is wrong with several timetables."""
    if len(chosen) == 2:
        return f"it has both {chosen[0]} and {chosen[1]}; keep one"
    return f"it has {', '.join(chosen)}; keep one"


#: Other words that people write for fields.
_OTHER_WORDS = {
    "schedule": "cron", "crontab": "cron", "interval": "every", "interval_minutes": "every",
    "seconds": "every", "tz": "timezone", "zone": "timezone", "function": "task", "func": "task",
    "callable": "task", "condition": "condition_sql", "sql": "condition_sql", "arguments": "args",
    "keyword_arguments": "kwargs", "retries": "max_retries", "disabled": "enabled",
    "depends_on": "after", "start": "starts_at", "end": "ends_at", "start_date": "starts_at",
    "end_date": "ends_at", "misfire_grace_time": "grace", "coalesce": "catch_up",
    "next_run": "starts_at", "at": "once_at", "one_off": "once_at", "paused_at": "paused",
    "expires": "options", "timeout_seconds": "options",
}  # fmt: skip


def unknown(field: str, fields: Collection[str] = FIELDS) -> str:
    """Returns the message about an unknown field, with the most similar one."""
    if field in JobPolicy._fields and "job_policy" in fields:
        return f"there is no field {field!r}; write it in job_policy: {{{field}: …}}"
    other = _OTHER_WORDS.get(field.lower().replace("-", "_"))
    hint = f"did you mean {other!r}?" if other in fields else did_you_mean(field, fields)
    return f"there is no field {field!r}; {hint or 'there are ' + ', '.join(fields)}"


def circles(after: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Yields names that come after each other in a circle, until each circle has lost a link."""
    links = {name: set(names) for name, names in after.items()}
    while True:
        try:
            TopologicalSorter(links).prepare()
        except CycleError as error:
            first, *others = names = error.args[1][:0:-1]
            links[first].discard((others or names)[0])
            yield names
        else:
            return


def circular(definitions: Mapping[str, Definition], circle: list[str]) -> Mistake:
    """Returns the mistake of a circle, at its first definition in the file."""
    first = min(
        (definitions[name] for name in circle if name in definitions), key=lambda item: item.place
    )
    start = circle.index(first.name)
    path = [*circle[start:], *circle[:start], first.name]
    return first.mistake("after", f"after goes in a circle: {' after '.join(path)}")
