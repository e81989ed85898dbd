"""Direct execution: a task in this very process, in the next free slot of a lane."""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from socket import gethostname
from typing import Any

import psycopg
from celery import Celery, Task, current_app
from celery.exceptions import Retry
from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.publishing.pool import publishing
from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.config import Settings, direct_url
from pgbeat.database import channels, connections, poolers
from pgbeat.errors import BrokerUnavailable, NoSlot
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs.dispatch import dispatch_lane
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import occupancy, reservations
from pgbeat.jobs.lanes.occupancy import SlotHolder
from pgbeat.jobs.task_checks import check_task
from pgbeat.timetables import span

logger = logging.getLogger("pgbeat.lanes")

#: Seconds between two looks at the lane that nobody asked for.
_POLL = 1.0


def run_direct(
    task: Task | str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    lane: str,
    timeout: float = 60.0,
    app: Celery | None = None,
    tags: Sequence[str] = (),
    resources: Mapping[str, float] | None = None,
    created_by: str | None = None,
    settings: Settings | None = None,
) -> Any:
    """Runs a task in this process as soon as the lane has a slot for it; what the task returns.

    It gets the next slot that is free, before all jobs that wait, and after earlier direct
    executions; what runs is let run. Celery's own retries come at once, in the same slot. `tags`
    and `resources` are for the lane's policy. It is no job, and has no history.

    `task` is a task or a registered name, `timeout` seconds to wait for the slot (not for the
    task), `settings` those of the app unless given. Raises `NoSlot` when the time is over,
    `NotFound` for a lane that is not there, `InvalidJob` for tags or resources that are none, and
    whatever the task raises. When this process dies, the slot is free again. Behind a
    transaction-mode pooler without `direct_url`: `ConfigError`.
    """
    app = app or (task.app if isinstance(task, Task) else current_app._get_current_object())
    name = task.name if isinstance(task, Task) else task
    check_task(app, name)
    found = task if isinstance(task, Task) else app.tasks[name]
    settings = settings or Settings.load(app.conf)
    policy = job_policies.parse({"tags": tags, "resources": resources or {}})
    with publishing(app, settings) as broker:
        place = _Place(settings, broker, lane, direct_url(app.conf, settings.url))
        with place.slot(
            timeout,
            task=name,
            tags=list(policy.tags or ()),
            resources=dict(policy.resources or {}),
            created_by=created_by or f"process:{gethostname()}:{os.getpid()}",
        ):
            return _apply(found, tuple(args), dict(kwargs or {}))


def _apply(task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the task returns. Raises what it raises, and not a copy."""
    attempt = partial(task.apply, args, kwargs)
    while True:
        try:
            outcome = attempt(throw=True)
        except Retry as retry:
            if retry.sig is None:
                raise
            attempt = retry.sig.apply
        else:
            break
    if isinstance(outcome.result, BaseException) and not outcome.successful():
        raise outcome.result  # Ignore, Reject
    return outcome.result


class _Place:
    """A lane, and how to get there."""

    def __init__(
        self, settings: Settings, publisher: Publisher, lane: str, direct_url: URL | None
    ) -> None:
        self._settings, self._publisher, self._lane = settings, publisher, lane
        self._direct_url = direct_url

    @contextmanager
    def slot(self, timeout: float, **what: Any) -> Iterator[None]:
        """Waits for a slot, and has it for the length of the block."""
        with self._session() as connection:
            lanes.get(connection, self._settings.namespace, self._lane)
            with connections.transaction(connection):
                self._publisher.prepare(connection)
            connections.driver(connection).execute(f"LISTEN {channels.LANES}")
            reservation = reservations.reserve(
                connection, self._settings.namespace, self._lane, **what
            )
            try:
                self._wait(connection, reservation, timeout)
                yield
            finally:
                self._release(connection, reservation)

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """A session of its own: the reservation lives by its lock."""
        with poolers.connect(
            self._settings.url,
            "pgbeat direct",
            direct_url=self._direct_url,
            purpose="A direct execution needs",
        ) as connection:
            connections.prepare_session(connection)
            yield connection

    def _wait(self, connection: Connection, reservation: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._has_started(connection, reservation):
            self._dispatch(connection)
            if self._has_started(connection, reservation):
                return
            left = deadline - time.monotonic()
            if left <= 0:
                sentence = self._sentence(connection, reservation, timeout)
                if reservations.give_up(connection, reservation):
                    raise NoSlot(sentence)
            else:
                self._sleep(connection, min(left, _POLL))

    def _has_started(self, connection: Connection, reservation: int) -> bool:
        said = reservations.has_started(connection, reservation)
        if said is None:
            raise NoSlot(f"the reservation in lane {self._lane!r} was deleted by somebody")
        return said

    def _sleep(self, connection: Connection, seconds: float) -> None:
        """Waits until the lane is told of, at most so long."""
        until = time.monotonic() + seconds
        own = f"{self._settings.namespace}/{self._lane}"
        while (left := until - time.monotonic()) > 0:
            for notification in connections.driver(connection).notifies(timeout=left, stop_after=1):
                if notification.payload == own:
                    return

    def _dispatch(self, connection: Connection) -> None:
        try:
            dispatch_lane(connection, self._publisher, self._settings.namespace, self._lane)
        except BrokerUnavailable as error:
            # Its jobs wait for the broker, and their slot is then not ours to take.
            logger.warning("Jobs of lane %r wait: %s", self._lane, error)

    def _release(self, connection: Connection, reservation: int) -> None:
        """Gives the slot back; what goes wrong is no matter of the task's."""
        try:
            try:
                reservations.drop(connection, reservation)
                self._dispatch(connection)
            except (DBAPIError, psycopg.Error) as error:
                if not connections.is_lost(error):
                    raise
                with self._session() as fresh:
                    reservations.drop(fresh, reservation)
                    self._dispatch(fresh)
        except Exception as error:
            logger.warning(
                "Can't give a slot of lane %r back: %s", self._lane, connections.first_line(error)
            )

    def _sentence(self, connection: Connection, reservation: int, timeout: float) -> str:
        """Why there was no slot."""
        lane = lanes.get(connection, self._settings.namespace, self._lane)
        now = connections.now(connection)
        own = f"direct/{reservation}"
        waiting = [each for each in occupancy.line(connection, lane, limit=1000) if each.is_direct]
        place = next((i for i, each in enumerate(waiting) if each.id == own), 0)
        reason = waiting[place].reason if waiting else None
        held = occupancy.holders(connection, lane, limit=6)
        parts = [f"lane {lane.name!r} had no free slot within {timeout:g} s"]
        if reason is not None:
            parts.append(reason)
        if held:
            more = " and others" if len(held) > 5 else ""
            parts.append("slots are had by " + ", ".join(_who(h, now) for h in held[:5]) + more)
        if place:
            parts.append(f"{place} asked for direct execution before")
        return "; ".join(parts)


def _who(holder: SlotHolder, now: datetime) -> str:
    if holder.is_direct:
        return f"a direct execution of {holder.task} by {holder.by}, for {span(now - holder.since)}"
    where = f" on {holder.by}" if holder.by and holder.state == "running" else ""
    return f"job {holder.id} ({holder.task}, {holder.state}{where}, for {span(now - holder.since)})"
