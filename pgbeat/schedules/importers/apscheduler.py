"""Reads the SQL job store of APScheduler 3, without loading its code or the app's."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import URL

from pgbeat.errors import PgbeatError
from pgbeat.schedules.importers import databases, imported, pickles, timetables
from pgbeat.schedules.importers.timetables import Unmovable, When
from pgbeat.timetables import TICK
from pgbeat.timetables.rrule_parts import WEEKDAYS

BEAT = "APScheduler"
#: The default of its SQLAlchemyJobStore.
TABLE = "apscheduler_jobs"
_HINT = "--from names another database, --table another table, --schema another schema"
#: The fields of a cron trigger that a row's cron has, and their lowest and highest numbers.
_FIELDS = {
    "minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "day_of_week": (0, 6),
    "second": (0, 59),
}  # fmt: skip
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

Field = list[dict[str, Any]]


def read(url: str | URL, schema: str | None = None, table: str = TABLE) -> list[tuple[str, bytes]]:
    """Returns the jobs: their ids, and their states as pickles. Raises `PgbeatError`."""
    with databases.connected(url) as connection:
        jobs = databases.reflected(connection, schema, table, hint=_HINT)
        if not {"id", "job_state"} <= {*jobs.c.keys()}:
            raise PgbeatError(f"table {table} is no job store of APScheduler 3's; {_HINT}")
        query = select(jobs.c.id, jobs.c.job_state).order_by(jobs.c.id)
        return [(str(name), state) for name, state in connection.execute(query)]


def inventory(
    where: str,
    jobs: list[tuple[str, bytes]],
    *,
    tasks: Mapping[str, str],
    timezone: str | None = None,
) -> imported.Inventory:
    """Returns the jobs as arrivals. `tasks` are those of functions whose names are others.

    `timezone` is for triggers whose zone has no name.
    """
    result = imported.Inventory(BEAT, where)
    unused = set(tasks)
    for name, pickled in jobs:
        result.take(_arrival, name, pickled, tasks, timezone, unused)
    result.notes.extend(f"no job calls {function} (--rename)" for function in sorted(unused))
    return result


def _arrival(
    name: str, pickled: bytes, tasks: Mapping[str, str], timezone: str | None, unused: set[str]
) -> imported.Arrival:
    state = _state(pickled)
    trigger, function, next_run = state["trigger"], state["func"], state["next_run_time"]
    unused.discard(function)
    pickles.refuse_code([state["args"], state["kwargs"]])
    fields = _fields_of(trigger)
    when = _when(trigger, fields, timezone)
    jitter = timedelta(seconds=fields.get("jitter") or 0)
    grace, instances = state["misfire_grace_time"], state["max_instances"]
    remark = f"its max_instances of {instances} is not carried over; a lane limits jobs"
    return imported.Arrival(
        origin=name,
        what={
            "task": tasks.get(function) or function.replace(":", "."),
            **imported.arguments(list(state["args"]), dict(state["kwargs"])),
            "ends_at": fields.get("end_date"),
            "jitter": jitter,
            "overlap": "skip" if instances == 1 else "allow",
            "catch_up": "none" if grace == 1 else "latest" if state["coalesce"] else "all",
            "grace": None if grace in (None, 1) else timedelta(seconds=grace),
        },
        when=when,
        since=None if next_run is None else next_run - _slack(when, jitter),
        disabled_reason=imported.disabled_in(BEAT) if next_run is None else None,
        remarks=(remark,) * (instances > 1),
    )


def _state(pickled: bytes) -> dict[str, Any]:
    try:
        state = pickles.loads(pickled)
    except Exception as error:  # anything may come of a damaged pickle
        raise Unmovable(f"its state can't be read: {type(error).__name__}: {error}") from None
    if not isinstance(state, dict) or not isinstance(state.get("func"), str):
        raise Unmovable("its state is none of APScheduler 3's: it names no function")
    return state


def _slack(when: When, jitter: timedelta) -> timedelta:
    """Returns how far a job's next run may be after the time that its trigger means."""
    every: timedelta | None = when.columns.get("every")
    return jitter + TICK if every is None else every / 2  # it counts from run to run, inexactly


def _fields_of(value: Any) -> dict[str, Any]:
    """Returns the attributes of an object of APScheduler's; those in slots come in a tuple."""
    state = value.state if isinstance(value, pickles.Named) else None
    fields: dict[str, Any] = (state[1] if isinstance(state, tuple) else state) or {}
    return fields


