"""Watching jobs: one thread of a process asks the database for all of its open streams.

What a stream watches is one job, or all that one person may see. The thread lives as long as there
are streams. Each look is one statement, whatever the number of streams.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import text

from pgbeat import db
from pgbeat.errors import NoSlot
from pgbeat.jobs import ENDED
from pgbeat.web.backend import Backend

logger = logging.getLogger("pgbeat.web")

#: Seconds between two looks, and after one that failed.
INTERVAL, _PAUSE = 0.5, 3.0
#: Seconds between two looks, at least.
_SETTLE = 0.05
#: Open streams of a process, at most.
MOST = 1000
#: Changes that a stream may be behind; of more, the oldest are dropped.
_BEHIND = 1000
#: Streams of all jobs follow so many of each unfinished state (the newest), of each person who
#: watches, and of all; and of those that left them, so many until they end.
_NEWEST, _FOLLOWED = 300, 2000
#: What changed longer ago than this and was not known is no news.
_NEWS = timedelta(seconds=20)


class Seen(NamedTuple):
    """A job as streams tell of it."""

    id: UUID
    task: str
    state: str
    attempt: int
    created_by: str
    schedule: str | None
    lane: str | None
    awaits_approval: bool
    worker: str | None
    error: str | None
    retried_by: UUID | None
    run_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    #: The newest execution's number and progress.
    execution: int | None
    done: float | None
    total: float | None
    message: str | None

    @property
    def changed_at(self) -> datetime:
        """The latest time that is known of it."""
        return max(filter(None, (self.created_at, self.started_at, self.finished_at)))

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in ENDED


class Look(NamedTuple):
    """What was found, and when, by the database."""

    at: datetime
    jobs: dict[UUID, Seen]


_JOB = ", ".join(f"j.{name}" for name in Seen._fields[:-4])
_LOOK = text(
    f"""
    WITH wanted AS (
        SELECT unnest(CAST(:ids AS uuid[])) AS id
         UNION
        SELECT id FROM (SELECT id FROM pgbeat.jobs
                         WHERE namespace = :namespace AND :with_all
                         ORDER BY created_at DESC, id DESC LIMIT :newest) AS newest
         UNION
        SELECT found.id
          FROM unnest(ARRAY['pending', 'scheduled', 'running', 'paused']) AS s (state)
               CROSS JOIN LATERAL (
                   SELECT id FROM pgbeat.jobs
                    WHERE namespace = :namespace AND state = s.state AND :with_all
                    ORDER BY created_at DESC, id DESC LIMIT :newest) AS found
         UNION
        SELECT found.id
          FROM unnest(CAST(:people AS text[])) AS p (name)
               CROSS JOIN LATERAL (
                   SELECT id FROM pgbeat.jobs
                    WHERE namespace = :namespace AND created_by = p.name
                    ORDER BY created_at DESC, id DESC LIMIT :newest) AS found)
    SELECT now(), {_JOB}, e.number, e.progress_done, e.progress_total, e.progress_message
      FROM wanted w
           JOIN pgbeat.jobs j ON j.id = w.id AND j.namespace = :namespace
           LEFT JOIN LATERAL (
               SELECT number, progress_done, progress_total, progress_message
                 FROM pgbeat.executions
                WHERE job_id = j.id AND j.started_at IS NOT NULL
                ORDER BY number DESC LIMIT 1) AS e ON true
    """  # noqa: S608
)


class Stream:
    """One who watches: a job, or (`job_id` is `None`) those of a person, or (`None`) of all."""

    def __init__(self, job_id: UUID | None, person: str | None) -> None:
        self.job_id, self.person = job_id, person
        self._loop = asyncio.get_running_loop()
        self._news: dict[UUID, Seen | None] = {}
        self._bell = asyncio.Event()

    def tell(self, news: Mapping[UUID, Seen | None]) -> None:
        """Tells it of jobs as they are now; `None` for one that is gone. By any thread."""
        try:
            self._loop.call_soon_threadsafe(self._add, dict(news))
        except RuntimeError:  # the loop is closed, and its streams with it
            logger.debug("A stream is gone")

    def _add(self, news: dict[UUID, Seen | None]) -> None:
        for job_id, job in news.items():
            self._news.pop(job_id, None)
            self._news[job_id] = job
        while len(self._news) > _BEHIND:
            del self._news[next(iter(self._news))]
        self._bell.set()

    async def news(self, patience: float) -> dict[UUID, Seen | None]:
        """What is new, each job as it is now; nothing after so many seconds without."""
        try:
            await asyncio.wait_for(self._bell.wait(), patience)
        except TimeoutError:
            return {}
        self._bell.clear()
        found, self._news = self._news, {}
        return found


class Watch:
    """All streams of a process, and the thread that looks for them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._fresh: set[Stream] = set()
        self._thread: threading.Thread | None = None
        self._bell = threading.Event()
        #: Looks taken so far.
        self.looks = 0

    @contextmanager
    def stream(self, job_id: UUID | None, person: str | None) -> Iterator[Stream]:
        """A stream, open for the length of the block, in which an event loop runs."""
        stream = Stream(job_id, person)
        with self._lock:
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

    def check(self) -> None:
        """Raises `NoSlot` when so many streams are open that no other should be."""
        if self.count >= MOST:
            raise NoSlot(f"{MOST} streams are open in this process; try again later")

    def _run(self) -> None:
        known: dict[UUID, Seen] = {}
        pause = 0.0
        while True:
            self._bell.wait(pause)
            with self._lock:
                self._bell.clear()
                if not self._streams:
                    self._thread = None
                    return
                streams, fresh = list(self._streams), self._fresh
                self._fresh = set()
            begun = time.monotonic()
            try:
                look = self._look(streams, known)
            except Exception as error:  # whatever it is, the streams are to go on
                logger.warning("Streams can't look at jobs: %s", db.first_line(error))
                with self._lock:
                    self._fresh |= fresh & self._streams
                self._bell.clear()
                pause = _PAUSE
                continue
            self._tell(streams, fresh, known, look)
            known = look.jobs
            # A new stream is answered soon, and yet a hundred at once take no hundred looks.
            pause = max(0.0, INTERVAL - _SETTLE - (time.monotonic() - begun))
            time.sleep(_SETTLE)

    def _look(self, streams: Iterable[Stream], known: Mapping[UUID, Seen]) -> Look:
        ids = {stream.job_id for stream in streams if stream.job_id is not None}
        of_all = [stream for stream in streams if stream.job_id is None]
        if of_all:
            open_ones = [job for job in known.values() if not job.has_ended]
            open_ones.sort(key=lambda job: job.created_at, reverse=True)
            ids |= {job.id for job in open_ones[:_FOLLOWED]}
        values: dict[str, Any] = {
            "namespace": self._backend.namespace,
            "ids": [str(each) for each in ids],
            "with_all": any(stream.person is None for stream in of_all),
            "people": sorted({stream.person for stream in of_all if stream.person is not None}),
            "newest": _NEWEST,
        }
        with self._backend.session() as connection:
            rows = connection.execute(_LOOK, values).all()
            at = rows[0][0] if rows else db.now(connection)
        self.looks += 1
        return Look(at, {row[1]: Seen(*row[1:]) for row in rows})

    @staticmethod
    def _tell(
        streams: Iterable[Stream], fresh: set[Stream], known: Mapping[UUID, Seen], look: Look
    ) -> None:
        changed = {
            job.id: job
            for job in look.jobs.values()
            if job != known.get(job.id) and (job.id in known or job.changed_at > look.at - _NEWS)
        }
        by_person: dict[str, dict[UUID, Seen]] = {}
        for job in changed.values():
            by_person.setdefault(job.created_by, {})[job.id] = job
        for stream in streams:
            if stream.job_id is None:
                # Those who have just come are told what changes from now on.
                news = changed if stream.person is None else by_person.get(stream.person, {})
                if news and stream not in fresh:
                    stream.tell(news)
            elif stream.job_id not in look.jobs:
                stream.tell({stream.job_id: None})
            elif stream in fresh or look.jobs[stream.job_id] != known.get(stream.job_id):
                stream.tell({stream.job_id: look.jobs[stream.job_id]})
