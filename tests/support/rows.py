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


def ago(sql: Sql, length: str) -> Any:
    """Returns the database's time that long ago."""
    [(at,)] = sql("SELECT now() - %s::interval", length)
    return at


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


def make_waiting(sql: Sql, key: str, **values: Any) -> str:
    """Writes a job that has done a step and waits for an event, for an hour; returns its id.

    It began six minutes ago, and waits since five minutes ago.
    """
    began, since, [(until,)] = ago(sql, "6 min"), ago(sql, "5 min"), sql("SELECT now() + '1 h'")
    times = {"created_at": began, "started_at": began, "run_at": until}
    job = make_job(sql, "scheduled", **times | values)
    make_execution(sql, job, "snoozed", started_at=began, finished_at=since)
    of_chain = {"root_id": job, "job_id": job, "namespace": "default", "n": 1}
    of_value = {"value": b'{"card": "4711"}', "content_type": "application/json"}
    done = {"kind": "step", "name": "charge", "began_at": began, "finished_at": since}
    insert(sql, "steps", of_chain | of_value | done, "id")
    wait = {"kind": "wait", "name": key, "began_at": since, "until": until}
    number = insert(sql, "steps", of_chain | wait, "id")
    waits_for = {"step": number, "key": key, "since": f"{since}", "until": f"{until}"}
    message = {"queue": "celery", "payload": "{}", "waits_for": waits_for}
    sql("UPDATE pgbeat.jobs SET message = %s WHERE id = %s", Jsonb(message), job)
    return job


def make_lane(sql: Sql, name: str = "l", limit: int | None = 1, **values: Any) -> None:
    """Writes a lane with that many slots."""
    insert(sql, "lanes", {"name": name, "max_running": limit} | values)


def make_execution(sql: Sql, job_id: Any, state: str = "running", **values: Any) -> str:
    """Writes an execution of a job, by worker `w` unless told otherwise; returns its id."""
    given = {"job_id": job_id, "number": 1, "worker": "w", "state": state} | values
    if state != "running":
        given.setdefault("finished_at", "now")
    return str(insert(sql, "executions", given, "id"))


def make_run(
    sql: Sql, schedule_id: int, begin: Any, end: Any = None, state: str = "completed", **values: Any
) -> str:
    """Writes a job of a schedule and its execution, which runs if no end is said; the job's id."""
    [(name, task)] = sql("SELECT name, task FROM pgbeat.schedules WHERE id = %s", schedule_id)
    state = state if end else "running"
    given = {"schedule_id": schedule_id, "started_at": begin, "finished_at": end} | values
    job = make_job(sql, state, schedule=name, task=task, created_at=begin, **given)
    make_execution(sql, job, state, **given)
    return job


def make_stack(sql: Sql, job_id: Any, execution_id: str, **values: Any) -> None:
    """Writes a stack of an execution, for which somebody asked, unless told otherwise."""
    given = {"reason": "asked", "taken_at": "now", "memory_mb": 12.5, "stack": "  …\n"}
    insert(sql, "stacks", given | {"job_id": job_id, "execution_id": execution_id} | values, "id")


def make_tick(sql: Sql, schedule_id: int, outcome: str = "skipped", **values: Any) -> int:
    """Writes a decision on schedule `s`, due now unless told otherwise; returns its id."""
    given = {"schedule_id": schedule_id, "schedule": "s", "outcome": outcome, "due_at": "now"}
    why = {"skipped": {"reason": "no work"}, "failed": {"error": "no"}}
    return int(insert(sql, "ticks", given | why.get(outcome, {}) | values, "id"))


def make_calendar(sql: Sql, name: str = "office", **definition: Any) -> None:
    """Writes a calendar with these rules."""
    insert(sql, "calendars", {"name": name, "definition": definition})


def make_group(sql: Sql, **values: Any) -> str:
    """Writes a group of jobs, which runs unless told otherwise; returns its id."""
    given = {"job_source": "user_cli", "created_by": "user:alice"}
    return str(insert(sql, "groups", given | values, "id"))


def make_template(sql: Sql, name: str = "t", **values: Any) -> None:
    """Writes a template of `tests.add`, unless told otherwise."""
    insert(sql, "templates", {"name": name, "task": "tests.add"} | values)


def make_webhook(sql: Sql, name: str = "w", **values: Any) -> int:
    """Writes a webhook of jobs that fail, unless told otherwise; returns its id."""
    given = {"url": "https://example.com", "events": ["job.failed"], "secret": f"whsec_{'a' * 40}"}
    return int(insert(sql, "webhooks", {"name": name} | given | values, "id"))


def make_delivery(sql: Sql, webhook_id: int, state: str = "pending", **values: Any) -> str:
    """Writes a delivery of an event to a webhook; returns its id."""
    given = {"webhook_id": webhook_id, "event": "job.failed", "payload": {}, "state": state}
    if state != "pending":
        given |= {"next_at": None, "finished_at": "now"}
    return str(insert(sql, "deliveries", given | values, "id"))


def make_incident(sql: Sql, webhook_id: int, name: str = "s", **values: Any) -> None:
    """Writes an incident of a schedule whose jobs fail, unless told otherwise."""
    given = {"webhook_id": webhook_id, "kind": "schedule", "name": name, "failures": 1, "alerts": 1}
    given |= {"events": ["job.failed"], "next_alert_at": "now"}
    insert(sql, "incidents", given | {"began_at": "now", "failed_at": "now"} | values)


def make_dead_letter(sql: Sql, queue: str = "celery", **values: Any) -> int:
    """Writes a dead letter of a queue; returns its id."""
    [(letter_id,)] = sql("SELECT nextval('message_id_sequence')")
    given = {"id": letter_id, "queue": queue, "payload": "{}", "reason": "rejected"}
    given |= {"deliveries": 3, "priority": 0, "enqueued_at": "now", "died_at": "now"} | values
    marks = ", ".join(["%s"] * len(given))
    columns = ", ".join(given)
    sql(f"INSERT INTO kombu_message_dead ({columns}) VALUES ({marks})", *given.values())
    return int(letter_id)


def unit_on(connection: Connection) -> UnitOfWork:
    """Returns a unit of work by an administrator, without an app, on a connection."""
    return UnitOfWork(connection, Settings(connection.engine.url), Actor("user:root", True))
