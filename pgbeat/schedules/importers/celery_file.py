"""Reads the `celerybeat-schedule` of Celery's PersistentScheduler, without running its code.

The file is a pickle, which can name any code: `pickles` loads none of it, not even Celery's.
"""

import dbm
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pgbeat.errors import PgbeatError
from pgbeat.schedules.importers import imported, pickles, timetables
from pgbeat.schedules.importers.timetables import CRONTAB_FIELDS, Unmovable, When

BEAT = "Celery"
#: Celery's default name for the file (`beat_schedule_filename`).
DEFAULT = "celerybeat-schedule"
#: What the kinds of dbm append to the name.
_SUFFIXES = (".db", ".dat", ".dir", ".bak")


def read(path: str) -> Mapping[str, Any]:
    """Returns the file's values of `entries`, `tz` and `utc_enabled`. Raises `PgbeatError`.

    The file may be read-only.
    """
    file = _file(path)
    try:
        with dbm.open(file, "r") as store:
            return {
                key: pickles.loads(store[key.encode()])
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
        result.take(_arrival, str(name), entry, zone, from_code)
    return result


def _timezone(contents: Mapping[str, Any]) -> str | None:
    """Returns the file's zone; `None` for the local zone of a server, whose name is not in it."""
    zone = contents.get("tz")
    if zone is None:
        return "UTC" if contents.get("utc_enabled", True) else None
    return pickles.zone_name(zone)


def _arrival(name: str, entry: Any, zone: str | None, from_code: bool) -> imported.Arrival:
    if not isinstance(entry, pickles.Named) or len(entry.args) != 8:
        raise Unmovable(f"it is {pickles.shown(entry)}, and no entry of Celery's own kind")
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
    if pickles.path_of(entry) != "celery.beat.ScheduleEntry":
        raise Unmovable(f"it is a {pickles.path_of(entry)}, and no entry of Celery's own kind")
    for value in (args, kwargs, options):
        pickles.refuse_code(value)
    what = {**imported.arguments(list(args or ()), kwargs), **imported.publishing(options or {})}
    return replace(arrival, what={**arrival.what, **what}, when=_when(schedule, zone))


def _when(schedule: Any, zone: str | None) -> When:
    kinds: dict[str, Callable[[pickles.Named, str | None], When]] = {
        "celery.schedules.crontab": _crontab,
        "celery.schedules.schedule": _interval,
        "celery.schedules.solar": _solar,
    }
    kind = kinds.get(pickles.path_of(schedule))
    if kind is None:
        said = pickles.shown(schedule)
        raise Unmovable(f"its schedule is {said}, whose times only that code knows")
    return kind(schedule, zone)


def _crontab(schedule: pickles.Named, zone: str | None) -> When:
    _refuse_clock((schedule.state or {}).get("nowfun"))
    if zone is None:
        raise Unmovable(timetables.LOCAL)
    return timetables.of_crontab(zone, dict(zip(CRONTAB_FIELDS, schedule.args, strict=False)))


def _interval(schedule: pickles.Named, zone: str | None) -> When:
    every, relative, clock = (*schedule.args, None, None, None)[:3]
    _refuse_clock(clock)
    if not isinstance(every, timedelta):
        raise Unmovable(f"its interval is {pickles.shown(every)}")
    return timetables.of_interval(every, relative=bool(relative), timezone=zone)


def _solar(schedule: pickles.Named, zone: str | None) -> When:
    event, latitude, longitude = (*schedule.args, None, None, None)[:3]
    return timetables.of_solar(event, latitude, longitude)


def _refuse_clock(clock: Any) -> None:
    if clock is not None:
        raise Unmovable(f"its schedule has its own clock, {pickles.shown(clock)}")
