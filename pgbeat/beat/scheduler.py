"""The beat: while it leads it decides what is due, and sleeps until something is."""

import logging
import time
from collections.abc import Mapping, Set
from datetime import datetime
from functools import partial
from typing import Any

import celery.beat
import psycopg
from celery import Celery
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from pgbeat.beat import due
from pgbeat.beat.condition_pool import ConditionPool
from pgbeat.beat.enqueuer import Decision, Enqueuer
from pgbeat.beat.evaluator import Evaluation, Evaluator
from pgbeat.beat.leader import Leader
from pgbeat.beat.log import DecisionLog
from pgbeat.beat.maintenance import Maintenance
from pgbeat.broker.publishing.publisher import publisher
from pgbeat.config import Settings, direct_url, redacted
from pgbeat.database import connections
from pgbeat.database.lock_waits import Postponed, is_lock_timeout
from pgbeat.errors import ConfigError, SchemaError
from pgbeat.log import use_json
from pgbeat.monitoring.counters import BeatCounters
from pgbeat.schedules import calendars, entries
from pgbeat.schedules import code as code_schedules
from pgbeat.schedules import model as schedules
from pgbeat.schedules.model import Schedule

logger = logging.getLogger("celery.beat.pgbeat")

#: Seconds for which conditions that are due and find no room are left alone.
_NO_ROOM = 0.25
#: Conditions in SQL that are asked in one statement, at most.
_TOGETHER = 100
#: Seconds after which the app's entries, or its zone, are applied again for which rows were locked.
_AGAIN = 1.0


_LOCKED = "another transaction holds a lock that it needs"
_LOCKED_ROW = "another transaction has locked its row"

#: Seconds that webhooks which are being delivered are waited for at the end.
_FAREWELL = 5.0


