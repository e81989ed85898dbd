"""The web side: a REST API and a console, on the same domain functions as the command line.

`celery -A app pgbeat web` serves them; `create_app` makes them to be mounted into an app of a
team's own: `app.mount("/pgbeat", create_app(celery_app))`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

from pgbeat import __version__
from pgbeat.config import Settings
from pgbeat.web import api, openapi, pages, problems, sign_in
from pgbeat.web.backend import Backend
from pgbeat.web.guards import Guards

if TYPE_CHECKING:
    from celery import Celery

_ABOUT = """
Schedules, jobs and queues of a Celery app on Postgres: look at them, and steer them.

A **job** is one unit of work with its executions; a **scheduled job** is what makes jobs by a
timetable, each due time decided as *launched*, *skipped* or *failed*.

Who asks says so by `Authorization: Bearer …`, with a token of `pgbeat tokens create` or a JWT of
the team's own issuer. A user sees and steers their own jobs, an admin everything. Errors are
problem documents (RFC 9457). Times are ISO 8601 with an offset, lengths of time are seconds (or, in
requests, text such as `15 minutes`).
"""


def create_app(
    celery: "Celery", settings: Settings | None = None, *, demo: bool = False
) -> FastAPI:
    """The web app of a Celery app. With `demo`, whoever is on this machine is its admin.

    Raises `ConfigError`. The database is asked at the first request.
    """
    backend = Backend(celery, settings, demo=demo)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        watch = getattr(app.state, "pgbeat_watch", None)
        if watch is not None:
            watch.close()
            await run_in_threadpool(watch.join)
        backend.dispose()

    app = FastAPI(
        title="pgbeat",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        responses=problems.RESPONSES,
        openapi_tags=openapi.TAGS,
        generate_unique_id_function=_operation_id,
        docs_url=None,  # a page of our own: theirs load their scripts from elsewhere
        redoc_url=None,
    )
    app.state.pgbeat = backend
    problems.install(app)
    openapi.install(app)
    app.add_middleware(Guards)
    app.include_router(api.router)
    app.include_router(sign_in.router)
    pages.install(app)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name
