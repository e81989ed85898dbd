"""The console: pages below `/console/`, rendered on the server from the same functions as the API.

Pages work without scripts, and changes are made by forms.
"""

from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.staticfiles import StaticFiles

from pgbeat.web.pages import (
    broker,
    changes,
    jobs,
    operations,
    overview,
    reference,
    schedules,
    sign_in,
)

router = APIRouter(include_in_schema=False)
for _page in (
    overview,  # first, for those who watch it: routes are tried one after another
    sign_in,
    *schedules.MODULES,
    *jobs.MODULES,
    *broker.MODULES,
    *operations.MODULES,
    changes,
    reference,
):
    router.include_router(_page.router)
router.include_router(sign_in.nowhere)

_STATIC = Path(__file__).parent / "static"


def install(app: FastAPI) -> None:
    """Adds the pages and their static files to the app."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
