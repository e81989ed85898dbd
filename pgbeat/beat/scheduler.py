"""The beat: while it leads it decides what is due, and sleeps until something is."""

import gc
import logging
import time
from collections.abc import Mapping, Set
from datetime import datetime
from typing import Any, NamedTuple

import celery.beat
import psycopg
from celery import Celery
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from pgbeat.beat import due
from pgbeat.beat.app_schedules import AppSchedules
from pgbeat.beat.condition_pool import ConditionPool
from pgbeat.beat.due import DueSnapshot
from pgbeat.beat.due_schedules import DueBatch, DueSchedules
from pgbeat.beat.enqueuer import Enqueuer
from pgbeat.beat.evaluation import Decision
from pgbeat.beat.evaluator import Evaluator
from pgbeat.beat.leadership.leader import Leader
from pgbeat.beat.log import DecisionLog
from pgbeat.beat.maintenance.leader_maintenance import LeaderMaintenance
from pgbeat.broker.publishing.publisher import publisher
from pgbeat.config import Settings, direct_url, redacted
from pgbeat.database import connections
from pgbeat.database.locks.lock_waits import LOCKED, Postponed, is_lock_timeout
from pgbeat.errors import ConfigError, SchemaError
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.policy import task_policies
from pgbeat.log import use_json
from pgbeat.monitoring.metrics.counters import BeatCounters
from pgbeat.processes.pulse import Pulse
from pgbeat.schedules import entries
from pgbeat.schedules import model as schedules
from pgbeat.schedules.launchers import condition_engine

logger = logging.getLogger("celery.beat.pgbeat")

#: Seconds for which conditions that are due and find no room are left alone.
_NO_ROOM = 0.25
#: Seconds for which `close` waits for webhooks that are being delivered.
_FAREWELL = 5.0
#: Seconds that a pass may take before the beat counts as stuck.
_PATIENCE = 120.0


class Pass(NamedTuple):
    """What one pass over the schedules did, and when the next is due."""

    decisions: list[Decision]
    #: What was due at its start, by the database's clock.
    snapshot: DueSnapshot
    #: Whether there was nothing to decide.
    is_idle: bool
    #: Seconds until there is something to do; 0 if there may be more at once.
    wake_in: float


