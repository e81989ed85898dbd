"""Plans an import: compares arrivals with the existing rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pgbeat.errors import PgbeatError
from pgbeat.schedules.entries import row_name
from pgbeat.schedules.importers.imported import BY_HAND, CLEANUP, Arrival, Inventory, before, names
from pgbeat.schedules.model import Schedule
from pgbeat.timetables import Timetable

#: The `source` of imported rows.
SOURCE = "import"
#: The columns that an import sets, apart from run state.
COLUMNS = (
    "task", "args", "kwargs", "options", "queue", "cron", "every", "once_at", "solar", "rrule",
    "timezone", "starts_at", "ends_at", "max_runs", "description",
)  # fmt: skip
_EMPTY: dict[str, Any] = dict.fromkeys(COLUMNS) | {"args": [], "kwargs": {}, "options": {}}


class Action(StrEnum):
    """What the import does with an arrival."""

    ADD = "add"
    REPLACE = "replace"
    #: The row exists; its run state is updated.
    CARRY_OVER = "carry over"
    NOTHING = "nothing"
    #: There is a row of that name that an import doesn't change.
    CONFLICT = "conflict"
    #: It can't become a row.
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class ImportStep:
    """What the import does with one arrival, and why, if it does nothing."""

    action: Action
    #: Its name in the other store, and that of its row.
    origin: str
    name: str | None = None
    reason: str | None = None
    remarks: tuple[str, ...] = ()
    #: The row's values: all of them, or those that change.
    values: Mapping[str, Any] = field(default_factory=dict)
    #: The existing row.
    row: Schedule | None = None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a plan depends on, apart from the arrivals."""

    #: The database's clock.
    now: datetime
    #: The zone of schedules that name none.
    timezone: str = "UTC"
    #: The existing rows by name, including those of the app's code.
    rows: Mapping[str, Schedule] = field(default_factory=dict)
    #: Names of the app's own entries; `None` without an app.
    code: frozenset[str] | None = None
    #: Those of them whose rows have just been made.
    fresh: frozenset[str] = frozenset()
    #: Tasks that the app has registered; `None` without an app.
    tasks: frozenset[str] | None = None
    #: Returns the timetable of a row that leaves it to the app's code; may raise `PgbeatError`.
    code_timetable: Callable[[Schedule], Timetable] | None = None
    #: Whether rows of an earlier import may be replaced.
    overwrite: bool = False


def plan(inventory: Inventory, now: Circumstances) -> list[ImportStep]:
    """Returns a step for each schedule of the store."""
    named = names(arrival.origin for arrival in inventory.arrivals)
    steps = [_step(arrival, named[arrival.origin], now) for arrival in inventory.arrivals]
    refused = [ImportStep(Action.REFUSE, r.origin, reason=r.reason) for r in inventory.refusals]
    return [*steps, *refused]


def _step(arrival: Arrival, name: str, now: Circumstances) -> ImportStep:
    code_name = row_name(arrival.origin)
    of_code = now.rows.get(code_name)
    if (of_code is not None and of_code.source == "code") or code_name in (now.code or ()):
        return _carried(arrival, code_name, of_code, now)
    step = ImportStep(Action.ADD, arrival.origin, name, remarks=arrival.remarks)
    if arrival.from_code:
        return replace(step, action=Action.REFUSE, name=None, reason=_stays(arrival, now))
    row = now.rows.get(name)
    if row is not None and row.source != SOURCE:
        origin = {"code": "by the app's code", "file": "by a file"}.get(row.source, "elsewhere")
        reason = f"there is a schedule of that name, made {origin} (source {row.source!r})"
        return replace(step, action=Action.CONFLICT, reason=reason, row=row)
    try:
        values = _values(arrival, row, now)
    except PgbeatError as error:
        return replace(step, action=Action.REFUSE, reason=str(error), row=row)
    if now.tasks is not None and values["task"] not in now.tasks:
        unknown = f"task {values['task']!r} is not registered in the app: its ticks will fail"
        step = replace(step, remarks=(*step.remarks, unknown))
    if row is None:
        return replace(step, values=values)
    return _again(replace(step, row=row), arrival, values, row, now)


def _again(
    step: ImportStep, arrival: Arrival, values: Mapping[str, Any], row: Schedule, now: Circumstances
) -> ImportStep:
    """Returns the step for a schedule that was imported before."""
    differing = _differences(arrival, values, row)
    ran_there = _is_later(arrival, row) or _is_due_later(arrival, values, row)
    # People's changes to the row since then stand, unless it ran there after them.
    goes_off = row.enabled and not values["enabled"]
    is_ours = ran_there or row.updated_at == row.created_at
    if (goes_off and not is_ours and arrival.disabled_reason in BY_HAND) or (
        arrival.disabled_reason is None and not row.enabled and row.disabled_reason in BY_HAND
    ):
        differing.append("enabled")
    if differing and now.overwrite:
        return replace(step, action=Action.REPLACE, values=values)
    if differing:
        reason = f"it was imported before and differs in {', '.join(differing)}; --overwrite "
        return replace(step, action=Action.CONFLICT, reason=reason + "replaces it")
    keys: list[str] = []
    if row.enabled and ran_there:
        keys += ["last_run", "run_count", "next_run", "starts_at"]
    if goes_off and is_ours:
        keys += ["enabled", "disabled_reason", "completed_at"]
    if not keys:
        return replace(step, action=Action.NOTHING)
    changed = {key: values[key] for key in keys}
    return replace(step, action=Action.CARRY_OVER, values=changed)


