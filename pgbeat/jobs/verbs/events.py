"""Provides `pgbeat.emit`, which tells waiting jobs that something has happened."""

from datetime import datetime
from typing import Any, NamedTuple

from celery import Celery, current_app
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.access import actors
from pgbeat.access.redaction import Redactor
from pgbeat.broker.publishing.transaction import Opened
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import settings_of
from pgbeat.database import connections
from pgbeat.errors import ConfigError, InvalidInput, Problem
from pgbeat.jobs.running.steps import checked_name, require_schema
from pgbeat.jobs.writing import submissions
from pgbeat.results import values
from pgbeat.storable import is_deep


class KeptEvent(NamedTuple):
    """A row of `pgbeat.events`."""

    id: int
    key: str
    value: Any
    #: As in `created_by` of jobs: `user:alice`.
    emitted_by: str
    emitted_at: datetime


def emit(
    key: str, value: Any = None, *, connection: Opened | None = None, app: Celery | None = None
) -> bool:
    """Stores that something has happened, and makes the jobs due that wait for it.

        pgbeat.emit(f"paid/{order_id}", {"amount": 12}, connection=session)

    A job waits for it by `pgbeat.wait_for` of the same key, in the same namespace, and gets the
    value. It may begin to wait before or after this, for as long as events are kept
    (`pgbeat_event_days`); any number of jobs may wait for one event.

    A key has one event: if there is one, that stays, and this changes nothing. So it may be called
    twice, as third parties call back twice. Put into the key what tells one occurrence from the
    next.

    Args:
        key: 1 to 200 printable characters.
        value: What the serializer `json` of Celery can write.
        connection: An open SQLAlchemy session or connection on pgbeat's database. With it, the
            event exists, and jobs wake, if and only if the caller's transaction commits; until
            then, jobs that begin to wait for the key ask every ten seconds. Without it, once
            this returns.
        app: By default Celery's current app.

    Returns whether the event is new.

    Raises:
        InvalidInput: The key or the value is invalid.
        ConfigError: The session is in another database than pgbeat's, or its transaction is
            not READ COMMITTED: under another isolation level it would miss jobs.
        SchemaError: The schema is older than 0002.
    """
    app = app or current_app._get_current_object()
    with (
        submissions.opened_unit(app, settings_of(app), actors.user(), connection) as unit,
        unit.transaction(),
    ):
        return store(unit, key, value)


def store(unit: UnitOfWork, key: str, value: Any) -> bool:
    """Does what `emit` does in an open unit of work, and records it in the audit log."""
    checked_name(key, "key")
    try:
        document = values.as_json(value)
        values.from_json(document)  # what waits must be able to read it
    except (TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        message = f"the value of an event must be JSON, and is not: {error}"
        raise InvalidInput.of("value", "malformed", message) from error
    parameters = {"key": key, "value": document, "by": unit.actor.name}
    try:
        row = unit.connection.execute(_EMIT, {**parameters, "namespace": unit.namespace})
        is_new = bool(row.scalar_one())
    except DBAPIError as error:
        require_schema(error)
        if connections.sqlstate(error) == "25000":
            message = connections.first_line(error)
            problem = Problem("connection", "conflict", f"{message}; use READ COMMITTED")
            raise ConfigError([problem]) from error
        raise
    if is_new:
        unit.record_action("emit", "event", key)
    return is_new


def find(connection: Connection, namespace: str, key: str) -> str | None:
    """Returns the value of an event as JSON; `None` if there is no such event."""
    value: str | None = connection.scalar(_FIND, {"namespace": namespace, "key": key})
    return value


def get(connection: Connection, redactor: Redactor, namespace: str, key: str) -> KeptEvent:
    """Returns an event that there is, masked."""
    row = connection.execute(_GET, {"namespace": namespace, "key": key}).one()
    return _shown(row, redactor)


def page(
    connection: Connection,
    redactor: Redactor,
    namespace: str,
    *,
    prefix: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[KeptEvent]:
    """Returns events whose keys begin so, masked, the newest first.

    For the next page, `before` is the last event's `id`. Who sees keys masked finds none by them.
    """
    if prefix and redactor.names(None):
        return []
    given = {"namespace": namespace, "prefix": prefix or "", "before": before, "limit": limit}
    try:
        return [_shown(row, redactor) for row in connection.execute(_PAGE, given)]
    except DBAPIError as error:
        require_schema(error)
        raise


def _shown(row: Any, redactor: Redactor) -> KeptEvent:
    event = KeptEvent(*row)
    value = None if is_deep(event.value) else redactor.value(None, event.value)
    return event._replace(key=redactor.whole(None, event.key), value=value)


_EMIT = text("SELECT pgbeat.emit(:key, CAST(:value AS jsonb), :namespace, :by)")
_FIND = text("SELECT value::text FROM pgbeat.events WHERE namespace = :namespace AND key = :key")
_GET = text(
    "SELECT id, key, value, emitted_by, emitted_at FROM pgbeat.events "
    "WHERE namespace = :namespace AND key = :key"
)
_PAGE = text(
    """
    SELECT id, key, value, emitted_by, emitted_at FROM pgbeat.events
     WHERE namespace = :namespace AND starts_with(key, :prefix)
       AND id < coalesce(CAST(:before AS bigint), 9223372036854775807)
     ORDER BY id DESC LIMIT :limit
    """
)
