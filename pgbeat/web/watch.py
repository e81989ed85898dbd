"""Watching: one thread of a process asks the database for all of its open streams.

What a stream watches is one job, all that one person may see, or marks of other things. The thread
lives as long as there are streams. Each look is a statement for jobs and one for marks, whatever
the number of streams.
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
from pgbeat.broker.messages import BrokerTables
from pgbeat.database import connections
from pgbeat.errors import NoSlot
from pgbeat.web import stream_queries
from pgbeat.web.backend import Backend
from pgbeat.web.stream_queries import Look, Seen

logger = logging.getLogger("pgbeat.web")

#: Seconds between two looks, and after one that failed.
INTERVAL, _PAUSE = 0.5, 3.0
#: Seconds between two looks, at least.
_SETTLE = 0.05
#: Seconds after which it is looked whether the streams' tokens are still good.
CHECKED = 5.0
#: Open streams of a process, and of one user in it, at most.
MOST, EACH = 1000, 200
#: Changes that a stream may be behind; of more, the oldest are dropped.
_BEHIND = 1000
#: Of jobs that were among the newest, so many are followed until they end.
_FOLLOWED = 2000
#: What changed longer ago than this and was not known is no news.
_NEWS = timedelta(seconds=20)


class Stream:
    """One who watches: a job, or (`job_id` is `None`) those of a person, or (`None`) of all; or,
    where there are `marks`, these alone."""

    def __init__(
        self,
        job_id: UUID | None,
        person: str | None,
        marks: frozenset[str] = frozenset(),
        *,
        user: str,
        is_told_at_once: bool = False,
        token: str | None = None,
    ) -> None:
        self.job_id, self.person, self.marks = job_id, person, marks
        #: Whether it is told when it has come, so that it knows from when on it is told all.
        self.is_told_at_once = is_told_at_once
        #: Whose it is.
        self.user = user
        #: Id of the token that it lives by.
        self.token = token
        #: Whether it is to end.
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._news: dict[UUID, Seen | None] = {}
        self._bell = asyncio.Event()

    @property
    def is_of_jobs(self) -> bool:
        """Whether it watches several jobs."""
        return self.job_id is None and not self.marks

    def tell(self, news: Mapping[UUID, Seen | None]) -> None:
        """Tells it of jobs as they are now; `None` for one that is gone. By any thread."""
        self._call(self._add, dict(news))

    def end(self) -> None:
        """Has it end. By any thread."""
        self.is_over = True
        self._call(self._bell.set)

    def _call(self, what: Any, *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:  # the loop is closed, and its streams with it
            logger.debug("A stream is gone")

    def _add(self, news: dict[UUID, Seen | None]) -> None:
        for job_id, job in news.items():
            self._news.pop(job_id, None)
            self._news[job_id] = job
        while len(self._news) > _BEHIND:
            del self._news[next(iter(self._news))]
        self._bell.set()

    async def wait(self, patience: float) -> bool:
        """Waits until there is news, so many seconds at most; whether there is."""
        if self.is_over:
            return False
        try:
            await asyncio.wait_for(self._bell.wait(), patience)
        except TimeoutError:
            return False
        self._bell.clear()
        return not self.is_over

    def take(self) -> dict[UUID, Seen | None]:
        """What is new of jobs, each as it is now."""
        found, self._news = self._news, {}
        return found


class Watch:
    """All streams of a process, and the thread that looks for them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tables = BrokerTables.named(backend.celery.conf.broker_transport_options or {})
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._fresh: set[Stream] = set()
        self._thread: threading.Thread | None = None
        self._bell = threading.Event()
        self._is_closed = False
        #: Looks taken so far.
        self.looks = 0

    @contextmanager
    def stream(
        self,
        job_id: UUID | None,
        person: str | None,
        marks: frozenset[str] = frozenset(),
        **options: Any,
    ) -> Iterator[Stream]:
        """A stream (`Stream`), open for the length of the block, in which an event loop runs."""
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
        """Streams that are open."""
        return len(self._streams)

    def check(self, user: str) -> None:
        """Raises `NoSlot` when so many streams are open that no other of this user's should be."""
        if self.count >= MOST:
            raise NoSlot(f"{MOST} streams are open in this process; try again later")
        with self._lock:
            of_user = sum(stream.user == user for stream in self._streams)
        if of_user >= EACH:
            raise NoSlot(f"{user} has {EACH} streams open in this process; end some of them first")

    def close(self) -> None:
        """Ends all streams, and those that come."""
        with self._lock:
            self._is_closed = True
            self._bell.set()
            for stream in self._streams:
                stream.end()

    def join(self) -> None:
        """Waits until nobody looks any more, once it is closed."""
        thread = self._thread
        if thread is not None:
            thread.join(_PAUSE)

    def _run(self) -> None:
        known, known_marks = Look.none(), dict[str, Any]()
        pause = checked_at = 0.0
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
                look, marks = self._look(streams, known)
            except Exception as error:  # whatever it is, the streams are to go on
                logger.warning("Streams can't look at jobs: %s", connections.first_line(error))
                with self._lock:
                    self._fresh |= fresh & self._streams
                self._bell.clear()
                pause = _PAUSE
                continue
            _tell(streams, fresh, known, look)
            _tell_marks(streams, fresh, known_marks, marks)
            known, known_marks = look, marks
            # A new stream is answered soon, and yet a hundred at once take no hundred looks.
            pause = max(0.0, INTERVAL - _SETTLE - (time.monotonic() - begun))
            time.sleep(_SETTLE)

    def _look(self, streams: list[Stream], known: Look) -> tuple[Look, dict[str, Any]]:
        """Jobs and marks, as far as somebody watches them."""
        ids = {stream.job_id for stream in streams if stream.job_id is not None}
        of_jobs = [stream for stream in streams if stream.is_of_jobs]
        if of_jobs:
            open_ones = [job for job in known.jobs.values() if not job.has_ended]
            open_ones.sort(key=lambda job: job.created_at, reverse=True)
            ids |= {job.id for job in open_ones[:_FOLLOWED]}
        wanted = frozenset[str]().union(*(stream.marks for stream in streams))
        look, marks = Look.none(), dict[str, Any]()
        with self._backend.session() as connection:
            if ids or of_jobs:
                look = stream_queries.at_jobs(
                    connection,
                    self._backend.namespace,
                    ids=ids,
                    people={stream.person for stream in of_jobs if stream.person is not None},
                    with_all=any(stream.person is None for stream in of_jobs),
                )
            if wanted:
                marks = stream_queries.at_marks(
                    connection,
                    self._backend.namespace,
                    wanted,
                    leader_key=self._backend.settings.leader_key,
                    tables=self._tables,
                )
        self.looks += 1
        return look, marks

    def _check_tokens(self, streams: Iterable[Stream]) -> None:
        """Ends the streams of tokens that expired or were revoked."""
        by_token = {stream.token for stream in streams if stream.token is not None}
        if by_token:
            with self._backend.session() as connection:
                good = tokens.good(connection, by_token, namespace=self._backend.namespace)
            for stream in streams:
                if stream.token is not None and stream.token not in good:
                    stream.end()


