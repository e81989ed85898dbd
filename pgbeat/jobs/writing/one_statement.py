"""Writes an ordinary job and its message in one statement, which commits by itself.

Whatever is not ordinary is left to `pgbeat.jobs.writing.submissions`: a message that Celery must
make, a broker elsewhere, a missing queue or lane, a deadline. The statement writes all or nothing,
so that can follow.
"""

import json
from copy import copy
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.messages import Message
from pgbeat.broker.publishing.publisher import TransactionPublisher
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections
from pgbeat.database.prepared import BorrowedConnection, PreparedConnection
from pgbeat.jobs.flow import dispatch
from pgbeat.jobs.lanes import waiting
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.messages import canvas
from pgbeat.jobs.preparing.defaults import JobDefaults
from pgbeat.jobs.preparing.prepare import JobSpec, PreparedJob, Preparer
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows import new_jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.rows.new_jobs import NewRow
from pgbeat.jobs.writing.submissions import SubmittedJob

#: Keys in a connection's `info`: its `PreparedConnection`, and whether it is isolated as we need.
_SESSION, _ISOLATED = "pgbeat_prepared", "pgbeat_isolated"


def submit(unit: UnitOfWork, spec: JobSpec, *, job_source: str) -> SubmittedJob | None:
    """Makes a job as `control.submit` does, or returns `None`: then nothing was written.

    The unit must be a program's, and not be open. Raises as `Preparer.prepare`.
    """
    if not spec.is_alone:
        return None
    with unit.statement():
        publisher = unit.publisher
        if (
            not isinstance(publisher, TransactionPublisher)
            or not isinstance(connections.driver(unit.connection), psycopg.Connection)
            or not _is_isolated(unit)
        ):
            return None
        defaults = JobDefaults(unit.connection, unit.settings, [spec.policy], checks_lanes=False)
        app = unit.require_app()
        prepared = Preparer(app, defaults, unit.actor, job_source, lasts=True).prepare(spec)
        place = canvas.within_task()
        prepared = prepared._replace(job=place.of(prepared.job))
        job, message = prepared.job, None
        if job.must_start_by is not None or job.must_end_by is not None:
            return None  # so long after its creation, to the microsecond
        if job.is_dispatched:
            message = _quick(publisher, prepared)
            if message is None:
                return None
        try:
            return _write(unit, prepared, message)
        except DBAPIError as error:
            if unit.is_callers or not connections.is_lost(error):
                raise
            # The statement was lost, or only its answer. Its id says which.
            unit.connection.rollback()
            if not _is_isolated(unit):
                raise
            return _write(unit, prepared, message, may_exist=True)


def _is_isolated(unit: UnitOfWork) -> bool:
    """Returns whether a statement by itself reads what is committed, as in `UnitOfWork`'s own."""
    if unit.is_callers:
        return True
    info = unit.connection.info
    if _ISOLATED not in info:
        info[_ISOLATED] = connections.isolate(unit.connection)
    return bool(info[_ISOLATED])


def _quick(publisher: TransactionPublisher, prepared: PreparedJob) -> Message | None:
    """Returns the job's message if a template makes it."""
    row = publisher.quick(prepared.message)
    if row is None or row.queue is None or row.ttl is not None or row.available_at is not None:
        return None
    return row


def _write(
    unit: UnitOfWork, prepared: PreparedJob, message: Message | None, *, may_exist: bool = False
) -> SubmittedJob | None:
    job = prepared.job
    if message is not None and job.queue is None:
        job = job._replace(queue=message.queue)
    row = _run(unit, job, message, prepared.unique_for, may_exist)
    if row.id is None:
        return None
    is_own = row.id == job.id
    if is_own and job.lane and waiting.is_waiting(job):
        dispatch.after_commit(unit, {Room(job.namespace, job.lane, job.id)})
    if row.created_at is None:
        rows = jobs.find(unit.connection, [row.id], as_owner=unit.submits_as_owner)
        return SubmittedJob(rows[0], is_own) if rows else None
    created_at = row.created_at.astimezone(UTC)
    return SubmittedJob(_as_read(job, created_at, row.position), True)


def _run(
    unit: UnitOfWork,
    job: Job,
    message: Message | None,
    taken_for: timedelta | None,
    may_exist: bool,
) -> NewRow:
    connection = unit.connection
    raw = connections.driver(connection)
    session: PreparedConnection | BorrowedConnection
    if unit.is_callers:
        session = BorrowedConnection(raw)
    else:
        known = connection.info.get(_SESSION)
        if known is None or known.connection is not raw:
            is_own = connections.has_own_session(connection)
            known = connection.info[_SESSION] = PreparedConnection(raw, is_own, listens=False)
        session = known
    try:
        return new_jobs.write(session, job, message, taken_for, may_exist=may_exist)
    except psycopg.Error as error:
        if connections.is_lost(error):
            connection.invalidate(error)
        raise DBAPIError.instance("pgbeat.write_job", None, error, psycopg.Error) from error


def _as_read(job: Job, created_at: datetime, position: Decimal | None) -> Job:
    """Returns a job that was written as it would be read."""
    return job._replace(
        created_at=created_at,
        position=position,
        dispatched_at=created_at if job.is_dispatched else None,
        paused_at=created_at if job.state == "paused" else None,
        tags=list(job.tags),
        missed_deadlines=[],
        **{name: _decoded(getattr(job, name)) for name in _JSON},
    )


_JSON = ("args", "kwargs", "options", "resources", "labels", "metadata")


def _decoded(value: Any) -> Any:
    """Returns a JSON value as Postgres returns it."""
    return _decode(_encode(value)) if value else copy(value)


def _number(text: str) -> float | int:
    """Returns a number as `jsonb` stores it: without an exponent."""
    return int(Decimal(text)) if "e+" in text else float(text)


_encode = json.JSONEncoder().encode
_decode = json.JSONDecoder(parse_float=_number).decode
