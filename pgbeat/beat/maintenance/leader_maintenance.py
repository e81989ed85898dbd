"""Maintenance that the leader runs besides scheduling."""

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from uuid import UUID

from celery import Celery
from sqlalchemy import Connection

from pgbeat.beat.maintenance import freshness, histories, load
from pgbeat.beat.maintenance.background import Background
from pgbeat.beat.maintenance.planner_statistics import PlannerStatistics
from pgbeat.beat.maintenance.pruner import Pruner
from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.config import Settings
from pgbeat.database import connections, server_errors
from pgbeat.database.locks import batches, lock_waits
from pgbeat.database.locks.lock_waits import Postponed
from pgbeat.errors import BrokerUnavailable
from pgbeat.jobs.flow import dependencies, dispatch, lifecycle, unreadable
from pgbeat.jobs.flow.batch_members import BatchStarter
from pgbeat.jobs.groups import progress
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.messages.queue_routes import route_of
from pgbeat.jobs.rescuing import rescue
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.states import deadlines
from pgbeat.jobs.states import due as due_jobs
from pgbeat.results import expiry
from pgbeat.webhooks.deliverer import Deliverer
from pgbeat.webhooks.incidents.recovery import Recovery

logger = logging.getLogger("celery.beat.pgbeat")

#: Seconds between two checks of groups.
_GROUPS = 10.0
#: Seconds between two rounds of pruning; at most between two batches of a round.
_PRUNE, _PAUSE = 60.0, 0.1
#: Seconds after a take-over without pruning, whose first round takes up to a tenth of one.
_CALM = 1.0
#: Seconds for which pruning waits for a moment without launches.
_LAUNCHES_FIRST = 2.0
#: Seconds until the next attempt where the broker is away, and where something is locked.
_PATIENCE, _BUSY = 5.0, 0.1
#: Seconds without a failure after which it is logged again that the broker is away.
_SILENCE = 60.0
#: Seconds between two looks for jobs that can't be read, after errors that rows brought about.
_UNREADABLE = 10.0


