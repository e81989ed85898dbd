"""`/console/beats`: the beats, and how far behind they are."""

from fastapi import APIRouter, Response

from pgbeat.monitoring import beats
from pgbeat.schedules import model as schedules
from pgbeat.web.pages.render import PageRoute, ViewerVisit

router = APIRouter(route_class=PageRoute)


@router.get("/console/beats")
def beats_page(visit: ViewerVisit) -> Response:
    """Shows the beats of the namespace."""
    with visit.reading() as connection:
        status = beats.status(connection, visit.backend.settings)
    return visit.page("beats.html", "beats", found=status, most=schedules.MOST_DUE)
