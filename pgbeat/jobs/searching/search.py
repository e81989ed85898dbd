"""Finds jobs by any filter, in bounded time however long the history is.

Where no index helps (a part of an error or of a name, an argument), only the newest of the jobs
that an index finds are read. The next page continues there.
"""

from collections import Counter
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Select, func, select, tuple_

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import Redactor
from pgbeat.database.tables import jobs as table
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.model import Job

#: Jobs that a search reads for a page, and jobs that the counts include.
_WINDOW, _COUNTED = 20_000, 10_000

#: When a job was created, and its id.
Position = tuple[datetime, UUID]


class Found(NamedTuple):
    """A page of `brief` jobs, the newest first."""

    rows: list[Job]
    #: Where the next page begins; `None` at the end.
    next: Position | None
    #: Whether it ends at `next` though it has fewer jobs than were asked for.
    is_cut: bool


class Counts(NamedTuple):
    """The newest jobs that match, counted by state and by task."""

    states: dict[str, int]
    tasks: dict[str, int]
    #: How many jobs were looked at, and whether there are more.
    seen: int
    has_more: bool


def visible(actor: Actor, redactor: Redactor, which: Filter) -> Filter:
    """Returns the filter, limited to jobs that the actor may see and search.

    Who sees an argument or error masked doesn't find the job by it either. Raises `Forbidden` if
    it asks for jobs of another owner.
    """
    seen = permissions.visible(actor, which)
    hidden: set[str] = set()
    if which.arguments:
        hidden |= redactor.tasks_with_rules()
    elif which.error is not None:
        hidden |= redactor.tasks_with_rules(of_errors=True)
    return seen._replace(not_tasks=sorted(hidden)) if hidden else seen


def page(
    connection: Connection, which: Filter, *, after: Position | None = None, limit: int = 50
) -> Found:
    """Returns up to `limit` jobs, created before the job at `after`."""
    if not which.unindexed(table.c):
        rows = jobs.listing(connection, which, before=after, limit=limit + 1)
        return _page(rows, limit)
    newest = _newest(which, after).limit(_WINDOW).subquery()
    query = select(*jobs.brief(newest.c)).where(*which.unindexed(newest.c))
    query = query.order_by(newest.c.created_at.desc(), newest.c.id.desc()).limit(limit + 1)
    jobs_page = _page([Job(*row) for row in connection.execute(query)], limit)
    if jobs_page.next is not None:
        return jobs_page
    last = _newest(which, after).with_only_columns(table.c.created_at, table.c.id)
    end = connection.execute(last.offset(_WINDOW - 1).limit(1)).first()
    return jobs_page if end is None else Found(jobs_page.rows, (end[0], end[1]), is_cut=True)


def in_full(connection: Connection, page: Found, *, most: int | None = None) -> Found:
    """Returns a page with the jobs' arguments, which ends as `jobs.in_full`."""
    rows = jobs.in_full(connection, page.rows, most=most)
    if len(rows) == len(page.rows):
        return page._replace(rows=rows)
    return Found(rows, (rows[-1].created_at, rows[-1].id), is_cut=True)


def _newest(which: Filter, after: Position | None = None) -> Select[Any]:
    """Returns the query for the jobs that the indexed part of a filter matches, newest first."""
    query = select(*(table.c[name] for name in Job._fields)).where(*which.indexed())
    if after is not None:
        query = query.where(tuple_(table.c.created_at, table.c.id) < tuple_(*after))
    return query.order_by(table.c.created_at.desc(), table.c.id.desc())


def _page(rows: list[Job], limit: int) -> Found:
    if len(rows) <= limit:
        return Found(rows, None, is_cut=False)
    last = rows[limit - 1]
    return Found(rows[:limit], (last.created_at, last.id), is_cut=False)


def counts(connection: Connection, which: Filter) -> Counts:
    """Counts the newest jobs that match. For the states, the filter's own state doesn't count."""
    of_states = which if which.error is not None else which._replace(state=None, states=None)
    newest = _newest(of_states).limit(_COUNTED).subquery()
    query = select(newest.c.state, newest.c.task, func.count()).where(*which.unindexed(newest.c))
    states, tasks, wanted = Counter[str](), Counter[str](), which.states or (which.state,)
    for state, task, number in connection.execute(query.group_by(newest.c.state, newest.c.task)):
        states[state] += number
        if wanted == (None,) or state in wanted:
            tasks[task] += number
    seen = connection.execute(select(func.count()).select_from(newest)).scalar_one()
    return Counts(dict(states), dict(tasks), seen, seen == _COUNTED)
