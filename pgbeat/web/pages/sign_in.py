"""`/` and `/login`: where one comes in."""

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import TheCaller
from pgbeat.web.pages.render import PageRoute, page, path, root

router = APIRouter(route_class=PageRoute)


@router.get("/")
@router.get("/console")
@router.get("/console/")
def home(request: Request, caller: TheCaller) -> Response:
    """Leads to what the caller may see."""
    where = "schedules" if caller.is_admin else "jobs"
    return RedirectResponse(root(request) + path(where), 303)


#: The last of all pages.
nowhere = APIRouter(route_class=PageRoute)


@nowhere.get("/console/{name:path}")
def unknown_page(request: Request, caller: TheCaller, name: str) -> Response:
    """Says that there is no such page."""
    if name.endswith("/"):
        return RedirectResponse(root(request) + path(name.rstrip("/"), **request.query_params), 307)
    raise HTTPException(404, "there is no such page")


@router.get("/login")
def sign_in_page(request: Request, backend: TheBackend) -> Response:
    """The form that a token is written into."""
    query = request.query_params
    return page(
        request, "sign_in.html", backend=backend, failed="failed" in query,
        next=query.get("next", "/")[:2000],
    )  # fmt: skip
