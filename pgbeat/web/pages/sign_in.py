"""`/` and `/login`: the start page and the sign-in page."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from pgbeat.access import sign_in_links
from pgbeat.errors import InvalidToken
from pgbeat.web.backend import TheBackend, root
from pgbeat.web.identity import TheCaller, check_origin
from pgbeat.web.pages.render import PageRoute, open_page, path
from pgbeat.web.sign_in import refused, require_sign_in

router = APIRouter(route_class=PageRoute)


@router.get("/")
@router.get("/console")
@router.get("/console/")
def home(request: Request, caller: TheCaller) -> Response:
    """Redirects to the first page that the caller may see."""
    where = "overview" if caller.sees_all else "jobs"
    return RedirectResponse(root(request) + path(where), 303)


#: Included last, because it takes all paths of the console.
nowhere = APIRouter(route_class=PageRoute)


@nowhere.get("/console/{name:path}")
def unknown_page(request: Request, caller: TheCaller, name: str) -> Response:
    """Raises 404, or redirects to the path without a slash at its end."""
    if name.endswith("/"):
        return RedirectResponse(root(request) + path(name.rstrip("/"), **request.query_params), 307)
    raise HTTPException(404, "there is no such page")


@router.get("/login", dependencies=[Depends(require_sign_in)])
def sign_in_page(request: Request) -> Response:
    """Shows the form for a token."""
    query = request.query_params
    following = query.get("next", "/")[:2000]
    return open_page(
        request, "sign_in.html", failed="failed" in query, next=following, code=None, owner=None
    )


@router.post("/login/link", dependencies=[Depends(require_sign_in)])
def sign_in_link_page(
    request: Request,
    backend: TheBackend,
    token: Annotated[str, Form(max_length=200)] = "",
    next_path: Annotated[str, Form(alias="next", max_length=2000)] = "",
) -> Response:
    """Asks before a link signs a browser in; says as whom, because others may have sent it."""
    check_origin(request)
    try:
        with backend.session() as connection:
            owner = sign_in_links.owner(connection, backend.namespace, token)
    except InvalidToken:
        return refused(request, next_path)
    return open_page(request, "sign_in.html", failed=False, next=next_path, code=token, owner=owner)
