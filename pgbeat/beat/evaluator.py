"""Determines which due time of a schedule to decide, and asks its policies and launcher."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

import psycopg
from celery import Celery
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from pgbeat.beat import due, signals
from pgbeat.beat.evaluation import Evaluation, Failure, Launch, Objection
from pgbeat.config import Settings
from pgbeat.database import connections, server_errors
from pgbeat.errors import ConditionError, ConditionTimeout, InvalidSchedule, PgbeatError
from pgbeat.jobs.preparing import placeholders
from pgbeat.jobs.preparing.placeholders import Facts
from pgbeat.jobs.running.task_exceptions import Skip
from pgbeat.schedules import entries, policies
from pgbeat.schedules.calendars import model as calendars
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
from pgbeat.storable import escaped
from pgbeat.timetables import Timetable

logger = logging.getLogger("celery.beat.pgbeat")

#: Errors are kept whole up to here: a row is for reading.
LONGEST = 2000
#: Seconds for many conditions together: what one that is slow costs the others.
_TOGETHER = 0.25


class Evaluator:
    """Decides schedules of one app. `evaluate` and `ask` may be called by any thread."""

    def __init__(
        self, app: Celery, settings: Settings, engine: Engine, default_entries: Mapping[str, Any]
    ) -> None:
        self._app, self._engine = app, engine
        self._default_entries = default_entries
        #: Seconds that a condition may take.
        self.timeout = settings.condition_timeout
        signals.evaluator_made.send(sender=type(self))
        #: Conditions in SQL that took too long among others.
        self._slow: set[str] = set()
        #: Those that were among others when a statement, or its session, ended early. They are
        #: asked by themselves until they have answered: only the one at fault stays here.
        self._alone: set[str] = set()
        #: The zone of schedules that name none.
        self.timezone = entries.zone_name(app)

    def timetable(self, schedule: Schedule) -> Timetable:
        """Returns the schedule's timetable: the row's, or that in the app's code."""
        return schedule.timetable(self.timezone) or entries.code_timetable(
            self._app, schedule, self._default_entries
        )

    def next(
        self, schedule: Schedule, after: datetime, following: datetime | None = None
    ) -> due.Next | None:
        """Returns when it is due next after a time of its timetable; `None` for never.

        `following` is the timetable's next time, if that is known.
        """
        moment = following or self.timetable(schedule).next_after(after)
        if moment is None:
            return None
        put_off = schedule.jittered(moment)
        return due.Next(schedule, put_off, None if put_off == moment else moment)

    def first(self, schedule: Schedule, now: datetime) -> due.Next | None:
        """Returns when it is due for the first time, or next from now on; `None` for never."""
        if (once_at := schedule.undecided_once) is not None:
            return due.Next(schedule, once_at)  # maybe late: its policies decide
        return self.next(schedule, now)

    def _not_due(self, row: Schedule, now: datetime) -> datetime | None:
        """Returns when to look again at a row that the app's code says is not due yet.

        `None` if it is due, or if the row has a timetable. Raises `InvalidSchedule` for an invalid
        timetable.
        """
        if row.has_timetable:
            return None
        timetable = entries.code_timetable(self._app, row, self._default_entries)
        is_due, moment = timetable.due(row.last_run or row.created_at, now)
        return None if is_due else max(moment, now + timedelta(milliseconds=10))

    def begin(
        self, schedule: Schedule, now: datetime, known: Mapping[str, calendars.Calendar]
    ) -> Evaluation | due.Next:
        """Returns the evaluation of the due time to decide, by the schedule's catch-up policy.

        Returns the next time if the app's code says that the schedule is not due. The evaluation
        is decided already if a policy objects, if there is no condition to evaluate, or if the
        row has a timetable or calendar that is invalid. `known` are calendars.
        """
        trigger = _trigger(schedule)
        try:
            later = self._not_due(schedule, now)
            if later is not None:
                return due.Next(schedule, later)
            timetable = self.timetable(schedule)
            nominal = policies.settle(schedule, timetable, now)
            if policies.is_out_of_turn(schedule, timetable, nominal.at):
                trigger = "manual"
            due_at = nominal.at
            if trigger == "retry":
                due_at = policies.retried(schedule, due_at)
            objections = self.objections(schedule, now, due_at, known)
            reason = nominal.skip or next((objection.reason for objection in objections), None)
        except Exception as error:
            due_at = schedule.due_at or schedule.next_run or now
            return self.fail(Evaluation(schedule, due_at, trigger, now), error)
        evaluation = Evaluation(
            schedule,
            nominal.at,
            trigger,
            nominal.then,
            nominal.missed,
            nominal.note,
            nominal.following,
        )
        if reason is not None:
            return evaluation._replace(result=Skip(reason))
        return self._launch_row(evaluation) if schedule.is_plain else evaluation

    def objections(
        self,
        schedule: Schedule,
        now: datetime,
        due_at: datetime,
        known: Mapping[str, calendars.Calendar],
    ) -> Iterator[Objection]:
        """Yields the policies' objections to launching a due time, before any condition.

        Raises `InvalidSchedule` for a calendar that is invalid.
        """
        reason = policies.used_up(schedule)
        if reason is not None:
            yield Objection("max_runs", reason)
        reason = policies.too_soon(schedule, now)
        if reason is not None:
            yield Objection("min_interval", reason)
        timezone = schedule.timezone or self.timezone
        reason = calendars.exclusion(known, schedule.calendar, due_at, timezone)
        if reason is not None:
            yield Objection("calendar", reason)

    def _launch_row(self, evaluation: Evaluation) -> Evaluation:
        """Decides to launch the row's task; an error becomes a `Failure`."""
        row = evaluation.schedule
        args, kwargs = row.args or (), row.kwargs
        try:
            facts = self._facts(evaluation)
            if row.has_placeholders:
                args = placeholders.fill(args, facts, "args")
                kwargs = placeholders.fill(kwargs, facts, "kwargs")
        except Exception as error:
            return self.fail(evaluation, error)
        request = JobRequest(args, kwargs, {}, row.task or "")
        return evaluation._replace(result=Launch((request,), facts))

    def _facts(self, evaluation: Evaluation) -> Facts:
        row, known = evaluation.schedule, (self.timezone, evaluation.trigger, evaluation.due_at)
        with suppress(PgbeatError):  # a person may trigger what is never due
            return policies.facts(row, row.timetable(self.timezone), *known)
        return policies.facts(row, None, *known)

    def is_quick(self, schedule: Schedule) -> bool:
        """Returns whether its condition is in SQL alone, and may be asked among others."""
        condition = schedule.condition_sql
        return schedule.is_sql_only and condition not in self._slow and condition not in self._alone

    def evaluate_together(self, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
        """Evaluates the conditions in SQL of schedules that need no more, all in one statement.

        Where the time was too short they stay undecided, and all do if the statement failed.
        """
        texts = list(dict.fromkeys(str(e.schedule.condition_sql) for e in evaluations))
        try:
            with self._engine.connect() as connection:
                read_only(connection, min(_TOGETHER, self.timeout))
                answers = ask(connection, texts)
        except Exception:
            # One of them ended the session, or the statement: it is not known which.
            logger.debug("Conditions are asked one by one", exc_info=True)
            self._alone.update(texts)
            return list(evaluations)
        if answers and isinstance(answers[-1], psycopg.errors.QueryCanceled):
            self._slow.add(texts[len(answers) - 1])
            answers.pop()
        answered = dict(zip(texts, answers, strict=False))
        return [self._with(e, answered.get(str(e.schedule.condition_sql))) for e in evaluations]

    def _with(
        self, evaluation: Evaluation, answer: Literal[True] | Skip | Exception | None
    ) -> Evaluation:
        if answer is None:
            return evaluation
        if isinstance(answer, Skip):
            return evaluation._replace(result=answer)
        return self._launch_row(evaluation) if answer is True else self.fail(evaluation, answer)

    def evaluate(self, evaluation: Evaluation, now: datetime) -> Evaluation:
        """Evaluates a schedule's condition and launcher; what they raise becomes a `Failure`.

        Beat calls it on the threads of its `ConditionPool`, a manual trigger, a backfill and a dry
        run through `condition_pool.evaluate_alone`.
        """
        condition = evaluation.schedule.condition_sql or ""
        for last_try in (False, True):
            try:
                decided = self._launch(evaluation, now)
            except BaseException as error:  # SystemExit too: the thread must come back
                # Conditions are read-only: one that writes fails by itself.
                if connections.is_lost(error) and not server_errors.is_read_only(error):
                    if not last_try:
                        continue  # a pooled connection had died
                else:
                    self._alone.discard(condition)
                return self.fail(evaluation, error)
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
            read_only(connection, self.timeout)
            return connection

        facts = self._facts(evaluation)
        ctx = Context(row, facts.due_at, now, connect, facts)
        try:
            with _signals_sent(type(launcher), row):
                answer = launcher.launch(ctx)
            requests = _requests(answer, type(launcher).__name__)
            snooze = _snooze(answer, requests)
            cursor = as_json(ctx.cursor, "the launcher's cursor")
        finally:
            for connection in opened:
                connection.close()
        evaluation = evaluation._replace(cursor=cursor, snooze=snooze)
        if isinstance(answer, Skip):
            return evaluation._replace(result=Skip(escaped(answer.reason)))
        if row.args is None:
            args, kwargs, options = entries.code_arguments(self._app, row, self._default_entries)
            requests = [
                replace(request, args=args, kwargs=kwargs, options={**options, **request.options})
                for request in requests
            ]
        return evaluation._replace(result=Launch(requests, facts))

    def fail(self, evaluation: Evaluation, error: BaseException) -> Evaluation:
        """Returns the evaluation with an error as its result."""
        passes = evaluation.schedule.is_sql_only and _is_servers(error)
        return evaluation._replace(result=Failure(self.explain(error), passes))

    def time_out(self, evaluation: Evaluation, message: str = "") -> Evaluation:
        """Returns the evaluation with a result that says that its condition took too long."""
        return self.fail(evaluation, ConditionTimeout(message or self._too_long()))

    def _too_long(self) -> str:
        limit = self.timeout
        return f"the condition took longer than {limit:g} s (pgbeat_condition_timeout)"

    def explain(self, error: BaseException) -> str:
        """Returns an error as one line for a row, without a traceback."""
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        if isinstance(cause, psycopg.errors.QueryCanceled):
            text = self._too_long()
        elif isinstance(cause, PgbeatError):
            text = str(cause)
        else:
            message = getattr(getattr(cause, "diag", None), "message_primary", None) or str(cause)
            text = f"{type(cause).__name__}: {message}".rstrip(": ")
        return escaped(text)[:LONGEST]


def _is_servers(error: BaseException) -> bool:
    """Returns whether an error that a condition in SQL met is the server's, and passes.

    A condition can bring about the others itself: by its time limit, by a write, by
    `temp_file_limit` (53400), or by ending its session. But not that it gets none to begin with;
    such an error has no statement, and no code.
    """
    if isinstance(error, DBAPIError) and error.statement is None and connections.is_lost(error):
        return True
    code = connections.sqlstate(error)
    return code[:2] in {"53", "58"} and code != "53400"


def _trigger(schedule: Schedule) -> Trigger:
    if schedule.retry_count:
        return "retry"
    return "timetable" if schedule.after is None else "after"


@contextmanager
def _signals_sent(launcher: type[Launcher], row: Schedule) -> Iterator[None]:
    """Sends `condition_started` and `condition_finished` around code of the app's."""
    if launcher is GenericLauncher:
        yield
        return
    signals.condition_started.send(launcher, schedule=row)
    try:
        yield
    finally:
        signals.condition_finished.send(launcher, schedule=row)


def _requests(
    answer: JobRequest | Sequence[JobRequest] | Skip, launcher: str
) -> Sequence[JobRequest]:
    """Returns the jobs that a launcher asks for, checked, as it may override `launch`."""
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
    """Returns when to evaluate the launcher next, if it set that.

    Raises `ConditionError` for an invalid time.
    """
    snoozes = [answer.snooze] if isinstance(answer, Skip) else [job.snooze for job in requests]
    for snooze in snoozes:
        _check_snooze(snooze)
    return next((snooze for snooze in snoozes if snooze is not None), None)


def _check_snooze(snooze: Any) -> None:
    is_time = isinstance(snooze, datetime) and snooze.tzinfo is not None
    if snooze is not None and not is_time and not isinstance(snooze, timedelta):
        raise ConditionError(
            f"snooze must be a timedelta, or a datetime with a tzinfo, got {snooze!r}"
        )


def as_json(value: Any, what: str) -> str:
    """Returns the value as JSON text. Raises `InvalidSchedule` if it isn't JSON."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidSchedule.of("", "malformed", f"{what} is not JSON: {error}") from None
