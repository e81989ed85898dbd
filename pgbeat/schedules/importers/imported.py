"""Arrivals: schedules of another scheduler's store, in the words of pgbeat's rows."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from typing import Any

from pgbeat.broker.publishing.json_values import as_json
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.errors import InvalidSchedule
from pgbeat.jobs import placeholders
from pgbeat.schedules.entries import row_name
from pgbeat.schedules.importers.timetables import Unmovable, When

#: Celery's cleanup of results. Every beat makes its entry by itself.
CLEANUP = "celery.backend_cleanup"


#: The schedulers whose schedules are imported.
BEATS = ("Celery", "RedBeat", "django-celery-beat", "sqlalchemy-celery-beat")


def disabled_in(beat: str) -> str:
    """Returns the reason of a schedule that a person disabled in another scheduler's store."""
    return f"disabled in {beat}"


#: Reasons of schedules that a person disabled in another store.
BY_HAND = frozenset(map(disabled_in, BEATS))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A schedule of another store's, as the row that it becomes."""

    #: Its name there.
    origin: str
    #: Columns that say what is launched: task, args, kwargs, options, queue, ends_at, max_runs.
    what: Mapping[str, Any]
    when: When
    #: When it was launched last, as far as its store knows.
    last_run: datetime | None = None
    run_count: int = 0
    #: From when on it was waited for, where it was never launched.
    since: datetime | None = None
    #: Why it is out of service; `None` for one that is not.
    disabled_reason: str | None = None
    #: Whether that is because nothing is left to do.
    is_done: bool = False
    #: Whether its scheduler launches nothing any more after `ends_at`, not even what was missed.
    is_over_at_end: bool = False
    #: Whether it came into its store from the code of an app.
    from_code: bool = False
    #: What the row doesn't say, or says in another way.
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A schedule that can't become a row, and why."""

    origin: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a store holds."""

    #: The scheduler that it belongs to, and where it is, without a password.
    beat: str
    place: str
    arrivals: list[Arrival] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    #: What there is to know about all of it.
    notes: list[str] = field(default_factory=list)


def names(origins: Iterable[str]) -> dict[str, str]:
    """The rows' names for names of another store: the same, as far as a row may have them.

    A slash and what moves the cursor become a dash. Where that makes two names one, those that had
    to be changed get a digest of what they were.
    """
    cleaned = {origin: _cleaned(origin) for origin in origins}
    count = Counter(cleaned.values())
    return {
        origin: name if name == origin or count[name] == 1 else _told_apart(name, origin)
        for origin, name in cleaned.items()
    }


def _cleaned(origin: str) -> str:
    name = re.sub(r"[/\x00-\x1f\x7f-\x9f]", "-", row_name(origin)).strip()
    return name or _told_apart("", origin)


def _told_apart(name: str, origin: str) -> str:
    digest = sha1(origin.encode(errors="replace"), usedforsecurity=False).hexdigest()
    return f"{name[:180]}…{digest[:12]}".strip()


def arguments(args: Any, kwargs: Any) -> dict[str, Any]:
    """The columns `args` and `kwargs`: as JSON, the way Celery's serializer sends them, so that
    times, UUIDs and decimals arrive as what they are. Raises `Unmovable`."""
    found = {"args": _as_json("args", args or []), "kwargs": _as_json("kwargs", kwargs or {})}
    for name, kind, noun in (("args", list, "array"), ("kwargs", dict, "object")):
        if not isinstance(found[name], kind):
            raise Unmovable(f"its {name} is no JSON {noun}: {_short(found[name])}")
    if placeholders.in_use((found["args"], found["kwargs"])):  # to the other beat, they are text
        found = {name: placeholders.escape(value) for name, value in found.items()}
    return found


def publishing(options: Mapping[str, Any]) -> dict[str, Any]:
    """The columns `queue` and `options`. Raises `Unmovable` for what is no publish option."""
    left = {key: value for key, value in options.items() if value is not None}
    queue = left.pop("queue", None)
    if queue is not None and not isinstance(queue, str):
        raise Unmovable("its queue is an object of the app's code")
    if isinstance(left.get("expires"), datetime):
        left["expires"] = aware(left["expires"]).astimezone(UTC).isoformat()
    try:
        check_options(left)
    except InvalidSchedule as error:
        raise Unmovable(f"its {error}") from None
    return {"queue": (queue or "").strip() or None, "options": _as_json("options", left)}


def _as_json(name: str, value: Any) -> Any:
    try:
        found = as_json(value)
        written = json.dumps(found, allow_nan=False, ensure_ascii=False)
        written.encode()  # raises for half a surrogate pair
    except (TypeError, ValueError, RecursionError) as error:
        raise Unmovable(f"its {name} can't be said in JSON: {error}") from None
    if "\\u0000" in written:
        raise Unmovable(f"its {name} hold a NUL, which Postgres can't keep")
    return found


def text_of_json(name: str, text: Any, empty: str) -> Any:
    """The value of a column that holds JSON as text. Raises `Unmovable`."""
    try:
        return json.loads(text or empty)
    except (ValueError, RecursionError):
        raise Unmovable(f"its {name} is no JSON: {_short(text)}") from None


def task_name(value: Any) -> str:
    """The task's name. Raises `Unmovable` for none."""
    if not isinstance(value, str) or not value.strip():
        raise Unmovable("it has no task")
    return value


def aware(moment: datetime, zone: Any = UTC) -> datetime:
    """The time; one without a zone is in that one."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)


def before(moment: datetime) -> datetime:
    """The last instant before a time."""
    return moment - timedelta(microseconds=1)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
