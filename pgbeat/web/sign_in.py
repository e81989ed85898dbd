"""`/login` and `/logout`: keep a token in a browser's cookie, which no script can read."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, HTTPException, Request
from fastapi.responses import RedirectResponse

from pgbeat.errors import InvalidToken
from pgbeat.web.backend import TheBackend, root
from pgbeat.web.identity import COOKIE, check_origin, identify


def require_sign_in(backend: TheBackend) -> None:
    """Raises 404 if the host application signs people in."""
    if backend.authenticate is not None:
        raise HTTPException(404, "there is no such page")


router = APIRouter(include_in_schema=False, dependencies=[Depends(require_sign_in)])

#: Seconds that a browser keeps the cookie. A token may expire earlier.
_MAX_AGE = 30 * 86_400


@router.post("/login")
def login(
    request: Request,
    backend: TheBackend,
    token: Annotated[str, Form(max_length=10_000)] = "",
    next_path: Annotated[str, Form(alias="next", max_length=2000)] = "",
) -> RedirectResponse:
    """Signs a browser in and redirects to `next`, or back to the form if the token is invalid."""
    check_origin(request)
    written = token.strip()
    try:
        if not written.isascii():
            raise InvalidToken("the token is invalid or has expired")
        identify(backend, written)
    except InvalidToken:
        query = urlencode({"failed": "1", "next": _local(next_path)})
        return RedirectResponse(f"{root(request)}/login?{query}", 303)
    response = RedirectResponse(root(request) + _local(next_path), 303)
    response.set_cookie(COOKIE, written, max_age=_MAX_AGE, **_cookie(request))
    return response


@router.post("/logout")
def logout(request: Request) -> RedirectResponse:
    """Deletes the cookie."""
    check_origin(request)
    response = RedirectResponse(f"{root(request)}/login", 303)
    response.delete_cookie(COOKIE, **_cookie(request))
    return response


def _cookie(request: Request) -> dict[str, Any]:
    return {
        "path": root(request) or "/",
        "secure": request.url.scheme == "https",
        "httponly": True,
        "samesite": "strict",
    }


def _local(path: str) -> str:
    """Returns a path below the root; "/" for one that would lead to another site."""
    is_path = path.startswith("/") and path.isascii() and path.isprintable()
    is_elsewhere = path.startswith("//") or "\\" in path
    return path if is_path and not is_elsewhere else "/"
