"""Determines which due time of a schedule to decide, and what its policies and launcher say."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import psycopg
from celery import Celery
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from pgbeat import connect_integrations
from pgbeat.beat import due, signals
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.errors import ConditionError, ConditionTimeout, InvalidSchedule, PgbeatError
from pgbeat.jobs import placeholders
from pgbeat.jobs.placeholders import Facts
from pgbeat.jobs.task_exceptions import Skip
from pgbeat.schedules import calendars, entries, policies
from pgbeat.schedules.launchers import (
    Context,
    GenericLauncher,
    JobRequest,
    Launcher,
    ask,
    check_run_keys,
    find,
    read_only,
)
from pgbeat.schedules.model import Schedule
from pgbeat.schedules.ticks import Trigger
from pgbeat.timetables import Timetable
from pgbeat.timetables.zones import TICK

logger = logging.getLogger("celery.beat.pgbeat")

#: Errors are kept whole up to here: a row is for reading.
LONGEST = 2000
#: Seconds for many conditions together: what one that is slow costs the others.
_TOGETHER = 0.25


class Evaluation(NamedTuple):
    """What is decided for a schedule, not yet written: one of launch, skip and error; none of
    them while its launcher is still to be asked."""

    schedule: Schedule
    due_at: datetime
    trigger: Trigger
    #: The time after which the timetable goes on.
    then: datetime
    #: Other due times that it accounts for, and why.
    missed: int = 0
    note: str | None = None
    #: The timetable's next time after `then`, where that is known already.
    following: datetime | None = None
    request: JobRequest | None = None
    #: The other jobs of the decision, where it launches several.
    more: tuple[JobRequest, ...] = ()
    skip: str | None = None
    error: str | None = None
    #: The launcher's cursor as JSON text; `None` leaves it as it is.
    cursor: str | None = None
    #: When to evaluate the launcher next, if it set that itself.
    snooze: timedelta | datetime | None = None
    #: Where the job comes from (`jobs.job_source`), and who asked, if not the scheduler.
    job_source: str = "scheduled_task"
    created_by: str | None = None
    #: What its job is for; known where there is a request.
    facts: Facts | None = None

    @property
    def is_decided(self) -> bool:
        """Whether it says anything yet."""
        return self.request is not None or self.skip is not None or self.error is not None

    @property
    def requests(self) -> tuple[JobRequest, ...]:
        """What to launch: a request for each job."""
        return () if self.request is None else (self.request, *self.more)

    @property
    def job_ids(self) -> list[str]:
        """The ids of its jobs; of one that launches none, the id that a single job would have."""
        row, keys = self.schedule, [request.run_key for request in self.requests] or [None]
        return [row.job_id(self.due_at, key) for key in keys]


class Evaluator:
    """Decides schedules of one app. `evaluate` and `ask` may be called by any thread."""

    def __init__(
        self, app: Celery, settings: Settings, engine: Engine, default_entries: Mapping[str, Any]
    ) -> None:
        self._app, self._settings, self._engine = app, settings, engine
        self._default_entries = default_entries
        connect_integrations()
        #: Conditions in SQL that took too long among others.
        self._slow: set[str] = set()
        #: Those that were among others when a statement, or its session, ended early. They are
        #: asked by themselves until they have answered: only the one at fault stays here.
        self._alone: set[str] = set()
        #: The zone of schedules that name none.
        self.timezone = str(getattr(app.timezone, "key", None) or app.timezone)

    def timetable(self, schedule: Schedule) -> Timetable:
        """The schedule's timetable, the app's code asked where the row leaves it to it."""
        return schedule.timetable(self.timezone) or entries.code_timetable(
            self._app, schedule, self._default_entries
        )

    def next(
        self, schedule: Schedule, after: datetime, following: datetime | None = None
    ) -> due.Next | None:
        """When it is due next, for the time of its timetable after that one (which may be known:
        `following`); `None` for never."""
        moment = following or self.timetable(schedule).next_after(after)
        if moment is None:
            return None
        put_off = schedule.jittered(moment)
        return due.Next(schedule, put_off, None if put_off == moment else moment)

    def first(self, schedule: Schedule, now: datetime) -> due.Next | None:
        """When it is due for the first time, or from now on; `None` for never."""
        if schedule.once_at is not None and schedule.last_run is None:
            return due.Next(schedule, schedule.once_at)  # maybe late: its policies decide
        return self.next(schedule, now)

    def not_yet(self, row: Schedule, now: datetime) -> datetime | None:
        """When to ask again a row whose timetable is in the code and that is not due after all.

        Raises `InvalidSchedule` for a timetable that can't be understood.
        """
        if row.has_timetable:
            return None
        timetable = entries.code_timetable(self._app, row, self._default_entries)
        is_due, moment = timetable.due(row.last_run or row.created_at, now)
        return None if is_due else max(moment, now + timedelta(milliseconds=10))

    def open(
        self, schedule: Schedule, now: datetime, known: Mapping[str, calendars.Calendar]
    ) -> Evaluation:
        """The due time to decide, skipped already where a policy says so. `known` are calendars.

        Raises for a timetable or a calendar that can't be understood.
        """
        settled = policies.settle(schedule, self.timetable(schedule), now)
        timezone = schedule.timezone or self.timezone
        skip = (
            settled.skip
            or policies.too_soon(schedule, now)
            or calendars.exclusion(known, schedule.calendar, settled.at, timezone)
        )
        trigger: Trigger = "timetable"
        if schedule.retry_count:
            trigger = "retry"
        elif schedule.after is not None:
            trigger = "after"
        return Evaluation(
            schedule, settled.at, trigger, settled.then, settled.missed, settled.note,
            settled.following, skip=skip,
        )  # fmt: skip

    def plain(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation on a schedule that launches what its row says."""
        row, facts = evaluation.schedule, self.facts(evaluation)
        args, kwargs = row.args or (), row.kwargs
        if row.has_placeholders:
            try:
                args = placeholders.fill(args, facts, "args")
                kwargs = placeholders.fill(kwargs, facts, "kwargs")
            except InvalidSchedule as error:
                return self.broken(evaluation, error)
        request = JobRequest(args, kwargs, {}, row.task or "")
        return evaluation._replace(request=request, facts=facts)

    def facts(self, evaluation: Evaluation) -> Facts:
        """Returns what a job of the evaluation is for.

        A decision that is made again stands for the due time that failed before, not for the
        moment of the retry.
        """
        row, due_at, start = evaluation.schedule, evaluation.due_at, None
        with suppress(PgbeatError):  # a person may trigger what is never due
            timetable = row.timetable(self.timezone)
            if timetable is not None:
                if evaluation.trigger == "retry":
                    due_at = timetable.previous(evaluation.then + TICK) or due_at
                start = timetable.previous(due_at)
        return Facts(
            due_at, row.timezone or self.timezone, row.job_id(evaluation.due_at), row.name,
            evaluation.trigger, start,
        )  # fmt: skip

    def is_quick(self, schedule: Schedule) -> bool:
        """Returns whether its condition is in SQL alone, and may be asked among others."""
        condition = schedule.condition_sql
        return schedule.is_sql_only and condition not in self._slow and condition not in self._alone

    def ask(self, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
        """Asks the conditions in SQL of schedules that need no more, all in one statement.

        Those that there was no time for stay undecided, and all do if the statement failed.
        """
        texts = list(
            dict.fromkeys(str(evaluation.schedule.condition_sql) for evaluation in evaluations)
        )
        try:
            with self._engine.connect() as connection:
                read_only(connection, min(_TOGETHER, self._settings.condition_timeout))
                answers = ask(connection, texts)
        except Exception:
            # One of them ended the session, or the statement: it is not known which.
            logger.debug("Conditions are asked one by one", exc_info=True)
            self._alone.update(texts)
            return list(evaluations)
        if answers and isinstance(answers[-1], psycopg.errors.QueryCanceled):
            self._slow.add(texts[len(answers) - 1])
            answers.pop()
        said = dict(zip(texts, answers, strict=False))
        return [self._said(v, said.get(str(v.schedule.condition_sql))) for v in evaluations]

    def _said(
        self, evaluation: Evaluation, answer: Literal[True] | Skip | Exception | None
    ) -> Evaluation:
        if answer is None:
            return evaluation
        if isinstance(answer, Skip):
            return evaluation._replace(skip=answer.reason)
        return self.plain(evaluation) if answer is True else self.broken(evaluation, answer)

    def evaluate(self, evaluation: Evaluation, now: datetime) -> Evaluation:
        """Runs the launcher; whatever it raises becomes the evaluation's error."""
        condition = evaluation.schedule.condition_sql or ""
        for last_try in (False, True):
            try:
                decided = self._launch(evaluation, now)
            except Exception as error:
                if connections.is_lost(error):
                    if not last_try:
                        continue  # a pooled connection had died
                else:
                    self._alone.discard(condition)
                return self.broken(evaluation, error)
            self._alone.discard(condition)
            return decided
        raise AssertionError("unreachable")

    def _launch(self, evaluation: Evaluation, now: datetime) -> Evaluation:
        row = evaluation.schedule
        launcher = find(row.launcher)()
        opened: list[Connection] = []

        def connect() -> Connection:
            connection = self._engine.connect()
            opened.append(connection)
            read_only(connection, self._settings.condition_timeout)
            return connection

        facts = self.facts(evaluation)
        ctx = Context(row, evaluation.due_at, now, connect, facts)
        try:
            with _signalled(type(launcher), row):
                answer = launcher.launch(ctx)
            requests = _requests(answer, type(launcher).__name__)
            snooze = _snooze(answer, requests)
            cursor = as_json(ctx.cursor, "the launcher's cursor")
        finally:
            for connection in opened:
                connection.close()
        evaluation = evaluation._replace(cursor=cursor, snooze=snooze, facts=facts)
        if isinstance(answer, Skip):
            return evaluation._replace(skip=_storable(answer.reason))
        if row.args is None:
            args, kwargs, options = entries.code_arguments(self._app, row, self._default_entries)
            requests = [
                replace(each, args=args, kwargs=kwargs, options={**options, **each.options})
                for each in requests
            ]
        return evaluation._replace(request=requests[0], more=tuple(requests[1:]))

    def broken(self, evaluation: Evaluation, error: Exception) -> Evaluation:
        """The evaluation where something was raised."""
        return evaluation._replace(request=None, more=(), skip=None, error=self.explain(error))

    def overdue(self, evaluation: Evaluation, message: str = "") -> Evaluation:
        """The evaluation on a condition whose time is up."""
        return self.broken(evaluation, ConditionTimeout(message or self._too_long()))

    def _too_long(self) -> str:
        limit = self._settings.condition_timeout
        return f"the condition took longer than {limit:g} s (pgbeat_condition_timeout)"

    def explain(self, error: BaseException) -> str:
        """One line for a row: what was raised, without a traceback."""
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        if isinstance(cause, psycopg.errors.QueryCanceled):
            text = self._too_long()
        elif isinstance(cause, PgbeatError):
            text = str(cause)
        else:
            message = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause)
            text = f"{type(cause).__name__}: {message}".rstrip(": ")
        return _storable(text)[:LONGEST]


