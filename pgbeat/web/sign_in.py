"""`/login` and `/logout`: keep a token in a browser's cookie, which no script can read.

The form also takes the code of a sign-in link. The link has it behind a `#`, which browsers don't
send: it is in no log and no Referer, and a program that opens links in advance doesn't use it up.
Nobody is signed in by following a link alone, which might be somebody else's: the page asks first.
"""

import logging
from contextlib import suppress
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, HTTPException, Request
from fastapi.responses import RedirectResponse
from sqlalchemy.exc import SQLAlchemyError

from pgbeat.access import audit, sign_in_links, tokens
from pgbeat.access.audit import Author
from pgbeat.errors import InvalidToken
from pgbeat.web.backend import TheBackend, WebBackend, cookie_options, root
from pgbeat.web.identity import COOKIE, Caller, check_origin, identify

logger = logging.getLogger("pgbeat.web")


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
    written, seconds = token.strip(), _MAX_AGE
    try:
        if not written.isascii():
            raise InvalidToken("invalid or expired token")
        if written.startswith(sign_in_links.PREFIX):
            with backend.transaction() as connection:
                _, written = sign_in_links.accept(connection, backend.namespace, written)
            seconds = int(sign_in_links.SESSION.total_seconds())
        caller = identify(backend, written)
    except InvalidToken:
        logger.warning("A sign-in from %s was refused", address(request))
        return refused(request, next_path)
    if caller.is_restricted:
        backend.rates.take(caller.name)
    _note(request, backend, caller)
    response = RedirectResponse(root(request) + _local(next_path), 303)
    response.set_cookie(COOKIE, written, max_age=seconds, **cookie_options(request))
    return response


def refused(request: Request, next_path: str) -> RedirectResponse:
    """Leads back to the form, which says that it failed."""
    query = urlencode({"failed": "1", "next": _local(next_path)})
    return RedirectResponse(f"{root(request)}/login?{query}", 303)


def address(request: Request) -> str:
    """Returns the client's address."""
    return request.client.host if request.client else "an unknown address"


def _note(request: Request, backend: WebBackend, caller: Caller) -> None:
    """Records who signed in, by which token and from where."""
    with backend.transaction() as connection:
        audit.record_action(
            connection,
            Author(backend.namespace, caller.name, "page"),
            "sign_in",
            "token",
            caller.token or "JWT",
            after={"address": address(request)},
        )


@router.post("/logout")
def logout(request: Request, backend: TheBackend) -> RedirectResponse:
    """Deletes the cookie, and revokes its token if a sign-in link made it."""
    check_origin(request)
    # Signing out must not depend on the database.
    with suppress(InvalidToken, SQLAlchemyError), backend.transaction() as connection:
        token = tokens.verify(connection, backend.namespace, request.cookies.get(COOKIE, ""))
        if token.is_session:
            tokens.revoke(connection, token.id, namespace=backend.namespace)
            author = Author(backend.namespace, f"user:{token.actor}", "page")
            audit.record(connection, author, "revoke", token, None)
    response = RedirectResponse(f"{root(request)}/login", 303)
    response.delete_cookie(COOKIE, **cookie_options(request))
    return response


def _local(path: str) -> str:
    """Returns a path below the root; "/" for one that would lead to another site."""
    is_path = path.startswith("/") and path.isascii() and path.isprintable()
    is_elsewhere = path.startswith("//") or "\\" in path
    return path if is_path and not is_elsewhere else "/"
