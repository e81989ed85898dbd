"""Changes all jobs that a filter matches: in batches, as one action of the audit log.

A batch is a transaction, so what was done stays done if the rest is not. Each job is changed by the
same function as one by itself (`pgbeat.jobs.verbs.control`). One that can't be changed, because
somebody else was quicker, is left alone; the counts say how many and why.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from graphlib import TopologicalSorter
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, func, select, tuple_
from sqlalchemy.exc import DBAPIError

from pgbeat.access import audit
from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.database import connections
from pgbeat.database.tables import jobs as table
from pgbeat.errors import InvalidInput, NotFound, PgbeatError
from pgbeat.jobs.checks import permissions
from pgbeat.jobs.checks.permissions import BulkVerb
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.states import retries
from pgbeat.jobs.verbs import changes, control

#: Jobs of a transaction; matching ones that are counted; those that a preview names.
BATCH, MOST, SHOWN = 50, 10_000, 10
#: Reasons for which jobs were left alone that are kept.
_PROBLEMS = 10
#: The states in which jobs are that a verb can change.
STATES: dict[BulkVerb, tuple[str, ...]] = {
    "retry": ("failed", "cancelled", "skipped"),  # the first, unless told otherwise
    "cancel": ("pending", "scheduled", "running", "paused"),
    "pause": ("pending", "scheduled"),
    "resume": ("paused",),
    "update": ("pending", "scheduled", "paused"),
    "delete": ("completed", "failed", "cancelled", "skipped"),
}
#: deadlock_detected, serialization_failure.
_DEADLOCKS = {"40P01", "40001"}

#: When and which: the last job that was looked at.
Position = tuple[datetime, UUID]


class Order(NamedTuple):
    """A change: a verb, and the arguments of its function in `control`, such as `reason`."""

    verb: BulkVerb
    options: Mapping[str, Any] = {}


class Preview(NamedTuple):
    """The jobs that an order would change."""

    #: Counted up to `MOST`.
    number: int
    #: The newest of them.
    first: list[Job]
    #: The database's time: later jobs don't belong to it.
    at: datetime
    #: Jobs of others that match, too, which the actor may not change, counted likewise; `None` for
    #: users of the API and the console, who see no others, and don't learn how many there are.
    others: int | None

    def of_others(self, verb: BulkVerb) -> str:
        """Returns a sentence on the jobs that only an administrator may change; "" if all may."""
        if self.others is None:
            return f"only jobs of your own are meant; an administrator may {verb} those of others"
        if not self.others:
            return ""
        match = "matches" if self.others == 1 else "match"
        return f"{counted(self.others)} of others also {match}; an administrator may {verb} them"


class LeftAlone(NamedTuple):
    """Why a job was left alone."""

    job_id: UUID
    code: str
    message: str


class Progress(NamedTuple):
    """How far an order has been carried out."""

    #: The record of the audit log to which it belongs; `None` if the actor is not recorded.
    action: int | None
    done: int
    #: How many jobs were left alone, by the error's code.
    left: dict[str, int]
    #: The first of them.
    problems: list[LeftAlone]
    #: Where to continue; `None` at the end.
    position: Position | None


def preview(connection: Connection, actor: Actor, order: Order, which: Filter) -> Preview:
    """Returns the jobs that would be changed now: of those who are no administrators, their own.

    Raises `InvalidInput`, also without a filter, and `Forbidden`.
    """
    eligible = _eligible(actor, order, which)
    number = _count(connection, eligible.clauses())
    others = None if actor.is_restricted and not actor.sees_all else 0
    if others is not None and not actor.is_admin and which.created_by is None:
        everybody = eligible._replace(created_by=None)
        others = _count(connection, [*everybody.clauses(), table.c.created_by != actor.name])
    at: datetime = connection.execute(select(func.now())).scalar_one()
    return Preview(number, jobs.listing(connection, eligible, limit=SHOWN), at, others)


def counted(number: int) -> str:
    """Returns a number of jobs that match in words; as many as are counted may be more."""
    return f"{number:,}{'+' if number == MOST else ''} job{'' if number == 1 else 's'}"


def _count(connection: Connection, clauses: Sequence[ColumnElement[bool]]) -> int:
    matching = select(table.c.id).where(*clauses).limit(MOST).subquery()
    return int(connection.execute(select(func.count()).select_from(matching)).scalar_one())


def carry_out(
    unit: UnitOfWork,
    order: Order,
    which: Filter,
    *,
    until: datetime,
    after: Position | None = None,
    action: int | None = None,
    limit: int | None = None,
) -> Iterator[Progress]:
    """Changes the jobs that match and were created before `until`; yields after each batch.

    `unit` is not open: each batch opens its own transaction. To continue later, `after` and
    `action` are the `position` and the `action` of the last progress; counts begin at 0. It ends
    early after `limit` jobs. Raises as `preview`, and `NotFound` if the action is not the actor's
    own.
    """
    eligible = _eligible(unit.actor, order, which)._replace(
        created_until=min(until, which.created_until or until)
    )
    quiet = UnitOfWork(
        unit.connection, unit.settings, replace(unit.actor, origin=None), app=lambda: unit.app
    )
    log = _Log(unit, order, which, action)
    done, left, problems, seen = 0, Counter[str](), list[LeftAlone](), 0
    while True:
        size = BATCH if limit is None else min(BATCH, limit - seen)
        batch = _next(unit.connection, eligible, after, size) if size > 0 else []
        if batch:
            after = batch[-1]
            seen += len(batch)
            ids = [job_id for _, job_id in batch]
            if order.verb == "retry":
                ids = _parents_first(unit.connection, eligible, ids)
            for start in range(0, len(ids), BATCH):
                part = ids[start : start + BATCH]
                failed = _change(quiet, order, part, log)
                done += len(part) - len(failed)
                left.update(problem.code for problem in failed)
                problems = (problems + failed)[:_PROBLEMS]
        is_over = len(batch) < size
        yield Progress(log.entry.action, done, dict(left), problems, None if is_over else after)
        if is_over or seen == limit:
            return


def _eligible(actor: Actor, order: Order, which: Filter) -> Filter:
    """Returns the filter, limited to what the verb can change, and to what the actor may."""
    permissions.require_change(actor, f"{order.verb} jobs")
    is_own = which.created_by == actor.name and not actor.is_admin
    if (which._replace(created_by=None) if is_own else which) == Filter(which.namespace):
        raise InvalidInput.of("filter", "required", "say which jobs: give a state, a task, …")
    wanted = STATES[order.verb]
    asked = which.states or ((which.state,) if which.state else ())
    states = tuple(state for state in wanted if not asked or state in asked)
    if not states:
        message = f"can't {order.verb} jobs that are {' or '.join(asked)}: only {', '.join(wanted)}"
        raise InvalidInput.of("state", "conflict", message)
    eligible = which._replace(state=None, states=states)
    if order.verb == "retry":
        if which.is_retried:
            message = "a job can be retried only once, and these have been"
            raise InvalidInput.of("filter", "conflict", message)
        eligible = eligible._replace(states=states if asked else ("failed",), is_retried=False)
    return permissions.visible(replace(actor, is_viewer=False), eligible)


def _next(
    connection: Connection, which: Filter, after: Position | None, size: int
) -> list[Position]:
    query = select(table.c.created_at, table.c.id).where(*which.clauses())
    if after is not None:
        query = query.where(tuple_(table.c.created_at, table.c.id) < tuple_(*after))
    query = query.order_by(table.c.created_at.desc(), table.c.id.desc()).limit(size)
    return [(row[0], row[1]) for row in connection.execute(query)]


def _parents_first(connection: Connection, which: Filter, ids: Sequence[UUID]) -> list[UUID]:
    """Returns jobs, each after the ones that match, too, and that it depends on."""
    graph: dict[UUID, set[UUID]] = {job_id: set() for job_id in ids}
    added: Collection[UUID] = ids
    while added:
        pairs = retries.parents_of(connection, added)
        query = select(table.c.id).where(table.c.id.in_({parent for _, parent in pairs}))
        matching = set(connection.scalars(query.where(*which.clauses())))
        for job_id, parent in pairs:
            if parent in matching:
                graph[job_id].add(parent)
        added = matching - graph.keys()
        graph |= {job_id: set() for job_id in added}
    return list(TopologicalSorter(graph).static_order())


# -- changing


def _change(unit: UnitOfWork, order: Order, ids: Sequence[UUID], log: "_Log") -> list[LeftAlone]:
    """Changes jobs in one transaction, or after a deadlock in one for each."""
    try:
        return _batch(unit, order, ids, log)
    except DBAPIError as error:
        if connections.sqlstate(error) not in _DEADLOCKS:
            raise
    return [problem for job_id in ids for problem in _batch(unit, order, [job_id], log)]


def _batch(unit: UnitOfWork, order: Order, ids: Sequence[UUID], log: "_Log") -> list[LeftAlone]:
    act: Any = changes.update if order.verb == "update" else getattr(control, order.verb)
    failed = []
    with unit.transaction():
        unit.publisher  # noqa: B018  # before rows are locked
        for job_id in ids:
            try:
                with connections.savepoint(unit.connection):
                    act(unit, job_id, **order.options)
            except PgbeatError as error:
                failed.append(LeftAlone(job_id, error.code, str(error)))
        entry = log.write(len(ids) - len(failed), failed)
    log.entry = entry
    return failed


class _Entry(NamedTuple):
    """A record of the audit log, and the counts in it."""

    action: int | None
    done: int
    left: Counter[str]


class _Log:
    """The record of the audit log, which each batch brings up to date in its transaction."""

    def __init__(self, unit: UnitOfWork, order: Order, which: Filter, action: int | None) -> None:
        self._unit, self._verb = unit, order.verb
        what: dict[str, Any] = {"filter": described(which)} | {
            key: value
            for key, value in order.options.items()
            if key != "job_source" and value is not None
        }
        self._what = json.loads(json.dumps(what, default=audit.as_json))
        self.entry = _Entry(None, 0, Counter())
        if action is not None:
            known = audit.bulk_entry(unit.connection, unit.author, action, order.verb)
            if known is None or _lasting(known) != _lasting(self._what):
                raise NotFound(f"you have no action {action} with this order to continue")
            self.entry = _Entry(action, known.pop("done"), Counter(known.pop("left")))
            self._what = known

    def write(self, done: int, failed: Sequence[LeftAlone]) -> _Entry:
        """Adds what a batch did, in its transaction. Returns the entry, for after the commit."""
        before = self.entry
        left = before.left + Counter(problem.code for problem in failed)
        after = {**self._what, "done": before.done + done, "left": dict(left)}
        action = before.action
        if action is not None:
            audit.amend(self._unit.connection, action, after)
        else:
            action = self._unit.record_action(self._verb, "jobs", "several", None, after)
        return _Entry(action, before.done + done, left)


def _lasting(what: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an action says of its order, but for times that a query may count from now."""
    times = {"created_from", "created_until"}
    which = {name: value for name, value in what["filter"].items() if name not in times}
    return {**what, "filter": which, "done": None, "left": None}


def described(which: Filter) -> dict[str, Any]:
    """Returns the fields of a filter that are given, as JSON; of arguments only the names."""
    values = {name: value for name, value in which._asdict().items() if value is not None}
    values.pop("namespace")
    if which.arguments:
        values["arguments"] = [path for path, _ in which.arguments]
    return {
        name: value.isoformat()
        if isinstance(value, datetime)
        else [str(item) for item in value]
        if name == "ids"
        else value
        for name, value in values.items()
    }
