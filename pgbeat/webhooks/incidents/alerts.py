"""Takes failures on their way to webhooks: one alert for an incident, not for each failure."""

from collections.abc import Collection
from typing import Any, NamedTuple, cast
from uuid import UUID

from sqlalchemy import Connection, Row, text

from pgbeat.database import connections, sql
from pgbeat.webhooks.incidents import model, recovery
from pgbeat.webhooks.incidents.model import FailureEvent, Incident, Key, Kind

_COLUMNS = ", ".join(Incident._fields)
_FAILURES = text(sql.load("incidents.sql", "failures"))
_KNOWN = text(sql.load("incidents.sql", "known", columns=_COLUMNS))
_WRITE = text(sql.load("incidents.sql", "write", columns=_COLUMNS))
_SEND = text(sql.load("incidents.sql", "send"))
_DROP = text(sql.load("incidents.sql", "drop"))


class _Sent(NamedTuple):
    """A failure that is sent, and what is added to its event."""

    id: UUID
    more: dict[str, Any] | None


def take(connection: Connection, namespace: str, *, limit: int = 1000) -> int:
    """Takes failures, oldest first: opens or continues their incidents; returns how many.

    Of these, the ones to send can be claimed then, and the others are deleted. What was well again
    between two failures is found first.
    """
    rows = connection.execute(_FAILURES, {"namespace": namespace, "limit": limit}).all()
    if not rows:
        return 0
    keys = [_key(row) for row in rows]
    recovery.lock(connection, namespace)
    recovery.end(connection, set(keys))
    incidents = _known(connection, set(keys))
    sent, dropped, changed = [], [], {}
    for key, row in zip(keys, rows, strict=True):
        before = incidents.get(key) or model.new(key, row.at)
        failure = FailureEvent(row.event, row.at, row.made_at, row.is_wanted, row.per_incident)
        incidents[key], is_sent = before.after(failure)
        changed[key] = incidents[key]
        if is_sent:
            told = {"incident": incidents[key].shown} if row.per_incident else None
            sent.append(_Sent(row.id, told))
        else:
            dropped.append(str(row.id))
    connection.execute(_WRITE, {"rows": connections.recordset(changed.values())})
    connection.execute(_SEND, {"sent": connections.recordset(sent)})
    connection.execute(_DROP, {"ids": dropped})
    return len(rows)


def _key(row: Row[Any]) -> Key:
    kind, _, name = row.incident.partition(":")
    return Key(row.webhook_id, cast(Kind, kind), name)


def _known(connection: Connection, keys: Collection[Key]) -> dict[Key, Incident]:
    rows = connection.execute(_KNOWN, {"keys": connections.recordset(keys)})
    return {Key(*row[:3]): Incident(*row) for row in map(tuple, rows)}
