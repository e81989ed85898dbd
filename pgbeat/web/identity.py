"""Identifies callers by a token, a JWT of the team's issuer, or a browser's cookie."""

from collections.abc import Awaitable
from dataclasses import dataclass, replace
from inspect import isawaitable
from ipaddress import ip_address
from typing import Annotated, Any
from urllib.parse import urlsplit

from anyio import from_thread
from fastapi import Depends, Request, Security
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from pgbeat.access import tokens
from pgbeat.access.actors import Actor, Origin, is_name
from pgbeat.access.tokens import Scope
from pgbeat.errors import Forbidden, InvalidToken
from pgbeat.jobs.checks import permissions
from pgbeat.web.backend import TheBackend, User, WebBackend

#: The cookie of a signed-in browser; it holds a token or JWT.
COOKIE = "pgbeat_token"
_SAFE = {"GET", "HEAD", "OPTIONS"}
#: Seconds after which streams of the host's users end, and the host is asked again.
_HOST_SECONDS = 60.0
_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="A token of `pgbeat tokens create`, or a JWT of the team's issuer.",
)
_cookie = APIKeyCookie(
    name=COOKIE,
    auto_error=False,
    scheme_name="cookie",
    description="The same, as set by POST /login.",
)


@dataclass(frozen=True)
class Caller(Actor):
    """The actor of a request."""

    origin: Origin = "api"
    #: Whether the caller may read the metrics, and nothing else.
    is_scraper: bool = False
    #: The token's id, or the seconds until a JWT expires.
    token: str | None = None
    seconds: float | None = None


def identify(backend: WebBackend, written: str) -> Caller:
    """Returns the caller of a token or JWT. Raises `InvalidToken` and `IssuerAway`."""
    if written.startswith(tokens.PREFIX):
        with backend.session() as connection:
            token = tokens.verify(connection, backend.namespace, written)
        return _caller_of(backend, token.actor, token.scope, token=token.id)
    if backend.issuer is None:
        raise InvalidToken("invalid or expired token")
    name, scope, seconds = backend.issuer.verify(written)
    return _caller_of(backend, name, scope, seconds=seconds)


def _caller_of(backend: WebBackend, name: str, scope: Scope, **more: Any) -> Caller:
    is_viewer = scope == "viewer"
    return Caller(
        f"user:{name}",
        scope == "admin",
        backend.settings.web_tasks,
        is_viewer=is_viewer,
        is_read_only=is_viewer or scope == "metrics",
        is_scraper=scope == "metrics",
        **more,
    )


def _any_caller(
    request: Request,
    backend: TheBackend,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    cookie: Annotated[str | None, Depends(_cookie)],
) -> Caller:
    # For the page of an error.
    request.state.caller = caller = _found(request, backend, bearer, cookie)
    return caller


def _caller(
    request: Request, backend: TheBackend, caller: Annotated[Caller, Depends(_any_caller)]
) -> Caller:
    if caller.is_scraper:
        raise Forbidden("a token of the scope 'metrics' may read /metrics, and nothing else")
    if request.method not in _SAFE:
        permissions.require_change(caller, f"{request.method} {request.url.path}")
        if caller.is_restricted:
            backend.rates.take(caller.name)
    return caller


def _found(
    request: Request,
    backend: WebBackend,
    bearer: HTTPAuthorizationCredentials | None,
    cookie: str | None,
) -> Caller:
    if bearer is not None:
        return identify(backend, bearer.credentials)
    if backend.authenticate is not None:
        return _host_caller(request, backend)
    if cookie and not backend.is_demo:
        check_origin(request)
        return replace(identify(backend, cookie), origin="page")
    if backend.is_demo:
        return _demo_caller(request, backend)
    raise InvalidToken(
        "authentication required: send a token as `Authorization: Bearer …` (`pgbeat tokens "
        "create` makes one)"
    )


def _host_caller(request: Request, backend: WebBackend) -> Caller:
    """Returns the caller that the host application names. Raises `InvalidToken` if it names none.

    Its cookies come with any request of the browser's, so a change must say where it comes from.
    """
    answer: User | Awaitable[User | None] | None = None
    if backend.authenticate is not None:
        answer = backend.authenticate(request)
    user = from_thread.run(_awaited, answer) if isawaitable(answer) else answer
    if not isinstance(user, User):
        raise InvalidToken("authentication required: sign in, or send a token")
    if not is_name(user.name):
        raise Forbidden("the user's name must have 1 to 200 printable characters")
    check_origin(request, is_required=True)
    scope: Scope = "admin" if user.is_admin else "viewer" if user.is_viewer else "user"
    return _caller_of(backend, user.name, scope, origin="page", seconds=_HOST_SECONDS)


async def _awaited(answer: Awaitable[User | None]) -> User | None:
    return await answer


def _demo_caller(request: Request, backend: WebBackend) -> Caller:
    """Returns the demo's administrator. Raises `Forbidden` for requests from another machine."""
    client = request.client.host if request.client else ""
    if not (is_loopback(client) and is_loopback(request.url.hostname or "")):
        raise Forbidden("the demo is for this machine alone: open it as http://127.0.0.1:…")
    check_origin(request)
    is_page = "text/html" in request.headers.get("accept", "")
    origin: Origin = "page" if is_page else "api"
    return Caller("user:demo", True, backend.settings.web_tasks, origin=origin)


def is_loopback(host: str) -> bool:
    """Returns whether a host is localhost or a loopback address."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def check_origin(request: Request, *, is_required: bool = False) -> None:
    """Raises `Forbidden` for a browser's change that comes from another site.

    Browsers say so by Sec-Fetch-Site or, without TLS, by Origin. A request with neither is refused
    if it has the cookie, or if they are required.
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
        is_own = not is_required and COOKIE not in request.cookies
    if not is_own:
        raise Forbidden("this change comes from another site; open the page itself")


def _netloc(url: str) -> str | None:
    try:
        return urlsplit(url).netloc.lower() or None
    except ValueError:
        return None


#: The caller, as an endpoint's parameter.
TheCaller = Annotated[Caller, Depends(_caller)]


async def _admin(request: Request, caller: TheCaller) -> Caller:
    permissions.require_admin(caller, f"{request.method} {request.url.path}")
    return caller


async def _changer(request: Request, caller: TheCaller) -> Caller:
    permissions.require_change(caller, f"use {request.url.path}")
    return caller


async def _viewer(request: Request, caller: TheCaller) -> Caller:
    permissions.require_view(caller, f"{request.method} {request.url.path}")
    return caller


async def _scraper(request: Request, caller: Annotated[Caller, Depends(_any_caller)]) -> Caller:
    if not caller.is_scraper:
        permissions.require_view(caller, f"{request.method} {request.url.path}")
    return caller


#: The caller, who must not be for reading only.
TheChanger = Annotated[Caller, Depends(_changer)]
#: The caller, who must see everything, as administrators and viewers do.
TheViewer = Annotated[Caller, Security(_viewer, scopes=["viewer"])]
#: The caller, who must see everything, or may read the metrics alone.
TheScraper = Annotated[Caller, Security(_scraper, scopes=["metrics"])]
#: The caller, who must be an administrator. The scope says so in the OpenAPI document.
TheAdmin = Annotated[Caller, Security(_admin, scopes=["admin"])]