def _stays(arrival: Arrival, now: Circumstances) -> str:
    """Returns why a schedule from an app's code is not imported."""
    if arrival.what["task"] == CLEANUP:
        return "it is Celery's own; pgbeat's beat makes it if the results need it"
    if now.code is not None:
        return "the app's beat_schedule has it no longer"
    return (
        "it is of the app's code, and comes with it when pgbeat's beat starts; with -A APP its "
        "last run is carried over"
    )


def _is_later(arrival: Arrival, row: Schedule) -> bool:
    return arrival.last_run is not None and (
        row.last_run is None or arrival.last_run > row.last_run
    )


def _is_due_later(arrival: Arrival, values: Mapping[str, Any], row: Schedule) -> bool:
    """Returns whether a schedule of a store without last runs has moved on there."""
    if arrival.last_run is not None or arrival.since is None or row.last_run is not None:
        return False
    next_run = values["next_run"]
    return next_run is not None and row.next_run is not None and next_run > row.next_run


def _carried(arrival: Arrival, name: str, row: Schedule | None, now: Circumstances) -> ImportStep:
    """Returns the step for a schedule that the app's code makes: only its run state changes."""
    step = ImportStep(Action.NOTHING, arrival.origin, name, row=row)
    if row is None or row.source != "code":
        reason = "the app's code has it too, and there is a row of that name, made elsewhere"
        return replace(step, action=Action.CONFLICT, reason=reason)
    values: dict[str, Any] = {}
    if arrival.disabled_reason is not None and row.enabled and row.last_run is None:
        if name not in now.fresh:
            reason = f"it is {arrival.disabled_reason}, and enabled here; `pgbeat disable` it"
            return replace(step, action=Action.CONFLICT, reason=reason)
        values |= {"enabled": False, "disabled_reason": arrival.disabled_reason}
    if _is_later(arrival, row):
        values |= {"last_run": arrival.last_run, "run_count": arrival.run_count}
        if row.every is not None and row.starts_at is None:
            values["starts_at"] = arrival.last_run
        ran = row._replace(**values)
        try:
            timetable = ran.timetable(now.timezone)
            if timetable is None and now.code_timetable is not None:
                timetable = now.code_timetable(ran)
            if timetable is None:
                raise PgbeatError("its timetable is in the app's code; give the app with -A APP")
            values["next_run"] = timetable.next_after(ran.last_run or now.now)
        except PgbeatError as error:
            return replace(step, action=Action.REFUSE, reason=str(error))
    return replace(step, action=Action.CARRY_OVER, values=values) if values else step


def _values(arrival: Arrival, row: Schedule | None, now: Circumstances) -> dict[str, Any]:
    """Returns the row's values, `next_run` counted from the last run. Raises `PgbeatError`."""
    last_run, run_count = arrival.last_run, arrival.run_count
    if row is not None and row.last_run is not None:
        last_run = max(filter(None, (last_run, row.last_run)))
        run_count = max(run_count, row.run_count)
    base = last_run or arrival.since
    columns = arrival.when.columns
    starts_at = arrival.when.starts_at(base or (now.now if arrival.when.unit else None))
    ends_at = arrival.what.get("ends_at")
    if starts_at is not None and ends_at is not None and ends_at < starts_at:
        starts_at = None  # the schedule has ended anyway
    values = {**_EMPTY, **arrival.what, **columns, "starts_at": starts_at}
    if row is not None:  # most stores have no descriptions: one that was written here stays
        values["description"] = arrival.what.get("description") or row.description
    reason, next_run, is_done = arrival.disabled_reason, None, arrival.is_done
    if reason is None and arrival.is_over_at_end and ends_at is not None and ends_at < now.now:
        reason, is_done = _ended(values, now), True
    timetable = _timetable(values, now)
    if starts_at is not None and (base is None or base < starts_at):
        base = before(starts_at)
    if reason is None and base is not None:
        next_run = timetable.next_after(base)
        max_runs = values["max_runs"]
        if next_run is None or (max_runs is not None and run_count >= max_runs):
            reason, next_run, is_done = _ended(values, now), None, True
    return {
        **values,
        "last_run": last_run,
        "run_count": run_count,
        "next_run": next_run,
        "enabled": reason is None,
        "disabled_reason": reason,
        "completed_at": now.now if is_done else None,
    }


def _ended(values: Mapping[str, Any], now: Circumstances) -> str:
    ends_at = values["ends_at"]
    if ends_at is not None and ends_at < now.now:
        return f"done: it ended at {ends_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return "done: its timetable has no time left"


def _timetable(values: Mapping[str, Any], now: Circumstances) -> Timetable:
    """Returns the timetable of a row that doesn't exist yet. Raises `PgbeatError`."""
    blank: dict[str, Any] = dict.fromkeys(Schedule._fields)
    timetable = Schedule(**{**blank, "created_at": now.now, **values}).timetable(now.timezone)
    if timetable is None:
        raise PgbeatError("it has no timetable")
    return timetable


def _differences(arrival: Arrival, values: Mapping[str, Any], row: Schedule) -> list[str]:
    """Returns the columns that differ from the other store, apart from run state."""
    return [
        name
        for name in dict.fromkeys((*COLUMNS, *arrival.what))
        if values[name] != getattr(row, name)
        and not (name == "starts_at" and arrival.when.from_last_run)
    ]
