"""`/login` and `/logout`: a browser keeps a token as a cookie that no script can read.

The form is a page's; these are what it posts to.
"""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse

from pgbeat.errors import InvalidToken
from pgbeat.web.backend import TheBackend
from pgbeat.web.identity import COOKIE, check_origin, identify

router = APIRouter(include_in_schema=False)

#: How long a browser keeps it, in seconds: a token that expires earlier is refused earlier.
_KEPT = 30 * 86_400


@router.post("/login")
def login(
    request: Request,
    backend: TheBackend,
    token: Annotated[str, Form(max_length=10_000)] = "",
    next_path: Annotated[str, Form(alias="next", max_length=2000)] = "",
) -> RedirectResponse:
    """Signs a browser in, and has it go on to `next`; back to the form for a token that is none."""
    check_origin(request)
    written = token.strip()
    try:
        if not written.isascii():
            raise InvalidToken("there is no such token")
        identify(backend, written)
    except InvalidToken:
        asked = urlencode({"failed": "1", "next": _local(next_path)})
        return RedirectResponse(f"{_root(request)}/login?{asked}", 303)
    answer = RedirectResponse(_root(request) + _local(next_path), 303)
    answer.set_cookie(
        COOKIE,
        written,
        max_age=_KEPT,
        path=_root(request) or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


@router.post("/logout")
def logout(request: Request) -> RedirectResponse:
    """Has the browser forget it."""
    check_origin(request)
    answer = RedirectResponse(f"{_root(request)}/login", 303)
    answer.delete_cookie(
        COOKIE,
        path=_root(request) or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


def _root(request: Request) -> str:
    """Where the web side is mounted; empty at the top."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _local(path: str) -> str:
    """A path of the web side's own, without where it is mounted: nobody is led elsewhere."""
    is_path = path.startswith("/") and path.isascii() and path.isprintable()
    is_elsewhere = path.startswith("//") or "\\" in path
    return path if is_path and not is_elsewhere else "/"
