"""Launchers: classes that decide at a due time whether to launch, and with which arguments."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import psycopg
from sqlalchemy import Connection, Engine, text

from pgbeat import plugins
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import ConditionError, UnknownLauncher
from pgbeat.jobs.preparing import placeholders
from pgbeat.jobs.preparing.placeholders import Facts
from pgbeat.jobs.running.task_exceptions import Skip
from pgbeat.storable import is_storable

if TYPE_CHECKING:
    from pgbeat.schedules.model import Schedule

__all__ = [
    "Context",
    "GenericJobLauncher",
    "GenericLauncher",
    "JobRequest",
    "Launcher",
    "Skip",
    "launcher",
]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job to launch: the task's arguments, and Celery's publish options (`queue`, `priority` …).

    Options override those of the schedule. `snooze` sets when the launcher is evaluated next,
    instead of at the timetable's next time: a time, or a duration from now, limited by the settings
    `pgbeat_snooze_min` and `pgbeat_snooze_max`. Of several requests, the first with a `snooze`
    counts. `run_key` (1 to 200 characters) distinguishes the jobs of one decision, and only
    of that one: the same key at the next due time is another job.
    """

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    task: str = ""
    snooze: timedelta | datetime | None = None
    run_key: str | None = None


#: The most jobs of one decision.
MOST_JOBS = 100
#: The most characters of a run key.
_LONGEST_KEY = 200
#: The types that `prepare_job_data` may return for one job.
JobData = Mapping[str, Any] | JobRequest


class Context:
    """The circumstances of one decision, for its launcher."""

    def __init__(
        self,
        schedule: "Schedule",
        due_at: datetime,
        now: datetime,
        connect: Callable[[], Connection],
        facts: Facts | None = None,
    ) -> None:
        #: The schedule's row, with placeholders not filled in.
        self.schedule = schedule
        #: When the schedule was due, by its timetable.
        self.due_at = due_at
        #: The database's time at the start of beat's pass.
        self.now = now
        #: JSON that the launcher wants to find again at the next tick; saved with this one, unless
        #: it fails, or a policy forbids its launch.
        self.cursor: Any = schedule.cursor
        self._connect = connect
        self._connection: Connection | None = None
        self._facts = facts or Facts(
            due_at, schedule.timezone or "UTC", schedule=schedule.name, trigger="manual"
        )

    @property
    def args(self) -> Sequence[Any]:
        """Returns the row's arguments, placeholders filled in. Raises `InvalidPlaceholder`."""
        filled: Sequence[Any] = self._filled(self.schedule.args or [], "args")
        return filled

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Returns the row's keyword arguments, likewise."""
        filled: Mapping[str, Any] = self._filled(self.schedule.kwargs, "kwargs")
        return filled

    def _filled(self, value: Any, path: str) -> Any:
        if not self.schedule.has_placeholders:
            return value
        return placeholders.fill(value, self._facts, path)

    @property
    def trigger(self) -> str | None:
        """Returns why it is decided now: `timetable`, `retry`, `after`, `manual` or `backfill`."""
        return self._facts.trigger

    @property
    def interval_start(self) -> datetime | None:
        """Returns the timetable's time before `interval_end`, if any."""
        return self._facts.interval_start

    @property
    def interval_end(self) -> datetime:
        """Returns the due time decided now; for a retry, the one that failed.

        Out of turn, the timetable's last due time.
        """
        return self._facts.interval_end

    @property
    def last_run(self) -> datetime | None:
        """Returns when the schedule was decided last, whatever the outcome."""
        return self.schedule.last_run

    @property
    def last_success(self) -> datetime | None:
        """Returns when the schedule launched last."""
        return self.schedule.last_success

    @property
    def connection(self) -> Connection:
        """Returns a connection to pgbeat's database, opened on first use.

        It has one read-only transaction with a statement timeout, rolled back after the decision.
        """
        if self._connection is None:
            self._connection = self._connect()
        return self._connection


