"""`/console/changes`: server-sent events that make an open page reload what it shows."""

from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from pgbeat.jobs.checks import permissions
from pgbeat.storable import is_storable
from pgbeat.web.api.jobs.events import ALIVE, BEGINNING, rounds, streamed, watcher_of
from pgbeat.web.api.visible import visible_job
from pgbeat.web.calls import TheCall, WebCall
from pgbeat.web.pages.render import PageRoute
from pgbeat.web.stream_queries import SCHEDULE

router = APIRouter(route_class=PageRoute)

#: The marks (`pgbeat.web.stream_queries`) watched by pages of everything.
_MARKS = {
    "overview": {"audit", "ticks", "began", "ended", "beats"},
    "schedules": {"audit", "ticks", "began", "ended", "beats"},
    "calendars": {"audit"},
    "errors": {"ended"},
    "events": {"audit", "began", "ended"},
    "tasks": {"ended"},
    "lanes": {"audit", "lanes", "direct", "made", "began", "ended"},
    "queues": {"audit", "messages"},
    "workers": {"audit", "messages", "began", "ended"},
    "beats": {"beats", "ticks"},
    "webhooks": {"audit", "webhooks"},
    "audit": {"audit"},
}
#: Pages that users see too, with their own jobs.
_JOBS = {"jobs", "groups"}
_JOB = "job:"


@router.get("/console/changes")
async def page_changes(call: TheCall, of: Annotated[str, Query(max_length=250)]) -> Response:
    """Sends `changed` at first, and whenever the page `of` has changed.

    It is the key of a page, such as `jobs`, or `job:ID` or `schedule:NAME`.
    """
    watcher, caller = watcher_of(call), call.caller
    job_id, person, marks = None, None, frozenset[str]()
    if of in _JOBS:
        person = None if caller.sees_all else caller.name
    elif of.startswith(_JOB):
        job_id = await run_in_threadpool(_seen, call, of.removeprefix(_JOB))
    elif of == "templates":
        marks = frozenset({"audit"})
    elif of in _MARKS or (of.startswith(SCHEDULE) and is_storable(of)):  # one query for all
        require = permissions.require_admin if of == "webhooks" else permissions.require_view
        require(caller, f"watch {of}")
        marks = frozenset(_MARKS.get(of, {of}))
    else:
        raise HTTPException(422, f"{of!r} has no changes to watch")
    watcher.check(caller.name)

    async def events() -> AsyncIterator[str]:
        options = {"user": caller.name, "is_notified_at_once": True, "token": caller.token}
        with watcher.stream(job_id, person, marks, **options) as stream:
            yield BEGINNING
            async for has_news in rounds(stream, caller):
                stream.take()
                yield "event: changed\ndata: {}\n\n" if has_news else ALIVE

    return streamed(events())


def _seen(call: WebCall, written: str) -> UUID:
    try:
        job_id = UUID(written)
    except ValueError:
        raise HTTPException(422, f"{written!r} is not a job's id") from None
    with call.backend.transaction() as connection:
        visible_job(connection, call, job_id)
    return job_id
