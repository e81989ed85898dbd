"""Reads what a fence holds: what a restored database would do again."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

from pgbeat.broker import payloads
from pgbeat.database import sql
from pgbeat.errors import NotFound

_SQL = "fences.sql"
_NEWEST, _MESSAGES, _JOBS = (text(sql.load(_SQL, name)) for name in ("newest", "messages", "jobs"))
_HAS_FENCES = text("SELECT to_regclass('pgbeat.fences') IS NOT NULL")
#: Messages that are read at once.
_BATCH = 1000


class Fence(NamedTuple):
    """What is held since a restore."""

    epoch: int
    raised_at: datetime
    raised_by: str
    reason: str | None
    #: The moment that the restored database shows, as far as known.
    restored_to: datetime | None
    #: When all was released.
    released_at: datetime | None
    #: What is still held: the names of queues, and of schedules with their namespaces.
    queues: Sequence[str]
    schedules: Sequence[str]

    @property
    def summary(self) -> str:
        """Returns what it holds, as a clause."""
        return (
            f"a fence is raised (epoch {self.epoch}); queues held: {len(self.queues)}, schedules "
            f"held: {len(self.schedules)}"
        )


class Held(NamedTuple):
    """A task that is held, by its message or its job."""

    id: str
    task: str
    queue: str | None
    #: `waiting`, `delayed` or `claimed` for messages; a job's state if it has none.
    state: str
    created_at: datetime
    #: Whether it is a job; otherwise a plain task.
    is_job: bool
    #: The message's number in the broker; `None` if it has none.
    message: int | None
    #: The job that it retries, if beat made it after the fence was raised.
    retry_of: str | None

    def is_among(self, ids: Collection[str]) -> bool:
        """Returns whether the ids have the task, or the job that it retries."""
        return self.id in ids or self.retry_of in ids


def is_installed(connection: Connection) -> bool:
    """Returns whether the schema has fences."""
    return bool(connection.scalar(_HAS_FENCES))


def newest(connection: Connection) -> Fence | None:
    """Returns the fence that was raised last; `None` if there was none."""
    if not is_installed(connection):
        return None
    row = connection.execute(_NEWEST).one_or_none()
    return None if row is None else Fence(*row)


def raised(connection: Connection) -> Fence | None:
    """Returns the fence that is raised; `None` without one."""
    last = newest(connection)
    return None if last is None or last.released_at is not None else last


def require_raised(connection: Connection) -> Fence:
    """Returns the fence that is raised. Raises `NotFound`."""
    last = raised(connection)
    if last is None:
        raise NotFound("no fence is raised")
    return last


def held_tasks(connection: Connection, held: Fence) -> Iterator[Held]:
    """Yields the tasks that the fence holds: those that were sent before it was raised.

    A message that becomes due meanwhile may be yielded twice, with two numbers.
    """
    values = {"queues": list(held.queues), "raised_at": held.raised_at, "limit": _BATCH}
    # The jobs first: beat may send those without a message meanwhile.
    unsent = connection.execute(_JOBS, {"raised_at": held.raised_at}).all()
    sent: set[str] = set()
    after = 0
    while rows := connection.execute(_MESSAGES, values | {"after": after}).all():
        for row in rows:
            task_id = payloads.header(row.payload, "id") or ""
            task = payloads.header(row.payload, "task") or ""
            if row.is_job:
                sent.add(task_id)
            of_message = row.queue, row.state, row.created_at, row.is_job, row.id, row.retry_of
            yield Held(task_id, task, *of_message)
        after = rows[-1].id
    for row in unsent:
        if str(row.id) not in sent:
            of_job = row.queue, row.state, row.created_at, True, None, row.retry_of
            yield Held(str(row.id), row.task, *of_job)
