"""Rendering: templates, how times and JSON look in them, what is said after a change, and errors
as pages."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from pgbeat import __version__
from pgbeat.errors import InvalidToken, PgbeatError
from pgbeat.timetables import span
from pgbeat.web import problems
from pgbeat.web.backend import Backend
from pgbeat.web.identity import Caller
from pgbeat.web.issuer import IssuerAway
from pgbeat.web.pages import humanize as words

#: The cookie that says, on the next page, what was done.
_SAID = "pgbeat_said"
_LONGEST = 600


class Section(NamedTuple):
    """A section of the console: pages (key and name), the first of which stands for it. What is
    needed every day is a section, what is rare a tab in one."""

    label: str
    tabs: tuple[tuple[str, str], ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Those of its pages."""
        return tuple(key for key, _ in self.tabs)


_JOBS = Section("Jobs", (("jobs", "Jobs"), ("groups", "Groups"), ("templates", "Templates")))
#: Where an administrator can go to, and others.
_ADMINS = (
    Section("Schedules", (("schedules", "Schedules"), ("calendars", "Calendars"))),
    _JOBS,
    Section("Lanes", (("lanes", "Lanes"),)),
    Section("Queues", (("queues", "Queues"),)),
    Section("System", (("beats", "Beats"), ("webhooks", "Webhooks"), ("audit", "Audit"))),
)
_USERS = (_JOBS,)


def root(request: Request) -> str:
    """Where the web side is mounted; empty at the top."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def path(*parts: object, **query: object) -> str:
    """A page's path below the root, such as `/console/jobs?state=failed`; what is `None` or empty
    of the query is left out. Slashes stay: schedules' names may have them."""
    asked = {key: value for key, value in query.items() if value not in (None, "")}
    below = "/".join(quote(str(part)) for part in parts)
    return f"/console/{below}" + (f"?{urlencode(asked)}" if asked else "")


def page(
    request: Request,
    template: str,
    *,
    caller: Caller | None = None,
    backend: Backend | None = None,
    status: int = 200,
    **values: Any,
) -> HTMLResponse:
    """A page of that template. What was said before it is said on it, once."""
    said = _said(request)
    nav = () if caller is None else _ADMINS if caller.is_admin else _USERS
    text = _environment.get_template(template).render(
        root=root(request),
        request=request,
        caller=caller,
        nav=nav,
        is_demo=backend is not None and backend.is_demo,
        said=said,
        version=__version__,
        **({"error": None, "here": ""} | values),
    )
    answer = HTMLResponse(problems.readable(text), status)
    if said is not None:
        answer.delete_cookie(_SAID, path=root(request) or "/")
    return answer


def done(request: Request, where: str, message: str, *, is_good: bool = True) -> Response:
    """After a change: on to a page of ours (`path`), which says what was done."""
    answer = RedirectResponse(root(request) + where, 303)
    # Browsers drop a cookie of more than 4 kB: a character is four bytes at most, not twelve.
    words = json.dumps([is_good, message[:_LONGEST]], ensure_ascii=False).encode(errors="replace")
    answer.set_cookie(
        _SAID,
        urlsafe_b64encode(words).decode(),
        max_age=60,
        path=root(request) or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


def _said(request: Request) -> tuple[bool, str] | None:
    try:
        is_good, message = json.loads(urlsafe_b64decode(request.cookies[_SAID]))
        return bool(is_good), str(message)[:_LONGEST]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


# -- forms


async def _fields(request: Request) -> dict[str, str]:
    form = await request.form()
    return {key: value for key, value in form.items() if not isinstance(value, UploadFile)}


#: What a form posts, as an endpoint's parameter.
Fields = Annotated[dict[str, str], Depends(_fields)]


def unknown(fields: dict[str, str]) -> HTTPException:
    """For a form that asks for what there is not."""
    return HTTPException(422, f"{fields.get('do', '')!r} is nothing that can be done here")


# -- errors


class PageRoute(APIRoute):
    """Answers errors by a page; who isn't known is led to where one signs in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI wants it."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except InvalidToken:
                return _to_sign_in(request)
            except _KNOWN as error:
                return _problem(request, error)

        return handled


_KNOWN = (
    PgbeatError, IssuerAway, RequestValidationError, HTTPException, DBAPIError, PoolTimeout,
    UnicodeEncodeError, RecursionError,
)  # fmt: skip


def _to_sign_in(request: Request) -> Response:
    asked = ""
    if request.method == "GET":
        asked = request.url.path.removeprefix(root(request))
        asked += f"?{request.url.query}" if request.url.query else ""
    query = f"?{urlencode({'next': asked})}" if asked not in ("", "/") else ""
    return RedirectResponse(f"{root(request)}/login{query}", 303)


def said_of(request: Request, error: Exception) -> tuple[int, str, str]:
    """Status, title and sentence of an error, as the API answers it."""
    handlers = request.app.exception_handlers
    kind = next(kind for kind in type(error).__mro__ if kind in handlers)
    found = json.loads(handlers[kind](request, error).body)
    return int(found["status"]), str(found["title"]), str(found["detail"])


def _problem(request: Request, error: Exception) -> Response:
    status, title, detail = said_of(request, error)
    return page(
        request, "problem.html", caller=getattr(request.state, "caller", None),
        backend=request.app.state.pgbeat, status=status, title=title, detail=detail,
    )  # fmt: skip


# -- how things look


def moment(value: datetime | None, now: datetime, *, exact: bool = False) -> Markup | str:
    """A time: how far away it is, and exactly, in UTC, for who wants to know."""
    if value is None:
        return Markup('<span class="none">–</span>')
    utc = value.astimezone(UTC)
    said = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    near = f"in {span(value - now)}" if value > now else f"{span(now - value)} ago"
    if value > now and (value - now).total_seconds() < 1:
        near = "now"
    shown = f"{said}, {near}" if exact else near
    return Markup('<time datetime="{}" title="{}">{}</time>').format(utc.isoformat(), said, shown)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.1f} s" if value < 60_000 else words.length(value / 1000)


def _number(value: float) -> str:
    return f"{value:,.10g}"


_environment = Environment(
    loader=PackageLoader("pgbeat.web.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "pretty": _pretty, "compact": _compact, "ms": _milliseconds, "number": _number,
    "counted": words.counted, "first_line": words.first_line, "span": span,
}  # fmt: skip
_environment.globals |= {"moment": moment, "path": path, "words": words}
