"""Identity: who asks, by a token of pgbeat's, a JWT of the team's issuer, or a browser's cookie."""

from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from pgbeat.access import tokens
from pgbeat.access.actors import Actor, Origin
from pgbeat.errors import Forbidden, InvalidToken
from pgbeat.jobs import permissions
from pgbeat.web.backend import Backend, TheBackend

#: The cookie of a browser that is signed in: a token or JWT.
COOKIE = "pgbeat_token"
_SAFE = {"GET", "HEAD", "OPTIONS"}
_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="A token of `pgbeat tokens create`, or a JWT of the team's issuer.",
)
_cookie = APIKeyCookie(
    name=COOKIE,
    auto_error=False,
    scheme_name="cookie",
    description="The same, as POST /login has a browser keep it.",
)


@dataclass(frozen=True)
class Caller(Actor):
    """Who asks, and by which way."""

    origin: Origin = "api"
    #: The token's id; of a JWT the seconds that it is good for.
    token: str | None = None
    seconds: float | None = None


def identify(backend: Backend, written: str) -> Caller:
    """Whom a token or JWT speaks for: `user:NAME`. Raises `InvalidToken`, and `IssuerAway`."""
    if written.startswith(tokens.PREFIX):
        with backend.transaction() as connection:
            token = tokens.verify(connection, backend.namespace, written)
        is_admin = token.scope == "admin"
        return Caller(f"user:{token.actor}", is_admin, _tasks(backend), token=token.id)
    if backend.issuer is None:
        raise InvalidToken("there is no such token")
    name, is_admin, seconds = backend.issuer.verify(written)
    return Caller(f"user:{name}", is_admin, _tasks(backend), seconds=seconds)


def _tasks(backend: Backend) -> tuple[str, ...]:
    """Returns globs of the tasks that users may have run through the web side."""
    return backend.settings.web_tasks


def _caller(
    request: Request,
    backend: TheBackend,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    cookie: Annotated[str | None, Depends(_cookie)],
) -> Caller:
    # The page of an error is for them too.
    request.state.caller = found = _found(request, backend, bearer, cookie)
    return found


def _found(
    request: Request,
    backend: Backend,
    bearer: HTTPAuthorizationCredentials | None,
    cookie: str | None,
) -> Caller:
    if bearer is not None:
        return identify(backend, bearer.credentials)
    if cookie and not backend.is_demo:
        check_origin(request)
        return replace(identify(backend, cookie), origin="page")
    if backend.is_demo:
        return replace(_anyone(request), tasks=_tasks(backend))
    raise InvalidToken(
        "who asks? Give a token, as `Authorization: Bearer …`; `pgbeat tokens create` makes one"
    )


def _anyone(request: Request) -> Caller:
    """In the demo, whoever is on this machine is its administrator."""
    client = request.client.host if request.client else ""
    if not (is_loopback(client) and is_loopback(request.url.hostname or "")):
        raise Forbidden("the demo is for this machine alone: open it as http://127.0.0.1:…")
    check_origin(request)
    is_page = "text/html" in request.headers.get("accept", "")
    return Caller("user:demo", True, origin="page" if is_page else "api")


def is_loopback(host: str) -> bool:
    """Whether a host, by its address or as localhost, is this machine to itself."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def check_origin(request: Request) -> None:
    """Raises `Forbidden` for a change that another site had the browser ask for.

    Browsers say where it comes from by Sec-Fetch-Site, or, without TLS, by Origin.
    """
    if request.method in _SAFE:
        return
    site = request.headers.get("sec-fetch-site")
    source = request.headers.get("origin") or request.headers.get("referer")
    if site is not None:
        is_own = site in {"same-origin", "none"}
    elif source is not None:
        is_own = _netloc(source) == request.headers.get("host", "").lower()
    else:
        is_own = COOKIE not in request.cookies
    if not is_own:
        raise Forbidden("another site asked for this change; open the page itself")


def _netloc(url: str) -> str | None:
    try:
        return urlsplit(url).netloc.lower() or None
    except ValueError:
        return None


#: Who asks, as an endpoint's parameter.
TheCaller = Annotated[Caller, Depends(_caller)]


def _admin(request: Request, caller: TheCaller) -> Caller:
    permissions.require_admin(caller, f"{request.method} {request.url.path}")
    return caller


#: As `TheCaller`, who has to be an administrator; the API's document says so by the scope.
TheAdmin = Annotated[Caller, Security(_admin, scopes=["admin"])]
