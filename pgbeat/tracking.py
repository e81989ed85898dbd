"""The recorder: a thread of a worker's process that writes what its attempts tell, in batches.

What is told first is written at once; from then on writes come a moment apart, so that under load
each has many attempts in it, most of them from their beginning to their end. A database that is
away is waited for; no task ever is kept waiting, but one that wants its checkpoint written.
"""

import json
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Any, Protocol, TypeVar
from uuid import UUID

import kombu.exceptions
import psycopg
from celery import Celery
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from pgbeat import allotment, attempts, db, executions, leases, lifecycle, migrate, recovery
from pgbeat.attempts import Attempt
from pgbeat.config import Settings, place
from pgbeat.errors import SchemaError
from pgbeat.jobs import Ended
from pgbeat.messages import Statement
from pgbeat.publisher import Publisher, publisher
from pgbeat.recovery import Told
from pgbeat.transport.wire import Wire

logger = logging.getLogger("celery.worker.pgbeat")

T = TypeVar("T")
Shape = Callable[[dict[str, Any]], dict[str, Any]]

#: Seconds between two writes under load, and how many may come without that.
_INTERVAL, _BURST = 0.05, 4
#: Where somebody waits for an end, a lane's next job: half as long as a write took, but no longer
#: than so many seconds.
_SOON = 0.015
#: Under load, so many times as long as a write took; but no longer than so many seconds.
_SHARE, _LONGEST_INTERVAL = 20.0, 0.2
#: Seconds between two looks at what runs: progress is written, and who is to be cancelled read.
_LOOK = 0.5
#: Attempts in one transaction, and in one statement: a plan that was made for few may compare each
#: with each.
_BATCH, _STATEMENT = 500, 100
#: Attempts that are kept while the database is away.
_KEPT = 10_000
#: Seconds between two tries to reach the database: the first, and at most.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 1.0
#: Seconds for which a database is left alone that has no schema for us, or not this one.
_NOT_OURS = 60.0


class Pulse(Protocol):
    """What a worker's main process does besides, with the recorder's connection."""

    #: When there is something to do (`time.monotonic()`).
    next_at: float

    def connected(self, connection: Connection) -> None:
        """The connection is a new one."""

    def beat(self, connection: Connection, publisher: Publisher) -> set[tuple[str, str]]:
        """Does what there is to do; lanes to be allotted."""

    def leave(self, connection: Connection) -> None:
        """All is told."""