@contextmanager
def _signalled(launcher: type[Launcher], row: Schedule) -> Iterator[None]:
    """Sends `condition_started` and `condition_finished` around code of the app's."""
    if launcher is GenericLauncher:
        yield
        return
    signals.condition_started.send(launcher, schedule=row)
    try:
        yield
    finally:
        signals.condition_finished.send(launcher, schedule=row)


def _storable(words: str) -> str:
    """What of a text the database can hold: neither NUL nor half a character."""
    return words.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _requests(
    answer: JobRequest | Sequence[JobRequest] | Skip, launcher: str
) -> Sequence[JobRequest]:
    """Returns the jobs that a launcher asks for, checked: it may have a `launch` of its own."""
    if isinstance(answer, Skip):
        return []
    requests = [answer] if isinstance(answer, JobRequest) else list(answer)
    if not requests:
        raise ConditionError(f"{launcher}.launch returned no request; return a Skip instead")
    check_run_keys(requests, launcher)
    return requests


def _snooze(
    answer: JobRequest | Sequence[JobRequest] | Skip, requests: Sequence[JobRequest]
) -> timedelta | datetime | None:
    """Returns when to evaluate the launcher next, if it set that. Raises `ConditionError` for an
    invalid time."""
    given = [answer.snooze] if isinstance(answer, Skip) else [each.snooze for each in requests]
    for snooze in given:
        _check_snooze(snooze)
    return next((snooze for snooze in given if snooze is not None), None)


def _check_snooze(snooze: Any) -> None:
    is_time = isinstance(snooze, datetime) and snooze.tzinfo is not None
    if snooze is not None and not is_time and not isinstance(snooze, timedelta):
        raise ConditionError(
            f"snooze must be a timedelta, or a datetime with a tzinfo, got {snooze!r}"
        )


def as_json(value: Any, what: str) -> str:
    """The value as JSON text. Raises `InvalidSchedule` where it is none."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidSchedule(f"{what} is not JSON: {error}") from None
