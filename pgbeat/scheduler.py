"""The beat: leads by an advisory lock, decides what is due, sleeps until something is.

One connection does it all, the leader's. It holds the lock and runs the transactions, so a beat
that lost the lock has lost the connection and can't commit.
"""

import logging
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import celery.beat
import psycopg
from celery import Celery
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from pgbeat import db, entries, leases, log, migrate, schedules, sync, ticks
from pgbeat.config import Settings, redacted
from pgbeat.dispatch import Decision, Dispatcher, Verdict
from pgbeat.errors import SchemaError
from pgbeat.evaluator import Evaluator
from pgbeat.publisher import publisher
from pgbeat.schedules import Schedule

logger = logging.getLogger("celery.beat.pgbeat")

#: Seconds between two rounds of pruning, while nothing is due.
_PRUNE_EVERY = 60.0
#: Seconds for which a row that somebody else holds locked, or that finds no room, is left alone.
_BUSY = 0.25
#: Seconds that the app's entries wait for rows that somebody holds locked, and then are put off.
_PATIENCE = 2.0


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
        self.settings = Settings.load(app.conf)
        self.max_interval = self.settings.loop_interval
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._leads = False
        self._changed = False
        self._resync_at: float | None = None
        self._closed = False
        self._lost_at: float | None = None
        self._attempts = 0
        self._busy: dict[int, float] = {}
        self._dropped: set[int] = set()
        self._pruned_at = 0.0
        super().__init__(
            app,
            schedule=schedule,
            max_interval=max_interval,
            Producer=Producer,
            lazy=lazy,
            sync_every_tasks=sync_every_tasks,
        )

    # -- what Celery calls ---------------------------------------------------------------------

    def setup_schedule(self) -> None:
        """Connects and checks the schema; a server that is away is waited for in `tick`."""
        self._evaluator = Evaluator(
            self.settings.condition_threads,
            self.settings.condition_timeout,
            self.settings.batch_size,
        )
        self._conditions = db.engine(
            self.settings.url,
            "pgbeat condition",
            poolclass=QueuePool,
            pool_size=self.settings.condition_threads,
            max_overflow=-1,
        )
        self._dispatcher = Dispatcher(
            self.app,
            self.settings,
            publisher(self.app, self.settings, lambda: self.producer),
            self._conditions,
            self.default_entries(),
            self.reached,
        )
        try:
            self._connect()
        except SchemaError as error:
            # The constructor is the place to leave with a plain line and a status of 1.
            raise SystemExit(f"pgbeat: {error}") from None
        except Exception as error:
            if not db.is_lost(error):
                raise
            self._lose(error)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """One look at the schedules; 0, for it has done the waiting itself."""
        try:
            if self._lead():
                self._look(wait=True)
        except (DBAPIError, psycopg.Error) as error:
            self._lose(error)
            self._back_off()
        return 0.0

    def run_due(self) -> int:
        """Decides all that is due, without waiting for more; the number of decisions.

        Waits for the lock (another beat may lead) up to `max_interval`, and for conditions.
        """
        decided = 0
        if not self._lead():
            return decided
        while True:
            made = self._look(wait=False)
            decided += len(made)
            if not made and not self._evaluator.held:
                return decided

    def close(self) -> None:
        """Gives up the lock and the connection. Celery calls it from a signal's handler, maybe in
        the middle of a statement, and once more at the end."""
        if self._closed:
            return
        self._closed = True
        self._drop()
        super().close()

    @property
    def info(self) -> str:
        """Lines for beat's banner: the database without its password, and the lock's key."""
        return (
            f"    . database -> {redacted(self.settings.url)}\n"
            f"    . lock key -> {self.settings.lock_key}"
        )

    @property
    def schedule(self) -> dict[str, celery.beat.ScheduleEntry]:
        """The enabled rows as Celery's entries: a copy, for reading."""
        with self._own_engine().connect() as connection:
            rows = schedules.listing(connection, enabled=True)
        return entries.as_celery_entries(self.app, rows)

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
        """Celery's own: the cleanup of results, where the result backend needs one."""
        return entries.built_in(self.app)

    def reached(self, step: str) -> None:
        """Called at each step of a tick, by name. Does nothing; tests stop the process here."""

    # -- leadership ----------------------------------------------------------------------------

    def _own_engine(self) -> Engine:
        if self._engine is None:
            name = f"pgbeat beat {socket.gethostname()}:{os.getpid()}"
            self._engine = db.engine(self.settings.url, name[:63])
        return self._engine

    def _connect(self) -> Connection:
        """The one connection, in autocommit mode, its schema checked."""
        if self._connection is None:
            connection = self._own_engine().connect()
            try:
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
                migrate.check(connection)
                leases.prepare_session(connection, max(15.0, 4 * self.max_interval))
                driver(connection).add_notify_handler(self._notified)
            except BaseException:
                connection.invalidate()
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _lead(self) -> bool:
        """Whether this beat leads now; a standby waits in here for most of the interval."""
        connection = self._connect()
        if self._leads:
            return True
        wait = max(0.02, 0.8 * self.max_interval)
        if not leases.acquire(connection, self.settings.lock_key, wait):
            self._recovered()
            return False
        connection.execute(text("SELECT set_config('pgbeat.leader', 'on', false)"))
        connection.execute(text(f"LISTEN {schedules.CHANNEL}"))
        with db.transaction(connection):
            self._dispatcher.publisher.prepare(connection)
        self._apply_entries(connection)
        self._leads = True
        self._recovered()
        logger.info("This beat leads (lock %d)", self.settings.lock_key)
        return True

    def _apply_entries(self, connection: Connection) -> None:
        wanted = entries.from_app(self.app, self.default_entries())
        defaults = {
            "max_retries": self.settings.max_retries,
            "retry_base": timedelta(seconds=self.settings.retry_base),
            "retry_cap": timedelta(seconds=self.settings.retry_cap),
        }
        self._resync_at = None
        try:
            with db.transaction(connection):
                leases.limit_waiting(connection, _PATIENCE)
                changes = sync.apply(connection, wanted, **defaults)
        except DBAPIError as error:
            if not leases.is_lock_timeout(error):
                raise
            logger.warning("The app's entries wait: somebody holds a lock on their rows")
            self._resync_at = time.monotonic() + 5 * _PATIENCE
            return
        for verb in ("added", "changed", "removed"):
            names = getattr(changes, verb)
            if names:
                logger.info("Schedules %s by the app's code: %s", verb, ", ".join(sorted(names)))
        for name in changes.taken:
            logger.warning(
                "Schedule '%s' is in the app's code and was made elsewhere too; "
                "the row is left as it is", name,
            )  # fmt: skip

    def _lose(self, error: BaseException) -> None:
        """Gives up the connection; says so once."""
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            if db.is_lost(error):
                logger.error(
                    "Lost the database, trying again until it is back: %s", _first_line(error)
                )
            else:
                logger.exception("The database refuses, trying again: %s", _first_line(error))
        self._drop()

    def _recovered(self) -> None:
        if self._lost_at is not None:
            away = time.monotonic() - self._lost_at
            logger.warning("The database is back after %.1f s", away)
        self._lost_at, self._attempts = None, 0

    def _back_off(self) -> None:
        self._attempts += 1
        time.sleep(min(0.05 * 2**self._attempts, 5.0, self.max_interval))

    def _drop(self) -> None:
        """Closes the connection at once, whatever it is doing: the server rolls back and frees
        the lock."""
        connection, self._connection, self._leads = self._connection, None, False
        if hasattr(self, "_evaluator"):
            self._evaluator.forget()
            self._conditions.dispose()
        self._busy.clear()
        if connection is not None and not connection.closed:
            try:
                driver(connection).close()
                connection.invalidate()
            except Exception:
                logger.debug("The connection was gone before it was closed", exc_info=True)
            connection.close()

    # -- one look ------------------------------------------------------------------------------

    def _look(self, *, wait: bool) -> list[Decision]:
        """Decides one batch of what is due; if there is none and `wait` is set, waits for it."""
        connection = self._connect()
        if self._resync_at is not None and time.monotonic() >= self._resync_at:
            self._apply_entries(connection)
        self._changed = False
        verdicts = self._collect()
        decided = [verdict.schedule.id for verdict in verdicts]
        held = [*decided, *self._evaluator.held, *self._still_busy()]
        outlook = schedules.outlook(connection, held)
        now = outlook.now
        rows: list[Schedule] = []
        if outlook.next_run is not None and outlook.next_run <= now:
            self.reached("before claim")
            rows = self._due(connection, now, held)
        if outlook.has_new:
            fresh = schedules.new(connection, limit=self.settings.batch_size, held=held)
            times, broken = self._dispatcher.first_runs(fresh, now)
            schedules.set_next(connection, times)
            verdicts += broken
        verdicts += self._judge(connection, rows, now)
        if verdicts:
            self.reached("after conditions")
            decisions = self._dispatcher.commit(connection, verdicts, now)
            self._note_dropped(verdicts, decisions)
            log.decided(decisions)
            return decisions
        if not rows and not outlook.has_new:
            self._maintain(connection)
            until = None if outlook.next_run is None else (outlook.next_run - now).total_seconds()
            if until is not None and until <= 0:
                until = _BUSY  # conditions that are due and find no room: one that ends wakes us
            if wait:
                self._wait(connection, until)
        if not wait and self._evaluator.held:
            self._wait(connection, None)
        return []

    def _due(self, connection: Connection, now: datetime, held: list[int]) -> list[Schedule]:
        limit = self.settings.batch_size
        if self._evaluator.room:
            return schedules.due(connection, now, limit=limit, held=held)
        return schedules.due(connection, now, limit=limit, held=held, only_plain=True)

    def _collect(self) -> list[Verdict]:
        """Verdicts of conditions that have come in, or run out of time."""
        results, expired = self._evaluator.collect()
        late = [self._dispatcher.overdue(row, row.next_run) for row in expired if row.next_run]
        return [*results, *late]

    def _judge(self, connection: Connection, rows: list[Schedule], now: datetime) -> list[Verdict]:
        """Verdicts that need no waiting; conditions are handed to the evaluator."""
        verdicts: list[Verdict] = []
        later: list[tuple[Schedule, datetime]] = []
        room = self._evaluator.room
        for row in rows:
            due_at = row.next_run or now
            try:
                again = self._dispatcher.not_yet(row, now)
            except Exception as error:
                verdicts.append(self._dispatcher.broken(row, due_at, error))
                continue
            if again is not None:
                later.append((row, again))
            elif row.is_plain:
                verdicts.append(self._dispatcher.plain(row, due_at))
            elif self._evaluator.is_stuck(row.id):
                message = "the condition of an earlier tick was given up and still runs"
                verdicts.append(self._dispatcher.overdue(row, due_at, message))
            elif room > 0:
                room -= 1
                self._evaluator.submit(row, self._evaluation(row, due_at, now))
        schedules.set_next(connection, later)
        return verdicts

    def _evaluation(self, row: Schedule, due_at: datetime, now: datetime) -> Callable[[], Verdict]:
        return lambda: self._dispatcher.evaluate(row, due_at, now)

    def _note_dropped(self, verdicts: list[Verdict], decisions: list[Decision]) -> None:
        """A row that changed is looked at again at once; one dropped twice running is held locked
        by somebody, and left alone for a moment rather than asked for in a loop."""
        wanted = {verdict.schedule.id for verdict in verdicts}
        dropped = wanted - {decision.schedule.id for decision in decisions}
        until = time.monotonic() + _BUSY
        self._busy.update((key, until) for key in dropped & self._dropped)
        self._dropped = dropped

    def _still_busy(self) -> list[int]:
        now = time.monotonic()
        self._busy = {key: until for key, until in self._busy.items() if until > now}
        return list(self._busy)

    def _wait(self, connection: Connection, until: float | None) -> None:
        """Sleeps until something is due (seconds), a row changed, or a condition is decided."""
        limits = [self.max_interval, until, self._evaluator.next_deadline()]
        if self._busy:
            limits.append(_BUSY)
        seconds = max(0.0, min(limit for limit in limits if limit is not None))
        if self._changed:
            return
        raw = driver(connection)
        sockets = [raw.fileno(), self._evaluator.fileno()]
        readable, _, _ = select.select(sockets, [], [], seconds)
        if raw.fileno() in readable:
            raw.pgconn.consume_input()
            while raw.pgconn.notifies():
                self._changed = True

    def _notified(self, notification: psycopg.Notify) -> None:
        self._changed = True

    def _maintain(self, connection: Connection) -> None:
        """Prunes a little of what is older than it is kept."""
        days = self.settings.retention_days
        is_time = days and time.monotonic() - self._pruned_at >= _PRUNE_EVERY
        if is_time and ticks.prune(connection, days) < 1000:
            self._pruned_at = time.monotonic()


def driver(connection: Connection) -> "psycopg.Connection[Any]":
    """psycopg's connection beneath SQLAlchemy's."""
    raw: Any = connection.connection.driver_connection
    return raw  # type: ignore[no-any-return]


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