class Recorder:
    """Of one process. Its methods may be called from any thread."""

    def __init__(
        self,
        app: Celery,
        settings: Settings,
        worker_id: int,
        *,
        url: URL | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        self._app, self._settings, self._worker_id = app, settings, worker_id
        self._url, self._pulse = url or settings.url, pulse
        self._pid = os.getpid()
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._wire: Wire
        self._published: Publisher | None = None
        self._is_ours = False
        self._queue: deque[Attempt] = deque()
        self._told: deque[Told] = deque()
        self._questions: deque[Callable[[Connection], object]] = deque()
        #: What has begun and not ended, by its id, and what of that has progress to be written.
        self._running: dict[str, Attempt] = {}
        self._soft: set[Attempt] = set()
        self._lanes: dict[tuple[str, str], float] = {}
        self._wake = threading.Event()
        self._written = threading.Condition()
        self._is_idle = self._is_urgent = self._is_closing = False
        self._close_by = 0.0
        self._write_at = self._soon_at = self._look_at = 0.0
        self._away_until = self._wait = 0.0
        self._dropped = 0
        self._complained: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="pgbeat recorder", daemon=True)
        self._thread.start()

    # ----- told by tasks' threads

    def tell(self, attempt: Attempt, *, soon: bool = False) -> None:
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
        if not attempt.is_queued:
            attempt.is_queued = True
            self._queue.append(attempt)
            if len(self._queue) > _KEPT:
                self._drop()
        if self._is_idle:
            self._wake.set()

    def tell_soon(self, attempt: Attempt) -> None:
        """It got on: to be written with the next look at what runs."""
        self._soft.add(attempt)

    def write(self, attempt: Attempt, seconds: float) -> bool:
        """Has it written now, and waits for that; whether it is."""
        attempt.changes += 1
        change = attempt.changes
        self._push(attempt)
        self._hurry()
        with self._written:
            return self._written.wait_for(lambda: attempt.written >= change, seconds)

    def tell_of(self, told: Told) -> None:
        """Something that the main process has to say of a job."""
        self._told.append(told)
        self._hurry()

    def ask(self, question: Callable[[Connection], T], seconds: float) -> T | None:
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

    def _drop(self) -> None:
        with suppress(IndexError):
            self._queue.popleft().is_queued = False
        if not self._dropped:
            logger.warning(
                "The database is away too long: of more than %d executions the oldest are not "
                "told of",
                _KEPT,
            )
        self._dropped += 1

    # ----- the thread

    def _run(self) -> None:
        while True:
            self._pause()
            if self._is_closing and (self._is_done() or time.monotonic() >= self._close_by):
                break
            with busy:
                try:
                    self._step()
                except kombu.exceptions.OperationalError as error:
                    self._write_at = time.monotonic() + _LONGEST_WAIT
                    self._complain("Can't reach the broker, jobs' retries wait", error)
                except Exception as error:
                    self._fail(error)
        with busy:
            try:
                if self._pulse is not None and self._connection is not None:
                    self._pulse.leave(self._connection)
            except Exception as error:
                logger.debug("The worker leaves without a word: %s", error)
            self._drop_connection()

    def _is_done(self) -> bool:
        return not (self._queue or self._told or self._soft)

    def _pause(self) -> None:
        """Sleeps until there is something to do."""
        times = []
        is_empty = not self._queue
        if self._away_until:
            times = [self._away_until]
        else:
            if not is_empty or self._told or self._questions:
                times.append(0.0 if self._is_urgent or self._is_closing else self._write_at)
            if self._running or self._soft:
                times.append(self._look_at)
            if self._pulse is not None:
                times.append(self._pulse.next_at)
            times += self._lanes.values()
        seconds = min(times) - time.monotonic() if times else None
        if self._is_closing:
            seconds = min(seconds or 0.0, 0.05)
        if seconds is None or seconds > 0:
            # Who tells something wakes us only where nothing waits yet to be written.
            self._is_idle = is_empty and not self._away_until
            # What came since we looked was told to nobody who slept.
            if not (self._is_idle and self._queue):
                self._wake.wait(seconds)
            self._is_idle = False
            if not self._is_closing:
                self._wake.clear()

    def _step(self) -> None:
        now = time.monotonic()
        if now < self._away_until:
            return
        self._is_urgent = False
        connection = self._connect()
        if self._queue and (self._is_closing or now >= self._write_at or self._is_hasty()):
            later = max(self._write_at, now - _BURST * _INTERVAL) + _INTERVAL
            self._write_at = min(later, now + _INTERVAL)
            self._write_queue(connection)
            done = time.monotonic()
            self._soon_at = done + min((done - now) / 2, _SOON)
            if len(self._queue) < _BATCH:  # what takes long comes seldom
                pause = min(_SHARE * (done - now), _LONGEST_INTERVAL)
                self._write_at = max(self._write_at, done + pause)
        if self._told:
            self._write_told(connection)
        while self._questions:
            self._answer(connection)
        if now >= self._look_at and (self._running or self._soft):
            self._look_at = now + _LOOK
            self._look(connection)
        if self._pulse is not None and now >= self._pulse.next_at and not self._is_closing:
            self._beat(connection, self._pulse)
        self._allot(connection, [lane for lane, at in self._lanes.items() if at <= now])

    def _beat(self, connection: Connection, pulse: Pulse) -> None:
        try:
            lanes = pulse.beat(connection, self._publisher())
        except Exception as error:
            if db.is_lost(error):
                raise
            self._complain("Can't look after executions that were lost", error)
        else:
            self._allot(connection, lanes)

    def _is_hasty(self) -> bool:
        return any(attempt.changes > attempt.written for attempt in self._queue)

    def _write_queue(self, connection: Connection) -> None:
        batch: list[Attempt] = []
        while self._queue and len(batch) < _BATCH:
            attempt = self._queue.popleft()
            attempt.is_queued = False  # what changes from now on is for the next time
            batch.append(attempt)
        try:
            self._write(connection, batch)
        except Exception as error:
            for attempt in batch:
                attempt.was_tried = attempt.was_tried or not attempt.is_known
            if db.is_lost(error) or isinstance(error, kombu.exceptions.OperationalError):
                for attempt in reversed(batch):
                    if not attempt.is_queued:
                        attempt.is_queued = True
                        self._queue.appendleft(attempt)
                raise
            for attempt in batch:
                self._write_alone(connection, attempt)

    def _write(self, connection: Connection, batch: Sequence[Attempt], shape: Shape = dict) -> None:
        """One transaction of them."""
        seen = [(attempt, attempt.changes) for attempt in batch]
        news: list[dict[str, Any]] = []
        more: list[dict[str, Any]] = []
        again: list[dict[str, Any]] = []
        for attempt in batch:
            documents = attempt.documents(self._worker_id, self._pid)
            for is_new, document in documents:
                part = more if not is_new else again if len(documents) == 2 else news
                part.append(shape(document))
        # What goes on began before what is new.
        told = [*_batches(True, again), *_batches(False, more), *_batches(True, news)]
        self._commit(connection, lambda: self._record(told))
        for attempt, changes in seen:
            attempt.is_known = True
            attempt.written = changes
        with self._written:
            self._written.notify_all()

    def _record(self, told: Iterable[tuple[Statement, bytes]]) -> list[Ended]:
        ended: list[Ended] = []
        for statement, documents in told:
            ended += _ended(self._wire.run(statement, documents))
        return ended

    def _write_alone(self, connection: Connection, attempt: Attempt) -> None:
        """Of a batch that was refused: the one that is to blame is written without what is not
        ours."""
        for shape in (dict, attempts.bare):
            try:
                self._write(connection, [attempt], shape)
                return
            except Exception as error:
                if db.is_lost(error):
                    self._queue.appendleft(attempt)
                    attempt.is_queued = True
                    raise
                self._complain("Can't write how a job fares", error)

    def _write_told(self, connection: Connection) -> None:
        told = list(self._told)
        try:
            self._commit(connection, lambda: recovery.settle(connection, self._worker_id, told))
        except Exception as error:
            if db.is_lost(error):
                raise
            self._complain("Can't write how jobs ended", error)
        for _ in told:
            self._told.popleft()

    def _commit(self, connection: Connection, write: Callable[[], list[Ended]]) -> None:
        """A transaction, and what is to be seen to of the jobs that it ended."""
        lanes: set[tuple[str, str]] = set()
        for last in (False, False, True):
            try:
                with self._transaction():
                    ended = write()
                    if ended:
                        lanes = lifecycle.follow(connection, self._publisher(), ended)
                break
            except (psycopg.Error, DBAPIError) as error:
                if last or not (executions.is_race(error) or _is_deadlock(error)):
                    raise
        self._allot(connection, lanes)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """As `db.transaction`, with less Python around it."""
        wire = self._wire
        wire.run(_BEGIN)
        try:
            yield
        except BaseException:
            if wire.is_alive():
                wire.run(_ROLLBACK)
            raise
        wire.run(_COMMIT)

    def _allot(self, connection: Connection, lanes: Iterable[tuple[str, str]]) -> None:
        for lane in list(lanes):
            self._lanes.pop(lane, None)
            try:
                allotted = allotment.allot(connection, self._publisher(), *lane)
            except Exception as error:
                if db.is_lost(error):
                    self._lanes[lane] = 0.0
                    raise
                self._complain(f"Can't hand out the jobs of the lane {lane[1]}", error)
            else:
                if allotted.again is not None:
                    self._lanes[lane] = time.monotonic() + allotted.again

    def _answer(self, connection: Connection) -> None:
        question = self._questions.popleft()
        try:
            question(connection)
        except Exception as error:
            if db.is_lost(error):
                self._questions.appendleft(question)
                raise
            self._complain("Can't read what a task asks for", error)

    def _look(self, connection: Connection) -> None:
        """Writes what got on, and reads who is to be cancelled."""
        while self._soft:
            attempt = self._soft.pop()
            if attempt.ended is None:
                self._push(attempt)
        since = time.monotonic() - _LOOK
        long = [each for each in list(self._running.values()) if each.began < since]
        asked = [each.job_id for each in long if not each.cancel_asked]
        if asked:
            found = set(map(str, connection.scalars(_CANCELLED, {"ids": asked})))
            for attempt in long:
                attempt.cancel_asked = attempt.cancel_asked or attempt.job_id in found

    # ----- the connection

    def _connect(self) -> Connection:
        if self._connection is not None:
            return self._connection
        if self._engine is None:
            name = f"pgbeat worker {socket.gethostname()}:{self._pid}"[:63]
            self._engine = db.engine(
                self._url, name, connect_args={"prepare_threshold": 2, "connect_timeout": 5}
            )
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            leases.prepare_session(connection)
            if not self._is_ours:
                migrate.check(connection)
                self._is_ours = True
            connection.execute(PLANS)
            if self._pulse is not None:
                self._pulse.connected(connection)
        except BaseException:
            db.close(connection)
            raise
        self._connection, self._wire = connection, Wire(db.driver(connection))
        if self._wait:
            logger.info("How jobs fare is written again")
        self._wait = self._away_until = 0.0
        self._complained.clear()
        return connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            db.close(connection)

    def fileno(self) -> int | None:
        """The connection's socket, where there is one."""
        if self._connection is None:
            return None
        with suppress(Exception):
            return db.driver(self._connection).fileno()
        return None

    def _publisher(self) -> Publisher:
        if self._published is None:
            producers: list[Any] = []

            def producer() -> Any:
                if not producers:
                    producers.append(self._app.amqp.Producer(self._app.connection_for_write()))
                return producers[0]

            self._published = publisher(self._app, self._settings, producer)
        return self._published

    def _fail(self, error: Exception) -> None:
        """What was to be done is to be done later."""
        self._drop_connection()
        first = not self._wait
        self._wait = min(self._wait * 2 or _FIRST_WAIT, _LONGEST_WAIT)
        if isinstance(error, SchemaError):
            self._wait = _NOT_OURS
        self._away_until = time.monotonic() + self._wait
        if self._published is not None:
            self._published.clear()
        if first:
            is_plain = isinstance(error, (DBAPIError, psycopg.Error, SchemaError))
            # Where nothing is told it may be meant so.
            is_quiet = isinstance(error, SchemaError) and not self._queue
            logger.log(
                logging.INFO if is_quiet else logging.WARNING,
                "Can't write how jobs fare to %s, trying until it works: %s",
                place(self._url), db.first_line(error),
                exc_info=None if is_plain else error,
            )  # fmt: skip

    def _complain(self, what: str, error: Exception) -> None:
        sentence = f"{what}: {db.first_line(error)}"
        if sentence not in self._complained and len(self._complained) < 100:
            self._complained.add(sentence)
            logger.warning("%s", sentence, exc_info=not isinstance(error, DBAPIError))


