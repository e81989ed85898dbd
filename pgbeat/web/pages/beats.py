"""`/console/beats`: who leads, who stands by, and whether what is due is being decided."""

from fastapi import APIRouter, Request, Response

from pgbeat.database import connections
from pgbeat.monitoring import beats
from pgbeat.schedules import model as schedules
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheAdmin
from pgbeat.web.pages.render import PageRoute, page

router = APIRouter(route_class=PageRoute)


@router.get("/console/beats")
def beats_page(request: Request, backend: TheBackend, caller: TheAdmin) -> Response:
    """The beats of the namespace."""
    with backend.transaction() as connection:
        now = connections.now(connection)
        status = beats.status(connection, backend.settings)
    return page(
        request, "beats.html", caller=caller, backend=backend, here="beats", now=now,
        found=status, most=schedules.MOST_DUE,
    )  # fmt: skip
