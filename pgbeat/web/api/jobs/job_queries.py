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
from pgbeat.web.calls import WebCall

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
    call: WebCall,
    text: str,
    schedule: str | None,
    fields: Mapping[str, Any],
) -> Filter:
    """Returns the filter of a query and of fields beside it, limited to what the caller may find.

    Raises `InvalidInput`, `Forbidden`, and `NotFound` for a schedule.
    """
    query = parse(text).also("schedule", schedule)
    which = Filter(call.namespace, **fields)
    if query.terms:
        which = query.filter(call.namespace, connections.now(connection), fields)
    if schedule := query.get("schedule"):
        which = which._replace(schedule_id=schedule_id(connection, call, schedule))
    which = queue_routes.routed(which, call.backend.celery)
    return search.visible(call.caller, call.redactor, which)


def schedule_id(connection: Connection, call: WebCall, name: str) -> int:
    """Returns the id of a schedule; -1 without one.

    Raises `NotFound` only for callers who see all schedules; others may not learn the names.
    """
    try:
        return schedules.get(connection, name, namespace=call.namespace).id
    except NotFound:
        if call.caller.sees_all:
            raise
        return -1
