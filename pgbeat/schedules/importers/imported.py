"""Schedules found in another scheduler's store, as values of pgbeat's rows."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pgbeat.broker.publishing.json_values import as_json
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.errors import InvalidSchedule, PgbeatError
from pgbeat.jobs.preparing import placeholders
from pgbeat.schedules.entries import row_name, told_apart
from pgbeat.schedules.importers.timetables import Unmovable, When
from pgbeat.storable import storable_json
from pgbeat.timetables import TICK

#: Celery's cleanup of results, whose entry every beat makes by itself.
CLEANUP = "celery.backend_cleanup"


#: The schedulers whose schedules are imported.
BEATS = (
    "Celery", "RedBeat", "django-celery-beat", "sqlalchemy-celery-beat",
    "APScheduler", "cron", "Kubernetes", "pg_cron",
)  # fmt: skip


def disabled_in(beat: str) -> str:
    """Returns the reason of a schedule that a person disabled in another scheduler's store."""
    return f"disabled in {beat}"


#: Reasons of schedules that a person disabled in another store.
BY_HAND = frozenset(map(disabled_in, BEATS))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A schedule of another store, as the row that it becomes."""

    #: Its name there.
    origin: str
    #: Columns that say what is launched: task, args, kwargs, options, queue, ends_at, max_runs;
    #: and policies, if the other store has them. All arrivals of a store have the same.
    what: Mapping[str, Any]
    when: When
    #: When it was launched last, as far as its store knows.
    last_run: datetime | None = None
    run_count: int = 0
    #: Since when it has been due to run, if it was never launched.
    since: datetime | None = None
    #: Why it is disabled; `None` for a schedule in service.
    disabled_reason: str | None = None
    #: Whether it is disabled because it is completed.
    is_done: bool = False
    #: Whether its scheduler launches nothing after `ends_at`, not even what was missed.
    is_over_at_end: bool = False
    #: Whether it came into its store from the code of an app.
    from_code: bool = False
    #: How the row differs from the original.
    remarks: tuple[str, ...] = ()


#: What reading a schedule raises that isn't shaped as its scheduler makes it.
_MALFORMED = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Unimportable:
    """A schedule that can't become a row, and why."""

    origin: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """The contents of a store."""

    #: The scheduler that it belongs to, and its location, without a password.
    beat: str
    place: str
    arrivals: list[Arrival] = field(default_factory=list)
    refusals: list[Unimportable] = field(default_factory=list)
    #: Remarks on the store as a whole.
    notes: list[str] = field(default_factory=list)
    #: How people stop it; `None` for "stop" and its name.
    stop: str | None = None

    def take(self, make: Callable[..., Arrival], origin: str, *args: Any) -> None:
        """Adds the arrival that `make(origin, *args)` returns, or why it can't be made."""
        try:
            self.arrivals.append(make(origin, *args))
        except (Unmovable, PgbeatError) as error:
            self.refusals.append(Unimportable(origin, str(error)))
        except _MALFORMED as error:
            reason = f"it can't be read: {type(error).__name__}: {error}"
            self.refusals.append(Unimportable(origin, reason))


def names(origins: Iterable[str]) -> dict[str, str]:
    """Returns the row's name for each name of another store: the same if a row may have it.

    Slashes and control characters become dashes. If that makes two names equal, the changed ones
    get a digest of the original.
    """
    cleaned = {origin: _cleaned(origin) for origin in origins}
    count = Counter(cleaned.values())
    return {
        origin: name if name == origin or count[name] == 1 else told_apart(name, origin).strip()
        for origin, name in cleaned.items()
    }


def origins(owned: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the names of schedules, each with its owner; before it the owner, if several have it.

    So a name in another namespace, or of another user, is told apart.
    """
    count = Counter(name for _, name in owned)
    return [name if count[name] == 1 else f"{owner}/{name}" for owner, name in owned]


def _cleaned(origin: str) -> str:
    name = re.sub(r"[/\x00-\x1f\x7f-\x9f]", "-", row_name(origin)).strip()
    return name or told_apart("", origin)


def arguments(args: Any, kwargs: Any) -> dict[str, Any]:
    """Returns the columns `args` and `kwargs`, in the JSON that Celery's serializer sends.

    So times, UUIDs and decimals keep their types. Raises `Unmovable`.
    """
    values = {"args": _as_json("args", args or []), "kwargs": _as_json("kwargs", kwargs or {})}
    for name, kind, noun in (("args", list, "array"), ("kwargs", dict, "object")):
        if not isinstance(values[name], kind):
            raise Unmovable(f"its {name} is no JSON {noun}: {_short(values[name])}")
    if placeholders.in_use((values["args"], values["kwargs"])):  # the other beat has none
        values = {name: placeholders.escape(value) for name, value in values.items()}
    return values


def publishing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns `queue` and `options`. Raises `Unmovable` for an invalid option."""
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
        copied = as_json(value)
        storable_json(copied)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unmovable(f"its {name} can't be said in JSON: {error}") from None
    return copied


def text_of_json(name: str, text: Any, empty: str) -> Any:
    """Returns the value of a column that holds JSON as text. Raises `Unmovable`."""
    try:
        return json.loads(text or empty)
    except (ValueError, RecursionError):
        raise Unmovable(f"its {name} is no JSON: {_short(text)}") from None


def task_name(value: Any) -> str:
    """Returns the task's name. Raises `Unmovable` without one."""
    if not isinstance(value, str) or not value.strip():
        raise Unmovable("it has no task")
    return value


def aware(moment: datetime, zone: Any = UTC) -> datetime:
    """Returns the time with a zone: `zone`, if it has none itself."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)


def before(moment: datetime) -> datetime:
    """Returns the last instant before a time."""
    return moment - TICK


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
