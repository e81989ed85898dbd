"""Records the steps of jobs: what ran once, how long a job sleeps, which event it waits for."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.access.actors import is_name
from pgbeat.access.redaction import Redactor
from pgbeat.database import connections, privileges, sql
from pgbeat.errors import InvalidInput, InvalidJob, SchemaError
from pgbeat.jobs.rows.model import Job
from pgbeat.results.rows import Encoded
from pgbeat.storable import shown
from pgbeat.suggest import did_you_mean

Kind = Literal["step", "sleep", "wait"]

#: The steps of a task that takes the place of another one (`Task.replace`) are numbered from here
#: on, those of the next one from twice that: their job is the same.
OF_NEXT = 100_000


class StepKey(NamedTuple):
    """What tells a step from the others of its job: `number` counts those of its name in a run."""

    kind: Kind
    name: str
    number: int = 1

    def __str__(self) -> str:
        number = self.number % OF_NEXT
        return self.name if number == 1 else f"{self.name}#{number}"


class Step(NamedTuple):
    """A step as it is recorded: one that has returned, a sleep or a wait."""

    id: int
    key: StepKey
    #: What it returned, unless it is a wait.
    encoded: Encoded
    #: The event that a wait has got: its value as JSON.
    event: str | None
    has_event: bool
    began_at: datetime
    #: When a sleep ends, or a wait times out; `None`: never.
    until: datetime | None
    #: `None` of one that sleeps or waits, unless its time has passed unseen.
    finished_at: datetime | None


class Chain(NamedTuple):
    """The steps of a job and of the jobs that it retries, in the order of their records."""

    #: The first job.
    root: UUID
    job_id: str
    namespace: str
    steps: list[Step]


class Suspension(NamedTuple):
    """A sleep or a wait, as it is now."""

    #: `None` if it is not written.
    id: int | None
    since: datetime
    until: datetime | None
    is_over: bool
    #: Whether a wait has got its event, and the event's value as JSON.
    has_event: bool
    value: str | None
    #: Until it is over by itself; `None`: never.
    seconds_left: float | None


_SQL = "steps.sql"
_OPEN = text(sql.load(_SQL, "open"))
_RECORD, _RECORDED = text(sql.load(_SQL, "record")), text(sql.load(_SQL, "recorded"))
_SUSPEND, _OF_JOB = text(sql.load(_SQL, "suspend")), text(sql.load(_SQL, "of_job"))
_KEYS_OF_JOB, _FORGET = text(sql.load(_SQL, "keys_of_job")), text(sql.load(_SQL, "forget"))
_DELETE = text(sql.load(_SQL, "delete"))
#: Names of steps that are suggested, and returned for the audit log.
_NAMED = 1_000


def checked_name(name: object, field: str = "name") -> str:
    """Returns the name of a step, or an event's key.

    Raises `InvalidInput` unless it has 1 to 200 printable characters, and no spaces around them.
    """
    if isinstance(name, str) and is_name(name):
        return name
    message = (
        f"{field} must be text of 1 to 200 printable characters, without spaces around them, "
        f"got {name!r}"
    )
    raise InvalidInput.of(field, "malformed", message[:500])


def require_schema(error: DBAPIError) -> None:
    """Raises `SchemaError` if an error means that the schema has no steps and events yet."""
    if connections.sqlstate(error) in ("42883", "42P01"):
        message = "steps and events need version 0002 of the schema"
        raise SchemaError(message, advice="run `pgbeat migrate`") from error


def take(connection: Connection, job_id: str, *, namespace: str) -> Chain:
    """Takes the steps of a job's chain over for the job, which runs, and returns them.

    `namespace` is that of a job without a row. Raises `SchemaError` on a schema before 0002.
    """
    try:
        rows = connection.execute(_OPEN, {"job": job_id}).all()
    except DBAPIError as error:
        require_schema(error)
        raise
    known = [_step(row) for row in rows if row.id is not None]
    return Chain(rows[0].root, job_id, rows[0].own_namespace or namespace, known)


def _step(row: Any) -> Step:
    return Step(
        row.id,
        StepKey(row.kind, row.name, row.n),
        _encoded(row),
        row.event,
        row.has_event,
        row.began_at,
        row.until,
        row.finished_at,
    )


def _encoded(row: Any) -> Encoded:
    body = None if row.value is None else bytes(row.value)
    return Encoded(body, row.content_type or "", row.content_encoding or "")


def record(
    connection: Connection, chain: Chain, key: StepKey, value: Encoded, seconds: float
) -> Encoded | None:
    """Records that a step has returned a value, after so many seconds.

    If another run has recorded it, nothing changes, and its value is returned; else `None`. Waits
    for a transaction that is about to record the same step.
    """
    values = {
        "root": str(chain.root),
        "job": chain.job_id,
        "namespace": chain.namespace,
        "name": key.name,
        "n": key.number,
    }
    columns = {**value._asdict(), "value": value.body, "seconds": seconds}
    if connection.execute(_RECORD, {**values, **columns}).one_or_none() is not None:
        return None
    return _encoded(connection.execute(_RECORDED, values).one())


def suspend(
    connection: Connection, chain: Chain, key: StepKey, seconds: float | None
) -> Suspension:
    """Begins a sleep or a wait of so many seconds, or looks whether it is over.

    One that is known keeps its end. A transaction must be open, which holds the key's lock: none
    that emits the event commits before it. Such a lock times out after two seconds.
    """
    values = {
        "root": str(chain.root),
        "job": chain.job_id,
        "namespace": chain.namespace,
        "kind": key.kind,
        "name": key.name,
        "n": key.number,
        "seconds": seconds,
    }
    return Suspension(*connection.execute(_SUSPEND, values).one())


def locked(connection: Connection) -> Suspension:
    """Returns a wait that `suspend` could not write: whoever emits the event has not committed.

    The job asks again ten seconds later, and holds nothing meanwhile.
    """
    return Suspension(None, connections.clock(connection), None, False, False, None, 10.0)


class ShownStep(NamedTuple):
    """A step for people and programs."""

    #: With `#2` if it is the second of its name.
    name: str
    kind: Kind
    #: `done`; or `sleeping`, `waiting`, `timed_out`.
    state: str
    began_at: datetime
    until: datetime | None
    finished_at: datetime | None
    #: What it returned, or its event's value; `None` if that is not JSON.
    value: Any

    @property
    def has_value(self) -> bool:
        """Returns whether it is one that returns something, and has."""
        return self.kind != "sleep" and self.state == "done"

    def lasts(self, now: datetime) -> timedelta:
        """Returns how long it took, or has taken."""
        return max((self.finished_at or now) - self.began_at, timedelta())


def of_job(connection: Connection, redactor: Redactor, job: Job) -> list[ShownStep]:
    """Returns the first 1,000 steps of a job's chain, in order, with their values masked."""
    if not privileges.may_read(connection, "steps"):
        return []
    rows = connection.execute(_OF_JOB, {"job": job.id})
    return [_shown(_step(row), redactor, job.task) for row in rows]


