"""Changes the state of a job as a person asks.

Each function is one guarded statement that returns `None` if the job is in another state than it
needs. If the job that it returns is dispatched, the caller must publish its message.
"""

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Text, TextClause, cast, func, text, update

from pgbeat.database import sql
from pgbeat.database.tables import jobs
from pgbeat.jobs.rows.model import COLUMNS, Job, of_known

# Back to where it was: its lane's line, its batch's, its group's, the broker, or until its time.
_BACK = """
           state = CASE WHEN run_at > now() THEN 'scheduled' ELSE 'pending' END,
           dispatched_at = CASE WHEN lane IS NULL AND NOT is_blocked
                         AND NOT coalesce(message ? 'batch', false)
                         AND NOT coalesce(message ? 'waits_for' AND run_at > now(), false)
                         THEN now() END
"""


def _guarded(changes: str, state: str, also: str = "true") -> TextClause:
    return text(
        sql.load(
            "transitions.sql",
            "guarded",
            changes=changes,
            of_known=of_known(state),
            also=also,
            columns=COLUMNS,
        )
    )


_PAUSE = _guarded(
    """
    state = 'paused', dispatched_at = NULL,
    message = coalesce(CAST(CAST(:message AS text) AS jsonb) || jsonb_strip_nulls(
                           jsonb_build_object('batch', message -> 'batch')), message)
    """,
    "state IN ('pending', 'scheduled')",
)
_RESUME = _guarded(_BACK, "state = 'paused'", "NOT awaits_approval")
_APPROVE = _guarded(
    f"{_BACK}, awaits_approval = false, approved_by = :by, approved_at = now()",
    "state = 'paused'",
    "awaits_approval",
)
_HASTEN = _guarded(
    """
    state = 'pending', run_at = NULL, priority = coalesce(:priority, priority),
    attempt = CASE WHEN requires_approval THEN attempt ELSE 1 END,
    dispatched_at = CASE WHEN lane IS NULL AND NOT is_blocked THEN now() END
    """,
    "state = 'scheduled'",
    "started_at IS NULL",
)


def pause(
    connection: Connection, job_id: UUID, message: Mapping[str, Any] | None = None
) -> Job | None:
    """Pauses a job that does not run. It keeps the `message` that was taken back, if one was."""
    kept = None if message is None else json.dumps(message)
    return _apply(connection, _PAUSE, id=job_id, message=kept)


def resume(connection: Connection, job_id: UUID) -> Job | None:
    """Resumes a paused job."""
    return _apply(connection, _RESUME, id=job_id)


def approve(connection: Connection, job_id: UUID, by: str) -> Job | None:
    """Approves a job that awaits approval."""
    return _apply(connection, _APPROVE, id=job_id, by=by)


def hasten(connection: Connection, job_id: UUID, *, priority: int | None = None) -> Job | None:
    """Makes a retry that waits for its time pending, with all attempts ahead of it.

    One that needs approval keeps its number: for more attempts, nobody has approved it.
    """
    return _apply(connection, _HASTEN, id=job_id, priority=priority)


def _apply(connection: Connection, statement: TextClause, **values: Any) -> Job | None:
    row = connection.execute(statement, values).one_or_none()
    return None if row is None else Job(*row)


def change(connection: Connection, job_id: UUID, columns: Mapping[str, Any]) -> None:
    """Changes columns of a job that waits.

    With another lane, it goes to the end of that lane's line. A new priority replaces one among
    its publish options, and in the message that it keeps.
    """
    values: dict[str, Any] = dict(columns)
    if "lane" in columns:
        values["position"] = func.extract("epoch", func.clock_timestamp())
    if "priority" in columns:
        values["options"] = jobs.c.options.op("-")(cast("priority", Text))
        priority = func.jsonb_build_object("priority", columns["priority"])
        values["message"] = jobs.c.message.op("||")(priority)
    waits = jobs.c.state.in_(["pending", "scheduled", "paused"])
    connection.execute(update(jobs).where(jobs.c.id == job_id, waits).values(values))


_DELETE = text(
    """
    WITH gone AS (
        DELETE FROM pgbeat.ended_jobs WHERE id = :id RETURNING id)
    DELETE FROM pgbeat.executions WHERE job_id = :id AND EXISTS (SELECT FROM gone)
    """
)


def delete(connection: Connection, job_id: UUID) -> None:
    """Deletes a job that has ended, with its executions."""
    connection.execute(_DELETE, {"id": job_id})
