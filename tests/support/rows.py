"""Writes schedules, jobs and lanes by plain SQL, with a default for all that a test leaves out."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb
from sqlalchemy import Connection

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings

Sql = Callable[..., list[tuple[Any, ...]]]

#: The columns of which a schedule has one.
TIMETABLES = {"cron", "every", "once_at", "solar", "rrule", "after"}


def insert(sql: Sql, table: str, values: dict[str, Any], returning: str = "name") -> Any:
    """Writes a row of a table of pgbeat's; returns one of its columns."""
    marks = ", ".join(["%s"] * len(values))
    statement = f"INSERT INTO pgbeat.{table} ({', '.join(values)}) VALUES ({marks})"
    given = [Jsonb(value) if isinstance(value, dict) else value for value in values.values()]
    [(key,)] = sql(f"{statement} RETURNING {returning}", *given)
    return key


def make_schedule(
    sql: Sql, name: str = "s", *, due: Any = None, in_turn: Any = False, **values: Any
) -> int:
    """Writes a schedule of `tests.add`, each hour unless told otherwise; returns its id.

    `due` is its next run as an interval from now, such as `-1 second`; with `in_turn`, it is a time
    of its timetable, since the row was added then.
    """
    if due is not None:
        ((values["next_run"],),) = sql("SELECT now() + %s::interval", due)
    if in_turn:
        values["created_at"] = values["next_run"]
    every = {} if TIMETABLES & values.keys() else {"every": "1 hour"}
    return int(insert(sql, "schedules", {"name": name, "task": "tests.add"} | every | values, "id"))


def make_job(sql: Sql, state: Any = "pending", **values: Any) -> str:
    """Writes a job of `jobs.add` in that state; returns its id."""
    given = {
        "id": str(uuid4()),
        "task": "jobs.add",
        "args": "[1]",
        "kwargs": "{}",
        "state": state,
        "job_source": "user_cli",
        "created_by": "user:alice",
        "is_system_job": False,
    } | values
    if state in ("running", "completed"):
        given.setdefault("started_at", "now")
    if state in ("completed", "failed", "cancelled", "skipped"):
        given.setdefault("finished_at", "now")
    return str(insert(sql, "jobs", given, "id"))


def make_lane(sql: Sql, name: str = "l", limit: int | None = 1, **values: Any) -> None:
    """Writes a lane with that many slots."""
    insert(sql, "lanes", {"name": name, "max_running": limit} | values)


def unit_on(connection: Connection) -> UnitOfWork:
    """Returns a unit of work by an administrator, without an app, on a connection."""
    return UnitOfWork(connection, Settings(connection.engine.url), Actor("user:root", True))
