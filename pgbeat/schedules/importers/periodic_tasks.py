"""Reads the tables that django-celery-beat and sqlalchemy-celery-beat have in common."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, FromClause, Table, select
from sqlalchemy.schema import Column

from pgbeat.jobs.preparing.details import LONGEST_DESCRIPTION
from pgbeat.schedules.importers import databases, imported, timetables
from pgbeat.schedules.importers.timetables import Unmovable, When
from pgbeat.timetables import zone

#: The kinds of schedule: each has its table, and a task has one schedule of one kind.
KINDS = ("crontab", "interval", "solar", "clocked")


def reflected(connection: Connection, schema: str | None, name: str) -> Table:
    """Returns the table as it is in the database. Raises `PgbeatError` if it doesn't exist."""
    places = [Column(name, Float) for name in ("latitude", "longitude")]
    columns = places if name.endswith("solarschedule") else []
    return databases.reflected(connection, schema, name, *columns)


def rows(
    connection: Connection, tasks: Table, schedules: Mapping[str, tuple[Table, ColumnElement[bool]]]
) -> list[dict[str, Any]]:
    """Returns the tasks with their schedules, by one query.

    The columns of the table of `kind` are called `kind.column`.
    """
    joined: FromClause = tasks
    columns: list[ColumnElement[Any]] = [column.label(column.name) for column in tasks.c]
    for kind, (table, is_its) in schedules.items():
        joined = joined.outerjoin(table, is_its)
        columns += [column.label(f"{kind}.{column.name}") for column in table.c]
    query = select(*columns).select_from(joined).order_by(tasks.c.name)
    return [dict(row) for row in connection.execute(query).mappings()]


def inventory(
    beat: str, where: str, task_rows: list[dict[str, Any]], *, timezone: str = "UTC"
) -> imported.Inventory:
    """Returns rows as arrivals. `timezone` is for times that the database keeps without one."""
    result = imported.Inventory(beat, where)
    for row in task_rows:
        result.take(_arrival, str(row["name"]), beat, _aware(row, timezone))
    return result


def _aware(row: Mapping[str, Any], timezone: str) -> dict[str, Any]:
    local = zone(timezone)
    return {
        name: imported.aware(value, local) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def _arrival(name: str, beat: str, row: Mapping[str, Any]) -> imported.Arrival:
    when = _when(row)
    once_at, start, ends = when.columns.get("once_at"), row.get("start_time"), row.get("expires")
    last_run, count = row.get("last_run_at"), int(row.get("total_run_count") or 0)
    columns = dict(when.columns)
    args = imported.text_of_json("args", row["args"], "[]")
    kwargs = imported.text_of_json("kwargs", row["kwargs"], "{}")
    what = {
        "task": imported.task_name(row["task"]),
        **imported.arguments(args, kwargs),
        **imported.publishing(_options(row)),
    }
    if start is not None and once_at is not None:
        columns["once_at"] = once_at = max(once_at, start)
    elif start is not None:
        columns["starts_at"] = start
    if ends is not None:
        what["ends_at"] = imported.before(ends)  # it is over at that time already
    if row.get("one_off") and once_at is None:
        what["max_runs"] = 1
    if row.get("description"):
        what["description"] = str(row["description"]).replace("\0", "")[:LONGEST_DESCRIPTION]
    return imported.Arrival(
        origin=name,
        what=what,
        when=replace(when, columns=columns),
        last_run=last_run,
        run_count=count,
        since=_since(row, once_at, start),
        disabled_reason=_disabled(beat, row, last_run, count),
        is_done=bool(row["enabled"] and row.get("one_off") and count),
        is_over_at_end=True,
        from_code=row["task"] == imported.CLEANUP,
    )


def _since(
    row: Mapping[str, Any], once_at: datetime | None, start: datetime | None
) -> datetime | None:
    """Returns since when a task that never ran is due: its time, its start or its last change."""
    if once_at is not None:
        return imported.before(once_at)
    return imported.before(start) if start is not None else row.get("date_changed")


def _disabled(beat: str, row: Mapping[str, Any], last_run: Any, count: int) -> str | None:
    if not row["enabled"]:
        return imported.disabled_in(beat)
    if row.get("one_off") and count:
        return f"done: it was a one-off, and ran{f' at {last_run}' if last_run else ''}"
    return None


def _options(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns publish options as these beats do: they ignore empty text, but not 0."""
    names = ("queue", "exchange", "routing_key", "priority")
    options = {name: row[name] for name in names if row.get(name) not in (None, "")}
    expires = row.get("expires") or row.get("expire_seconds")
    if expires:
        options["expires"] = expires
    headers = imported.text_of_json("headers", row.get("headers"), "{}")
    if not isinstance(headers, dict):
        raise Unmovable(f"its headers are no JSON object: {headers!r}")
    options["headers"] = {**headers, "periodic_task_name": row["name"]}
    return options


def _when(row: Mapping[str, Any]) -> When:
    kinds = [kind for kind in KINDS if row.get(f"{kind}.id") is not None]
    if len(kinds) != 1:
        raise Unmovable(f"it has {' and '.join(kinds) or 'no schedule'}; it needs just one")
    kind = kinds[0]
    prefix = f"{kind}."
    fields = {key.removeprefix(prefix): row[key] for key in row if key.startswith(prefix)}
    if kind == "crontab":
        crontab = {name: fields[name] for name in timetables.CRONTAB_FIELDS}
        return timetables.of_crontab(str(fields.get("timezone") or "UTC"), crontab)
    if kind == "interval":
        try:
            every = timedelta(**{str(fields["period"]): fields["every"]})
        except (TypeError, OverflowError):
            raise Unmovable(f"its interval is {fields['every']} {fields['period']}") from None
        return timetables.of_interval(every)
    if kind == "solar":
        return timetables.of_solar(fields["event"], fields["latitude"], fields["longitude"])
    if fields["clocked_time"] is None:
        raise Unmovable("its clocked time is empty")
    return When({"once_at": fields["clocked_time"]})