class Scheduler(celery.beat.Scheduler):
    """`celery -A app beat -S pgbeat.Scheduler`.

    `tick` is one pass over the schedules. It decides what is due, or waits (for the leader's lock,
    or for notifications) for at most `max_interval` seconds, and asks to be called again.
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
            task_policies.all_of(app)  # raises if some are wrong
        except ConfigError as error:
            # Celery would show any other exception as a traceback of its calls.
            raise SystemExit(f"pgbeat: {error}") from None
        use_json(app)
        self._log = DecisionLog()
        self.max_interval = self.settings.loop_interval
        self._closed = self._has_ticked = self._has_loaded = False
        self._postponed = Postponed()
        self._pulse = Pulse("beat", _PATIENCE)
        self._app_schedules = AppSchedules(app, self.settings, self.default_entries)
        super().__init__(
            app,
            schedule=schedule,
            max_interval=max_interval,
            Producer=Producer,
            lazy=lazy,
            sync_every_tasks=sync_every_tasks,
        )

    def setup_schedule(self) -> None:
        """Connects and checks the schema. If the server is away, `tick` waits for it."""
        self._pool = ConditionPool(
            self.settings.condition_threads,
            self.settings.condition_timeout,
            2 * self.settings.batch_size,
        )
        self._conditions = condition_engine(
            self.settings,
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
            waits=False,
            reached=self.reached,
        )
        self._due_schedules = DueSchedules(self.settings, self._evaluator, self._pool)
        self._maintenance = LeaderMaintenance(self.app, self.settings, self._enqueuer.publisher)
        self._counters = BeatCounters(self.settings.namespace, self.settings.metrics_interval)
        try:
            self._leader = Leader(
                self.settings,
                self.max_interval,
                self._become_leader,
                self._load,
                direct_url(self.app.conf, self.settings.url),
            )
            # Also as a standby, whose entries are in no row while another app's beat leads.
            self._app_schedules.warn_of_others(self._leader.connect())
        except (SchemaError, ConfigError) as error:
            # The constructor is the place to leave with a plain line and a status of 1.
            raise SystemExit(f"pgbeat: {error}") from None
        except Exception as error:
            if not connections.is_lost(error):
                raise
            self._leader.disconnect(error)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Makes one pass, and waits if there was nothing to do. Returns 0: Celery needn't wait.

        Raises `SystemExit` once it is closed.
        """
        if not self._has_ticked:
            self._has_ticked = True
            # Full collections need not look at what the program has loaded. While it launches, that
            # took a tenth of beat's processor time.
            gc.freeze()
            self._pulse.start()
        self._pulse.turned()
        try:
            if self._leader.lead():
                done = self._run_pass()
                self._postponed.done(["pass"])
                if done.is_idle and not self._load():
                    self._leader.wait(done.wake_in, self._pool)
        except ConfigError as error:  # a pooler answers where the server was away at the start
            raise SystemExit(f"pgbeat: {error}") from None
        except Exception as error:
            if self._closed:
                pass
            elif is_lock_timeout(error):
                # Nothing can be decided without that lock: a whole table's, say.
                delay = self._postponed.add("pass", "all schedules", LOCKED)
                self._leader.wait(delay, self._pool)
            else:
                if not isinstance(error, DBAPIError | psycopg.Error | SchemaError):
                    raise
                self._forget()
                self._leader.disconnect(error)
                self._leader.back_off()
        if self._closed:
            # By the handler of a signal that came in some object's `__del__`: Python drops what is
            # raised there.
            raise SystemExit
        return 0.0

    def _load(self) -> bool:
        """Makes Celery load the transport and the message code; returns false if it is loaded.

        That is a quarter of a second with the stock transport, and neither the first pass nor the
        first launch should wait for it.
        """
        if self._has_loaded or not self._enqueuer.publisher.transactional:
            return False
        self._has_loaded = True
        _ = self.app.amqp.send_task_message, self.app.backend
        return True

    def run_due(self) -> int:
        """Decides all that is due by now, without waiting for more. Returns how much it decided.

        Waits for the lock (another beat may lead) up to `max_interval`, and for conditions.
        """
        decided = 0
        if not self._leader.lead():
            return decided
        begun: datetime | None = None
        while True:
            done = self._run_pass()
            decided += len(done.decisions)
            begun = begun or done.snapshot.now
            oldest, has_new = done.snapshot.next_run, done.snapshot.has_new
            is_newer = oldest is not None and oldest > begun and not has_new
            if not self._pool.held:
                if done.is_idle or is_newer:
                    return decided
            elif not done.decisions:
                self._leader.wait(self._wake_in(None), self._pool)

    def close(self) -> None:
        """Gives up the lock and the connection.

        Celery calls it from a signal's handler, maybe in the middle of a statement, and again at
        the end.
        """
        if self._closed:
            return
        self._closed = True
        self._pulse.stop()
        if hasattr(self, "_leader"):  # a lazy instance has none
            self._forget()
            self._leader.drop()
            # Another beat leads by now.
            self._maintenance.close(_FAREWELL)
            self._pool.close()
        super().close()

    @property
    def info(self) -> str:
        """Returns lines for beat's banner: the database without its password, the lock's key."""
        return (
            f"    . database -> {redacted(self.settings.url)}\n"
            f"    . lock key -> {self.settings.leader_key}"
        )

    @property
    def schedule(self) -> dict[str, celery.beat.ScheduleEntry]:
        """Returns the enabled rows as Celery's entries: a copy, for reading."""
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
        self._app_schedules.resync()

    def merge_inplace(self, b: Mapping[str, Any]) -> None:
        """Makes these the entries made by code."""
        self.app.conf.beat_schedule = dict(b)
        self._app_schedules.resync()

    def default_entries(self) -> dict[str, Any]:
        """Returns Celery's entries and those that the constructor was given.

        Celery has one for the cleanup of results, if the result backend needs it.
        """
        return {**entries.built_in(self.app), **self.data}

    def reached(self, step: str) -> None:
        """Does nothing. Beat calls it with the name of each step: tests stop the process here."""

    def _become_leader(self, connection: Connection) -> None:
        try:
            with connections.transaction(connection):
                self._enqueuer.publisher.prepare(connection, again=True)
        except Exception as error:
            if not is_lock_timeout(error):
                raise
            # Queues that are missing are made when something is published to them.
            self._enqueuer.publisher.clear()
            logger.warning("The app's queues are not declared now: %s", LOCKED)
        self._app_schedules.apply(connection)
        self._counters.took_over()
        if self._leader.stood_by:
            # What is due has waited for this beat: launches come first.
            self._maintenance.put_off_pruning()

    def _forget(self) -> None:
        """Drops what is under way: the next leader decides it."""
        self._due_schedules.forget()
        self._app_schedules.forget()
        self._maintenance.forget()
        self._conditions.dispose()
        self._postponed.clear()

    def _run_pass(self) -> Pass:
        """Decides one batch of what is due: takes a snapshot, evaluates, commits."""
        began = time.monotonic()
        connection = self._leader.connect()
        self._app_schedules.step(connection)
        self._leader.changed = False
        held = self._due_schedules.collect()
        snapshot = self._snapshot(connection, held)
        schedules = self._due_schedules
        has_begun = schedules.is_ahead(snapshot.now)
        if not has_begun and (self._probe(connection, snapshot) or snapshot.is_due):
            self.reached("before claim")
            batch = schedules.read(connection, snapshot.now, held)
            schedules.begin(batch)
            has_begun = bool(batch.rows)
        evaluations = schedules.take(connection, snapshot, held)
        if evaluations:
            self.reached("after conditions")
            suspects = schedules.suspects(evaluations)
            ahead = schedules.read_ahead(connection, snapshot.now, evaluations)
            written = self._enqueuer.commit(
                connection,
                evaluations,
                snapshot.now,
                suspects=suspects,
                meanwhile=lambda: self._begin_ahead(ahead),
            )
            self._counters.ticked(time.monotonic() - began)
            self._maintain(connection, snapshot, written.lanes, is_idle=False)
            schedules.settle(evaluations, written)
            self._log.decided(written.decisions)
            return Pass(written.decisions, snapshot, is_idle=False, wake_in=0.0)
        self._log.sum_up()
        is_idle = not has_begun and not snapshot.has_new
        self._maintain(connection, snapshot, set(), is_idle=is_idle)
        wake_in = self._wake_in(snapshot) if is_idle else 0.0
        return Pass([], snapshot, is_idle, wake_in)

    def _begin_ahead(self, batch: DueBatch | None) -> None:
        """Evaluates the next batch, and prepares its launches, while the server writes this one."""
        if batch is not None:
            self._enqueuer.prepare(self._due_schedules.begin(batch), batch.now)

    def _snapshot(self, connection: Connection, held: list[int]) -> DueSnapshot:
        return due.snapshot(connection, held, namespace=self.settings.namespace)

    def _probe(self, connection: Connection, snapshot: DueSnapshot) -> bool:
        """Tries schedules again that were disabled for their failures, once it is time.

        Returns whether it was.
        """
        if snapshot.next_probe is None or snapshot.next_probe > snapshot.now:
            return False
        for name in due.probe(connection, snapshot.now, namespace=self.settings.namespace):
            logger.info("Schedule '%s' was disabled for its failures, and is tried again", name)
        return True

    def _wake_in(self, snapshot: DueSnapshot | None) -> float:
        """Returns the seconds until there is something to do.

        In the snapshot nothing was due. Without one, a condition may have been decided by then.
        """
        limits = [self.max_interval, self._due_schedules.wake_in(), self._app_schedules.wake_in()]
        if snapshot is not None:
            limits.append(self._maintenance.wake_in(snapshot.maintenance_in))
            if snapshot.next is not None:
                seconds = (snapshot.next - snapshot.now).total_seconds()
                # Conditions that are due and find no room: one that ends wakes us.
                limits.append(seconds if seconds > 0 else _NO_ROOM)
        return min(limit for limit in limits if limit is not None)

    def _maintain(
        self, connection: Connection, snapshot: DueSnapshot, lanes: Set[Room], *, is_idle: bool
    ) -> None:
        """Handles jobs, lanes and deliveries, and writes counters."""
        try:
            self._counters.write(connection)
        except DBAPIError as error:
            if not is_lock_timeout(error):
                raise
        self._maintenance.add_lanes(lanes | self._leader.lanes)
        self._leader.lanes.clear()
        is_due = snapshot.maintenance_in is not None and snapshot.maintenance_in <= 0
        self._maintenance.step(
            connection, is_due=is_due, is_idle=is_idle, has_members=snapshot.has_members
        )
