"""The console: pages below `/console/`, rendered on the server from the same functions as the API.

Pages work without scripts, and changes are made by forms.
"""

from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.staticfiles import StaticFiles

from pgbeat.web.pages import (
    audits,
    backfill,
    beats,
    bulk,
    calendars,
    changes,
    errors,
    find,
    groups,
    job,
    job_templates,
    job_tree,
    jobs,
    lanes,
    new_job,
    new_schedule,
    overview,
    queues,
    reference,
    schedule,
    schedule_preview,
    schedules,
    sign_in,
    task,
    webhooks,
    workers,
)

router = APIRouter(include_in_schema=False)
for _each in (
    overview,  # first, for those who watch it: routes are tried one after another
    sign_in,
    schedules,
    schedule,
    schedule_preview,
    new_schedule,
    backfill,
    calendars,
    jobs,
    bulk,
    job,
    job_tree,
    new_job,
    groups,
    job_templates,
    lanes,
    errors,
    find,
    task,
    queues,
    workers,
    beats,
    webhooks,
    audits,
    changes,
    reference,
):
    router.include_router(_each.router)
router.include_router(sign_in.nowhere)

_STATIC = Path(__file__).parent / "static"


def install(app: FastAPI) -> None:
    """Adds the pages and their static files to the app."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