class Launcher(ABC):
    """Decides one schedule at its due time. Subclass it, and register the class with `@launcher`.

    An instance is made for each decision. `check_conditions` and `prepare_job_data` run on their
    own thread under a time limit; any exception makes the tick `failed`.
    """

    #: Name of the task to launch, unless `get_job_type` returns another or the row names one.
    task: str | None = None

    @abstractmethod
    def check_conditions(self, ctx: Context) -> bool | Skip:
        """Returns `True` to launch, or `False` or a `Skip` with the reason not to."""

    def prepare_job_data(self, ctx: Context) -> JobData | Sequence[JobData]:
        """Returns the task's keyword arguments, or a `JobRequest`; by default, the row's arguments.

        For several jobs, at most 100, it returns a list of `JobRequest`s with different run keys.
        An empty list skips.
        """
        return JobRequest(args=ctx.args, kwargs=ctx.kwargs)

    def get_job_type(self) -> str | None:
        """Returns the name of the task to launch; `None` leaves it to the row."""
        return self.task

    def launch(self, ctx: Context) -> JobRequest | list[JobRequest] | Skip:
        """Returns what to launch, or why not. Raises what its methods raise."""
        name = type(self).__name__
        try:
            verdict = self.check_conditions(ctx)
        except Skip as skip:
            return skip
        if isinstance(verdict, Skip):
            return verdict
        if verdict is None or iscoroutine(verdict):
            what = "None"
            if verdict is not None:
                verdict.close()
                what = "a coroutine"
            raise ConditionError(
                f"{name}.check_conditions returned {what}; return True, False or Skip(reason)"
            )
        if not verdict:
            return Skip(f"{name}: conditions not met")
        try:
            data = self.prepare_job_data(ctx)
        except Skip as skip:
            return skip
        if not isinstance(data, list | tuple):
            return self._request(data, ctx)
        if not data:
            return Skip(f"{name}: no jobs to launch")
        requests = [self._request(item, ctx) for item in data]
        check_run_keys(requests, name)
        return requests

    def _request(self, data: Any, ctx: Context) -> JobRequest:
        """Returns the request for one job, with its task."""
        name = type(self).__name__
        if isinstance(data, JobRequest):
            request = data
        elif isinstance(data, Mapping):
            request = JobRequest(kwargs=data)
        else:
            raise ConditionError(
                f"{name}.prepare_job_data returned {type(data).__name__}; "
                "return a dict of keyword arguments or a JobRequest, or a list of JobRequests"
            )
        task = request.task or ctx.schedule.task or self.get_job_type()
        if not task:
            raise ConditionError(f"{name} names no task; set its `task`, or the schedule's")
        return replace(request, task=task)


def check_run_keys(requests: Sequence[JobRequest], name: str) -> None:
    """Raises `ConditionError` unless the jobs of one decision have different, valid run keys.

    A single job needs none. `name` is the launcher's.
    """
    if len(requests) > MOST_JOBS:
        raise ConditionError(
            f"{name} asks for {len(requests)} jobs; one decision launches {MOST_JOBS} at most"
        )
    seen: set[str] = set()
    for number, request in enumerate(requests, start=1):
        key = request.run_key
        if key is None:
            if len(requests) == 1:
                return
            raise ConditionError(
                f"{name} asks for {len(requests)} jobs, and number {number} has no run key; give "
                "each its own JobRequest(run_key=…)"
            )
        if not isinstance(key, str) or not 1 <= len(key) <= _LONGEST_KEY or not is_storable(key):
            raise ConditionError(
                f"{name}: run key {key!r} is invalid; it must be text of 1 to {_LONGEST_KEY} "
                "characters that Postgres can keep"
            )
        if key in seen:
            raise ConditionError(f"{name} asks for two jobs with the run key {key!r}")
        seen.add(key)