class Scheduler(celery.beat.Scheduler):
    """`celery -A app beat -S pgbeat.Scheduler`.

    `tick` is one look at the schedules. It decides what is due, or waits (inside the database's
    lock, or on its notifications) for at most `max_interval` seconds, and asks to be called again.
    """

    def __init__(
        self,
        app: Celery,
        schedule: Any = None,
        max_interval: float | None = None,
        Producer: Any = None,
        lazy: bool = False,
        sync_every_tasks: int | None = None,
        **kwargs: Any,
    ) -> None:
        try:
            self.settings = Settings.load(app.conf)
        except ConfigError as error:
            # Celery shows whatever else is raised here as a traceback of its own calls.
            raise SystemExit(f"pgbeat: {error}") from None
        use_json(app)
        self._log = DecisionLog()
        self.max_interval = self.settings.loop_interval
        #: When to apply the app's zone, and its entries, once more (`time.monotonic()`).
        self._zone_at: float | None = None
        self._resync_at: float | None = None
        self._closed = False
        #: Whether the last look found nothing to do.
        self._idle = True
        #: Names of the other apps in the namespace that a warning was logged of.
        self._others: Set[str] = frozenset()
        self._postponed = Postponed()
        self._dropped: set[int] = set()
        super().__init__(
            app,
            schedule=schedule,
            max_interval=max_interval,
            Producer=Producer,
            lazy=lazy,
            sync_every_tasks=sync_every_tasks,
        )

    def setup_schedule(self) -> None:
        """Connects and checks the schema; a server that is away is waited for in `tick`."""
        self._pool = ConditionPool(
            self.settings.condition_threads,
            self.settings.condition_timeout,
            self.settings.batch_size,
        )
        self._conditions = connections.engine(
            self.settings.url,
            "pgbeat condition",
            poolclass=QueuePool,
            pool_size=self.settings.condition_threads,
            max_overflow=-1,
        )
        self._evaluator = Evaluator(
            self.app, self.settings, self._conditions, self.default_entries()
        )
        self._enqueuer = Enqueuer(
            self.app,
            self.settings,
            publisher(self.app, self.settings, lambda: self.producer),
            self._evaluator,
            self.reached,
        )
        self._enqueuer.waits = False
        self._maintenance = Maintenance(self.app, self.settings, self._enqueuer.publisher)
        self._counters = BeatCounters(self.settings.namespace)
        try:
            self._leader = Leader(
                self.settings,
                self.max_interval,
                self._become_leader,
                direct_url(self.app.conf, self.settings.url),
            )
            # Also as a standby, whose entries are in no row while another app's beat leads.
            self._warn_of_others(self._leader.connect())
        except (SchemaError, ConfigError) as error:
            # The constructor is the place to leave with a plain line and a status of 1.
            raise SystemExit(f"pgbeat: {error}") from None
        except Exception as error:
            if not connections.is_lost(error):
                raise
            self._leader.disconnect(error)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """One look at the schedules; 0, for it has done the waiting itself.

        Raises `SystemExit` once it is closed.
        """
        try:
            if self._leader.lead():
                self._run_pass(wait=True)
                self._postponed.done(["look"])
        except ConfigError as error:  # a pooler answers where the server was away at the start
            raise SystemExit(f"pgbeat: {error}") from None
        except Exception as error:
            if self._closed:
                pass
            elif is_lock_timeout(error):
                self._hold_back()
            else:
                if not isinstance(error, DBAPIError | psycopg.Error):
                    raise
                self._forget()
                self._leader.disconnect(error)
                self._leader.back_off()
        if self._closed:
            # By the handler of a signal that came in some object's `__del__`: Python drops what is
            # raised there.
            raise SystemExit
        return 0.0

    def run_due(self) -> int:
        """Decides all that is due by now, without waiting for more; the number of decisions.

        Waits for the lock (another beat may lead) up to `max_interval`, and for conditions.
        """
        decided = 0
        if not self._leader.lead():
            return decided
        begun: datetime | None = None
        while True:
            decided += len(self._run_pass(wait=False))
            begun = begun or self._seen.now
            oldest = self._seen.next_run
            is_newer = oldest is not None and oldest > begun and not self._seen.has_new
            if (self._idle or is_newer) and not self._pool.held:
                return decided

    def close(self) -> None:
        """Gives up the lock and the connection. Celery calls it from a signal's handler, maybe in
        the middle of a statement, and once more at the end."""
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_leader"):  # a lazy instance has none
            self._forget()
            self._leader.drop()
            # Another beat leads by now.
            self._maintenance.close(_FAREWELL)
        super().close()

    @property
    def info(self) -> str:
        """Lines for beat's banner: the database without its password, and the lock's key."""
        return (
            f"    . database -> {redacted(self.settings.url)}\n"
            f"    . lock key -> {self.settings.leader_key}"
        )

    @property
    def schedule(self) -> dict[str, celery.beat.ScheduleEntry]:
        """The enabled rows as Celery's entries: a copy, for reading."""
        with connections.engine(self.settings.url, "pgbeat schedule").connect() as connection:
            rows = schedules.listing(connection, namespace=self.settings.namespace, enabled=True)
        return entries.as_celery_entries(self.app, rows)

    @schedule.setter
    def schedule(self, value: Mapping[str, Any]) -> None:
        self.merge_inplace(value)

    def add(self, **kwargs: Any) -> celery.beat.ScheduleEntry:
        """Adds an entry made by code, as `add_periodic_task` does."""
        entry = self.Entry(app=self.app, **kwargs)
        self.update_from_dict({entry.name: entry})
        return entry

    def update_from_dict(self, dict_: Mapping[str, Any]) -> None:
        """Adds or changes entries made by code."""
        self.app.conf.beat_schedule.update(dict_)
        self._resync_at = time.monotonic()

    def merge_inplace(self, b: Mapping[str, Any]) -> None:
        """Makes these the entries made by code."""
        self.app.conf.beat_schedule = dict(b)
        self._resync_at = time.monotonic()

    def default_entries(self) -> dict[str, Any]:
        """Celery's own (the cleanup of results, where the result backend needs one), and those
        that the constructor was given."""
        return {**entries.built_in(self.app), **self.data}

    def reached(self, step: str) -> None:
        """Called at each step of a tick, by name. Does nothing; tests stop the process here."""

    def _become_leader(self, connection: Connection) -> None:
        try:
            with connections.transaction(connection):
                self._enqueuer.publisher.prepare(connection, again=True)
        except Exception as error:
            if not is_lock_timeout(error):
                raise
            # Queues that are missing are made when something is published to them.
            self._enqueuer.publisher.clear()
            logger.warning("The app's queues are not declared now: %s", _LOCKED)
        self._follow_zone(connection)
        self._apply_entries(connection)
        self._warn_of_others(connection)
        self._counters.took_over()

    def _warn_of_others(self, connection: Connection) -> None:
        self._others = code_schedules.warn_of_others(
            connection, self.app, self.settings, self._others
        )

    def _follow_zone(self, connection: Connection) -> None:
        """Has the times computed anew that depend on the app's zone, where that has changed; later,
        where rows are locked."""
        namespace, zone = self.settings.namespace, self._evaluator.timezone
        self._zone_at = None
        try:
            with connections.transaction(connection):
                moved = due.follow_zone(connection, zone, namespace=namespace)
        except DBAPIError as error:
            if not is_lock_timeout(error):
                raise
            self._postponed.add("zone", "following the app's time zone", _LOCKED)
            self._zone_at = time.monotonic() + _AGAIN
            return
        self._postponed.done(["zone"])
        if moved:
            logger.info(
                "The app's time zone is %s now: %d schedules have their next time computed anew",
                zone,
                moved,
            )

    def _forget(self) -> None:
        """Drops what is under way: the next leader decides it."""
        self._pool.forget()
        self._maintenance.forget()
        self._conditions.dispose()
        self._postponed.clear()

    def _apply_entries(self, connection: Connection) -> None:
        self._resync_at = None
        try:
            later = code_schedules.apply(
                connection, self.app, self.settings, self.default_entries()
            )
        except DBAPIError as error:
            if not is_lock_timeout(error):
                raise
            self._postponed.add("entries", "the app's entries", _LOCKED)
            later = _AGAIN
        else:
            self._postponed.done(["entries"])
        if later is not None:
            self._resync_at = time.monotonic() + later

    def _run_pass(self, *, wait: bool) -> list[Decision]:
        """Decides one batch of what is due; if there is none and `wait` is set, waits for it."""
        began = time.monotonic()
        connection = self._leader.connect()
        if self._resync_at is not None and time.monotonic() >= self._resync_at:
            self._apply_entries(connection)
        if self._zone_at is not None and time.monotonic() >= self._zone_at:
            self._follow_zone(connection)
        self._leader.changed = False
        evaluations, undecided = self._collect()
        decided = [evaluation.schedule.id for evaluation in (*evaluations, *undecided)]
        held = [*decided, *self._pool.held, *self._left_alone()]
        snapshot = self._snapshot(connection, held)
        self._seen, now = snapshot, snapshot.now
        rows: list[Schedule] = []
        self._idle = False
        if snapshot.next_probe is not None and snapshot.next_probe <= now:
            for name in due.probe(connection, now, namespace=self.settings.namespace):
                logger.info("Schedule '%s' was disabled for its failures, and is tried again", name)
            snapshot = snapshot._replace(next_run=now)
        if snapshot.next_run is not None and snapshot.next_run <= now:
            self.reached("before claim")
            rows = self._due(connection, now, held)
        if snapshot.has_new:
            evaluations += self._schedule_new(connection, now, held)
        evaluations += self._decide(connection, rows, now)
        self._ask(undecided, now)
        if evaluations:
            self.reached("after conditions")
            suspects = [
                v.schedule.id for v in evaluations if self._postponed.was_held(v.schedule.id)
            ]
            decisions = self._enqueuer.commit(connection, evaluations, now, suspects=suspects)
            self._counters.ticked(time.monotonic() - began)
            self._maintain(connection, snapshot, is_idle=False)
            self._note_dropped(evaluations, decisions)
            self._log.decided(decisions)
            return decisions
        self._log.sum_up()
        is_idle = not rows and not snapshot.has_new
        self._maintain(connection, snapshot, is_idle=is_idle)
        if is_idle:
            self._idle = True
            until = None if snapshot.next is None else (snapshot.next - now).total_seconds()
            if until is not None and until <= 0:
                until = _NO_ROOM  # conditions that are due and find no room: one that ends wakes us
            if wait:
                limits = (until, self._maintenance.until(snapshot.maintenance_in))
                self._wait(min((limit for limit in limits if limit is not None), default=None))
        if not wait and self._pool.held:
            self._wait(None)
        return []

    def _snapshot(self, connection: Connection, held: list[int]) -> due.Snapshot:
        return due.snapshot(connection, held, namespace=self.settings.namespace)

    def _due(self, connection: Connection, now: datetime, held: list[int]) -> list[Schedule]:
        return due.oldest(
            connection,
            now,
            limit=self.settings.batch_size,
            held=held,
            only_plain=not self._pool.room,
            namespace=self.settings.namespace,
        )

    def _schedule_new(
        self, connection: Connection, now: datetime, held: list[int]
    ) -> list[Evaluation]:
        """Gives new rows their first time; evaluations on those that have none."""
        evaluations: list[Evaluation] = []
        times: list[due.Next] = []
        limit, namespace = self.settings.batch_size, self.settings.namespace
        for row in due.new(connection, limit=limit, held=held, namespace=namespace):
            evaluation = Evaluation(row, now, "retry" if row.retry_count else "timetable", now)
            try:
                first = self._evaluator.first(row, now)
            except Exception as error:
                evaluations.append(self._evaluator.broken(evaluation, error))
                continue
            if first is None:
                evaluations.append(evaluation._replace(skip="its timetable has no time left"))
            else:
                times.append(first)
        self._set_next(connection, times)
        return evaluations

    def _collect(self) -> tuple[list[Evaluation], list[Evaluation]]:
        """Returns evaluations whose conditions have answered or run out of time, and those that
        there was no time for among many."""
        results, expired = self._pool.collect()
        evaluations = [self._evaluator.overdue(evaluation) for evaluation in expired]
        evaluations += [evaluation for evaluation in results if evaluation.is_decided]
        return evaluations, [evaluation for evaluation in results if not evaluation.is_decided]

    def _decide(
        self, connection: Connection, rows: list[Schedule], now: datetime
    ) -> list[Evaluation]:
        """Evaluations that need no waiting; what has a condition is asked."""
        named = {row.calendar for row in rows if row.calendar is not None}
        known = calendars.load(connection, named, namespace=self.settings.namespace)
        evaluations: list[Evaluation] = []
        later: list[due.Next] = []
        asked: list[Evaluation] = []
        room = self._pool.room
        for row in rows:
            due_at = row.due_at or row.next_run or now
            evaluation = Evaluation(row, due_at, "retry" if row.retry_count else "timetable", now)
            try:
                again = self._evaluator.not_yet(row, now)
                if again is None:
                    evaluation = self._evaluator.open(row, now, known)
            except Exception as error:
                evaluations.append(self._evaluator.broken(evaluation, error))
                continue
            if again is not None:
                later.append(due.Next(row, again))
            elif evaluation.skip is not None:
                evaluations.append(evaluation)
            elif row.is_plain:
                evaluations.append(self._evaluator.plain(evaluation))
            elif self._pool.is_stuck(row.id):
                message = "the condition of an earlier tick was given up and still runs"
                evaluations.append(self._evaluator.overdue(evaluation, message))
            elif room > 0:
                room -= 1
                asked.append(evaluation)
        self._ask(asked, now)
        self._set_next(connection, later)
        return evaluations

    def _ask(self, evaluations: list[Evaluation], now: datetime) -> None:
        """Hands conditions to the evaluator: quick ones in SQL together, others by themselves."""
        together: list[Evaluation] = []
        for evaluation in evaluations:
            if self._evaluator.is_quick(evaluation.schedule):
                together.append(evaluation)
            else:
                self._pool.submit([evaluation], partial(self._evaluate, evaluation, now))
        for first in range(0, len(together), _TOGETHER):
            batch = together[first : first + _TOGETHER]
            self._pool.submit(batch, partial(self._evaluator.ask, batch))

    def _evaluate(self, evaluation: Evaluation, now: datetime) -> list[Evaluation]:
        return [self._evaluator.evaluate(evaluation, now)]

    def _note_dropped(self, evaluations: list[Evaluation], decisions: list[Decision]) -> None:
        """Leaves postponed schedules alone for a moment. A row that changed is looked at again at
        once; one that is dropped twice running is locked by another transaction, and postponed."""
        decided = {decision.schedule.id for decision in decisions} | self._enqueuer.waiting
        self._postponed.done(decided)
        dropped = {v.schedule.id: v.schedule for v in evaluations if v.schedule.id not in decided}
        for key, row in dropped.items():
            if key in self._enqueuer.postponed or key in self._dropped:
                self._postpone(row, self._enqueuer.postponed.get(key, _LOCKED_ROW))
        self._dropped = set(dropped).difference(self._enqueuer.postponed)

    def _postpone(self, row: Schedule, why: str) -> None:
        self._postponed.add(row.id, f"schedule '{row.name}'", why)

    def _set_next(self, connection: Connection, times: list[due.Next]) -> None:
        """Writes next times; rows that are locked, or changed, are left alone for a moment."""
        given = due.set_next(connection, times)
        self._postponed.done(given)
        for moment in times:
            if moment.schedule.id not in given:
                self._postpone(moment.schedule, _LOCKED_ROW)

    def _left_alone(self) -> list[int]:
        """Ids of the schedules that are postponed."""
        return [key for key in self._postponed.held() if isinstance(key, int)]

    def _hold_back(self) -> None:
        """Waits a moment where another transaction holds a lock without which nothing can be
        decided, such as that of a whole table."""
        self._leader.wait(self._postponed.add("look", "all schedules", _LOCKED), self._pool)

    def _wait(self, until: float | None) -> None:
        """Sleeps until something is due (seconds), a row changed, or a condition is decided."""
        limits = [self.max_interval, until, self._pool.next_deadline()]
        limits.append(self._postponed.wake_in())
        seconds = min(limit for limit in limits if limit is not None)
        self._leader.wait(seconds, self._pool)

    def _maintain(self, connection: Connection, snapshot: due.Snapshot, *, is_idle: bool) -> None:
        """Sees to jobs, lanes and deliveries."""
        try:
            self._counters.write(connection)
        except DBAPIError as error:
            if not is_lock_timeout(error):
                raise
        self._maintenance.lanes(self._enqueuer.lanes | self._leader.lanes)
        self._enqueuer.lanes.clear()
        self._leader.lanes.clear()
        is_due = snapshot.maintenance_in is not None and snapshot.maintenance_in <= 0
        self._maintenance.step(connection, is_due=is_due, is_idle=is_idle)