_CANCELLED = text(
    "SELECT id FROM pgbeat.jobs WHERE id = ANY (CAST(:ids AS uuid[])) "
    "AND cancel_requested_at IS NOT NULL"
)
#: How a session plans what workers tell: by the indexes, whatever the statistics say of a table
#: that was empty a minute ago.
PLANS = text(
    "SELECT set_config('plan_cache_mode', 'force_generic_plan', false), "
    "set_config('enable_seqscan', 'off', false), set_config('enable_material', 'off', false), "
    "set_config('enable_mergejoin', 'off', false), set_config('jit', 'off', false)"
)


_BEGIN, _COMMIT = Statement("begin", "BEGIN"), Statement("commit", "COMMIT")
_ROLLBACK = Statement("rollback", "ROLLBACK")
_encode = json.JSONEncoder(default=str).encode


def _batches(is_new: bool, documents: list[dict[str, Any]]) -> Iterator[tuple[Statement, bytes]]:
    """Statements and their parameter, each job once in a statement; in one order, so that no two
    wait for each other."""
    statement = executions.BEGIN if is_new else executions.GO_ON
    todo = sorted(documents, key=_by_job)
    while todo:
        batch: list[dict[str, Any]] = []
        rest: list[dict[str, Any]] = []
        last = None
        for document in todo:
            (rest if document["job_id"] == last else batch).append(document)
            last = document["job_id"]
        for first in range(0, len(batch), _STATEMENT):
            yield statement, _encode(batch[first : first + _STATEMENT]).encode()
        todo = rest


