"""Makes the error of a name that nothing has: with the nearest name, and what lists them all."""

from collections.abc import Iterable

from sqlalchemy import Connection, Table, select, true

from pgbeat.database.tables import calendars, lanes, schedules, templates, webhooks
from pgbeat.errors import NotFound
from pgbeat.names import NAMESPACE
from pgbeat.suggest import did_you_mean

#: The command that lists things, by their noun.
_LISTED_BY = {
    "schedule": "list",
    "calendar": "calendars list",
    "lane": "lanes list",
    "template": "templates list",
    "webhook": "webhooks list",
    "queue": "queues",
    "living worker": "workers",
    "token": "tokens list",
}
_TABLES: dict[str, Table] = {
    "schedule": schedules,
    "calendar": calendars,
    "lane": lanes,
    "template": templates,
    "webhook": webhooks,
}
#: Names that are compared, at most.
_MOST = 10_000


def missing(
    connection: Connection, noun: str, name: str, *, namespace: str = NAMESPACE
) -> NotFound:
    """Returns the error of a schedule, calendar, lane, template or webhook that isn't there."""
    c = _TABLES[noun].c
    is_named = c.schedule_id.is_(None) if noun == "webhook" else true()
    query = select(c.name).where(c.namespace == namespace, is_named).order_by(c.name)
    return not_found(noun, name, connection.scalars(query.limit(_MOST)), namespace=namespace)


def not_found(
    noun: str, name: str, known: Iterable[str] = (), *, namespace: str = NAMESPACE
) -> NotFound:
    """Returns the error of an unknown name, with the known ones."""
    place = "" if namespace == NAMESPACE else f" in namespace {namespace!r}"
    hint = did_you_mean(name, known)
    advice = f"{hint and hint + ' '}`pgbeat {_LISTED_BY[noun]}` shows all {noun}s"
    field = noun.rpartition(" ")[2]
    return NotFound(f"there is no {noun} {name!r}{place}", field=field, advice=advice)
