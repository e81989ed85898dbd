"""Writes an ordinary job and its message in one statement, which commits by itself.

Whatever is not ordinary is left to `pgbeat.jobs.writing.submissions`: a message that Celery must
make, a broker elsewhere, a missing queue or lane, a deadline. The statement writes all or nothing,
so that can follow.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.pq.abc import PGresult
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.messages import Message
from pgbeat.broker.publishing.publisher import TransactionPublisher
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections
from pgbeat.database.prepared import BorrowedConnection, PreparedConnection, Statement
from pgbeat.jobs.flow import dispatch
from pgbeat.jobs.lanes import waiting
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.messages import canvas
from pgbeat.jobs.preparing import prepare
from pgbeat.jobs.preparing.defaults import JobDefaults
from pgbeat.jobs.preparing.prepare import JobSpec, PreparedJob
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows import unique_keys
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.rows.new_jobs import NewJob
from pgbeat.jobs.writing.submissions import SubmittedJob

#: Parameters: those of the function; made_at comes as microseconds since 1970.
_WRITE = Statement(
    "write_job",
    """
    SELECT id, (extract(epoch FROM made_at) * 1000000)::bigint, place
      FROM pgbeat.write_job($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
                            $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28,
                            root_id => $29, parent_id => $30, may_exist => $31)
    """,
)
#: Keys in a connection's `info`: its `PreparedConnection`, and whether it is isolated as we need.
_SESSION, _ISOLATED = "pgbeat_prepared", "pgbeat_isolated"


def submit(unit: UnitOfWork, spec: JobSpec, *, job_source: str) -> SubmittedJob | None:
    """Makes a job as `control.submit` does, or returns `None`: then nothing was written.

    The unit must be a program's, and not be open. Raises as `prepare.prepare`.
    """
    if spec.depends_on or spec.key is not None:
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
        prepared = prepare.prepare_again(app, defaults, spec, unit.actor, job_source)
        place = canvas.within_task()
        prepared = prepared._replace(job=place.of(prepared.job))
        job, message = prepared.job, None
        if job.must_start_within is not None or job.must_end_within is not None:
            return None
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
    made = publisher.quick(prepared.message)
    if made is None or made.queue is None or made.ttl is not None or made.available_at is not None:
        return None
    return made


def _write(
    unit: UnitOfWork, prepared: PreparedJob, message: Message | None, *, may_exist: bool = False
) -> SubmittedJob | None:
    job = prepared.job
    if message is not None and job.queue is None:
        job = job._replace(queue=message.queue)
    written = _Written.of(job)
    try:
        parameters = [
            *_parameters(job, written, prepared.unique_for, message),
            b"true" if may_exist else b"false",
        ]
    except ValueError:  # a character that Postgres can't keep: it says so
        return None
    result = _run(unit, parameters)
    job_id, made_at, place = (result.get_value(0, column) for column in range(3))
    if job_id is None:
        return None
    is_own = job_id.decode() == job.id
    if is_own and job.lane and waiting.will_wait(job):
        dispatch.after_commit(unit, {Room(job.namespace, job.lane, UUID(job.id))})
    if made_at is None or place is None:
        found = jobs.find(unit.connection, [job_id.decode()])
        return SubmittedJob(found[0], is_own) if found else None
    zone = connections.driver(unit.connection).info.timezone
    created_at = (_EPOCH + timedelta(microseconds=int(made_at))).astimezone(zone)
    return SubmittedJob(written.job(job, created_at, Decimal(place.decode())), True)


def _run(unit: UnitOfWork, parameters: Sequence[bytes | None]) -> PGresult:
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
        with unique_keys.refusing():
            return session.run(_WRITE, *parameters)
    except psycopg.Error as error:
        if connections.is_lost(error):
            connection.invalidate(error)
        raise DBAPIError.instance(_WRITE.sql, None, error, psycopg.Error) from error


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = json.JSONEncoder(default=str).encode


class _Written(NamedTuple):
    """The JSON of a job, as it is sent."""

    args: str | None
    kwargs: str | None
    options: str
    resources: str
    labels: str
    metadata: str

    @classmethod
    def of(cls, job: NewJob) -> "_Written":
        return cls(
            None if job.args is None else _json(job.args, "[]"),
            None if job.kwargs is None else _json(job.kwargs, "{}"),
            *(
                _json(value, "{}")
                for value in (job.options, job.resources, job.labels, job.metadata)
            ),
        )

    def job(self, new: NewJob, created_at: datetime, position: Decimal) -> Job:
        """Returns the job as it would be read."""
        args = None if self.args is None else _read(self.args)
        kwargs = None if self.kwargs is None else _read(self.kwargs)
        return Job(
            id=UUID(new.id), namespace=new.namespace, schedule_id=None, schedule=None, due_at=None,
            template=new.template, task=new.task, args=args, kwargs=kwargs,
            options=_read(self.options), queue=new.queue, state=new.state, run_at=new.run_at,
            dispatched_at=created_at if new.is_dispatched else None, lane=new.lane,
            priority=new.priority or 0, position=position, tags=list(new.tags or ()),
            resources=_read(self.resources), attempt=1, max_attempts=new.max_attempts or 1,
            retry_base=timedelta(seconds=_or(new.retry_base, 60)),
            retry_cap=timedelta(seconds=_or(new.retry_cap, 3600)), retry_of=None, retried_by=None,
            group_id=None, group_position=None, is_blocked=False, unfinished_parents=0,
            unique_key=new.unique_key,
            paused_at=created_at if new.state == "paused" else None,
            awaits_approval=bool(new.awaits_approval), requires_approval=bool(new.awaits_approval),
            approved_by=None, approved_at=None, cancel_requested_by=None, cancel_requested_at=None,
            cancel_reason=None, checkpoint=None, job_source=new.job_source,
            created_by=new.created_by, is_system_job=False, created_at=created_at, started_at=None,
            finished_at=None, worker=None, error=None, trigger=None, interval_start=None,
            interval_end=None, run_key=None, description=new.description, labels=_read(self.labels),
            metadata=_read(self.metadata), must_start_by=None, must_end_by=None, late_at=None,
            missed_deadlines=[], root_id=_id(new.root_id), parent_id=_id(new.parent_id),
        )  # fmt: skip


def _json(value: Any, empty: str) -> str:
    return _encode(value) if value else empty


def _id(value: str | None) -> UUID | None:
    return None if value is None else UUID(value)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _read(text: str) -> Any:
    if text == "[]":
        return []
    return {} if text == "{}" else json.loads(text, parse_float=_number)


def _number(text: str) -> float | int:
    """Returns a number as `jsonb` gives it back: without an exponent."""
    return int(Decimal(text)) if "e+" in text else float(text)


def _parameters(
    job: NewJob, written: _Written, unique_for: timedelta | None, message: Message | None
) -> list[bytes | None]:
    """Returns the parameters of `pgbeat.write_job`."""
    values: list[Any] = [
        job.id, job.namespace, job.task, written.args, written.kwargs, written.options, job.queue,
        job.template, job.job_source, job.created_by, job.state,
        None if job.run_at is None else job.run_at.isoformat(), job.lane, job.priority or 0,
        array(job.tags or ()), written.resources, job.max_attempts or 1,
        f"{_or(job.retry_base, 60)!r} s", f"{_or(job.retry_cap, 3600)!r} s", job.unique_key,
        None if unique_for is None else f"{unique_for.total_seconds()!r} s",
        "t" if job.awaits_approval else "f", job.description, written.labels, written.metadata,
    ]  # fmt: skip
    values += (
        (None, None, None)
        if message is None
        else (message.payload, message.queue, message.priority)
    )
    values += (job.root_id, job.parent_id)
    return [None if value is None else str(value).encode() for value in values]


def array(texts: Sequence[str]) -> str:
    """Returns texts as Postgres reads an array of them."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"
