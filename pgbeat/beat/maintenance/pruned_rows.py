"""The old rows of each table that are pruned, and the statements that delete them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    Column,
    ColumnElement,
    DateTime,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    text,
    true,
    tuple_,
    union,
)
from sqlalchemy.types import NullType

from pgbeat.database.tables import (
    SCHEMA,
    audit,
    deliveries,
    dependencies,
    events,
    executions,
    groups,
    jobs,
    schedules,
    stacks,
    steps,
    ticks,
    webhooks,
)

_NAMESPACE = bindparam("namespace", type_=Text)
_COUNT, _LIMIT = bindparam("count", type_=Integer), bindparam("batch", type_=Integer)
_OLD = func.now() - literal_column("interval '1 second'") * bindparam("seconds")
_LONG_AGO, _NO_ID = "-infinity", "00000000-0000-0000-0000-000000000000"


class PrunedKind(NamedTuple):
    """A table, scanned from its oldest row on by an index."""

    name: str
    table: Table
    #: The old rows after a place (`at_0`, `at_1`), in the index's order, which a step scans.
    scanned: Select[Any]
    #: Returns the ids of those to delete. In a dry run the jobs are there that would be deleted.
    old: Callable[[CTE, bool], Select[Any]]
    #: Where to begin: below every value of the index.
    start: tuple[Any, ...] = (0,)
    #: A column of the table whose rows are deleted with them: it has their ids.
    dependents: Column[Any] | None = None
    #: A condition that all its rows meet, by which Postgres chooses their partitions.
    within: ColumnElement[bool] = true()


def _place(number: int, column: Column[Any]) -> ColumnElement[Any]:
    return cast(bindparam(f"at_{number}", type_=NullType()), column.type)


def _by_id(table: Table, moment: Column[Any], *more: Column[Any], where: Any = True) -> Select[Any]:
    """Returns the first rows by id that are old."""
    first = select(table.c.id, moment.label("moment"), *more).where(
        table.c.id > _place(0, table.c.id), where
    )
    oldest = first.order_by(table.c.id).limit(_LIMIT).subquery("oldest")
    kept = [oldest.c[column.key] for column in more]
    return select(oldest.c.id, oldest.c.id.label("at_0"), *kept).where(oldest.c.moment < _OLD)


def _by_time(
    table: Table, moment: Column[Any], *more: Column[Any], where: Any = True
) -> Select[Any]:
    """Returns the oldest rows by their time and id."""
    after, place = _place(0, moment), tuple_(_place(0, moment), _place(1, table.c.id))
    return (
        select(table.c.id, moment.label("at_0"), table.c.id.label("at_1"), *more)
        # The first of these is for indexes of the time alone.
        .where(moment >= after, tuple_(moment, table.c.id) > place, moment < _OLD, where)
        .order_by(moment, table.c.id)
        .limit(_LIMIT)
    )


#: Before this, no namespace keeps anything: what names none may be any's.
_OLD_FOR_ALL: ColumnElement[Any] = literal_column(
    "(SELECT CASE WHEN bool_or(retention_days = 0) THEN '-infinity' "
    "ELSE now() - coalesce(max(retention_days), 0) * interval '1 day' END FROM pgbeat.namespaces)"
)


def _old_ticks(scanned: CTE, dry_run: bool) -> Select[Any]:
    return _beyond_newest(scanned, ticks, ticks.c.due_at, orphans=scanned.c.due_at < _OLD_FOR_ALL)


def _beyond_newest(
    scanned: CTE, table: Table, moment: Column[Any], where: Any = True, orphans: Any = True
) -> Select[Any]:
    """Returns the rows that are older than the newest ones that their schedule keeps.

    Rows of one moment stay together. `orphans` is for rows whose schedule is gone.
    """
    last = (
        select(moment)
        .where(table.c.schedule_id == schedules.c.id)
        .order_by(moment.desc())
        .offset(func.greatest(_COUNT - 1, 0))
        .limit(1)
        .scalar_subquery()
    )
    of = (
        select(schedules.c.id, schedules.c.namespace, last.label("last"))
        .where(schedules.c.id.in_(select(scanned.c.schedule_id)))
        .offset(literal_column("0"))  # computed once for each schedule
        .subquery("s")
    )
    is_beyond = and_(
        of.c.namespace == _NAMESPACE, or_(_COUNT == 0, scanned.c[moment.key] < of.c.last)
    )
    return (
        select(scanned.c.id)
        .select_from(scanned.outerjoin(of, of.c.id == scanned.c.schedule_id))
        .where(or_(and_(of.c.id.is_(None), orphans), is_beyond), where)
    )


def _old_jobs(scanned: CTE, dry_run: bool) -> Select[Any]:
    group_has_ended = func.coalesce(
        select(groups.c.finished_at.is_not(None))
        .where(groups.c.id == scanned.c.group_id)
        .scalar_subquery(),
        True,
    )
    has_ended = and_(scanned.c.finished_at < _OLD, group_has_ended)
    return _beyond_newest(scanned, jobs, jobs.c.created_at, has_ended)


def _stays(related: ColumnElement[bool], dry_run: bool) -> ColumnElement[bool]:
    """Returns a condition of jobs: that they stay. In a dry run, those that will go are there."""
    if not dry_run:
        return true()
    columns = [jobs.c[name] for name in ("id", "created_at", "schedule_id", "group_id")]
    query = select(*columns, jobs.c.finished_at).where(related, jobs.c.namespace == _NAMESPACE)
    old = _materialized(_old_jobs(_materialized(query, "related"), dry_run), "old_jobs")
    return jobs.c.id.not_in(select(old.c.id))


def _old_groups(scanned: CTE, dry_run: bool) -> Select[Any]:
    """Returns the groups that have no jobs any more."""
    stays = _stays(jobs.c.group_id.in_(select(scanned.c.id)), dry_run)
    # By a subquery for each: with `exists`, and statistics of a time when no group was running, the
    # members of all that run were read for each.
    members = select(jobs.c.id).where(jobs.c.group_id == scanned.c.id, stays)
    member = members.limit(literal_column("1")).scalar_subquery()
    return select(scanned.c.id).where(scanned.c.finished_at < _OLD, member.is_(None))


def _orphans(scanned: CTE, dry_run: bool) -> Select[Any]:
    """Returns the rows whose jobs are gone: with their period, or deleted by hand."""
    stays = _stays(jobs.c.id.in_(select(scanned.c.job_id)), dry_run)
    return select(scanned.c.id).where(~exists().where(jobs.c.id == scanned.c.job_id, stays))


def _forgotten(scanned: CTE, dry_run: bool) -> Select[Any]:
    """Returns the steps of chains of which neither the first job nor the last is there.

    The last is the one that ran last, or its retry, which may wait for longer than rows are kept.
    """
    known = [scanned.c.root_id, scanned.c.job_id]
    ids = union(*(select(column) for column in known))
    stays = _stays(or_(jobs.c.id.in_(ids), jobs.c.retry_of.in_(ids)), dry_run)
    of_chain = (exists().where(id.in_(known), stays) for id in (jobs.c.id, jobs.c.retry_of))
    return select(scanned.c.id).where(*(~job for job in of_chain))


def _all(scanned: CTE, dry_run: bool) -> Select[Any]:
    return select(scanned.c.id)


def _old_deliveries(scanned: CTE, dry_run: bool) -> Select[Any]:
    return (
        select(scanned.c.id)
        .join(webhooks, webhooks.c.id == scanned.c.webhook_id)
        .where(scanned.c.finished_at < _OLD, webhooks.c.namespace == _NAMESPACE)
    )


_BY_TIME = (_LONG_AGO, _NO_ID)
#: For a role that may delete history, but not change the audit.
PRUNE_AUDIT = text("SELECT * FROM pgbeat.prune_audit(:namespace, :at_0, :seconds, :batch)")


_UNTIL = bindparam("until", type_=DateTime(timezone=True))
_ended_jobs, _ended_executions = (
    table.to_metadata(MetaData(), schema=SCHEMA, name=name)
    for table, name in ((jobs, "ended_jobs"), (executions, "ended_executions"))
)
KINDS = (
    PrunedKind(
        "ticks",
        ticks,
        _by_id(
            ticks,
            ticks.c.decided_at,
            ticks.c.schedule_id,
            ticks.c.due_at,
            where=ticks.c.due_at < _UNTIL,
        ),
        _old_ticks,
        within=ticks.c.due_at < _UNTIL,
    ),
    PrunedKind(
        "jobs",
        _ended_jobs,
        _by_time(
            _ended_jobs,
            _ended_jobs.c.created_at,
            *(
                _ended_jobs.c[name]
                for name in ("created_at", "schedule_id", "group_id", "finished_at")
            ),
            where=and_(_ended_jobs.c.namespace == _NAMESPACE, _ended_jobs.c.finished_at < _UNTIL),
        ),
        _old_jobs,
        _BY_TIME,
        executions.c.job_id,
        within=_ended_jobs.c.finished_at < _UNTIL,
    ),
    PrunedKind(
        "executions",
        _ended_executions,
        _by_time(
            _ended_executions,
            _ended_executions.c.started_at,
            _ended_executions.c.job_id,
            where=_ended_executions.c.finished_at < _UNTIL,
        ),
        lambda scanned, dry_run: _orphans(scanned, False),  # the others are their job's dependents
        _BY_TIME,
        within=_ended_executions.c.finished_at < _UNTIL,
    ),
    PrunedKind(
        "groups",
        groups,
        _by_time(
            groups,
            groups.c.created_at,
            groups.c.finished_at,
            where=groups.c.namespace == _NAMESPACE,
        ),
        _old_groups,
        _BY_TIME,
    ),
    PrunedKind(
        "dependencies",
        dependencies,
        _by_id(dependencies, dependencies.c.created_at, dependencies.c.job_id),
        _orphans,
    ),
    PrunedKind(
        "steps", steps, _by_id(steps, steps.c.began_at, steps.c.root_id, steps.c.job_id), _forgotten
    ),
    PrunedKind(
        "events",
        events,
        _by_id(events, events.c.emitted_at, where=events.c.namespace == _NAMESPACE),
        _all,
    ),
    PrunedKind("stacks", stacks, _by_id(stacks, stacks.c.asked_at, stacks.c.job_id), _orphans),
    PrunedKind(
        "deliveries",
        deliveries,
        _by_time(
            deliveries, deliveries.c.created_at, deliveries.c.finished_at, deliveries.c.webhook_id
        ),
        _old_deliveries,
        _BY_TIME,
    ),
    PrunedKind(
        "audit", audit, _by_id(audit, audit.c.at, where=audit.c.namespace == _NAMESPACE), _all
    ),
)


def _materialized(query: Select[Any], name: str) -> CTE:
    return query.cte(name).prefix_with("MATERIALIZED")


def _deletion(
    rows: ColumnElement[bool],
    table: Table,
    name: str,
    *,
    within: ColumnElement[bool] | None = None,
    dry_run: bool,
) -> tuple[CTE, CTE]:
    """Returns the rows' ids, and the statement that deletes them.

    A locked row is left for later: beat waits for no transaction.
    """
    query = select(table.c.id).where(rows)
    locked = query if dry_run else query.with_for_update(skip_locked=True)
    ids = _materialized(locked, f"{name}_ids")
    deletable = and_(table.c.id.in_(select(ids.c.id)), true() if within is None else within)
    if dry_run:
        return ids, select(table.c.id).where(deletable).cte(name)
    return ids, delete(table).where(deletable).returning(table.c.id).cte(name)


def statement(kind: PrunedKind, *, dry_run: bool) -> Select[Any]:
    """Returns a statement that deletes the old ones among the next rows.

    It returns how many rows it scanned, how many it deleted of the table and of its dependents,
    and the place of the last row.
    """
    scanned = _materialized(kind.scanned, "scanned")
    old = _materialized(kind.old(scanned, dry_run), "old")
    ids, deleted = _deletion(
        and_(kind.table.c.id.in_(select(old.c.id)), kind.within),
        kind.table,
        "deleted",
        within=kind.within,
        dry_run=dry_run,
    )
    counts: list[ColumnElement[Any]] = [_count(scanned), _count(deleted)]
    if kind.dependents is None:
        counts.append(literal_column("0"))
    else:
        table = kind.dependents.table
        rows = kind.dependents.in_(select(ids.c.id))
        counts.append(_count(_deletion(rows, table, "dependents", dry_run=dry_run)[1]))
    places = [scanned.c[f"at_{number}"] for number in range(len(kind.start))]
    order = [place.desc() for place in places]
    last = [select(place).order_by(*order).limit(1).scalar_subquery() for place in places]
    return select(*counts, *last)


def _count(rows: CTE) -> ColumnElement[int]:
    return select(func.count()).select_from(rows).scalar_subquery()