class LeaderMaintenance:
    """Maintains one namespace on the leader's connection, which is in autocommit mode."""

    def __init__(self, app: Celery, settings: Settings, publisher: Publisher) -> None:
        self._app, self._settings, self._publisher = app, settings, publisher
        self._pruner = Pruner(settings, leaves_periods=True)
        route = route_of(app)
        self._background = (
            Background(settings, "retention", self._keep_histories, first=60.0, every=600.0),
            Background(
                settings, "load", lambda c: load.keep(c, settings, route), first=30.0, every=60.0
            ),
            Background(settings, "statistics", PlannerStatistics().renew, first=5.0, every=5.0),
        )
        self._overlooked = dependencies.Overlooked(settings.namespace)
        self._recovery = Recovery(settings.namespace)
        self._deliverer = Deliverer(settings)
        self._batches, self._has_members = BatchStarter(settings.namespace), False
        #: When to dispatch which lane (`time.monotonic()`).
        self._lanes: dict[tuple[str, str], float] = {}
        #: Those of them in which to look at all keys, which takes long if these are many.
        self._whole: set[tuple[str, str]] = set()
        self._rescue_at = self._groups_at = 0.0
        self._prune_at = time.monotonic()
        self._away_until = float("-inf")
        #: Whether something failed for what rows hold, and when to look for such rows.
        self._has_bad_rows, self._unreadable_at = False, 0.0
        self._postponed = Postponed()

    def add_lanes(self, changed: Iterable[Room]) -> None:
        """Queues these lanes for dispatch at the next step."""
        own_rooms = (room[:2] for room in changed if room.namespace == self._settings.namespace)
        self._lanes.update(dict.fromkeys(own_rooms, 0.0))

    def step(
        self, connection: Connection, *, is_due: bool, is_idle: bool, has_members: bool = False
    ) -> None:
        """Does the maintenance that is due.

        `is_due`: a job, a deadline, a look at freshness or a delivery is due. `is_idle`: there is
        time for the rest. `has_members`: members of batches wait.
        """
        now, namespace = time.monotonic(), self._settings.namespace
        if is_due:
            self._deliverer.deliver()
        if now < self._away_until:
            return
        if is_due:
            self._try("the jobs that are due", lambda: self._dispatch_due(connection))
            self._try("late jobs", lambda: deadlines.mark_late(connection, namespace))
            self._try("stale schedules", lambda: freshness.look(connection, namespace))
        self._has_members = has_members
        if has_members:
            self._try("batches", lambda: self._start_batches(connection))
        if now >= self._rescue_at:
            self._rescue_at = now + self._settings.lock_interval
            self._try("rescuing lost executions", lambda: self._rescue(connection))
            self._try("finding lanes to dispatch", lambda: self._find_lanes(connection))
            self._try("dependencies", lambda: self._settle_dependents(connection))
            self._try("incidents", lambda: self._recovery.look(connection))
        if now >= self._groups_at:
            self._groups_at = now + _GROUPS
            self._try("groups", lambda: self._settle_groups(connection))
        for lane in [lane for lane, at in self._lanes.items() if at <= now]:
            del self._lanes[lane]
            delay = self._try(
                f"lane '{lane[1]}'",
                lambda lane=lane: self._dispatch_lane(connection, *lane),  # type: ignore[misc]
                key=("lane", *lane),
            )
            if delay is not None:
                self._lanes[lane] = time.monotonic() + delay
        if self._has_bad_rows and now >= self._unreadable_at:
            self._has_bad_rows, self._unreadable_at = False, now + _UNREADABLE
            self._try("jobs that can't be read", lambda: self._fail_unreadable(connection))
        for task in self._background:  # in threads of their own
            task.step(now)
        if now >= self._prune_at + (0.0 if is_idle else _LAUNCHES_FIRST):
            delay = self._try("retention", lambda: self._prune(connection))
            if delay is not None:
                self._prune_at = time.monotonic() + delay

    def put_off_pruning(self) -> None:
        """Delays the next round of pruning by at least a second."""
        self._prune_at = max(self._prune_at, time.monotonic() + _CALM)

    def wake_in(self, maintenance_in: float | None) -> float:
        """Returns the seconds until there is something to do.

        `maintenance_in` are those until a job or a delivery is due. What was due just now, and
        still is, another transaction holds locked: it is left for a moment.
        """
        now = time.monotonic()
        if now < self._away_until:
            return self._away_until - now
        times = [at - now for at in (*self._lanes.values(), self._rescue_at, self._prune_at)]
        if self._has_members:
            times.append(max(self._batches.look_at - now, self._postponed.wake_in() or 0.0))
        if maintenance_in is not None:
            times.append(max(maintenance_in, self._postponed.wake_in() or _BUSY))
        return max(0.0, min(times))

    def forget(self) -> None:
        """Forgets all timers, so that everything is checked when this beat leads again."""
        self._deliverer.pause()
        self._batches.forget()
        self._lanes.clear()
        self._postponed.clear()
        self._rescue_at = self._groups_at = 0.0

    def close(self, seconds: float) -> None:
        """Waits up to so many seconds for each of the other threads."""
        self._deliverer.close(seconds)
        for task in self._background:
            task.close(seconds)

    def _keep_histories(self, connection: Connection) -> None:
        histories.keep(connection, self._settings, lambda told: logger.info("%s", told))

    def _dispatch_due(self, connection: Connection) -> None:
        """Dispatches the jobs that are due, in parts if that fails for some of them.

        They need a lock that is held, or can't be read. Raises the error then.
        """
        try:
            self._dispatch_some(connection)
        except Exception as error:
            if not _is_of_some(error):
                raise
            ids = due_jobs.find(connection, self._settings.namespace)
            _, left = batches.each_unlocked(
                ids, lambda some: self._dispatch_some(connection, some), may_fail=_is_of_some
            )
            if left:
                raise

    def _dispatch_some(self, connection: Connection, ids: Sequence[UUID] | None = None) -> None:
        if ids is not None:
            self._clear_messages()
        with connections.transaction(connection):
            if ids is not None:
                lock_waits.briefly(connection)
            due = due_jobs.take(connection, self._settings.namespace, ids=ids)
            changed = self._send(connection, [job for job in due if job.dispatched_at])
        self.add_lanes(
            changed | {Room(job.namespace, job.lane) for job in due if job.lane is not None}
        )

    def _start_batches(self, connection: Connection) -> None:
        with connections.transaction(connection):
            changed = self._send(connection, self._batches.start(connection))
        self.add_lanes(changed)

    def _send(self, connection: Connection, jobs: Sequence[Job]) -> set[Room]:
        failed = lifecycle.publish(connection, self._publisher, jobs)
        return lifecycle.follow(connection, self._publisher, failed)

    def _rescue(self, connection: Connection) -> None:
        self.add_lanes(rescue.rescue(connection, self._publisher, self._settings))

    def _fail_unreadable(self, connection: Connection) -> None:
        namespace = self._settings.namespace
        self.add_lanes(unreadable.fail(connection, self._publisher, namespace))

    def _find_lanes(self, connection: Connection) -> None:
        namespace = self._settings.namespace
        self._whole = {(namespace, name) for name in lanes.to_dispatch(connection, namespace)}
        self._lanes.update(dict.fromkeys(self._whole, 0.0))

    def _settle_groups(self, connection: Connection) -> None:
        """Advances groups that nothing else will, each by itself if one is locked."""

        def go_on(groups: Sequence[UUID]) -> None:
            self._clear_messages()
            changed = lifecycle.follow(connection, self._publisher, [], groups)
            self.add_lanes(changed)

        stuck = progress.stuck(connection, self._settings.namespace)
        batches.in_transactions(connection, stuck, go_on)

    def _settle_dependents(self, connection: Connection) -> None:
        """Unblocks jobs whose parent ended without notifying them."""

        def go_on(parents: Sequence[UUID]) -> None:
            self._clear_messages()
            changed = lifecycle.follow(connection, self._publisher, [], parents=parents)
            self.add_lanes(changed)

        batches.in_transactions(connection, self._overlooked.find(connection), go_on)

    def _prune(self, connection: Connection) -> None:
        """Deletes a batch of old records and expired results.

        While there are more, pauses for as long as that took.
        """
        began = time.monotonic()
        looked = self._pruner.step(connection) + expiry.delete_expired(connection)
        ended = time.monotonic()
        self._prune_at = ended + (min(ended - began, _PAUSE) if looked else _PRUNE)

    def _dispatch_lane(self, connection: Connection, namespace: str, lane: str) -> None:
        job_ids = None if (namespace, lane) in self._whole else ()
        dispatched = dispatch.dispatch_lane(
            connection, self._publisher, namespace, lane, job_ids, wait=False
        )
        self._whole.discard((namespace, lane))
        if dispatched.retry_in is not None:
            self._lanes[namespace, lane] = time.monotonic() + dispatched.retry_in

    def _try(self, what: str, do: Callable[[], object], key: Hashable = None) -> float | None:
        """Does a piece of maintenance that the log calls `what`; `key` identifies it if given.

        If another transaction holds a lock that it needs, or if it fails for what rows hold, it is
        postponed, and the seconds until then are returned. If the broker is another server and
        away, all of it waits.
        """
        key = key or what
        if (remaining := self._postponed.remaining(key)) is not None:
            return remaining
        try:
            do()
        except BrokerUnavailable as error:
            now = time.monotonic()
            if now - self._away_until > _SILENCE:
                logger.warning("Jobs wait until the broker is back: %s", error)
            self._away_until = now + _PATIENCE
        except Exception as error:
            why = lock_waits.LOCKED
            if not lock_waits.is_lock_timeout(error):
                if not server_errors.is_of_rows(error):
                    raise
                self._has_bad_rows = True
                why = f"{type(error).__name__}: {connections.first_line(error)}"
                logger.debug("Postponed %s", what, exc_info=True)
            self._clear_messages()
            return self._postponed.add(key, what, why)
        else:
            self._postponed.done([key])
        return None

    def _clear_messages(self) -> None:
        """Forgets messages that were made and rolled back.

        An external broker has them already: they must not be sent again.
        """
        if self._publisher.transactional:
            self._publisher.clear()


def _is_of_some(error: Exception) -> bool:
    """Returns whether a batch may have failed for some of its rows only."""
    return batches.is_locked(error) or server_errors.is_of_rows(error)
