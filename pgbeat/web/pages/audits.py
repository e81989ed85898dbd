"""`/console/audit`: who changed what."""

from fastapi import APIRouter, Request, Response

from pgbeat.access import audit
from pgbeat.database import connections
from pgbeat.web.api.paging import cursor, number, read
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheAdmin
from pgbeat.web.pages.render import PageRoute, page

router = APIRouter(route_class=PageRoute)

_PAGE = 50


@router.get("/console/audit")
def audit_page(
    request: Request,
    backend: TheBackend,
    caller: TheAdmin,
    kind: str = "",
    subject: str = "",
    actor: str = "",
    verb: str = "",
    after: str = "",
) -> Response:
    """Changes, the newest first, by what is asked for."""
    given = {"kind": kind, "subject": subject, "actor": actor, "verb": verb}
    asked = {key: value.strip()[:200] for key, value in given.items()}
    before = read(after, number)[0] if after else None
    with backend.transaction() as connection:
        now = connections.now(connection)
        wanted = {key: value or None for key, value in asked.items()}
        rows = audit.listing(
            connection, namespace=backend.namespace, before=before, limit=_PAGE + 1, **wanted
        )
    return page(
        request, "audit.html", caller=caller, backend=backend, here="audit", now=now,
        rows=rows[:_PAGE], asked=asked, after=after,
        next=cursor(rows[_PAGE - 1].id) if len(rows) > _PAGE else None,
    )  # fmt: skip
