"""The web app: a REST API and a console, on the same domain functions as the command line.

`celery -A app pgbeat web` serves it. A team can mount it into its own app:
`app.mount("/pgbeat", create_app(celery_app, authenticate=user_of))`, where `user_of` returns the
`User` of a request, or `None`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from pgbeat.config import Settings
from pgbeat.version import __version__
from pgbeat.web import api, openapi, pages, problems, sign_in
from pgbeat.web.api.operations import callbacks
from pgbeat.web.backend import Authenticate, User, WebBackend
from pgbeat.web.guards import Guards

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Authenticate", "User", "create_app"]

_ABOUT = """
Shows and controls the schedules, jobs and queues of a Celery app on Postgres.

A **job** is one unit of work with its executions. A **scheduled job**, or schedule, makes jobs by a
timetable; each due time is decided as *launched*, *skipped* or *failed*.

Requests need `Authorization: Bearer …` with a token of `pgbeat tokens create` or a JWT of the
team's own issuer. A user sees and controls their own jobs, an administrator everything. Errors are
problem documents (RFC 9457). Times are ISO 8601 with an offset. Durations are seconds or, in
requests, text such as `15 minutes`.
"""


def create_app(
    celery: "Celery",
    settings: Settings | None = None,
    *,
    demo: bool = False,
    authenticate: Authenticate | None = None,
) -> FastAPI:
    """Returns the web app of a Celery app; it connects to the database at the first request.

    With `demo`, everyone on this machine is an administrator. With `authenticate`, the host
    application says which of its users makes a request without a token, and there is no sign-in
    page; it may be async, and is called for each request. Raises `ConfigError`.
    """
    backend = WebBackend(celery, settings, demo=demo, authenticate=authenticate)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        watcher = getattr(app.state, "pgbeat_watch", None)
        if watcher is not None:
            watcher.close()
            await run_in_threadpool(watcher.join)
        backend.dispose()

    app = FastAPI(
        title="pgbeat",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        responses=problems.RESPONSES,
        openapi_tags=openapi.TAGS,
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,  # pgbeat has its own page: FastAPI's load scripts from other servers
        redoc_url=None,
    )
    app.state.pgbeat = backend
    problems.install(app)
    openapi.install(app)
    app.add_middleware(Guards)
    app.include_router(api.router)
    app.include_router(callbacks.router)
    app.include_router(sign_in.router)
    pages.install(app)
    return app
