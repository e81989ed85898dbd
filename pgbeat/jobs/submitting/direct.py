"""Runs a task directly: in this process, in the next free slot of a lane, without a job."""

import json
import logging
import os
import time
import traceback
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
from sqlalchemy.exc import DBAPIError

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.json_values import as_json
from pgbeat.broker.publishing.pool import publishing
from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings, direct_url
from pgbeat.database import channels, connections, poolers
from pgbeat.errors import BrokerUnavailable, NoSlot
from pgbeat.jobs.checks import permissions, user_limits
from pgbeat.jobs.checks.task_checks import check_task, refuse_coroutine
from pgbeat.jobs.flow.dispatch import dispatch_lane
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes import occupancy, reservations
from pgbeat.jobs.lanes.occupancy import SlotHolder
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.writing.submissions import opened_unit
from pgbeat.timetables import span

logger = logging.getLogger("pgbeat.lanes")

#: Seconds between two looks at the lane while no notification comes.
_POLL = 1.0


def run_direct(
    task: "Task[..., Any] | str",
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
    """Runs a task in this process as soon as the lane has a slot for it, and returns its result.

    It gets the next free slot, before all jobs that wait, but after earlier direct executions;
    nothing that runs is interrupted. Celery's own retries follow at once, in the same slot. The
    lane's policy uses `tags` and `resources`. It is not a job, and leaves no history. If this
    process dies, the slot is free again.

    `task` is a task or the name of a registered one. `timeout` is how many seconds to wait for the
    slot, not for the task. `settings` default to those of the app.

    Raises `NoSlot` after the timeout, `NotFound` if there is no such lane, `InvalidJob` for invalid
    tags or resources, `ConfigError` behind a transaction-mode pooler without `direct_url`, and
    whatever the task raises.
    """
    app = app or (task.app if isinstance(task, Task) else current_app._get_current_object())
    actor = Actor(created_by or f"process:{gethostname()}:{os.getpid()}")
    settings = settings or Settings.load(app.conf)
    with opened_unit(app, settings, actor, joins=False) as unit, unit.transaction():
        execution = request(unit, task, lane=lane, tags=tags, resources=resources)
    return execution.run(args, kwargs, timeout=timeout)


def request(
    unit: UnitOfWork,
    task: "Task[..., Any] | str",
    *,
    lane: str,
    tags: Sequence[str] = (),
    resources: Mapping[str, float] | None = None,
) -> "DirectExecution":
    """Checks and records a direct execution, and returns it, to be run after the commit.

    Raises as `run_direct`, and `Forbidden`.
    """
    app = unit.require_app()
    name = task.name if isinstance(task, Task) else task
    permissions.require_task(unit.actor, name)
    check_task(app, name, unit.actor)
    asked = job_policies.parse({"tags": tags or None, "resources": resources or None})
    asked = asked._replace(lane=lane)
    policy = user_limits.direct_policy(unit.actor, app, name, asked)
    lanes.get(unit.connection, lane, namespace=unit.namespace)
    unit.record_action("run", "direct", name, None, {"lane": lane})
    registered = task if isinstance(task, Task) else app.tasks[name]
    return DirectExecution(app, unit.settings, unit.actor, registered, lane, policy)


class DirectExecution:
    """An execution of a task in this process, in a slot of a lane."""

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        actor: Actor,
        task: Task,
        lane: str,
        policy: job_policies.JobPolicy,
    ) -> None:
        self._app, self._settings, self._actor = app, settings, actor
        self._task, self._lane, self._policy = task, lane, policy

    def run(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float = 60.0,
    ) -> Any:
        """Waits for the slot, runs the task and returns its result. Raises as `run_direct`."""
        with publishing(self._app, self._settings) as publisher, self._slot(publisher, timeout):
            return _apply(self._task, tuple(args), dict(kwargs or {}))

    @contextmanager
    def _slot(self, publisher: Publisher, timeout: float) -> Iterator[None]:
        """Waits for a slot, and holds it during the block."""
        with self._session() as connection:
            lanes.get(connection, self._lane, namespace=self._settings.namespace)
            with connections.transaction(connection):
                publisher.prepare(connection)
            connections.driver(connection).execute(f"LISTEN {channels.LANES}")
            reservation = reservations.reserve(
                connection,
                self._settings.namespace,
                self._lane,
                task=self._task.name,
                tags=list(self._policy.tags or ()),
                resources=dict(self._policy.resources or {}),
                created_by=self._actor.name,
            )
            try:
                self._wait(connection, publisher, reservation, timeout)
                yield
            finally:
                self._release(connection, publisher, reservation)

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """Opens a session for the reservation, which holds as long as the session's lock does."""
        with poolers.connect(
            self._settings.url,
            "pgbeat direct",
            direct_url=direct_url(self._app.conf, self._settings.url),
            purpose="A direct execution needs",
        ) as connection:
            connections.prepare_session(connection)
            yield connection

    def _wait(
        self, connection: Connection, publisher: Publisher, reservation: int, timeout: float
    ) -> None:
        deadline = time.monotonic() + timeout
        while not self._has_started(connection, reservation):
            self._dispatch(connection, publisher)
            if self._has_started(connection, reservation):
                return
            left = deadline - time.monotonic()
            if left <= 0:
                reason = self._why_no_slot(connection, reservation, timeout)
                if reservations.give_up(connection, reservation):
                    raise NoSlot(reason)
            else:
                self._sleep(connection, min(left, _POLL))

    def _has_started(self, connection: Connection, reservation: int) -> bool:
        started = reservations.has_started(connection, reservation)
        if started is None:
            raise NoSlot(f"the reservation in lane {self._lane!r} was deleted")
        return started

    def _sleep(self, connection: Connection, seconds: float) -> None:
        """Waits up to so many seconds for a notification about the lane."""
        until = time.monotonic() + seconds
        lane_key = f"{self._settings.namespace}/{self._lane}"
        while (left := until - time.monotonic()) > 0:
            for notification in connections.driver(connection).notifies(timeout=left, stop_after=1):
                if notification.payload == lane_key:
                    return

    def _dispatch(self, connection: Connection, publisher: Publisher) -> None:
        try:
            dispatch_lane(connection, publisher, self._settings.namespace, self._lane)
        except BrokerUnavailable as error:
            # The lane's jobs wait for the broker. Their slots are not ours to take.
            logger.warning("Jobs of lane %r wait: %s", self._lane, error)

    def _release(self, connection: Connection, publisher: Publisher, reservation: int) -> None:
        """Releases the slot. Logs errors: the task's result is more important."""
        try:
            try:
                reservations.drop(connection, reservation)
                self._dispatch(connection, publisher)
            except (DBAPIError, psycopg.Error) as error:
                if not connections.is_lost(error):
                    raise
                with self._session() as fresh:
                    reservations.drop(fresh, reservation)
                    self._dispatch(fresh, publisher)
        except Exception as error:
            reason = connections.first_line(error)
            logger.warning("Can't release a slot of lane %r: %s", self._lane, reason)

    def _why_no_slot(self, connection: Connection, reservation: int, timeout: float) -> str:
        lane = lanes.get(connection, self._lane, namespace=self._settings.namespace)
        now = connections.now(connection)
        waiting = [work for work in occupancy.line(connection, lane, limit=1000) if work.is_direct]
        own = [work for work in waiting if work.id == f"direct/{reservation}"]
        place = waiting.index(own[0]) if own else 0
        # Users aren't told what others run.
        held = [] if self._actor.is_restricted else occupancy.holders(connection, lane, limit=6)
        parts = [f"lane {lane.name!r} had no free slot within {timeout:g} s"]
        parts += [work.reason for work in own if work.reason is not None]
        if held:
            more = " and others" if len(held) > 5 else ""
            parts.append(
                "slots are taken by " + ", ".join(_holder(h, now) for h in held[:5]) + more
            )
        if place:
            parts.append(f"{place} asked for direct execution before")
        return "; ".join(parts)


def _apply(task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns what the task returns, and raises the very exception that it raises."""
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
    return refuse_coroutine(task, outcome.result)


def raised_by_task(error: BaseException) -> bool:
    """Returns whether the task of a direct execution raised the error, not pgbeat around it."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is _apply.__code__ for frame, _ in frames)


def sentence(error: BaseException) -> str:
    """Returns what a task raised, its class and its message."""
    try:
        message = str(error)
    except Exception:
        message = "its message can't be read"
    return f"{type(error).__name__}: {message}".encode(errors="replace").decode()[:2000]


def plain(result: Any) -> Any:
    """Returns a result as kombu's JSON has it, or as text if it can't be JSON."""
    try:
        value = as_json(result)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except Exception:
        return repr(result).encode(errors="replace").decode()[:10_000]
    return value


def _holder(holder: SlotHolder, now: datetime) -> str:
    if holder.is_direct:
        return f"a direct execution of {holder.task} by {holder.by}, for {span(now - holder.since)}"
    where = f" on {holder.by}" if holder.by and holder.state == "running" else ""
    return f"job {holder.id} ({holder.task}, {holder.state}{where}, for {span(now - holder.since)})"
