"""Which jobs a caller asks for, by a query and by fields."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from sqlalchemy import Connection

from pgbeat.database import connections
from pgbeat.errors import NotFound
from pgbeat.jobs.messages import queue_routes
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.searching import search
from pgbeat.jobs.searching.query import parse
from pgbeat.schedules import model as schedules
from pgbeat.web.backend import Backend
from pgbeat.web.identity import Caller

#: The parameter of a query.
Searched = Annotated[
    str | None,
    Query(
        max_length=1000,
        description="A query, such as `state:failed error:503 since:2h`, besides other filters.",
        examples=["state:failed error:503 since:2h"],
    ),
]


def queried(
    connection: Connection,
    backend: Backend,
    caller: Caller,
    text: str,
    schedule: str | None,
    fields: Mapping[str, Any],
) -> Filter:
    """Returns the filter of a query and of fields beside it, limited to what the caller may find.

    Raises `InvalidInput`, `Forbidden`, and `NotFound` for a schedule.
    """
    query, which = parse(text), Filter(backend.namespace)
    if query.terms:
        which = query.filter(backend.namespace, connections.now(connection))
    which = which._replace(**{key: value for key, value in fields.items() if value is not None})
    schedule = schedule or query.get("schedule") or None
    if schedule is not None:
        which = which._replace(schedule_id=schedule_id(connection, backend, caller, schedule))
    which = queue_routes.routed(which, backend.celery)
    return search.visible(caller, backend.redactor(caller), which)


def schedule_id(connection: Connection, backend: Backend, caller: Caller, name: str) -> int:
    """Returns the id of a schedule; -1 if there is none.

    Raises `NotFound` only for callers who see all schedules; others may not learn the names.
    """
    try:
        return schedules.get(connection, name, namespace=backend.namespace).id
    except NotFound:
        if caller.sees_all:
            raise
        return -1
