"""Schedules: the rows that say what to launch when, and the queries that find them."""

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
    func,
    literal,
    select,
    text,
)

from pgbeat.database.named_rows import NamedRows
from pgbeat.database.tables import schedules
from pgbeat.jobs.preparing.placeholders import in_use
from pgbeat.names import NAMESPACE
from pgbeat.timetables import (
    NEVER,
    TICK,
    Interval,
    Once,
    Timetable,
    bounded,
    cron,
    parse_solar,
    rrule,
    zone,
)

#: The columns of which a schedule has exactly one.
TIMETABLES = ("cron", "every", "once_at", "solar", "rrule", "after")


class Schedule(NamedTuple):
    """A row of `pgbeat.schedules`, as read at one moment."""

    id: int
    uid: UUID
    namespace: str
    name: str
    launcher: str
    task: str | None
    #: `None` if the arguments are not JSON and stay in the app's code (`source` is `code`).
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
    #: Names of schedules whose jobs launch this one when they end, one a line (`upstreams`).
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
    #: When it was disabled because it had no due time left.
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
    #: The due time by the timetable, if it differs from `next_run`.
    due_at: datetime | None
    #: The unfinished job that must end before the due time is decided.
    waiting_for: UUID | None
    #: Ended jobs of those in `after` that made it due, and that no tick has decided on yet.
    upstream_ended: int
    #: Whether `next_run` was set by somebody other than beat.
    out_of_turn: bool
    last_run: datetime | None
    last_success: datetime | None
    last_failure: datetime | None
    last_error: str | None
    cursor: Any
    owner: str | None
    source: str
    #: The app whose code makes it (`source` is `code`); `None` if unknown.
    app: str | None
    #: How its jobs are made: lane, priority, retries … (`job_policies.parse`).
    job_policy: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    #: How many failed jobs in a row pause it; `None` for never.
    pause_after_failures: int | None
    #: Where each run is reported to, with alternatives for its start, success and failure.
    check_in_url: str | None
    paused_reason: str | None
    #: Failures before this time no longer count towards a pause.
    failures_from: datetime | None
    description: str | None
    #: Names and texts to find it by; its jobs have them too.
    labels: dict[str, str]
    #: Anything else that people or programs keep with it.
    metadata: dict[str, Any]
    #: It is stale if none of its jobs completes for so long; `None` for never.
    fresh_within: timedelta | None
    #: When beat looks next whether it is stale.
    stale_at: datetime | None
    stale_since: datetime | None
    after_match: str
    #: Those in `after` of which a job ended since its last decision.
    after_done: list[str]
    #: The due time that failed and is retried; of no meaning if `retry_count` is 0.
    failed_due_at: datetime | None
    #: The row's `xmin`, which changes with every write.
    version: int

    @property
    def completed(self) -> str | None:
        """Returns why it has no due time left; `None` if it isn't completed."""
        return None if self.completed_at is None else self.disabled_reason or "no reason given"

    @property
    def patience(self) -> int:
        """Returns how many failed decisions in a row disable it."""
        return max(self.max_retries, 1)

    @property
    def state(self) -> str:
        """Returns `disabled`, `completed`, `paused`, `waiting`, `retrying` or `active`.

        It waits for a job's end, and retries after a failure.
        """
        if not self.enabled:
            return "disabled" if self.completed_at is None else "completed"
        if self.paused_at is not None:
            return "paused"
        if self.waiting_for is not None:
            return "waiting"
        return "retrying" if self.retry_count else "active"

    @property
    def is_plain(self) -> bool:
        """Returns whether it always launches the row's task and arguments."""
        return self.condition_sql is None and self._needs_no_code

    @property
    def is_sql_only(self) -> bool:
        """Returns whether it launches the row's task if its SQL condition holds."""
        return self.condition_sql is not None and self._needs_no_code

    @property
    def _needs_no_code(self) -> bool:
        return self.launcher == "GenericLauncher" and self.args is not None

    @property
    def has_placeholders(self) -> bool:
        """Returns whether its arguments have placeholders to fill in.

        Arguments from the app's code have none: they are sent as Celery's own beat would.
        """
        is_empty = not self.args and not self.kwargs
        return not is_empty and self.source != "code" and in_use((self.args, self.kwargs))

    @property
    def has_timetable(self) -> bool:
        """Returns whether the row says when it is due; if not, the app's code does."""
        return any(getattr(self, name) is not None for name in TIMETABLES)

    def timetable(self, default_timezone: str) -> Timetable | None:
        """Returns when it is due; `None` if only the app's code knows.

        Raises `InvalidTimetable` for a value that bypassed the checks.
        """
        timezone = self.timezone or default_timezone
        anchor = self.starts_at or self.created_at
        timetable: Timetable | None = None
        if self.cron is not None:
            timetable = cron(self.cron, timezone)
        elif self.every is not None:
            zone(timezone)
            timetable = Interval(self.every, anchor, timezone)
        elif self.once_at is not None:
            timetable = Once(self.once_at)
        elif self.solar is not None:
            timetable = parse_solar(self.solar)
        elif self.rrule is not None:
            timetable = rrule(self.rrule, anchor, timezone)
        elif self.after is not None:
            timetable = NEVER
        return None if timetable is None else bounded(timetable, self.starts_at, self.ends_at)

    @property
    def undecided_once(self) -> datetime | None:
        """Returns its single time, which may have passed, unless it was decided since."""
        once_at = self.once_at
        if once_at is None or (self.last_run is not None and self.last_run >= once_at):
            return None
        return bounded(Once(once_at), self.starts_at, self.ends_at).previous(once_at + TICK)

    def jittered(self, moment: datetime) -> datetime:
        """Returns when to decide a due time: up to `jitter` later, always by the same delay."""
        if not self.jitter:
            return moment
        digest = sha1(self.uid.bytes + _iso(moment), usedforsecurity=False).digest()
        share = int.from_bytes(digest[:6], "big") / (1 << 48)
        return moment + self.jitter * share

    def job_id(self, due_at: datetime, run_key: str | None = None) -> str:
        """Returns the Celery task id of the job that a due time launches: always the same.

        It is the UUID (version 5) of the time's ISO form in UTC, in the schedule's own namespace.
        A run key is appended to the time after a space.
        """
        name = _iso(due_at) if run_key is None else _iso(due_at) + b" " + run_key.encode()
        digest = sha1(self.uid.bytes + name, usedforsecurity=False).digest()
        return str(UUID(bytes=digest[:16], version=5))

    def backoff(self) -> timedelta:
        """Returns how long to wait after a failure: base × factor^n, capped; n counts this one."""
        factor = min(self.retry_factor ** min(self.retry_count + 1, 100), 1e15)
        # By division: the product may be longer than a timedelta can be.
        is_capped = self.retry_base > self.retry_cap / factor
        return self.retry_cap if is_capped else self.retry_base * factor

    @property
    def audited(self) -> tuple[str, str, dict[str, Any]]:
        """Returns what the audit log records of it."""
        return "schedule", self.name, {name: getattr(self, name) for name in _AUDITED}


