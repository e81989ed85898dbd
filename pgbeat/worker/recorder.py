"""The recorder: a thread of a worker's process that writes what its attempts tell, in batches.

What is told first is written at once; from then on writes come a moment apart, so that under load
each has many attempts in it, most of them from their beginning to their end. A database that is
away is waited for; no task ever is kept waiting, but one that wants its checkpoint written.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

import kombu.exceptions
import psycopg
from celery import Celery
from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from pgbeat.config import Settings, place
from pgbeat.database import batches, connections
from pgbeat.errors import SchemaError
from pgbeat.jobs.job_reports import JobReport
from pgbeat.worker import process_recorder
from pgbeat.worker.attempts import Attempt
from pgbeat.worker.execution_writer import BATCH, ExecutionWriter
from pgbeat.worker.heartbeat import Heartbeat
from pgbeat.worker.recorder_session import Lane, RecorderSession

logger = logging.getLogger("celery.worker.pgbeat")

T = TypeVar("T")

#: Seconds between two writes under load, and how many may come without that.
_INTERVAL, _BURST = 0.05, 4
#: Where somebody waits for an end, a lane's next job: half as long as a write took, but no longer
#: than so many seconds.
_SOON = 0.015
#: Under load, so many times as long as a write took; but no longer than so many seconds.
_SHARE, _LONGEST_INTERVAL = 20.0, 0.2
#: Seconds between two looks at what runs: progress is written, and who is to be cancelled read.
_LOOK = 0.5
#: Seconds between two tries to reach the database: the first, and at most.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 1.0
#: Seconds until a lane that another transaction has locked is tried again.
_LOCKED = 0.25
#: Seconds for which a database is left alone that has no schema for us, or not this one.
_NOT_OURS = 60.0


class Recorder:
    """Of one process. Its methods may be called from any thread."""

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        worker_id: int,
        *,
        url: URL | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._url, self._heartbeat = url or settings.url, heartbeat
        self._session = RecorderSession(app, settings, worker_id, self._url, self._connected)
        self._writer = ExecutionWriter(self._session, self._complain)
        self._questions: deque[Callable[[Connection], object]] = deque()
        #: What has begun and not ended, by its id, and what of that has progress to be written.
        self._running: dict[str, Attempt] = {}
        self._soft: set[Attempt] = set()
        self._lanes: dict[Lane, float] = {}
        self._wake = threading.Event()
        self._is_idle = self._is_urgent = self._is_closing = False
        self._close_by = 0.0
        self._write_at = self._soon_at = self._look_at = 0.0
        self._away_until = self._wait = 0.0
        self._complained: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="pgbeat recorder", daemon=True)
        self._thread.start()

    # ----- told by tasks' threads

    def record(self, attempt: Attempt, *, soon: bool = False) -> None:
        """The attempt began, or ended: to be written, and soon where somebody waits for it."""
        if attempt.ended is None:
            self._running[attempt.id] = attempt
        else:
            self._running.pop(attempt.id, None)
        self._push(attempt)
        if soon:
            self._write_at = min(self._write_at, self._soon_at)
            self._wake.set()

    def _push(self, attempt: Attempt) -> None:
        self._writer.push(attempt)
        if self._is_idle:
            self._wake.set()

    def record_progress(self, attempt: Attempt) -> None:
        """It got on: to be written with the next look at what runs."""
        self._soft.add(attempt)

    def record_now(self, attempt: Attempt, seconds: float) -> bool:
        """Has it written now, and waits for that; whether it is."""
        attempt.changes += 1
        change = attempt.changes
        self._push(attempt)
        self._hurry()
        return self._writer.wait_for(attempt, change, seconds)

    def record_report(self, report: JobReport) -> None:
        """Something that the main process has to say of a job."""
        self._writer.add_report(report)
        self._hurry()

    def query(self, question: Callable[[Connection], T], seconds: float) -> T | None:
        """The answer to a question to the database; `None` where there is none in that time."""
        answered = threading.Event()
        answers: list[T] = []

        def put(connection: Connection) -> None:
            answers.append(question(connection))
            answered.set()

        self._questions.append(put)
        self._hurry()
        answered.wait(seconds)
        return answers[0] if answers else None

    def close(self, seconds: float) -> None:
        """Writes what there is to write, within so many seconds."""
        self._close_by = time.monotonic() + seconds
        self._is_closing = True
        self._hurry()
        self._thread.join(seconds)

    def _hurry(self) -> None:
        self._is_urgent = True
        self._wake.set()

    # ----- the thread

    def _run(self) -> None:
        while True:
            self._pause()
            if self._is_closing and (self._is_done() or time.monotonic() >= self._close_by):
                break
            with process_recorder.busy:
                try:
                    self._step()
                except kombu.exceptions.OperationalError as error:
                    self._write_at = time.monotonic() + _LONGEST_WAIT
                    self._complain("Can't reach the broker, jobs' retries wait", error)
                except Exception as error:
                    self._fail(error)
        with process_recorder.busy:
            try:
                if self._heartbeat is not None and self._session.is_open:
                    self._heartbeat.leave(self._session.open())
            except Exception as error:
                logger.debug("The worker leaves without a word: %s", error)
            self._session.close()

    def _is_done(self) -> bool:
        return self._writer.is_empty and not self._soft

    def _pause(self) -> None:
        """Sleeps until there is something to do."""
        times = []
        is_empty = not self._writer.queue
        if self._away_until:
            times = [self._away_until]
        else:
            if not is_empty or self._questions:
                times.append(0.0 if self._is_urgent or self._is_closing else self._write_at)
            times += self._writer.times()
            if self._running or self._soft:
                times.append(self._look_at)
            if self._heartbeat is not None:
                times.append(self._heartbeat.next_at)
            times += self._lanes.values()
        seconds = min(times) - time.monotonic() if times else None
        if self._is_closing:
            seconds = min(seconds or 0.0, 0.05)
        if seconds is None or seconds > 0:
            # Who tells something wakes us only where nothing waits yet to be written.
            self._is_idle = is_empty and not self._away_until
            # What came since we looked was told to nobody who slept.
            if not (self._is_idle and self._writer.queue):
                self._wake.wait(seconds)
            self._is_idle = False
            if not self._is_closing:
                self._wake.clear()

    def _step(self) -> None:
        now = time.monotonic()
        if now < self._away_until:
            return
        self._is_urgent = False
        connection = self._session.open()
        # What a thread of ours told of a job comes before what is said of it otherwise.
        writer = self._writer
        is_told = writer.has_reports(now)
        is_due = is_told or self._is_closing or now >= self._write_at
        if writer.queue and (is_due or writer.is_awaited()):
            later = max(self._write_at, now - _BURST * _INTERVAL) + _INTERVAL
            self._write_at = min(later, now + _INTERVAL)
            self._dispatch(writer.write_queue())
            done = time.monotonic()
            self._soon_at = done + min((done - now) / 2, _SOON)
            if len(writer.queue) < BATCH:  # what takes long comes seldom
                pause = min(_SHARE * (done - now), _LONGEST_INTERVAL)
                self._write_at = max(self._write_at, done + pause)
        self._dispatch(writer.write_locked(now))
        if is_told:
            self._dispatch(writer.write_reports())
        while self._questions:
            self._answer(connection)
        if now >= self._look_at and (self._running or self._soft):
            self._look_at = now + _LOOK
            self._look()
        if self._heartbeat is not None and now >= self._heartbeat.next_at and not self._is_closing:
            self._beat(connection, self._heartbeat)
        self._dispatch([lane for lane, at in self._lanes.items() if at <= now])

    def _beat(self, connection: Connection, heartbeat: Heartbeat) -> None:
        try:
            lanes = heartbeat.beat(connection, self._session.publisher())
        except Exception as error:
            if connections.is_lost(error):
                raise
            if batches.is_locked(error):
                return  # until the next beat
            self._complain("Can't look after executions that were lost", error)
        else:
            self._dispatch(lanes)

    def _dispatch(self, lanes: Iterable[Lane]) -> None:
        for lane in list(lanes):
            self._lanes.pop(lane, None)
            try:
                dispatched = self._session.dispatch(lane)
            except Exception as error:
                if connections.is_lost(error):
                    self._lanes[lane] = 0.0
                    raise
                if batches.is_locked(error):
                    self._lanes[lane] = time.monotonic() + _LOCKED
                    continue
                self._complain(f"Can't hand out the jobs of the lane {lane[1]}", error)
            else:
                if dispatched.retry_in is not None:
                    self._lanes[lane] = time.monotonic() + dispatched.retry_in

    def _answer(self, connection: Connection) -> None:
        question = self._questions.popleft()
        try:
            question(connection)
        except Exception as error:
            if connections.is_lost(error):
                self._questions.appendleft(question)
                raise
            self._complain("Can't read what a task asks for", error)

    def _look(self) -> None:
        """Writes what got on, and reads who is to be cancelled."""
        while self._soft:
            attempt = self._soft.pop()
            if attempt.ended is None:
                self._push(attempt)
        since = time.monotonic() - _LOOK
        long = [each for each in list(self._running.values()) if each.began < since]
        asked = [each.job_id for each in long if not each.cancel_asked]
        if asked:
            found = self._session.cancelled(asked)
            for attempt in long:
                attempt.cancel_asked = attempt.cancel_asked or attempt.job_id in found

    # ----- the connection

    def _connected(self, connection: Connection) -> None:
        if self._heartbeat is not None:
            self._heartbeat.connected(connection)
        if self._wait:
            logger.info("How jobs fare is written again")
        self._wait = self._away_until = 0.0
        self._complained.clear()

    def fileno(self) -> int | None:
        """The connection's socket, where there is one."""
        return self._session.fileno()

    def _fail(self, error: Exception) -> None:
        """What was to be done is to be done later."""
        self._session.close()
        first = not self._wait
        self._wait = min(self._wait * 2 or _FIRST_WAIT, _LONGEST_WAIT)
        if isinstance(error, SchemaError):
            self._wait = _NOT_OURS
        self._away_until = time.monotonic() + self._wait
        if first:
            is_plain = isinstance(error, (DBAPIError, psycopg.Error, SchemaError))
            # Where nothing is told it may be meant so.
            is_quiet = isinstance(error, SchemaError) and not self._writer.queue
            logger.log(
                logging.INFO if is_quiet else logging.WARNING,
                "Can't write how jobs fare to %s, trying until it works: %s",
                place(self._url), connections.first_line(error),
                exc_info=None if is_plain else error,
            )  # fmt: skip

    def _complain(self, what: str, error: Exception) -> None:
        sentence = f"{what}: {connections.first_line(error)}"
        if sentence not in self._complained and len(self._complained) < 100:
            self._complained.add(sentence)
            logger.warning("%s", sentence, exc_info=not isinstance(error, DBAPIError))
