"""`/console/beats` and `/console/audit`: how far behind the beats are, and who changed what."""

from fastapi import APIRouter, Response

from pgbeat.access import audit
from pgbeat.schedules import model as schedules
from pgbeat.web.api.paging import number, read_one, split
from pgbeat.web.pages.render import PageRoute, ViewerVisit

router = APIRouter(route_class=PageRoute)

_PAGE = 50


@router.get("/console/beats")
def beats_page(visit: ViewerVisit) -> Response:
    """Shows the beats of the namespace."""
    with visit.reading():  # for the time
        status = visit.backend.beats()
    return visit.page("beats.html", "beats", found=status, most=schedules.MOST_DUE)


@router.get("/console/audit")
def audit_page(
    visit: ViewerVisit,
    kind: str = "",
    subject: str = "",
    actor: str = "",
    verb: str = "",
    after: str = "",
) -> Response:
    """Shows changes, the newest first, with filters."""
    filters = {"kind": kind, "subject": subject, "actor": actor, "verb": verb}
    asked = {key: value.strip()[:200] for key, value in filters.items()}
    wanted = {key: value or None for key, value in asked.items()}
    before = read_one(after or None, number)
    with visit.listing() as connection:
        page = audit.listing(
            connection,
            namespace=visit.namespace,
            before=before,
            limit=_PAGE + 1,
            redactor=visit.redactor,
            **wanted,
        )
    rows, following = split(page, _PAGE, "id")
    return visit.page("audit.html", "audit", rows=rows, asked=asked, after=after, next=following)
