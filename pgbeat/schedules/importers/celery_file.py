"""Reads the `celerybeat-schedule` of Celery's PersistentScheduler, without running its code.

The file is a pickle, which can name any code. Only times, zones, numbers and the like are created
from it; instances of all other classes, Celery's included, become a `Named` that keeps their
arguments.
"""

import dbm
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from pgbeat.errors import PgbeatError
from pgbeat.schedules.importers import imported, timetables
from pgbeat.schedules.importers.timetables import CRONTAB_FIELDS, Unmovable, When

BEAT = "Celery"
#: Celery's default name for the file (`beat_schedule_filename`).
DEFAULT = "celerybeat-schedule"
#: What the kinds of dbm append to the name.
_SUFFIXES = (".db", ".dat", ".dir", ".bak")


class Named:
    """Stands for an instance of a class that is not loaded."""

    path = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> "Named":
        """Keeps its arguments."""
        instance = super().__new__(cls)
        instance.args, instance.state = args, None
        return instance

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        """Ignores the items of a subclass of list."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignores the items of a subclass of dict."""


def _attribute(owner: Any, name: str) -> Any:
    """Stands for `getattr`, by which ZoneInfo pickles its constructor."""
    if owner is ZoneInfo and name == "_unpickle":
        return _zone
    raise pickle.UnpicklingError(f"it asks for {name!r} of {_shown(owner)}")


def _zone(name: Any = "UTC", *rest: Any) -> Any:
    """Returns the zone of that name, from zoneinfo's pickles or pytz's."""
    return ZoneInfo(str(name))


