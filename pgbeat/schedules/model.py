"""Schedules: the rows that say what to launch when, and every statement about them."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha1
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    RowMapping,
    Text,
    any_,
    delete,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError

from pgbeat.database.tables import schedules
from pgbeat.errors import (
    AlreadyExists,
    InvalidJob,
    InvalidSchedule,
    InvalidTimetable,
    NotFound,
    Problem,
)
from pgbeat.jobs import placeholders
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs.placeholders import in_use
from pgbeat.names import NAMESPACE
from pgbeat.suggest import did_you_mean
from pgbeat.timetables import (
    NEVER,
    Interval,
    Once,
    Timetable,
    bounded,
    cron,
    parse_cron,
    parse_rrule,
    parse_solar,
    rrule,
    zone,
)

#: Columns that say when: a schedule has one of them.
TIMETABLES = ("cron", "every", "once_at", "solar", "rrule", "after")


class Schedule(NamedTuple):
    """A row of `pgbeat.schedules`, as read at one moment."""

    id: int
    uid: UUID
    #: Of the apps that share the database, whose it is.
    namespace: str
    name: str
    launcher: str
    task: str | None
    #: `None` where the arguments are not JSON and stay in the app's code (`source` is `code`).
    args: list[Any] | None
    kwargs: dict[str, Any]
    options: dict[str, Any]
    queue: str | None
    condition_sql: str | None
    cron: str | None
    every: timedelta | None
    once_at: datetime | None
    solar: str | None
    rrule: str | None
    #: Name of the schedule that it is launched after.
    after: str | None
    after_outcome: str
    timezone: str | None
    starts_at: datetime | None
    ends_at: datetime | None
    max_runs: int | None
    run_count: int
    jitter: timedelta
    calendar: str | None
    catch_up: str
    catch_up_limit: int
    grace: timedelta | None
    overlap: str
    min_interval: timedelta | None
    enabled: bool
    disabled_reason: str | None
    #: When it was disabled because nothing was left to do.
    completed_at: datetime | None
    paused_at: datetime | None
    max_retries: int
    retry_base: timedelta
    retry_factor: float
    retry_cap: timedelta
    retry_count: int
    probe_after: timedelta | None
    probe_at: datetime | None
    next_run: datetime | None
    #: The timetable's time, where `next_run` is another.
    due_at: datetime | None
    #: The unfinished job that a due time waits for.
    waiting_for: UUID | None
    #: Ended jobs of the schedule named in `after` that no tick has decided on yet.
    upstream_ended: int
    last_run: datetime | None
    last_success: datetime | None
    last_failure: datetime | None
    last_error: str | None
    cursor: Any
    owner: str | None
    source: str
    #: The app whose code makes it (`source` is `code`); `None` where that is not known.
    app: str | None
    #: How its jobs are made: lane, priority, retries … (`job_policies.parse`).
    job_policy: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    #: So many failed jobs in a row pause it; `None` for never.
    pause_after_failures: int | None
    paused_reason: str | None
    #: Failures before that don't pause it: since then somebody let it go on.
    failures_from: datetime | None
    #: For people.
    description: str | None
    #: Names and texts to find it by; its jobs have them too.
    labels: dict[str, str]
    #: Anything else that people or programs keep with it.
    metadata: dict[str, Any]
    #: The row's version (`xmin`): another one means that somebody wrote to it since.
    version: int

    @property
    def completed(self) -> str | None:
        """Why nothing is left to do, where it is disabled because of that; else `None`."""
        return None if self.completed_at is None else self.disabled_reason or "no reason given"

    @property
    def state(self) -> str:
        """In one word, whether it is in service: `disabled`, `completed`, `paused`, `waiting` (for
        a job's end), `retrying` (after a failure) or `active`."""
        if not self.enabled:
            return "disabled" if self.completed_at is None else "completed"
        if self.paused_at is not None:
            return "paused"
        if self.waiting_for is not None:
            return "waiting"
        return "retrying" if self.retry_count else "active"

    @property
    def is_sql_only(self) -> bool:
        """Whether it launches what the row says, if its condition in SQL holds."""
        return (
            self.launcher == "GenericLauncher"
            and self.condition_sql is not None
            and self.args is not None
        )

    @property
    def has_placeholders(self) -> bool:
        """Whether its arguments have placeholders to fill in. Those of the app's code have none:
        they are what Celery's own beat would send."""
        is_empty = not self.args and not self.kwargs
        return not is_empty and self.source != "code" and in_use((self.args, self.kwargs))

    @property
    def is_plain(self) -> bool:
        """Whether it launches always, with what the row says: nothing to wait for."""
        return (
            self.launcher == "GenericLauncher"
            and self.condition_sql is None
            and self.args is not None
        )

    @property
    def has_timetable(self) -> bool:
        """Whether the row says when it is due; else that is decided by the app's code."""
        return (
            self.every is not None
            or self.cron is not None
            or self.after is not None
            or any(value is not None for value in (self.once_at, self.solar, self.rrule))
        )

    def timetable(self, default_timezone: str) -> Timetable | None:
        """When it is due; `None` where that is decided by the app's code.

        Raises `InvalidTimetable` for what was written past the checks.
        """
        timezone = self.timezone or default_timezone
        anchor = self.starts_at or self.created_at
        found: Timetable | None = None
        if self.cron is not None:
            found = cron(self.cron, timezone)
        elif self.every is not None:
            zone(timezone)
            found = Interval(self.every, anchor, timezone)
        elif self.once_at is not None:
            found = Once(self.once_at)
        elif self.solar is not None:
            found = parse_solar(self.solar)
        elif self.rrule is not None:
            found = rrule(self.rrule, anchor, timezone)
        elif self.after is not None:
            found = NEVER
        if found is None or (self.starts_at is None and self.ends_at is None):
            return found
        return bounded(found, self.starts_at, self.ends_at)

    def jittered(self, moment: datetime) -> datetime:
        """When it is due, for a time of its timetable: the same for the same time, later by up to
        `jitter`."""
        if not self.jitter:
            return moment
        digest = sha1(self.uid.bytes + _iso(moment), usedforsecurity=False).digest()
        share = int.from_bytes(digest[:6], "big") / (1 << 48)
        return moment + self.jitter * share

    def job_id(self, due_at: datetime, run_key: str | None = None) -> str:
        """Returns the Celery task id of a job that is launched for a due time: always the same.

        It is the UUID (version 5) of the time's ISO form in UTC, in the schedule's own namespace;
        of a job with a run key, with a space and that key behind it.
        """
        name = _iso(due_at) if run_key is None else _iso(due_at) + b" " + run_key.encode()
        digest = sha1(self.uid.bytes + name, usedforsecurity=False).digest()
        return str(UUID(bytes=digest[:16], version=5))

    def backoff(self) -> timedelta:
        """How long after a failure to try again: base × factor^n, capped, n counting this one."""
        factor = min(self.retry_factor ** min(self.retry_count + 1, 100), 1e15)
        # Asked by division: the product may be longer than a timedelta can be.
        is_capped = self.retry_base > self.retry_cap / factor
        return self.retry_cap if is_capped else self.retry_base * factor

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "schedule", self.name, {name: getattr(self, name) for name in _AUDITED}


_AUDITED = [name for name in Schedule._fields if name not in {
    "id", "uid", "namespace", "name", "probe_at", "due_at", "waiting_for", "upstream_ended",
    "cursor", "created_at", "updated_at", "failures_from", "version",
}]  # fmt: skip


@lru_cache(maxsize=1024)
def _iso(moment: datetime) -> bytes:
    return moment.astimezone(UTC).isoformat().encode()


#: Selects the columns of `Schedule`.
SELECT = select(
    *(c for c in schedules.c if c.name != "file_definition"),
    text("schedules.xmin::text::bigint AS version"),
)
#: Whether beat looks at a row at all.
ACTIVE = schedules.c.enabled & schedules.c.paused_at.is_(None)


def get(
    connection: Connection, name: str, *, namespace: str = NAMESPACE, for_update: bool = False
) -> Schedule:
    """The schedule of that name. Raises `NotFound`, which names the nearest there is."""
    query = SELECT.where(_is(name, namespace))
    row = connection.execute(query.with_for_update() if for_update else query).one_or_none()
    if row is None:
        raise NotFound(_not_found(connection, name, namespace))
    return Schedule._make(row)


def _is(name: str, namespace: str) -> ColumnElement[bool]:
    return (schedules.c.name == name) & (schedules.c.namespace == namespace)


def _not_found(connection: Connection, name: str, namespace: str) -> str:
    names = connection.scalars(
        select(schedules.c.name)
        .where(schedules.c.namespace == namespace)
        .order_by(schedules.c.name)
        .limit(10_000)
    )
    hint = did_you_mean(name, names)
    place = "" if namespace == NAMESPACE else f" in namespace {namespace!r}"
    return f"there is no schedule {name!r}{place}" + (f"; {hint}" if hint else "")


def listing(
    connection: Connection,
    *,
    namespace: str = NAMESPACE,
    enabled: bool | None = None,
    labels: Mapping[str, str] | None = None,
) -> list[Schedule]:
    """All schedules, or those that are (not) enabled and have these labels, by name."""
    query = SELECT.where(schedules.c.namespace == namespace).order_by(schedules.c.name)
    if enabled is not None:
        query = query.where(schedules.c.enabled == enabled)
    if labels:
        query = query.where(schedules.c.labels.contains(dict(labels)), schedules.c.labels != {})
    return [Schedule._make(row) for row in connection.execute(query)]


def named(
    connection: Connection,
    names: Iterable[str],
    *,
    namespace: str = NAMESPACE,
    for_update: bool = False,
) -> dict[str, Schedule]:
    """Those of these names that there are."""
    found = literal(sorted(set(names)), ARRAY(Text))
    query = SELECT.where(schedules.c.namespace == namespace, schedules.c.name == any_(found))
    rows = connection.execute(query.with_for_update() if for_update else query)
    return {row.name: row for row in map(Schedule._make, rows)}


#: States that a page of schedules can be asked for.
State = Literal["active", "paused", "disabled"]
_IS_IN: dict[str, ColumnElement[bool]] = {
    "active": ACTIVE,
    "paused": schedules.c.enabled & schedules.c.paused_at.is_not(None),
    "disabled": ~schedules.c.enabled,
}


def page(
    connection: Connection,
    *,
    namespace: str = NAMESPACE,
    state: State | None = None,
    search: str | None = None,
    labels: Mapping[str, str] | None = None,
    after: str | None = None,
    limit: int = 50,
) -> list[Schedule]:
    """So many schedules, by name, beginning after a name. `search` is a part of a name in upper or
    lower case."""
    names = select(schedules.c.id).where(schedules.c.namespace == namespace)
    if state is not None:
        names = names.where(_IS_IN[state])
    if search:
        names = names.where(func.strpos(func.lower(schedules.c.name), search.lower()) > 0)
    if labels:
        names = names.where(schedules.c.labels.contains(dict(labels)), schedules.c.labels != {})
    if after is not None:
        names = names.where(schedules.c.name > after)
    names = names.order_by(schedules.c.name).limit(limit)
    query = SELECT.where(schedules.c.id.in_(names)).order_by(schedules.c.name)
    return [Schedule._make(row) for row in connection.execute(query)]


class Backlog(NamedTuple):
    """What is due and not decided yet."""

    #: How many, counted no further than `MOST_DUE`.
    due: int
    #: Seconds for which the oldest is due; 0 without any.
    lag: float


#: Due schedules are counted so far.
MOST_DUE = 10_000
_BACKLOG = text(
    """
    SELECT count(*), coalesce(extract(epoch FROM now() - min(next_run)), 0)::float8
      FROM (SELECT next_run FROM pgbeat.schedules
             WHERE namespace = :namespace AND enabled AND paused_at IS NULL AND next_run <= now()
             ORDER BY next_run LIMIT :most) AS oldest
    """
)


def backlog(connection: Connection, *, namespace: str = NAMESPACE) -> Backlog:
    """What is due and not decided yet; at any number of schedules a short look at an index."""
    return Backlog(*connection.execute(_BACKLOG, {"namespace": namespace, "most": MOST_DUE}).one())


def count(connection: Connection, *, namespace: str = NAMESPACE) -> RowMapping:
    """How many there are: `total`, `active`, `paused`, `disabled`, `due`, `oldest_due`."""
    c = schedules.c
    is_due = ACTIVE & (c.next_run <= func.now())
    return (
        connection.execute(
            select(
                func.count().label("total"),
                func.count().filter(ACTIVE).label("active"),
                func.count().filter(c.enabled & c.paused_at.is_not(None)).label("paused"),
                func.count().filter(~c.enabled).label("disabled"),
                func.count().filter(is_due).label("due"),
                func.min(c.next_run).filter(is_due).label("oldest_due"),
            )
            .select_from(schedules)
            .where(c.namespace == namespace)
        )
        .mappings()
        .one()
    )


#: What a person may set on a schedule.
EDITABLE = frozenset(
    {
        "launcher", "task", "args", "kwargs", "options", "queue", "condition_sql", "cron", "every",
        "once_at", "solar", "rrule", "after", "after_outcome", "timezone", "starts_at", "ends_at",
        "max_runs", "jitter", "calendar", "catch_up", "catch_up_limit", "grace", "overlap",
        "min_interval", "max_retries", "retry_base", "retry_factor", "retry_cap", "probe_after",
        "owner", "next_run", "job_policy", "pause_after_failures", "description", "labels",
        "metadata",
    }
)  # fmt: skip


def add(
    connection: Connection, name: str, *, source: str, namespace: str = NAMESPACE, **values: Any
) -> Schedule:
    """Adds a schedule. `job_policy` is JSON (see `job_policies.parse`).

    Raises `InvalidSchedule` or `AlreadyExists`.
    """
    values = _checked(values)
    row = {"name": name, "namespace": namespace, "source": source, **values}
    try:
        with connection.begin_nested():
            connection.execute(insert(schedules).values(row))
    except IntegrityError as error:
        if _constraint(error) == "schedules_name_key":
            raise AlreadyExists(
                f"there is a schedule {name!r} already; change it with `pgbeat update`"
            ) from None
        raise _invalid(error) from None
    except DBAPIError as error:
        raise _invalid(error) from None
    _check_timetable(values)
    return get(connection, name, namespace=namespace)


def edit(
    connection: Connection, name: str, *, namespace: str = NAMESPACE, **values: Any
) -> Schedule:
    """Changes a schedule; a `job_policy` replaces the former one, whole.

    Raises `InvalidSchedule` or `NotFound`.
    """
    values = _checked(values)
    get(connection, name, namespace=namespace, for_update=True)
    if values:
        try:
            with connection.begin_nested():
                connection.execute(update(schedules).where(_is(name, namespace)).values(**values))
        except DBAPIError as error:
            raise _invalid(error) from None
    _check_timetable(values)
    return get(connection, name, namespace=namespace)


def enable(connection: Connection, name: str, *, namespace: str = NAMESPACE) -> Schedule:
    """Puts a schedule (back) in service; its next time is computed from now."""
    return _set(connection, name, namespace, enabled=True)


def disable(
    connection: Connection, name: str, reason: str | None = None, *, namespace: str = NAMESPACE
) -> Schedule:
    """Takes a schedule out of service, until it is enabled."""
    reason = reason or "disabled by hand"
    values = {"disabled_reason": reason, "completed_at": None, "probe_at": None}
    return _set(connection, name, namespace, enabled=False, **values)


def pause(
    connection: Connection, name: str, reason: str | None = None, *, namespace: str = NAMESPACE
) -> Schedule:
    """Holds a schedule; what falls due meanwhile is not made up for."""
    row = get(connection, name, namespace=namespace, for_update=True)
    if row.paused_at is not None:
        return row
    return _set(connection, name, namespace, paused_at=func.now(), paused_reason=reason)


def resume(connection: Connection, name: str, *, namespace: str = NAMESPACE) -> Schedule:
    """Lets a paused schedule go on; its next time is computed from now."""
    return _set(connection, name, namespace, paused_at=None)


def remove(connection: Connection, name: str, *, namespace: str = NAMESPACE) -> None:
    """Deletes a schedule; its ticks and jobs stay until they are pruned. Raises `NotFound`."""
    get(connection, name, namespace=namespace, for_update=True)
    connection.execute(delete(schedules).where(_is(name, namespace)))


def _set(connection: Connection, name: str, namespace: str, **values: Any) -> Schedule:
    get(connection, name, namespace=namespace, for_update=True)
    connection.execute(update(schedules).where(_is(name, namespace)).values(**values))
    return get(connection, name, namespace=namespace)


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as the row has them. Raises `InvalidSchedule`."""
    unknown = set(values) - EDITABLE
    if unknown:
        raise InvalidSchedule.of(
            sorted(unknown)[0],
            "unknown_field",
            f"a schedule has no {', '.join(sorted(unknown))} that can be set",
        )
    placeholders.check(values.get("args"), values.get("kwargs"))
    policy = values.get("job_policy", ())
    if not isinstance(policy, Mapping | None):
        return dict(values)  # not given, or what the database has a sentence for
    try:
        return {**values, "job_policy": job_policies.parse(policy or {}, "job_policy").as_json()}
    except InvalidJob as error:
        raise InvalidSchedule(error.problems, subject=error.subject) from None


def _check_timetable(values: Mapping[str, Any]) -> None:
    """What the database's check, which words it better, may have let through."""
    if values.get("cron") is not None:
        parse_cron(values["cron"])
    if values.get("timezone") is not None:
        zone(values["timezone"])
    if values.get("solar") is not None:
        parse_solar(values["solar"])
    if values.get("rrule") is not None:
        parse_rrule(values["rrule"])


def _constraint(error: DBAPIError) -> str | None:
    return getattr(getattr(error.orig, "diag", None), "constraint_name", None)


def _invalid(error: DBAPIError) -> InvalidSchedule:
    """The database's refusal, in the sentence of its trigger."""
    state = getattr(error.orig, "sqlstate", None) or ""
    if not state.startswith(("22", "23")):  # not about the data: no such table, a lost connection
        raise error
    said = error.orig.diag  # type: ignore[union-attr]
    message = str(said.message_primary)
    if not state.startswith("23") and said.message_detail:
        message += f": {said.message_detail}"
    if said.datatype_name is None:  # not one of our triggers
        return InvalidSchedule(message)
    kind = InvalidTimetable if said.column_name in _OF_TIME else InvalidSchedule
    subject = f'schedule "{said.datatype_name}"'
    message = message.removeprefix(f"{subject}: ")
    field, code = said.column_name or "", said.constraint_name or "malformed"
    return kind([Problem(field, code, message)], subject=subject)


#: Fields that are wrong in a timetable's way.
_OF_TIME = {"cron", "timezone", "solar", "rrule"}
