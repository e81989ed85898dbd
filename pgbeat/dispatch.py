"""Dispatch: from a due schedule to its outcome, and everything that follows in one transaction."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, NamedTuple

import psycopg
from celery import Celery
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from pgbeat import db, due, entries, jobs, ticks
from pgbeat.config import Settings
from pgbeat.errors import ConditionTimeout, InvalidSchedule, PgbeatError, UnknownTask
from pgbeat.launchers import Context, JobRequest, Skip, find, read_only
from pgbeat.publisher import Publisher, check_options
from pgbeat.schedules import Schedule
from pgbeat.templates import Launch
from pgbeat.ticks import Tick, Trigger
from pgbeat.timetables import Timetable

#: Errors are kept whole up to here: a row is for reading.
_LONGEST = 2000


class Verdict(NamedTuple):
    """What was decided for a schedule, not yet written: exactly one of launch, skip and error."""

    schedule: Schedule
    due_at: datetime
    trigger: Trigger
    request: JobRequest | None = None
    skip: str | None = None
    error: str | None = None
    #: The launcher's cursor as JSON text; `None` leaves it as it is.
    cursor: str | None = None
    #: Where the job comes from (`jobs.job_source`), and who asked, if not the scheduler.
    job_source: str = "scheduled_task"
    created_by: str | None = None


class Decision(NamedTuple):
    """A tick that is written, with what it did to its schedule."""

    tick: Tick
    schedule: Schedule
    retry_count: int
    next_run: datetime | None
    disabled_reason: str | None


class Dispatcher:
    """Decides schedules. One instance for one app; not for several threads but `evaluate`."""

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        publisher: Publisher,
        engine: Engine,
        default_entries: Mapping[str, Any],
        reached: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._app, self._settings, self.publisher = app, settings, publisher
        self._engine, self._default_entries, self._reached = engine, default_entries, reached
        self._tasks = app.tasks
        self._timezone = str(getattr(app.timezone, "key", None) or app.timezone)

    def timetable(self, schedule: Schedule) -> Timetable:
        """The schedule's timetable, the app's code asked where the row leaves it to it."""
        return schedule.timetable(self._timezone) or entries.code_timetable(
            self._app, schedule, self._default_entries
        )

    def evaluate(
        self, schedule: Schedule, due_at: datetime, now: datetime, trigger: Trigger | None = None
    ) -> Verdict:
        """Runs the launcher; whatever it raises becomes the verdict's error. Any thread may."""
        verdict = Verdict(schedule, due_at, trigger or _trigger(schedule))
        for last_try in (False, True):
            try:
                return self._launch(verdict, now)
            except Exception as error:
                if db.is_lost(error) and not last_try:
                    continue  # a pooled connection had died
                return verdict._replace(error=self._explain(error))
        raise AssertionError("unreachable")

    def _launch(self, verdict: Verdict, now: datetime) -> Verdict:
        row = verdict.schedule
        launcher = find(row.launcher)()
        opened: list[Connection] = []

        def connect() -> Connection:
            connection = self._engine.connect()
            opened.append(connection)
            read_only(connection, self._settings.condition_timeout)
            return connection

        ctx = Context(row, verdict.due_at, now, connect)
        try:
            answer = launcher.launch(ctx)
            cursor = _json(ctx.cursor, "the launcher's cursor")
        finally:
            for connection in opened:
                connection.close()
        if isinstance(answer, Skip):
            return verdict._replace(skip=answer.reason, cursor=cursor)
        if row.args is None:
            args, kwargs, options = entries.code_arguments(self._app, row, self._default_entries)
            answer = JobRequest(args, kwargs, {**options, **answer.options}, answer.task)
        return verdict._replace(request=answer, cursor=cursor)

    def plain(self, schedule: Schedule, due_at: datetime) -> Verdict:
        """The verdict on a schedule that has no condition."""
        request = JobRequest(schedule.args or (), schedule.kwargs, {}, schedule.task or "")
        return Verdict(schedule, due_at, _trigger(schedule), request)

    def overdue(self, schedule: Schedule, due_at: datetime, message: str = "") -> Verdict:
        """The verdict on a condition whose time is up."""
        error = ConditionTimeout(
            message
            or f"the condition took longer than {self._settings.condition_timeout:g} s "
            "(pgbeat_condition_timeout)"
        )
        return Verdict(schedule, due_at, _trigger(schedule), error=self._explain(error))

    def commit(
        self, connection: Connection, verdicts: Sequence[Verdict], now: datetime
    ) -> list[Decision]:
        """Writes verdicts with everything that follows from them, each all or nothing.

        One transaction for all; should the database refuse it, one for each, and those refused
        again become `failed`. Verdicts on rows that changed meanwhile are dropped.
        """
        try:
            try:
                return self._commit(connection, verdicts, now)
            except DBAPIError as error:
                if db.is_lost(error):
                    raise
            decisions: list[Decision] = []
            for verdict in verdicts:
                try:
                    decisions += self._commit(connection, [verdict], now)
                except DBAPIError as error:
                    if db.is_lost(error):
                        raise
                    failed = verdict._replace(
                        request=None, skip=None, error=self._explain(error),
                    )  # fmt: skip
                    decisions += self._commit(connection, [failed], now)
            return decisions
        finally:
            self.publisher.clear()

    def _commit(
        self, connection: Connection, verdicts: Sequence[Verdict], now: datetime
    ) -> list[Decision]:
        with db.transaction(connection):
            locked = due.lock(connection, [verdict.schedule for verdict in verdicts])
            live = [verdict for verdict in verdicts if verdict.schedule.id in locked]
            decisions = self.write(connection, live, now)
            self._reached("before commit")
        self._reached("after commit")
        return decisions

    def write(
        self, connection: Connection, verdicts: Sequence[Verdict], now: datetime
    ) -> list[Decision]:
        """Writes verdicts into the open transaction, whose rows are locked: messages, jobs, ticks
        and the schedules' advance, in one statement each."""
        made: list[jobs.Job] = []
        written: list[Tick] = []
        for verdict in verdicts:
            tick, job = self._publish(verdict)
            written.append(tick)
            if job is not None:
                made.append(job)
        fresh = ticks.record(connection, written)
        made = [job for job in made if job.schedule_id in fresh]
        jobs.create(connection, made)
        self.publisher.flush(connection, [job.id for job in made])
        self._reached("after messages")

        decisions, advances = [], []
        for verdict, tick in zip(verdicts, written, strict=True):
            decision, advance = self._advance(verdict, tick, now)
            advances.append(advance)
            if verdict.schedule.id in fresh:
                decisions.append(decision)
        due.advance(connection, advances, now)
        due.disable(
            connection,
            {d.schedule.id: d.disabled_reason for d in decisions if d.disabled_reason},
        )
        return decisions

    def _publish(self, verdict: Verdict) -> tuple[Tick, jobs.Job | None]:
        """The verdict's tick and, where it launches, its job, the message made."""
        row, request = verdict.schedule, verdict.request
        head = (row.id, row.name, verdict.trigger, verdict.due_at)
        if request is None:
            if verdict.skip is not None:
                return Tick(*head, "skipped", reason=verdict.skip[:_LONGEST]), None
            return Tick(*head, "failed", error=verdict.error), None
        try:
            options = self._options(row, request)
            job_id = row.job_id(verdict.due_at)
            queue = self.publisher.publish(
                Launch(job_id, request.task, request.args, request.kwargs, options)
            )
        except Exception as error:
            if db.is_lost(error) and self.publisher.transactional:
                raise
            return Tick(*head, "failed", error=self._explain(error)), None
        job = jobs.Job(
            id=job_id,
            schedule_id=row.id,
            schedule=row.name,
            due_at=verdict.due_at,
            task=request.task,
            args=_if_json(row, list(request.args)),
            kwargs=_if_json(row, dict(request.kwargs)),
            queue=queue or _queue_name(options),
            job_source=verdict.job_source,
            created_by=verdict.created_by or f"system:scheduler:{row.launcher}",
            is_system_job=True,
        )
        return Tick(*head, "launched", job_id=job_id), job

    def _options(self, row: Schedule, request: JobRequest) -> dict[str, Any]:
        """Publish options of a launch, the task's name checked."""
        options = {**row.options, **request.options}
        if row.source != "code":
            if request.task not in self._tasks:
                check_task(self._app, request.task)
            if options:
                check_options(options)
        if row.queue is not None:
            options.setdefault("queue", row.queue)
        return options

    def _advance(self, verdict: Verdict, tick: Tick, now: datetime) -> tuple[Decision, due.Advance]:
        row, disabled = verdict.schedule, None
        retry_count, next_run = 0, row.next_run
        failed = tick.outcome == "failed"
        manual = verdict.trigger == "manual"
        if manual:
            # A person's trigger neither moves the timetable nor counts as a failure in a row.
            retry_count = row.retry_count if tick.outcome != "launched" else 0
        elif failed:
            retry_count = row.retry_count + 1
            next_run = now + row.backoff()
            if retry_count >= row.max_retries:
                disabled = f"failed {retry_count} times in a row; last: {tick.error}"
        else:
            try:
                next_run = self.timetable(row).next_after(now)
            except PgbeatError as error:
                next_run, disabled = row.next_run, str(error)
            if next_run is None:
                disabled = disabled or "its timetable has no time left"
        # What was not launched after all is to be found again by the retry.
        cursor = None if failed else verdict.cursor
        advance = due.Advance(row.id, tick.outcome, next_run, retry_count, tick.error, cursor)
        return Decision(tick, row, retry_count, next_run, disabled), advance

    def first_runs(
        self, rows: Sequence[Schedule], now: datetime
    ) -> tuple[list[tuple[Schedule, datetime]], list[Verdict]]:
        """First times of new rows; those whose timetable is no good are due now, as failed."""
        times: list[tuple[Schedule, datetime]] = []
        verdicts: list[Verdict] = []
        for row in rows:
            try:
                moment = self.timetable(row).next_after(now)
                if moment is None:
                    raise InvalidSchedule("its timetable has no time left")
                times.append((row, moment))
            except Exception as error:
                verdicts.append(Verdict(row, now, _trigger(row), error=self._explain(error)))
        return times, verdicts

    def not_yet(self, row: Schedule, now: datetime) -> datetime | None:
        """When to ask again a row whose timetable is in the code and that is not due after all.

        Raises `InvalidSchedule` for a timetable that can't be understood.
        """
        timetable = self.timetable(row)
        if not isinstance(timetable, entries.CodeTimetable):
            return None
        is_due, moment = timetable.due(row.last_run or row.created_at, now)
        return None if is_due else max(moment, now + timedelta(milliseconds=10))

    def broken(self, row: Schedule, due_at: datetime, error: Exception) -> Verdict:
        """The verdict on a schedule that could not even be looked at."""
        return Verdict(row, due_at, _trigger(row), error=self._explain(error))

    def _explain(self, error: BaseException) -> str:
        """One line for a row: what was raised, without a traceback."""
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        if isinstance(cause, psycopg.errors.QueryCanceled):
            limit = self._settings.condition_timeout
            text = f"the condition took longer than {limit:g} s (pgbeat_condition_timeout)"
        elif isinstance(cause, PgbeatError):
            text = str(cause)
        else:
            message = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause)
            text = f"{type(cause).__name__}: {message}".rstrip(": ")
        return text.replace("\0", "\\0")[:_LONGEST]


def check_task(app: Celery, name: str) -> None:
    """Raises `UnknownTask`, with the nearest there is, unless the app has registered the task."""
    if name in app.tasks:
        return
    own = sorted(task for task in app.tasks if not task.startswith("celery."))
    near = get_close_matches(name, own, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(own[:20]) + (f" and {len(own) - 20} more" if len(own) > 20 else "")
    raise UnknownTask(f"task {name!r} is not registered; {hint}registered: {listed or 'none'}")


def _trigger(schedule: Schedule) -> Trigger:
    return "retry" if schedule.retry_count else "timetable"


def _queue_name(options: Mapping[str, Any]) -> str | None:
    queue = options.get("queue")
    return None if queue is None else str(getattr(queue, "name", queue))


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidSchedule(f"{what} is not JSON: {error}") from None


def _if_json(row: Schedule, value: Any) -> Any:
    """The value if it can stand in a JSON column, else `None`; a row's own always can."""
    if row.is_plain:
        return value
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return value