#: The functions that a pickle may call, by what it calls them.
_MADE: dict[tuple[str, str], Any] = {
    ("builtins", "getattr"): _attribute,
    ("__builtin__", "getattr"): _attribute,
    ("zoneinfo", "ZoneInfo"): ZoneInfo,
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),  # bytes in old pickles
    ("pytz", "_p"): _zone,
    ("pytz", "_UTC"): _zone,
}
_PLAIN = {
    "datetime": {"datetime", "date", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "uuid": {"UUID"},
    "collections": {"OrderedDict"},
    "builtins": {"set", "frozenset"},
    "__builtin__": {"set", "frozenset"},
}


class Unpickler(pickle.Unpickler):
    """Creates plain values and `Named`s, and runs nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns the class, or its stand-in."""
        if (module, name) in _MADE:
            return _MADE[module, name]
        if name in _PLAIN.get(module, ()):
            return super().find_class(module, name)
        return type("Named", (Named,), {"path": f"{module}.{name}"})


def read(path: str) -> Mapping[str, Any]:
    """Returns the file's values of `entries`, `tz` and `utc_enabled`. Raises `PgbeatError`.

    The file may be read-only.
    """
    file = _file(path)
    try:
        with dbm.open(file, "r") as store:
            return {
                key: Unpickler(io.BytesIO(store[key.encode()])).load()
                for key in ("entries", "tz", "utc_enabled")
                if key.encode() in store
            }
    except dbm.error as error:
        raise PgbeatError(
            f"{path} can't be opened: {error}; stop the celery beat that has it open, and read "
            "it with a Python that has the same kinds of dbm as Celery's"
        ) from None
    except Exception as error:  # anything may come of a damaged pickle
        problem = f"{type(error).__name__}: {error}".rstrip(": ")
        raise PgbeatError(f"{path} is no schedule of celery beat's: {problem}") from None


def _file(path: str) -> str:
    """Returns the name by which dbm knows the file. Raises `PgbeatError` if there is no file."""
    shorter = [path.removesuffix(suffix) for suffix in _SUFFIXES if path.endswith(suffix)]
    for name in (path, *shorter):
        if dbm.whichdb(name):
            return name
    if Path(path).exists():
        raise PgbeatError(f"{path} is no schedule of celery beat's: dbm doesn't know its kind")
    raise PgbeatError(
        f"there is no file {path}; give it with --from (celery beat's -s, {DEFAULT} by default)"
    )


def inventory(
    path: str, contents: Mapping[str, Any], *, timezone: str | None = None, from_code: bool = False
) -> imported.Inventory:
    """Returns the file's entries as arrivals. `timezone` overrides the file's own."""
    result = imported.Inventory(BEAT, path)
    zone = timezone or _timezone(contents)
    entries = contents.get("entries")
    if not isinstance(entries, dict):
        raise PgbeatError(f"{path} is no schedule of celery beat's: it has no entries")
    for name, entry in entries.items():
        try:
            result.arrivals.append(_arrival(str(name), entry, zone, from_code))
        except Unmovable as error:
            result.refusals.append(imported.Unimportable(str(name), str(error)))
    return result


def _timezone(contents: Mapping[str, Any]) -> str | None:
    """Returns the file's zone; `None` for the local zone of a server, whose name is not in it."""
    zone = contents.get("tz")
    if zone is None:
        return "UTC" if contents.get("utc_enabled", True) else None
    key = getattr(zone, "key", None) or str(zone)
    return key if isinstance(zone, str | tzinfo) else None


def _arrival(name: str, entry: Any, zone: str | None, from_code: bool) -> imported.Arrival:
    if not isinstance(entry, Named) or len(entry.args) != 8:
        raise Unmovable(f"it is {_shown(entry)}, and no entry of Celery's own kind")
    _, task, last_run, count, schedule, args, kwargs, options = entry.args
    arrival = imported.Arrival(
        origin=name,
        what={"task": imported.task_name(task)},
        when=When({}),
        last_run=imported.aware(last_run) if isinstance(last_run, datetime) else None,
        run_count=count if isinstance(count, int) else 0,
        from_code=from_code or task == imported.CLEANUP,
    )
    if arrival.from_code:  # the app's code has the rest
        return arrival
    if _path(entry) != "celery.beat.ScheduleEntry":
        raise Unmovable(f"it is a {_path(entry)}, and no entry of Celery's own kind")
    for value in (args, kwargs, options):
        _refuse_code(value)
    what = {**imported.arguments(list(args or ()), kwargs), **imported.publishing(options or {})}
    return replace(arrival, what={**arrival.what, **what}, when=_when(schedule, zone))


def _when(schedule: Any, zone: str | None) -> When:
    kinds: dict[str, Callable[[Named, str | None], When]] = {
        "celery.schedules.crontab": _crontab,
        "celery.schedules.schedule": _interval,
        "celery.schedules.solar": _solar,
    }
    kind = kinds.get(_path(schedule))
    if kind is None:
        raise Unmovable(f"its schedule is {_shown(schedule)}, whose times only that code knows")
    return kind(schedule, zone)


def _crontab(schedule: Named, zone: str | None) -> When:
    _refuse_clock((schedule.state or {}).get("nowfun"))
    if zone is None:
        raise Unmovable("it is in the local time zone of a server; give its name with --timezone")
    return timetables.of_crontab(zone, dict(zip(CRONTAB_FIELDS, schedule.args, strict=False)))


def _interval(schedule: Named, zone: str | None) -> When:
    every, relative, clock = (*schedule.args, None, None, None)[:3]
    _refuse_clock(clock)
    if not isinstance(every, timedelta):
        raise Unmovable(f"its interval is {_shown(every)}")
    return timetables.of_interval(every, relative=bool(relative), timezone=zone)


def _solar(schedule: Named, zone: str | None) -> When:
    event, latitude, longitude = (*schedule.args, None, None, None)[:3]
    return timetables.of_solar(event, latitude, longitude)


def _refuse_clock(clock: Any) -> None:
    if clock is not None:
        raise Unmovable(f"its schedule has its own clock, {_shown(clock)}")


def _refuse_code(value: Any) -> None:
    """Raises `Unmovable` for arguments that hold something of the app's code."""
    if _path(value):
        raise Unmovable(f"its arguments hold {_shown(value)}, which only the app's code can make")
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple | set | frozenset):
        for child in children:
            _refuse_code(child)


def _path(value: Any) -> str:
    """Returns the dotted name of a class that is not loaded; "" for any other value."""
    kind = value if isinstance(value, type) else type(value)
    return kind.path if issubclass(kind, Named) else ""


def _shown(value: Any) -> str:
    return _path(value) or repr(value)[:80]