def _tell(streams: Iterable[Stream], fresh: set[Stream], known: Look, look: Look) -> None:
    changed = {
        job.id: job
        for job in look.jobs.values()
        if job != known.jobs.get(job.id)
        and (job.id in known.jobs or job.changed_at > look.at - _NEWS)
    }
    by_person: dict[str, dict[UUID, Seen]] = {}
    for job in changed.values():
        by_person.setdefault(job.created_by, {})[job.id] = job
    for stream in streams:
        if stream.marks:
            continue
        if stream.job_id is None:
            # Those who have just come are told what changes from now on.
            news = changed if stream.person is None else by_person.get(stream.person, {})
            if stream in fresh:
                if stream.is_told_at_once:
                    stream.tell({})
            elif news:
                stream.tell(news)
        elif stream.job_id not in look.jobs:
            if stream in fresh or stream.job_id in known.jobs:
                stream.tell({stream.job_id: None})
        elif stream in fresh or look.jobs[stream.job_id] != known.jobs.get(stream.job_id):
            stream.tell({stream.job_id: look.jobs[stream.job_id]})


def _tell_marks(
    streams: Iterable[Stream],
    fresh: set[Stream],
    known: Mapping[str, Any],
    marks: Mapping[str, Any],
) -> None:
    changed = {name for name in {*known, *marks} if known.get(name) != marks.get(name)}
    for stream in streams:
        if stream.marks and (stream in fresh or stream.marks & changed):
            stream.tell({})
