"""Upkeep: what the leading beat sees to beside schedules, so that nothing waits for nobody."""

import logging
import time
from collections.abc import Callable, Iterable

import kombu.exceptions
from celery import Celery
from sqlalchemy import Connection

from pgbeat import allotment, db, jobs, lanes, lifecycle, recovery, webhook_outbox
from pgbeat.config import Settings
from pgbeat.publisher import Publisher
from pgbeat.retention import Pruner

logger = logging.getLogger("celery.beat.pgbeat")

#: Seconds between two looks for lost executions and lanes that nobody told of, and for groups.
_SWEEP, _GROUPS = 2.0, 10.0
#: Seconds between two rounds of pruning.
_PRUNE = 60.0
#: Seconds that a broker which is away is left alone, and what somebody else holds locked.
_PATIENCE, _BUSY = 5.0, 0.1


class Upkeep:
    """One for a beat; its connection, in autocommit mode, is the leader's."""

    def __init__(self, app: Celery, settings: Settings, publisher: Publisher) -> None:
        self._app, self._settings, self._publisher = app, settings, publisher
        self._pruner = Pruner(settings)
        #: When to allot which lane (`time.monotonic()`).
        self._lanes: dict[tuple[str, str], float] = {}
        self._sweep_at = self._groups_at = self._prune_at = 0.0
        self._away_until = 0.0

    def lanes(self, changed: Iterable[tuple[str, str]]) -> None:
        """Lanes (namespace and name) to be allotted at once."""
        self._lanes.update((lane, 0.0) for lane in changed if lane[0] == self._settings.namespace)

    def step(self, connection: Connection, *, is_due: bool, is_idle: bool) -> None:
        """Does what there is to do. `is_due`: a job's or a delivery's time has come; `is_idle`:
        there is time for what can wait."""
        now = time.monotonic()
        if now < self._away_until:
            return
        if is_due:
            self._try(lambda: self._hand_out_due(connection))
            self._try(lambda: webhook_outbox.send_due(connection, self._publisher, self._settings))
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP
            self._try(lambda: self._recover(connection))
            namespace = self._settings.namespace
            self.lanes((namespace, name) for name in lanes.wanted(connection, namespace))
        if now >= self._groups_at:
            self._groups_at = now + _GROUPS
            self._try(lambda: self._settle_groups(connection))
        for lane in [lane for lane, at in self._lanes.items() if at <= now]:
            del self._lanes[lane]
            self._try(lambda lane=lane: self._allot(connection, *lane))  # type: ignore[misc]
        if is_idle and now >= self._prune_at and not self._pruner.step(connection):
            self._prune_at = now + _PRUNE

    def until(self, chores_in: float | None) -> float:
        """Seconds until there is something to do; `chores_in` until a job's or a delivery's time.
        What was due just now, and is still there, somebody holds locked: it is left for a moment.
        """
        now = time.monotonic()
        if now < self._away_until:
            return self._away_until - now
        times = [at - now for at in (*self._lanes.values(), self._sweep_at)]
        if chores_in is not None:
            times.append(max(chores_in, _BUSY))
        return max(0.0, min(times))

    def forget(self) -> None:
        """Has everything looked at again."""
        self._lanes.clear()
        self._sweep_at = self._groups_at = 0.0

    def _hand_out_due(self, connection: Connection) -> None:
        with db.transaction(connection):
            due = jobs.take_due(connection, self._settings.namespace)
            failed = lifecycle.hand_out(
                connection, self._publisher, [job for job in due if job.dispatched_at]
            )
            changed = lifecycle.follow(connection, self._publisher, failed)
        self.lanes(changed | {(job.namespace, job.lane) for job in due if job.lane is not None})

    def _recover(self, connection: Connection) -> None:
        self.lanes(recovery.sweep(connection, self._publisher, self._settings))

    def _settle_groups(self, connection: Connection) -> None:
        with db.transaction(connection):
            changed = lifecycle.settle_groups(connection, self._publisher, self._settings.namespace)
        self.lanes(changed)

    def _allot(self, connection: Connection, namespace: str, lane: str) -> None:
        allotted = allotment.allot(connection, self._publisher, namespace, lane)
        if allotted.again is not None:
            self._lanes[namespace, lane] = time.monotonic() + allotted.again

    def _try(self, what: Callable[[], object]) -> None:
        """Does it; where the broker is another server and away, it is for later."""
        try:
            what()
        except kombu.exceptions.OperationalError as error:
            self._away_until = time.monotonic() + _PATIENCE
            logger.warning("Can't reach the broker, jobs wait: %s", error)
