"""Converts Celery's entries (`beat_schedule`, `add_periodic_task`) to schedules, and back."""

import copy
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha1
from typing import Any

from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import ParseException, crontab, maybe_schedule, schedule

from pgbeat.config import Settings
from pgbeat.errors import ConfigError, InvalidSchedule, InvalidTimetable
from pgbeat.schedules import upstreams
from pgbeat.schedules.files.definitions import circles
from pgbeat.schedules.files.fields import FIELDS
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.sync import MAY_GIVE, CodeEntry, faithful
from pgbeat.timetables import parse_cron, zone


def built_in(app: Celery) -> dict[str, Any]:
    """Returns Celery's own entries: the cleanup of results, if the result backend needs it."""
    if not app.conf.result_expires or app.backend.supports_autoexpire:
        return {}
    return {
        "celery.backend_cleanup": {
            "task": "celery.backend_cleanup",
            "schedule": crontab("0", "4", "*"),
            "options": {"expires": 12 * 3600},
        }
    }


def zone_name(app: Celery) -> str:
    """Returns the name of the app's time zone."""
    return str(getattr(app.timezone, "key", None) or app.timezone)


def app_name(app: Celery, settings: Settings) -> str | None:
    """Returns the app's name in the rows of its entries; `None` if it has none."""
    return settings.app or app.main or None


def from_app(app: Celery, defaults: Mapping[str, Any]) -> list[CodeEntry]:
    """Returns the entries of the app's code, and those of `defaults` (Celery's own)."""
    entries = {**defaults, **app.conf.beat_schedule}
    converted = [code_entry(app, name, entry) for name, entry in entries.items()]
    for circle in circles({e.name: upstreams(e.given.get("after")) for e in converted}):
        path = " after ".join([*circle, circle[0]])
        raise ConfigError(f"beat_schedule: after goes in a circle: {path}")
    return converted


def code_entry(app: Celery, name: str, entry: Any) -> CodeEntry:
    """Converts one entry of `beat_schedule`: a mapping or a `ScheduleEntry`.

    What a row can't express (other schedule classes, lazy or non-JSON arguments) stays in the
    code, where the entry's name finds it.
    """
    fields = dict(entry)
    task = fields.get("task")
    given = _given(name, fields)
    if not task or (fields.get("schedule") is None) is ("after" not in given):
        raise ConfigError(f"beat_schedule[{name!r}]: it needs a task, and a schedule or after")
    cron, every = None, None
    if "after" not in given:
        cron, every = _timetable(app, fields["schedule"], bool(fields.get("relative")))
    kinds = {"args": list, "kwargs": dict, "options": dict}
    try:
        values = {key: faithful(kind(fields.get(key) or ())) for key, kind in kinds.items()}
    except ValueError:
        values = {"args": None, "kwargs": {}, "options": {}}
    timezone = _zone_name(app) if cron else None
    values["enabled"] = bool(fields.get("enabled", True))
    values["paused"] = bool(fields.get("paused", False))
    return CodeEntry(row_name(name), str(task), cron, every, timezone, **values, given=given)