_AUDITED = [name for name in Schedule._fields if name not in {
    "id", "uid", "namespace", "name", "probe_at", "due_at", "waiting_for", "upstream_ended",
    "out_of_turn", "cursor", "created_at", "updated_at", "failures_from", "stale_at",
    "stale_since", "after_done", "failed_due_at", "version",
}]  # fmt: skip


@lru_cache(maxsize=1024)
def _iso(moment: datetime) -> bytes:
    return moment.astimezone(UTC).isoformat().encode()


#: Selects the columns of `Schedule`.
_COLUMNS: Any = (
    *(schedules.c[name] for name in Schedule._fields if name != "version"),
    text("schedules.xmin::text::bigint AS version"),
)
SELECT = select(*_COLUMNS)
_rows = NamedRows("schedule", Schedule, _COLUMNS)
get, is_named = _rows.get, _rows.is_named
#: Whether beat evaluates a row at all.
ACTIVE = schedules.c.enabled & schedules.c.paused_at.is_(None)


def listing(
    connection: Connection,
    *,
    namespace: str = NAMESPACE,
    enabled: bool | None = None,
    labels: Mapping[str, str] | None = None,
) -> list[Schedule]:
    """Returns all schedules by name, or those that are (not) enabled and have these labels."""
    query = SELECT.where(schedules.c.namespace == namespace).order_by(schedules.c.name)
    if enabled is not None:
        query = query.where(schedules.c.enabled == enabled)
    if labels:
        query = query.where(_has(labels))
    return [Schedule._make(row) for row in connection.execute(query)]


