"""`/jobs/events` and `/jobs/{id}/events`: changes of jobs as server-sent events."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Message, Send

from pgbeat.views.jobs import progress
from pgbeat.web.api.jobs.job_models import JobId
from pgbeat.web.api.visible import visible_job
from pgbeat.web.calls import TheCall, WebCall
from pgbeat.web.identity import Caller
from pgbeat.web.stream_queries import StreamedJob
from pgbeat.web.watch import Stream, StreamWatcher

logger = logging.getLogger("pgbeat.web")

router = APIRouter(prefix="/jobs", tags=["jobs"])

#: Seconds without news after which a stream sends a heartbeat.
HEARTBEAT = 15.0
#: Seconds after which a stream ends, and its client reconnects with a token that is still valid.
LONGEST = 900.0
#: Seconds within which a client must accept what is sent.
STALLED = 30.0
#: The beginning of a stream, with the milliseconds after which to reconnect, and a heartbeat.
BEGINNING, ALIVE = "retry: 3000\n: watching\n\n", ": alive\n\n"
#: The id of a job's last event. A client that reconnects with it is told to stop.
_END = "end"
_EXAMPLE = (
    'event: job\ndata: {"id":"3f0c…","state":"running","progress":{"done":3,"total":10,'
    '"percent":30.0,"message":"page 3"}}\n\nid: end\nevent: end\ndata: {"id":"3f0c…",'
    '"state":"completed"}\n\n'
)
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events, for at most a quarter of an hour.",
        "content": {"text/event-stream": {"example": _EXAMPLE}},
    }
}


@router.get("/events", summary="Watch jobs", response_class=StreamingResponse, responses=_STREAM)
async def watch_jobs(call: TheCall) -> Response:
    """Streams server-sent events about the caller's jobs; for administrators, about all jobs.

    An event `job` has the job as it is now, whenever one is made, changes its state or reports
    progress. Of very many waiting jobs, only the newest have events before they run.
    """
    person = None if call.caller.sees_all else call.caller.name
    return _respond(call, None, person)


@router.get(
    "/{job_id}/events",
    summary="Watch a job",
    response_class=StreamingResponse,
    responses=_STREAM | {204: {"description": "It has ended, and this client knows."}},
)
async def watch_job(
    call: TheCall,
    job_id: JobId,
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> Response:
    """Streams server-sent events about a job.

    An event `job` has the job as it is, at first and whenever its state or progress changes; `end`
    comes once it has ended or was deleted (`state` is null).
    """
    await run_in_threadpool(_check, call, job_id)
    if last_event_id == _END:
        return Response(status_code=204)
    return _respond(call, job_id, None)


def _check(call: WebCall, job_id: UUID) -> None:
    with call.backend.transaction() as connection:
        visible_job(connection, call, job_id)


def watcher_of(call: WebCall) -> StreamWatcher:
    """Returns the app's watcher."""
    state = call.request.app.state
    if not hasattr(state, "pgbeat_watch"):
        state.pgbeat_watch = StreamWatcher(call.backend)
    watcher: StreamWatcher = state.pgbeat_watch
    return watcher


def _respond(call: WebCall, job_id: UUID | None, person: str | None) -> Response:
    watcher = watcher_of(call)
    watcher.check(call.caller.name)

    async def events() -> AsyncIterator[str]:
        caller = call.caller
        with watcher.stream(job_id, person, user=caller.name, token=caller.token) as stream:
            async for event in _events(stream, call):
                yield event

    return streamed(events())


def streamed(events: AsyncIterator[str]) -> Response:
    """Returns the response that streams events, which proxies must not buffer."""
    return _Stream(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


class _Stream(StreamingResponse):
    """A stream that also ends when its client accepts nothing."""

    async def stream_response(self, send: Send) -> None:
        async def bounded(message: Message) -> None:
            async with asyncio.timeout(STALLED):
                await send(message)

        try:
            await super().stream_response(bounded)
        except TimeoutError:
            logger.info("Ending a stream whose client accepted nothing for %.0f s", STALLED)
            # Others may have its place at once.
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


async def rounds(stream: Stream, caller: Caller) -> AsyncIterator[bool]:
    """Yields whether there is news, or else it is time for a heartbeat, until the stream ends."""
    longest = LONGEST if caller.seconds is None else min(LONGEST, caller.seconds)
    until = time.monotonic() + longest
    while (left := until - time.monotonic()) > 0 and not stream.is_over:
        yield await stream.wait(min(HEARTBEAT, left))


async def _events(stream: Stream, call: WebCall) -> AsyncIterator[str]:
    yield BEGINNING
    async for has_news in rounds(stream, call.caller):
        if not has_news:
            yield ALIVE
        for job_id, job in stream.take().items():
            if job is not None:
                job = call.redactor.row(job, job.task)
                yield f"event: job\ndata: {_data(job)}\n\n"
            if stream.job_id is not None and (job is None or job.has_ended):
                data = _json({"id": job_id, "state": None}) if job is None else _data(job)
                yield f"id: {_END}\nevent: end\ndata: {data}\n\n"
                return


_SENT = [name for name in StreamedJob._fields if name not in ("done", "total", "message")]


# Written once for all streams that watch the job.
@lru_cache(maxsize=1000)
def _data(job: StreamedJob) -> str:
    reported = progress(job.done, job.total, job.message)
    return _json({name: getattr(job, name) for name in _SENT} | {"progress": reported})


def _json(value: Any) -> str:
    return json.dumps(value, default=_text, separators=(",", ":"))


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