def _given(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns that an entry may have beside Celery's fields. Raises `ConfigError`."""
    given = {key: fields[key] for key in MAY_GIVE if fields.get(key) is not None}
    for key, value in given.items():
        plain = value.total_seconds() if isinstance(value, timedelta) else value
        try:
            given[key] = FIELDS[key].kind.read(list(plain) if isinstance(plain, tuple) else plain)
        except ValueError as error:
            raise ConfigError(f"beat_schedule[{name!r}]: {key} {error}") from None
    return given


def row_name(name: Any) -> str:
    """Returns an entry's name if a row can have it, else a shorter one with a digest.

    A name may be too long (Celery names a periodic task by its `repr`), empty, only dots, or
    contain characters that Postgres can't store.
    """
    text = str(name)
    plain = text.encode(errors="replace").decode().replace("\0", "?")
    if plain == text and text.strip() not in ("", ".", "..") and len(text) <= 200:
        return text
    return told_apart(plain, text)


def told_apart(name: str, origin: str) -> str:
    """Returns the beginning of a name with a digest of the original."""
    digest = sha1(origin.encode(errors="replace"), usedforsecurity=False).hexdigest()
    return f"{name[:180]}…{digest[:12]}"


def _timetable(app: Celery, value: Any, relative: bool) -> tuple[str | None, timedelta | None]:
    value = maybe_schedule(value, relative, app=app)
    if type(value) is schedule and not value.relative and value.nowfun is None:
        fits = timedelta(0) < value.run_every <= timedelta(days=36_500)
        return None, value.run_every if fits else None
    if type(value) is crontab and value.nowfun is None and _zone_name(app):
        # A deadline is Celery's to keep.
        return (None if app.conf.beat_cron_starting_deadline is not None else _cron(value)), None
    return None, None


def _cron(value: crontab) -> str | None:
    """Returns the crontab as a cron expression; `None` if cron would mean something else.

    With both a day and a weekday, Celery requires both to match, and cron either.
    """
    if len(value.day_of_month) < 31 and len(value.day_of_week) < 7:
        return None
    written = []
    for index, (name, field, size, lowest) in enumerate(_CRON_FIELDS):
        numbers, original = getattr(value, name), getattr(value, f"_orig_{name}")
        if len(numbers) == size:
            written.append("*")
            continue
        text = str(original).lower().replace(" ", "")
        try:
            alone = parse_cron(" ".join([*["*"] * index, text, *["*"] * (4 - index)]))
            is_same = set(getattr(alone, field)) == numbers and min(numbers) >= lowest
        except InvalidTimetable:
            is_same = False
        written.append(text if is_same else ",".join(map(str, sorted(numbers))))
    return " ".join(written)


#: A crontab's fields: their names in Celery and in `CronFields`, their size and lowest number.
_CRON_FIELDS = (
    ("minute", "minutes", 60, 0),
    ("hour", "hours", 24, 0),
    ("day_of_month", "days", 31, 1),
    ("month_of_year", "months", 12, 1),
    ("day_of_week", "weekdays", 7, 0),
)


def _zone_name(app: Celery) -> str | None:
    """Returns the IANA name of the app's time zone; `None` if it has none."""
    name = zone_name(app)
    try:
        zone(name)
    except InvalidTimetable:
        return None
    return name


@dataclass(frozen=True, slots=True)
class CodeTimetable:
    """A Celery schedule object, which says whether it is due by pgbeat's clock."""

    app: Celery
    schedule: Any

    def due(self, last_run: datetime, now: datetime) -> tuple[bool, datetime]:
        """Returns whether it is due at `now` after a run at `last_run`, and when to ask again.

        Raises `InvalidSchedule` if the code can't say.
        """
        clocked = copy.copy(self.schedule)
        clocked.app = self.app
        local = now.astimezone(self.app.timezone)
        clocked.nowfun = lambda: local
        try:
            is_due, seconds = clocked.is_due(last_run.astimezone(self.app.timezone))
            return bool(is_due), now + timedelta(seconds=max(0.001, float(seconds)))
        except Exception as error:
            name = f"{type(clocked).__name__}.is_due"
            raise InvalidSchedule(f"{name}: {type(error).__name__}: {error}") from error

    def next_after(self, moment: datetime) -> datetime | None:
        """Returns when to ask first after a run at `moment`."""
        return self.due(moment, moment)[1]

    def previous(self, moment: datetime) -> datetime | None:
        """Returns `None`: Celery's schedules don't look back."""
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """Returns 0: only the code knows what was missed."""
        return 0


def code_timetable(app: Celery, row: Schedule, defaults: Mapping[str, Any]) -> CodeTimetable:
    """Returns the timetable of a row that leaves it to the code. Raises `InvalidSchedule`."""
    fields = _fields(app, row, defaults)
    relative = bool(fields.get("relative"))
    return CodeTimetable(app, maybe_schedule(fields["schedule"], relative, app=app))


def code_arguments(
    app: Celery, row: Schedule, defaults: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Returns the arguments and options of a row that leaves them to the code.

    Lazy arguments are called.
    """
    fields = _fields(app, row, defaults)
    return (
        [_called(value) for value in fields.get("args") or ()],
        {key: _called(value) for key, value in (fields.get("kwargs") or {}).items()},
        dict(fields.get("options") or {}),
    )


def _called(value: Any) -> Any:
    return value() if isinstance(value, BeatLazyFunc) else value


def _fields(app: Celery, row: Schedule, defaults: Mapping[str, Any]) -> dict[str, Any]:
    configured = {**defaults, **app.conf.beat_schedule}
    for name, entry in configured.items():
        if row_name(name) == row.name:
            return dict(entry)
    raise InvalidSchedule(
        f"schedule {row.name!r} leaves its timetable or arguments to the app's beat_schedule, "
        "and this app has no entry of that name"
    )


def as_celery_entries(app: Celery, rows: Iterable[Schedule]) -> dict[str, ScheduleEntry]:
    """Returns rows as Celery's `ScheduleEntry` objects, for users of `scheduler.schedule`."""
    entries = {}
    for row in rows:
        timetable: Any = None
        if row.every is not None:
            timetable = schedule(row.every, app=app)
        elif row.cron is not None:
            with suppress(ValueError, ParseException):  # Celery's parser doesn't know it
                minute, hour, day, month, weekday = row.cron.split()
                timetable = crontab(minute, hour, weekday, day, month, app=app)
        elif not row.has_timetable:
            with suppress(InvalidSchedule):
                timetable = code_timetable(app, row, {}).schedule
        entries[row.name] = ScheduleEntry(
            name=row.name,
            task=row.task,
            schedule=timetable or schedule(timedelta(days=1), app=app),
            args=tuple(row.args or ()),
            kwargs=row.kwargs,
            options=dict(row.options, queue=row.queue) if row.queue else row.options,
            last_run_at=row.last_run,
            app=app,
        )
    return entries
