"""Event streams, and the one thread of a process that queries the database for all of them.

A stream watches one job, all jobs that a person may see, or marks of other things. The thread lives
as long as there are streams.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from pgbeat.access import tokens
from pgbeat.database import connections
from pgbeat.errors import NoSlot
from pgbeat.web import stream_queries
from pgbeat.web.backend import WebBackend
from pgbeat.web.stream_queries import JobSnapshot, StreamedJob

logger = logging.getLogger("pgbeat.web")

#: Seconds between two rounds of queries, and after one that failed.
INTERVAL, _PAUSE = 0.5, 3.0
#: The fewest seconds between two rounds.
_SETTLE = 0.05
#: Seconds between two checks of the streams' tokens.
CHECKED = 5.0
#: The most open streams of a process, and of one user in it.
MOST, EACH = 1000, 200
#: How many changes a stream may be behind before the oldest are dropped.
_BEHIND = 1000
#: How many jobs that are no longer among the newest are followed until they end.
_FOLLOWED = 2000
#: How old a change of an unknown job may be to be sent.
_NEWS = timedelta(seconds=20)


class Stream:
    """Watches a job; without `job_id`, the jobs of a `person` or of all; or only `marks`."""

    def __init__(
        self,
        job_id: UUID | None,
        person: str | None,
        marks: frozenset[str] = frozenset(),
        *,
        user: str,
        is_notified_at_once: bool = False,
        token: str | None = None,
    ) -> None:
        self.job_id, self.person, self.marks = job_id, person, marks
        #: Whether its first news say that it watches now, and will miss nothing.
        self.is_notified_at_once = is_notified_at_once
        self.user = user
        #: The id of the token with which it ends.
        self.token = token
        #: Whether it must end.
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._news: dict[UUID, StreamedJob | None] = {}
        self._bell = asyncio.Event()

    @property
    def is_of_jobs(self) -> bool:
        """Whether it watches several jobs."""
        return self.job_id is None and not self.marks

    def notify(self, news: Mapping[UUID, StreamedJob | None]) -> None:
        """Adds changed jobs, `None` for deleted ones, from any thread."""
        self._call(self._add, dict(news))

    def end(self) -> None:
        """Ends it, from any thread."""
        self.is_over = True
        self._call(self._bell.set)

    def _call(self, what: Any, *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:  # the loop is closed, and its streams with it
            logger.debug("The event loop of a stream is closed")

    def _add(self, news: dict[UUID, StreamedJob | None]) -> None:
        for job_id, job in news.items():
            self._news.pop(job_id, None)
            self._news[job_id] = job
        while len(self._news) > _BEHIND:
            del self._news[next(iter(self._news))]
        self._bell.set()

    async def wait(self, patience: float) -> bool:
        """Waits for news for at most `patience` seconds; returns whether there is any."""
        if self.is_over:
            return False
        try:
            await asyncio.wait_for(self._bell.wait(), patience)
        except TimeoutError:
            return False
        self._bell.clear()
        return not self.is_over

    def take(self) -> dict[UUID, StreamedJob | None]:
        """Takes the changed jobs."""
        news, self._news = self._news, {}
        return news


class StreamWatcher:
    """Holds all streams of a process, and runs the thread that queries for them."""

    def __init__(self, backend: WebBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._fresh: set[Stream] = set()
        self._thread: threading.Thread | None = None
        self._bell = threading.Event()
        self._is_closed = False
        #: Rounds of queries so far.
        self.rounds = 0

    @contextmanager
    def stream(
        self,
        job_id: UUID | None,
        person: str | None,
        marks: frozenset[str] = frozenset(),
        **options: Any,
    ) -> Iterator[Stream]:
        """Opens a `Stream` for the block, which an event loop runs."""
        stream = Stream(job_id, person, marks, **options)
        with self._lock:
            stream.is_over = self._is_closed
            self._streams.add(stream)
            self._fresh.add(stream)
            self._bell.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pgbeat watch", daemon=True)
                self._thread.start()
        try:
            yield stream
        finally:
            with self._lock:
                self._streams.discard(stream)
                self._fresh.discard(stream)
                if not self._streams:
                    self._bell.set()

    @property
    def count(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def check(self, user: str) -> None:
        """Raises `NoSlot` if too many streams are open for another one of this user."""
        if self.count >= MOST:
            raise NoSlot(f"{MOST} streams are open in this process; try again later")
        with self._lock:
            of_user = sum(stream.user == user for stream in self._streams)
        if of_user >= EACH:
            raise NoSlot(f"{user} has {EACH} streams open in this process; end some of them first")

    def close(self) -> None:
        """Ends all streams, and later ones at once."""
        with self._lock:
            self._is_closed = True
            self._bell.set()
            for stream in self._streams:
                stream.end()

    def join(self) -> None:
        """Waits for the thread to end after `close`."""
        thread = self._thread
        if thread is not None:
            thread.join(_PAUSE)

    def _run(self) -> None:
        known, known_marks = JobSnapshot.empty(), dict[str, Any]()
        pause = checked_at = 0.0
        has_failed = False
        while True:
            self._bell.wait(pause)
            with self._lock:
                self._bell.clear()
                if not self._streams or self._is_closed:
                    self._thread = None
                    return
                streams, fresh = list(self._streams), self._fresh
                self._fresh = set()
            begun = time.monotonic()
            try:
                if begun >= checked_at + CHECKED:
                    self._check_tokens(streams)
                    checked_at = begun
                snapshot, marks = self._query(streams, known)
            except Exception as error:  # streams outlive any failure
                if not has_failed:
                    why = connections.first_line(error)
                    logger.warning("Streams can't read jobs, trying again: %s", why)
                has_failed = True
                with self._lock:
                    self._fresh |= fresh & self._streams
                self._bell.clear()
                pause = _PAUSE
                continue
            has_failed = False
            _notify(streams, fresh, known, snapshot)
            _notify_marks(streams, fresh, known_marks, marks)
            known, known_marks = snapshot, marks
            # A new stream gets its first news soon, and a hundred of them cause one round.
            pause = max(0.0, INTERVAL - _SETTLE - (time.monotonic() - begun))
            time.sleep(_SETTLE)

    def _query(
        self, streams: list[Stream], known: JobSnapshot
    ) -> tuple[JobSnapshot, dict[str, Any]]:
        """Reads the jobs and marks that streams watch."""
        ids = {stream.job_id for stream in streams if stream.job_id is not None}
        of_jobs = [stream for stream in streams if stream.is_of_jobs]
        if of_jobs:
            open_ones = [job for job in known.jobs.values() if not job.has_ended]
            open_ones.sort(key=lambda job: job.created_at, reverse=True)
            ids |= {job.id for job in open_ones[:_FOLLOWED]}
        wanted = frozenset[str]().union(*(stream.marks for stream in streams))
        snapshot, marks = JobSnapshot.empty(), dict[str, Any]()
        with self._backend.session() as connection:
            if ids or of_jobs:
                snapshot = stream_queries.snapshot(
                    connection,
                    self._backend.namespace,
                    ids=ids,
                    people={stream.person for stream in of_jobs if stream.person is not None},
                    with_all=any(stream.person is None for stream in of_jobs),
                )
            if wanted:
                marks = stream_queries.marks(
                    connection,
                    self._backend.namespace,
                    wanted,
                    leader_key=self._backend.settings.leader_key,
                )
        self.rounds += 1
        return snapshot, marks

    def _check_tokens(self, streams: Iterable[Stream]) -> None:
        """Ends the streams of expired or revoked tokens."""
        by_token = {stream.token for stream in streams if stream.token is not None}
        if by_token:
            with self._backend.session() as connection:
                good = tokens.active(connection, by_token, namespace=self._backend.namespace)
            for stream in streams:
                if stream.token is not None and stream.token not in good:
                    stream.end()


def _notify(
    streams: Iterable[Stream], fresh: set[Stream], known: JobSnapshot, snapshot: JobSnapshot
) -> None:
    changed = {
        job.id: job
        for job in snapshot.jobs.values()
        if job != known.jobs.get(job.id)
        and (job.id in known.jobs or job.changed_at > snapshot.at - _NEWS)
    }
    by_person: dict[str, dict[UUID, StreamedJob]] = {}
    for job in changed.values():
        by_person.setdefault(job.created_by, {})[job.id] = job
    for stream in streams:
        if stream.marks:
            continue
        if stream.job_id is None:
            # New streams get the changes from now on.
            news = changed if stream.person is None else by_person.get(stream.person, {})
            if stream in fresh:
                if stream.is_notified_at_once:
                    stream.notify({})
            elif news:
                stream.notify(news)
        elif stream.job_id not in snapshot.jobs:
            if stream in fresh or stream.job_id in known.jobs:
                stream.notify({stream.job_id: None})
        elif stream in fresh or snapshot.jobs[stream.job_id] != known.jobs.get(stream.job_id):
            stream.notify({stream.job_id: snapshot.jobs[stream.job_id]})


def _notify_marks(
    streams: Iterable[Stream],
    fresh: set[Stream],
    known: Mapping[str, Any],
    marks: Mapping[str, Any],
) -> None:
    changed = {name for name in {*known, *marks} if known.get(name) != marks.get(name)}
    for stream in streams:
        if stream.marks and (stream in fresh or stream.marks & changed):
            stream.notify({})
