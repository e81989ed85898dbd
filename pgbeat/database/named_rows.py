"""Reads rows by name; an unknown name is an error with the nearest one and what lists them all."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, Table, select

from pgbeat.database.tables import calendars, lanes, schedules, templates, webhooks
from pgbeat.errors import InvalidInput, NotFound
from pgbeat.names import NAMESPACE
from pgbeat.suggest import did_you_mean

R = TypeVar("R")

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


class NamedRows(Generic[R]):
    """Reads schedules, calendars, lanes, templates or webhooks."""

    def __init__(
        self, noun: str, row: Callable[..., R], columns: Iterable[Any], naming: Any = None
    ) -> None:
        """`naming` is the column by which schedules name a row."""
        self._noun, self._row, self._select = noun, row, select(*columns)
        self._naming = naming

    def is_named(self, name: str, namespace: str) -> ColumnElement[bool]:
        """Returns the condition that finds the row of that name."""
        return _is_of(self._noun, namespace) & (_TABLES[self._noun].c.name == name)

    def get(
        self,
        connection: Connection,
        name: str,
        *,
        namespace: str = NAMESPACE,
        for_update: bool = False,
    ) -> R:
        """Returns the row of that name. Raises `NotFound`, with the most similar name."""
        query = self._select.where(self.is_named(name, namespace))
        row = connection.execute(query.with_for_update() if for_update else query).one_or_none()
        if row is None:
            raise missing(connection, self._noun, name, namespace=namespace)
        return self._row(*row)

    def load(
        self,
        connection: Connection,
        names: Iterable[str],
        *,
        namespace: str = NAMESPACE,
        for_update: bool = False,
    ) -> dict[str, R]:
        """Returns the rows that exist among these names; without names, it sends no query."""
        wanted = set(names)
        if not wanted:
            return {}
        is_wanted = _TABLES[self._noun].c.name.in_(wanted)
        query = self._select.where(_is_of(self._noun, namespace), is_wanted)
        query = query.with_for_update() if for_update else query
        return {row.name: self._row(*row) for row in connection.execute(query)}

    def listing(self, connection: Connection, *, namespace: str = NAMESPACE) -> list[R]:
        """Returns all rows, by name."""
        query = self._select.where(_is_of(self._noun, namespace))
        rows = connection.execute(query.order_by(_TABLES[self._noun].c.name))
        return [self._row(*row) for row in rows]

    def users(self, connection: Connection, *, namespace: str = NAMESPACE) -> dict[str, list[str]]:
        """Returns the names of the schedules that name each row, without rows in no use."""
        query = select(self._naming, schedules.c.name).where(
            schedules.c.namespace == namespace, self._naming.is_not(None)
        )
        users: dict[str, list[str]] = {}
        for name, schedule in connection.execute(query.order_by(schedules.c.name)):
            users.setdefault(name, []).append(schedule)
        return users

    def lock_unused(
        self, connection: Connection, name: str, error: type[InvalidInput], *, namespace: str
    ) -> R:
        """Locks the row of that name, so that no schedule can name it, and returns it.

        Raises `NotFound`, and the error while schedules name it.
        """
        row = self.get(connection, name, namespace=namespace, for_update=True)
        if names := self.users(connection, namespace=namespace).get(name):
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            message = f"{self._noun} {name!r} is used by {', '.join(map(repr, names[:5]))}{more}; "
            raise error.of("", "in_use", f"{message}give them another one, or none, first")
        return row


def _is_of(noun: str, namespace: str) -> ColumnElement[bool]:
    c = _TABLES[noun].c
    is_of = c.namespace == namespace
    # Check-ins have webhooks of their own, without a name.
    return is_of & c.schedule_id.is_(None) if noun == "webhook" else is_of


def missing(
    connection: Connection, noun: str, name: str, *, namespace: str = NAMESPACE
) -> NotFound:
    """Returns the error of a schedule, calendar, lane, template or webhook that isn't there."""
    column = _TABLES[noun].c.name
    query = select(column).where(_is_of(noun, namespace)).order_by(column)
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