def _when(trigger: Any, fields: Mapping[str, Any], timezone: str | None) -> When:
    kind = pickles.path_of(trigger).removeprefix("apscheduler.triggers.")
    if kind == "date.DateTrigger":
        return When({"once_at": fields["run_date"]})
    if kind not in ("cron.CronTrigger", "interval.IntervalTrigger"):
        raise Unmovable(f"its trigger is {pickles.shown(trigger)}, which no timetable says")
    zone = pickles.zone_name(fields["timezone"]) or timezone
    if zone is None:
        said = pickles.shown(fields["timezone"])
        raise Unmovable(f"its time zone is {said}; give its name with --timezone")
    if kind == "interval.IntervalTrigger":
        every = timetables.of_interval(fields["interval"]).columns
        return When({**every, "timezone": zone, "starts_at": fields["start_date"]})
    when = _cron(zone, {field["name"]: field for field in map(_fields_of, fields["fields"])})
    return When({**when.columns, "starts_at": fields["start_date"]}, when.from_last_run)


def _cron(zone: str, fields: Mapping[str, Mapping[str, Any]]) -> When:
    parts = {name: [_expression(e) for e in field["expressions"]] for name, field in fields.items()}
    for name in ("year", "week"):
        if not _is_every(parts[name]):
            raise Unmovable(f"its trigger names a {name}, which no timetable says; a launcher can")
    days, weekdays = parts["day"], parts["day_of_week"]
    positions = [day for day in days if day["kind"] == "WeekdayPositionExpression"]
    if positions and (len(positions) < len(days) or not _is_every(weekdays)):
        raise Unmovable("its day mixes weekdays of the month with others, which no timetable says")
    if not _is_every(days) and not _is_every(weekdays) and not positions:
        return timetables.of_days(zone, _rule(parts))
    texts = {name: ",".join(map(_text, parts[name])) for name in _FIELDS}
    if positions:
        texts |= {"day": "*", "day_of_week": ",".join(map(_position, positions))}
    elif not _is_every(weekdays):
        numbers = _numbers("day_of_week", weekdays)
        is_range = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
        ends = [numbers[0], numbers[-1]] if is_range else numbers
        texts["day_of_week"] = "-,"[not is_range].join(_DAYS[day] for day in ends)
    seconds = _numbers("second", parts["second"])
    if seconds == [0]:
        del texts["second"]
    else:  # two digits each, so that they can't be taken for weekdays
        texts["second"] = ",".join(f"{n:02}" for n in seconds) if len(seconds) < 60 else "0-59"
    return When({"cron": " ".join(texts.values()), "timezone": zone})


def _expression(value: Any) -> dict[str, Any]:
    return {"kind": pickles.path_of(value).rpartition(".")[2], **_fields_of(value)}


def _is_every(field: Field) -> bool:
    return any(part["kind"] == "AllExpression" and part["step"] in (None, 1) for part in field)


def _rule(parts: Mapping[str, Field]) -> dict[str, Any]:
    """Returns the parts of a rule by which day and weekday must both match."""
    lasts = [-1] if any(day["kind"] == "LastDayOfMonthExpression" for day in parts["day"]) else []
    return {
        "BYMONTH": _numbers("month", parts["month"]),
        "BYMONTHDAY": [*_numbers("day", parts["day"]), *lasts],
        "BYDAY": [WEEKDAYS[day] for day in _numbers("day_of_week", parts["day_of_week"])],
        "BYHOUR": _numbers("hour", parts["hour"]),
        "BYMINUTE": _numbers("minute", parts["minute"]),
        "BYSECOND": _numbers("second", parts["second"]),
    }


def _numbers(name: str, field: Field) -> list[int]:
    """Returns the numbers that a field's ranges contain."""
    low, high = _FIELDS[name]
    numbers: set[int] = set()
    for part in field:
        if "first" in part or part["kind"] == "AllExpression":
            last = part.get("last")
            end = high if last is None else last
            numbers |= {*range(part.get("first", low), end + 1, part["step"] or 1)}
    return sorted(numbers)


def _text(part: Mapping[str, Any]) -> str:
    """Returns an expression as cron writes it."""
    if part["kind"] == "LastDayOfMonthExpression":
        return "L"
    first, last = part.get("first", "*"), part.get("last")
    span = f"{first}" if last in (None, first) else f"{first}-{last}"
    return f"{span}/{part['step']}" if part["step"] else span


def _position(part: Mapping[str, Any]) -> str:
    """Returns `2nd fri` as `fri#2`, and `last fri` as `l5`."""
    number, day = part["option_num"], part["weekday"]
    return f"l{(day + 1) % 7}" if number == 5 else f"{_DAYS[day]}#{number + 1}"