def _shown(step: Step, redactor: Redactor, task: str) -> ShownStep:
    state, name = "done", str(step.key)
    if step.finished_at is None:
        state = "waiting" if step.key.kind == "wait" else "sleeping"
    elif step.key.kind == "wait" and not step.has_event:
        state = "timed_out"
    value, written = None, step.event or step.encoded.body
    is_json = step.event is not None or step.encoded.content_type == "application/json"
    if written is not None and is_json:
        with suppress(ValueError):
            value = shown(written)
    mask = redactor.value if isinstance(value, dict) else redactor.whole
    if step.key.kind == "wait":
        name = redactor.whole(task, name)
    times = step.began_at, step.until, step.finished_at
    return ShownStep(name, step.key.kind, state, *times, mask(task, value))


def forget(connection: Connection, job: Job, name: str) -> list[str]:
    """Forgets the steps of a job's chain from that of this name on: they will run again.

    Returns the names of the first thousand. Raises `InvalidJob` if there is none of that name.
    """
    keys: Sequence[Any] = ()
    if privileges.may_read(connection, "steps"):
        keys = connection.execute(_KEYS_OF_JOB, {"job": job.id}).all()
    names = [str(StepKey(*key)) for _, *key in keys]
    if name not in names:
        hint = did_you_mean(name, names[:_NAMED]) or (
            f"it has: {', '.join(names[:20])}" if names else "it has recorded none"
        )
        raise InvalidJob.of("from_step", "unknown", f"job {job.id} has no step {name!r}; {hint}")
    number = names.index(name)
    connection.execute(_FORGET, {"job": job.id, "first": keys[number].id})
    return names[number : number + _NAMED]


def delete(connection: Connection, job_id: UUID) -> None:
    """Deletes the steps of a deleted job, unless another job of its chain needs them."""
    if privileges.may_read(connection, "steps"):
        connection.execute(_DELETE, {"job": job_id})
