"""Finds schedules, tasks, lanes, queues, calendars, templates and jobs by a part of their name.

Jobs are found by the beginning of their id.
"""

from collections.abc import Collection
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Table, select, text

from pgbeat.access.actors import Actor
from pgbeat.database import sql, tables
from pgbeat.jobs.rows import ids
from pgbeat.jobs.rows.filters import like

Kind = Literal["schedule", "task", "lane", "queue", "calendar", "template", "job"]
#: Names of each kind that are returned, at most.
MOST = 6
#: Tables of things that are found by name.
_NAMED: dict[Kind, Table] = {
    "schedule": tables.schedules,
    "lane": tables.lanes,
    "calendar": tables.calendars,
    "template": tables.templates,
}
_TASKS = text(sql.load("finder.sql", "tasks"))


class Hit(NamedTuple):
    """Something that was found."""

    kind: Kind
    #: Its name, or a job's id.
    name: str
    #: Details: a schedule's task, a job's task and state.
    detail: str = ""


def find(
    connection: Connection, namespace: str, actor: Actor, wanted: str, *, tasks: Collection[str]
) -> list[Hit]:
    """Returns up to `MOST` things of each kind that contain the text, the closest first.

    `tasks` are names that are known besides those that have run. Users find their own jobs alone.
    """
    wanted = wanted.strip()
    if not wanted:
        return []
    hits: list[Hit] = []
    if actor.sees_all:
        for kind, table in _NAMED.items():
            hits += _by_name(connection, namespace, kind, table, wanted)
        hits += _by_load(connection, namespace, "task", wanted, tasks)
        hits += _by_load(connection, namespace, "queue", wanted, ())
    return hits + _jobs(connection, namespace, actor, wanted)


def _by_name(
    connection: Connection, namespace: str, kind: Kind, table: Table, wanted: str
) -> list[Hit]:
    name = table.c.name
    columns = [name, table.c.task] if kind == "schedule" else [name]
    query = select(*columns).where(table.c.namespace == namespace, name.ilike(like(f"*{wanted}*")))
    query = query.order_by(name.ilike(like(f"{wanted}*")).desc(), name).limit(MOST)
    return [
        Hit(kind, row[0], row[1] or "" if len(row) > 1 else "") for row in connection.execute(query)
    ]


def _by_load(
    connection: Connection, namespace: str, kind: Kind, wanted: str, known: Collection[str]
) -> list[Hit]:
    pattern = like(f"*{wanted}*")
    values: dict[str, Any] = {"namespace": namespace, "kind": kind, "pattern": pattern}
    values |= {"beginning": like(f"{wanted}*"), "most": MOST}
    names = list(connection.scalars(_TASKS, values))
    names += sorted(name for name in known if wanted.lower() in name.lower() and name not in names)
    return [Hit(kind, name) for name in names[:MOST]]


def _jobs(connection: Connection, namespace: str, actor: Actor, wanted: str) -> list[Hit]:
    possible = ids.between(wanted)
    if possible is None:
        return []
    jobs = tables.jobs
    query = select(jobs.c.id, jobs.c.task, jobs.c.state)
    query = query.where(jobs.c.id.between(*possible), jobs.c.namespace == namespace)
    if not actor.sees_all:
        query = query.where(jobs.c.created_by == actor.name)
    return [
        Hit("job", str(row[0]), f"{row[1]}, {row[2]}")
        for row in connection.execute(query.order_by(jobs.c.id).limit(MOST))
    ]
