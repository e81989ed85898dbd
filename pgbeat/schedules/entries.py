"""Celery's own entries (`beat_schedule`, `add_periodic_task`) as schedules, and back."""

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
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.sync import CodeEntry, faithful
from pgbeat.timetables import parse_cron, zone


def built_in(app: Celery) -> dict[str, Any]:
    """Celery's own entries: the cleanup of results, where the result backend needs one."""
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
    """Returns the name that the rows of the app's entries are recorded under; `None` where it has
    none, so that they can't be told from another app's."""
    return settings.app or app.main or None


def from_app(app: Celery, defaults: Mapping[str, Any]) -> list[CodeEntry]:
    """What the app schedules in code, with `defaults` (Celery's own entries) beneath it."""
    entries = {**defaults, **app.conf.beat_schedule}
    return [code_entry(app, name, entry) for name, entry in entries.items()]


def code_entry(app: Celery, name: str, entry: Any) -> CodeEntry:
    """One entry of `beat_schedule`: a mapping or a `ScheduleEntry`.

    What a row can't say (other schedule classes, lazy or non-JSON arguments) stays in the code,
    and the row refers to it by the entry's name.
    """
    fields = dict(entry)
    task = fields.get("task")
    if not task or fields.get("schedule") is None:
        raise ConfigError(f"beat_schedule[{name!r}]: it needs a task and a schedule")
    cron, every = _timetable(app, fields["schedule"], bool(fields.get("relative")))
    try:
        values = [
            faithful(list(fields.get("args") or ())),
            faithful(dict(fields.get("kwargs") or {})),
            faithful(dict(fields.get("options") or {})),
        ]
    except ValueError:
        values = [None, {}, {}]
    return CodeEntry(
        row_name(name), str(task), cron, every, _zone_name(app) if cron else None, *values
    )


def row_name(name: Any) -> str:
    """An entry's name as a row can have it: shorter, with a digest, where it is too long (Celery
    takes a periodic task's `repr` for a name), empty, dots, or no text to Postgres."""
    text = str(name)
    plain = text.encode(errors="replace").decode().replace("\0", "?")
    if plain == text and text.strip() not in ("", ".", "..") and len(text) <= 200:
        return text
    digest = sha1(text.encode(errors="replace"), usedforsecurity=False).hexdigest()
    return f"{plain[:180]}…{digest[:12]}"


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
    """The crontab as a cron expression; `None` where cron means something else by it.

    Celery wants day and weekday both to match, cron either: with both given it stays in the code.
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
    """The app's time zone by its IANA name; `None` for one that has none."""
    name = getattr(app.timezone, "key", None) or str(app.timezone)
    try:
        zone(name)
    except InvalidTimetable:
        return None
    return name


@dataclass(frozen=True, slots=True)
class CodeTimetable:
    """A Celery schedule object: it is asked whether it is due, with the clock that we give it."""

    app: Celery
    schedule: Any

    def due(self, last_run: datetime, now: datetime) -> tuple[bool, datetime]:
        """Whether it is due at `now`, having run at `last_run`, and when to ask again."""
        clocked = copy.copy(self.schedule)
        clocked.app = self.app
        local = now.astimezone(self.app.timezone)
        clocked.nowfun = lambda: local
        is_due, seconds = clocked.is_due(last_run.astimezone(self.app.timezone))
        return bool(is_due), now + timedelta(seconds=max(0.001, float(seconds)))

    def next_after(self, moment: datetime) -> datetime | None:
        """When to ask first, had it run at `moment`."""
        return self.due(moment, moment)[1]

    def previous(self, moment: datetime) -> datetime | None:
        """`None`: Celery's schedules don't look back."""
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """0: only the code knows what was missed."""
        return 0


def code_timetable(app: Celery, row: Schedule, defaults: Mapping[str, Any]) -> CodeTimetable:
    """The timetable of a row that leaves it to the code. Raises `InvalidSchedule`."""
    fields = _fields(app, row, defaults)
    relative = bool(fields.get("relative"))
    return CodeTimetable(app, maybe_schedule(fields["schedule"], relative, app=app))


def code_arguments(
    app: Celery, row: Schedule, defaults: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Arguments and options of a row that leaves them to the code, lazy ones called."""
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
    """Rows as Celery's `ScheduleEntry` objects, for those who look at `scheduler.schedule`."""
    entries = {}
    for row in rows:
        timetable: Any = None
        if row.every is not None:
            timetable = schedule(row.every, app=app)
        elif row.cron is not None:
            with suppress(ValueError, ParseException):  # what Celery's parser has no word for
                minute, hour, day, month, weekday = row.cron.split()
                timetable = crontab(minute, hour, weekday, day, month, app=app)
        elif row.source == "code":
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