def _has(labels: Mapping[str, str]) -> ColumnElement[bool]:
    """Returns the condition for rows with these labels; its second half lets an index serve it."""
    return schedules.c.labels.contains(dict(labels)) & (schedules.c.labels != {})


def named(
    connection: Connection,
    names: Iterable[str],
    *,
    namespace: str = NAMESPACE,
    for_update: bool = False,
) -> dict[str, Schedule]:
    """Returns the schedules that exist among these names."""
    wanted = literal(sorted(set(names)), ARRAY(Text))
    query = SELECT.where(schedules.c.namespace == namespace, schedules.c.name == any_(wanted))
    rows = connection.execute(query.with_for_update() if for_update else query)
    return {row.name: row for row in map(Schedule._make, rows)}


#: States by which a page of schedules can be filtered.
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
    """Returns up to `limit` schedules by name, those after the name `after`.

    `search` is a part of a name, in upper or lower case.
    """
    ids = select(schedules.c.id).where(schedules.c.namespace == namespace)
    if state is not None:
        ids = ids.where(_IS_IN[state])
    if search:
        ids = ids.where(func.strpos(func.lower(schedules.c.name), search.lower()) > 0)
    if labels:
        ids = ids.where(_has(labels))
    if after is not None:
        ids = ids.where(schedules.c.name > after)
    ids = ids.order_by(schedules.c.name).limit(limit)
    query = SELECT.where(schedules.c.id.in_(ids)).order_by(schedules.c.name)
    return [Schedule._make(row) for row in connection.execute(query)]


def next_due(
    connection: Connection, *, namespace: str = NAMESPACE, limit: int = 10
) -> list[Schedule]:
    """Returns the schedules that are due next, or are due already, by that time."""
    query = SELECT.where(
        schedules.c.namespace == namespace, ACTIVE, schedules.c.next_run.is_not(None)
    )
    rows = connection.execute(query.order_by(schedules.c.next_run).limit(limit))
    return [Schedule._make(row) for row in rows]


class Backlog(NamedTuple):
    """Due times that are not decided yet."""

    #: How many schedules are due, counted up to `MOST_DUE`.
    due: int
    #: For how many seconds the oldest has been due; 0 without any.
    lag: float


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
    """Returns the undecided due times; reads only an index, however many schedules there are."""
    return Backlog(*connection.execute(_BACKLOG, {"namespace": namespace, "most": MOST_DUE}).one())


def count(connection: Connection, *, namespace: str = NAMESPACE) -> RowMapping:
    """Returns the numbers `total`, `active`, `paused`, `disabled`, `due` and `unplanned`.

    Beats have not given the unplanned ones a time yet. `oldest_due` is a time.
    """
    next_run = schedules.c.next_run
    is_due = ACTIVE & (next_run <= func.now())
    is_new = ACTIVE & next_run.is_(None) & schedules.c.after.is_(None)
    query = select(
        func.count().label("total"),
        *(func.count().filter(is_in).label(state) for state, is_in in _IS_IN.items()),
        func.count().filter(is_due).label("due"),
        func.count().filter(is_new).label("unplanned"),
        func.min(next_run).filter(is_due).label("oldest_due"),
    )
    rows = connection.execute(query.where(schedules.c.namespace == namespace))
    return rows.mappings().one()
