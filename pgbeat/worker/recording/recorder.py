"""Records a process's executions in a thread, which writes what tasks put in its outbox.

The first change is written at once. Under load, writes are a moment apart, so that each has many
attempts, most of them complete. The recorder waits for an unreachable database; no task waits for
the recorder, except to have its checkpoint written or read.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from celery import Celery
from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.publishing.publisher import Publisher
from pgbeat.config import Settings
from pgbeat.database import connections, fence, server_errors
from pgbeat.database.locks import batches
from pgbeat.database.migrations import migrate
from pgbeat.errors import BrokerUnavailable
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.lanes.model import Room
from pgbeat.jobs.running.stacks import keep
from pgbeat.worker.recording import process_recorder, shared_notes, stacks
from pgbeat.worker.recording.attempts import Attempt
from pgbeat.worker.recording.execution_writer import BATCH, ExecutionWriter
from pgbeat.worker.recording.heartbeat import Heartbeat
from pgbeat.worker.recording.outbox import Outbox
from pgbeat.worker.recording.pacer import Pacer
from pgbeat.worker.recording.recorder_session import RecorderSession

logger = logging.getLogger("celery.worker.pgbeat")

T = TypeVar("T")

#: Seconds between two checks of what runs: progress is written, and cancel requests are read.
_CHECK_INTERVAL = 0.5
#: Seconds until a locked lane, one that the server refuses to dispatch for now, and an unreachable
#: broker are tried again.
_LOCKED, _REFUSED, _BROKER_AWAY = 0.25, 1.0, 1.0


class Recorder:
    """The recorder of one process. Its public methods may be called from any thread."""

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        worker_id: int,
        *,
        url: URL | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._heartbeat = heartbeat
        self.outbox, self._pacer = Outbox(shared_notes.own()), Pacer()
        self._session = RecorderSession(
            app, settings, worker_id, url or settings.url, self._connected
        )
        self._writer = ExecutionWriter(self._session, self.outbox, self._complain)
        #: Lanes to dispatch, and when (`time.monotonic()`).
        self._lanes: dict[tuple[str, str], float] = {}
        #: Lanes to dispatch at once, from other threads.
        self._freed: deque[Room] = deque()
        self._check_at = self._close_by = 0.0
        self._complained: set[str] = set()
        #: The timeline of the server that was connected to last.
        self._timeline: int | None = None
        self._thread = threading.Thread(target=self._run, name="pgbeat recorder", daemon=True)
        self._thread.start()

    # ----- any thread

    def record(self, attempt: Attempt, *, awaited: str | None = None) -> None:
        """Records that an attempt began or ended.

        `awaited` says how soon its end must be recorded, since something waits for it: `soon` or
        `now`.
        """
        self.outbox.add(attempt)
        if awaited:
            self._pacer.hurry(at_once=awaited == "now")
            self.outbox.wake()

    def record_now(self, attempt: Attempt, seconds: float) -> bool:
        """Records an attempt and waits; returns whether it was written in time."""
        attempt.changes += 1
        change = attempt.changes
        self.outbox.push(attempt)
        self.outbox.hurry()
        return self.outbox.wait_for(attempt, change, seconds)

    def was_recorded(self, attempt: Attempt, rooms: Collection[Room]) -> None:
        """Notes that a task recorded its end by itself, and that these lanes have room now."""
        attempt.is_known = attempt.is_recorded = True
        self.outbox.drop(attempt)
        if rooms:
            self._freed.extend(rooms)
            self.outbox.hurry()

    def keep_stack(self, stack: Mapping[str, Any] | None) -> None:
        """Writes a stack, if there is one."""
        if stack is not None:
            self.outbox.add_query(partial(keep, row=stack))

    def adopt(self) -> None:
        """Records the attempts that this process's dead children left unrecorded."""
        for attempt in shared_notes.take_unrecorded():
            self.outbox.push(attempt)

    def new_publisher(self) -> Publisher:
        """Returns a publisher for messages that follow from the end of a job."""
        return self._session.new_publisher()

    @property
    def worker_id(self) -> int:
        """The id of the worker that this process belongs to."""
        return self._session.worker_id

    def close(self, seconds: float) -> None:
        """Writes the rest, within `seconds`, and ends the thread."""
        self.adopt()
        self._close_by = time.monotonic() + seconds
        self.outbox.close()
        self._thread.join(seconds)

    def fileno(self) -> int | None:
        """Returns the connection's socket, if there is a connection."""
        return self._session.fileno()

    # ----- the recorder's thread

    def _run(self) -> None:
        while self._wait():
            with process_recorder.busy:
                try:
                    self._work()
                except BrokerUnavailable as error:
                    self._pacer.delay(time.monotonic() + _BROKER_AWAY)
                    self._complain("Can't reach the broker; retries of jobs must wait", error)
                except Exception as error:
                    self._session.fail(error, has_work=bool(self.outbox.attempts))
        with process_recorder.busy:
            try:
                if self._heartbeat is not None and self._session.is_open:
                    connection = self._session.open()
                    self._dispatch(self._heartbeat.leave(connection, self._session.publisher()))
            except Exception as error:
                logger.debug("The worker ends without removing its row: %s", error)
            self._session.close()

    def _wait(self) -> bool:
        """Sleeps until there is something to do; returns false once the recorder must end."""
        has_attempts = bool(self.outbox.attempts)
        times = self._times(has_attempts)
        seconds = min(times) - time.monotonic() if times else None
        if self.outbox.is_closing:
            seconds = min(seconds or 0.0, 0.05)
        if seconds is None or seconds > 0:
            is_idle = not has_attempts and not self._session.retry_at
            self.outbox.sleep(seconds, is_idle=is_idle)
        if not self.outbox.is_closing:
            return True
        return not self._writer.is_done and time.monotonic() < self._close_by

    def _times(self, has_attempts: bool) -> list[float]:
        """Returns when there is something to do (`time.monotonic()`)."""
        outbox = self.outbox
        if self._session.retry_at:
            return [self._session.retry_at]
        times = [*self._writer.times(), *self._lanes.values(), *([0.0] if self._freed else [])]
        if has_attempts or outbox.queries:
            is_due = outbox.is_urgent or outbox.is_closing
            times.append(0.0 if is_due else self._pacer.write_at)
        if outbox.has_running:
            times.append(self._check_at)
        if self._heartbeat is not None:
            times.append(self._heartbeat.next_at)
        return times

    def _work(self) -> None:
        """Writes, dispatches and beats if it is time to."""
        now = time.monotonic()
        if now < self._session.retry_at:
            return
        outbox, writer = self.outbox, self._writer
        outbox.is_urgent = False
        connection = self._session.open()
        # Attempts are written before reports of the same jobs. Reports that arrive from now on,
        # with their attempts, are for the next round.
        reports = writer.due_reports(now)
        is_due = reports or outbox.is_closing or now >= self._pacer.write_at
        if outbox.attempts and (is_due or outbox.is_awaited()):
            self._write(now)
        self._dispatch(writer.write_locked(now))
        if reports:
            self._dispatch(writer.write_reports(reports))
        while outbox.queries:
            self._answer(connection)
        if now >= self._check_at and outbox.has_running:
            self._check_at = now + _CHECK_INTERVAL
            self._check_running()
        if self._heartbeat and now >= self._heartbeat.next_at and not outbox.is_closing:
            self.adopt()
            self._beat(connection, self._heartbeat)
        freed = [self._freed.popleft() for _ in range(len(self._freed))]
        self._dispatch([*freed, *(Room(*lane) for lane, at in self._lanes.items() if at <= now)])

    def _write(self, now: float) -> None:
        self._pacer.begin(now)
        self._dispatch(self._writer.write())
        has_more = len(self.outbox.attempts) >= BATCH
        self._pacer.end(now, time.monotonic(), has_more=has_more)

    def _beat(self, connection: Connection, heartbeat: Heartbeat) -> None:
        try:
            rooms = heartbeat.beat(connection, self._session.publisher())
        except Exception as error:
            if connections.is_lost(error):
                raise
            if batches.is_locked(error):
                return  # until the next heartbeat
            self._complain("Can't rescue lost executions", error)
        else:
            self._dispatch(rooms)

    def _dispatch(self, rooms: Iterable[Room]) -> None:
        """Dispatches the jobs of lanes that have room, or notes when to try again."""
        todo = lanes.by_lane(rooms)
        while todo:
            lane, job_ids = todo.popitem()
            self._lanes.pop(lane, None)
            try:
                dispatched = self._session.dispatch(lane, job_ids)
            except Exception as error:
                if connections.is_lost(error):
                    self._lanes |= dict.fromkeys((lane, *todo), 0.0)
                    raise
                if batches.is_locked(error):
                    self._lanes[lane] = time.monotonic() + _LOCKED
                    continue
                if server_errors.is_passing(error):
                    self._lanes[lane] = time.monotonic() + _REFUSED
                self._complain(f"Can't dispatch the jobs of lane {lane[1]}", error)
            else:
                if dispatched.retry_in is not None:
                    self._lanes[lane] = time.monotonic() + dispatched.retry_in

    def _answer(self, connection: Connection) -> None:
        query = self.outbox.queries.popleft()
        try:
            query(connection)
        except Exception as error:
            if connections.is_lost(error):
                self.outbox.queries.appendleft(query)
                raise
            self._complain("Can't answer a task's query", error)

    def _check_running(self) -> None:
        """Queues the progress of attempts, and does what is wanted of them."""
        self.outbox.push_progress()
        now = time.monotonic()
        running = self.outbox.running_since(now - _CHECK_INTERVAL)
        wanted = self._session.requests(running) if running else {}
        for attempt in running:
            reasons = set(stacks.due(attempt, now))
            for key in (attempt.job_id, attempt.id) if wanted else ():
                reasons |= wanted.get(UUID(key), set())
            attempt.cancel_asked = attempt.cancel_asked or "cancel" in reasons
            for reason in reasons:
                self.keep_stack(stacks.take(attempt, reason))

    def _connected(self, connection: Connection) -> None:
        before, now = self._timeline, fence.timeline(connection)
        if before is not None and now is not None and now > before:
            self.outbox.push_again()
        self._timeline = now or before
        if self._heartbeat is not None:
            migrate.warn_if_incomplete(connection)
            self._heartbeat.connected(connection)
        self._complained.clear()

    def _complain(self, what: str, error: Exception) -> None:
        """Logs an error, once for each connection."""
        message = f"{what}: {connections.first_line(error)}"
        if message not in self._complained and len(self._complained) < 100:
            self._complained.add(message)
            logger.warning("%s", message, exc_info=not isinstance(error, DBAPIError))