_by_job = itemgetter("job_id")


def _ended(result: PGresult) -> Iterator[Ended]:
    """The rows of what was recorded."""
    for row in range(result.ntuples):
        found = (result.get_value(row, column) for column in range(7))
        job, namespace, state, lane, group, again, given = (
            None if value is None else value.decode() for value in found
        )
        yield Ended(
            UUID(job), str(namespace), str(state), lane, UUID(group) if group else None,
            UUID(again) if again else None, given == "t",
        )  # fmt: skip


def _is_deadlock(error: Exception) -> bool:
    cause = getattr(error, "orig", error)
    return getattr(cause, "sqlstate", None) in {"40P01", "40001"}


# ----- forks


class _Busy:
    """Held while the recorder works: no child is forked in the midst of that, unless it takes too
    long."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_held = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        self._is_held = self._lock.acquire(timeout=1.0)

    def after_fork(self) -> None:
        if self._is_held:
            self._is_held = False
            self._lock.release()


busy = _Busy()
_make: Callable[[], Recorder] | None = None
_recorder: Recorder | None = None
_making = threading.Lock()
#: The parent's: kept, so that nothing closes them in its name.
_inherited: list[Recorder] = []


def use(make: Callable[[], Recorder] | None) -> None:
    """How this process and its children make their recorders; `None`: not at all."""
    global _make
    _make = make


def recorder() -> Recorder | None:
    """This process's recorder, made when first asked for."""
    global _recorder
    if _recorder is None and _make is not None:
        with _making:
            if _recorder is None:
                _recorder = _make()
    return _recorder


def close(seconds: float) -> None:
    """Writes what this process has to tell still."""
    global _recorder
    found, _recorder = _recorder, None
    if found is not None:
        found.close(seconds)


def _in_child() -> None:
    """In a child: the parent's connection is not ours, and must not outlive it by us."""
    global busy, _recorder, _making
    found, _recorder = _recorder, None
    busy, _making = _Busy(), threading.Lock()
    if found is not None:
        _inherited.append(found)
        file = found.fileno()
        if file is not None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            with suppress(OSError):
                os.dup2(nowhere, file)
            os.close(nowhere)


os.register_at_fork(
    before=lambda: busy.before_fork(),
    after_in_parent=lambda: busy.after_fork(),
    after_in_child=_in_child,
)