class GenericLauncher(Launcher):
    """Takes the task, the arguments and an optional SQL condition from the row."""

    def check_conditions(self, ctx: Context) -> bool | Skip:
        """Returns whether the condition's first value is truthy; `True` without a condition."""
        sql = ctx.schedule.condition_sql
        return True if sql is None else holds(ctx.connection, sql)


def holds(connection: Connection, condition_sql: str) -> Literal[True] | Skip:
    """Returns whether a condition in SQL holds, in a transaction that is `read_only`.

    Raises the driver's error if the condition fails.
    """
    (answer,) = ask(connection, [condition_sql])
    if answer is True or isinstance(answer, Skip):
        return answer
    raise answer


#: The SQLSTATE for anything other than one statement that reads.
_NO_CURSOR = "42P11"
_ASK = "SELECT first_row, code, problem FROM pgbeat.query_conditions(%(conditions)s)"


def ask(
    connection: Connection, conditions: Sequence[str]
) -> list[Literal[True] | Skip | Exception]:
    """Returns the answers of conditions in SQL, sent as one statement; an error if one fails.

    If the transaction times out, the answers end with the `QueryCanceled` of the one that ran.
    """
    rows = connection.exec_driver_sql(_ASK, {"conditions": list(conditions)})
    return [_answer(*row) for row in rows]


def _answer(
    first_row: str | None, sqlstate: str | None, problem: str
) -> Literal[True] | Skip | Exception:
    if sqlstate == _NO_CURSOR:
        return ConditionError("condition_sql is not one SELECT")
    if sqlstate is not None:
        try:
            kind = psycopg.errors.lookup(sqlstate)
        except KeyError:
            kind = psycopg.DatabaseError
        return kind(problem)
    if first_row is None:
        return Skip("condition_sql found no row")
    columns = json.loads(first_row, object_pairs_hook=list)
    value = columns[0][1] if columns else None
    return True if value else Skip(f"condition_sql is {_shown(value)}")


def _shown(value: Any) -> str:
    """Returns a value as SQL shows it."""
    return "null" if value is None else "false" if value is False else repr(value)


#: The same class. A row that names it gets the shorter name when it is written.
GenericJobLauncher = GenericLauncher
_registry: dict[str, type[Launcher]] = {
    "GenericLauncher": GenericLauncher,
    "GenericJobLauncher": GenericLauncher,
}

L = TypeVar("L", bound=type[Launcher])


@overload
def launcher(cls: L, /) -> L: ...
@overload
def launcher(name: str, /) -> Callable[[L], L]: ...


def launcher(cls_or_name: Any, /) -> Any:
    """Registers a `Launcher` under its class name, or under a name: `@launcher("name")`.

    Beat must import its module, as by `app.autodiscover_tasks(["proj"], related_name="launchers")`.
    """
    return plugins.register(_registry, Launcher, "launcher", cls_or_name)


def registered() -> list[str]:
    """Returns the names of all registered launchers."""
    return sorted(_registry)


def find(name: str) -> type[Launcher]:
    """Returns the launcher of that name. Raises `UnknownLauncher`, which lists the known names."""
    try:
        return _registry[name]
    except KeyError:
        message = plugins.unknown(_registry, "launcher", name)
        raise UnknownLauncher.of("launcher", "unknown", message) from None


def condition_engine(settings: Settings, **options: Any) -> Engine:
    """Returns the engine by which conditions read: a role of their own, if there is one.

    They can leave a role that `SET ROLE` gave them, by `set_config`, but not that of their session.
    """
    url = settings.condition_url or settings.url
    return connections.engine(url, "pgbeat condition", **options)


def read_only(connection: Connection, timeout: float) -> None:
    """Makes a transaction that has just begun read-only, its statements limited to seconds."""
    limit = text("SELECT set_config('statement_timeout', :ms, true)")
    connection.execute(text("SET TRANSACTION READ ONLY"))
    connection.execute(limit, {"ms": f"{int(timeout * 1000)}"})
