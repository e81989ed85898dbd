"""Renders the console's pages: their templates, what the last change said, and errors."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from fastapi import Depends, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from pgbeat.access import audit_words
from pgbeat.database import connections
from pgbeat.errors import InvalidToken, PgbeatError
from pgbeat.monitoring import runbook
from pgbeat.timetables import relative, span
from pgbeat.version import __version__
from pgbeat.web import problems
from pgbeat.web.backend import cookie_options, root
from pgbeat.web.calls import WebCall, by
from pgbeat.web.identity import Caller, TheAdmin, TheCaller, TheChanger, TheViewer
from pgbeat.web.issuer import IssuerAway
from pgbeat.web.pages import forms
from pgbeat.web.pages import humanize as words
from pgbeat.web.pages.forms import Form, FormField

T = TypeVar("T", bound=str)

#: The cookie that tells the next page what was done, and the longest message in it.
_MESSAGE, _LONGEST = "pgbeat_said", 600
#: Characters of a part of a name that may be broken at its underscores.
_LONG_PART = 20


class NavSection(NamedTuple):
    """A section of the navigation, with its pages as key and name; it leads to the first."""

    label: str
    tabs: tuple[tuple[str, str], ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its pages."""
        return tuple(key for key, _ in self.tabs)


_JOBS, _GROUPS, _TEMPLATES = ("jobs", "Jobs"), ("groups", "Groups"), ("templates", "Templates")
_EVENTS = ("events", "Events")
_ADMINS = (
    NavSection("Overview", (("overview", "Overview"),)),
    NavSection("Schedules", (("schedules", "Schedules"), ("calendars", "Calendars"))),
    NavSection(
        "Jobs", (_JOBS, ("errors", "Errors"), ("tasks", "Tasks"), _GROUPS, _TEMPLATES, _EVENTS)
    ),
    NavSection("Lanes", (("lanes", "Lanes"),)),
    NavSection("Queues", (("queues", "Queues"),)),
    NavSection("Workers", (("workers", "Workers"),)),
    NavSection("System", (("beats", "Beats"), ("webhooks", "Webhooks"), ("audit", "Audit"))),
)
#: URLs of webhooks and check-ins are secrets, so viewers don't see the page of webhooks.
_VIEWERS = (*_ADMINS[:-1], NavSection("System", (("beats", "Beats"), ("audit", "Audit"))))
_USERS = (NavSection("Jobs", (_JOBS, _GROUPS, _TEMPLATES)),)


def sections(caller: Caller | None) -> tuple[NavSection, ...]:
    """Returns the navigation of what the caller may see."""
    if caller is None:
        return ()
    return _ADMINS if caller.is_admin else _VIEWERS if caller.sees_all else _USERS


def path(*parts: object, **query: object) -> str:
    """Returns the path of a page below the root, such as `/console/jobs?state=failed`.

    Empty values of the query are left out. Slashes stay: names of schedules may contain them.
    """
    filled = {key: value for key, value in query.items() if value not in (None, "")}
    below = "/".join(quote(str(part)) for part in parts)
    return f"/console/{below}" + (f"?{urlencode(filled)}" if filled else "")


def _render(
    request: Request, template: str, caller: Caller | None, status: int = 200, **values: Any
) -> Response:
    """Renders a template, with the message of the change before it, which is shown once."""
    message = _message(request)
    text = _environment.get_template(template).render(
        root=root(request),
        request=request,
        caller=caller,
        nav=sections(caller),
        may_change=caller is not None and not caller.is_read_only,
        is_demo=request.app.state.pgbeat.is_demo,
        is_hosted=request.app.state.pgbeat.authenticate is not None,
        said=message,
        version=__version__,
        **({"error": None, "here": ""} | values),
    )
    response = Response(problems.readable(text), status, media_type="text/html")
    if message is not None:
        response.delete_cookie(_MESSAGE, path=root(request) or "/")
    return response


def open_page(request: Request, template: str, **values: Any) -> Response:
    """Renders a page that needs no token."""
    return _render(request, template, None, **values)


def _message(request: Request) -> tuple[bool, str] | None:
    try:
        is_good, message = json.loads(urlsafe_b64decode(request.cookies[_MESSAGE]))
        return bool(is_good), str(message)[:_LONGEST]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


class Visit(WebCall):
    """A call for a page."""

    #: The database's time when the page's rows were read.
    now = datetime.min.replace(tzinfo=UTC)
    #: What a form has posted, by field.
    posted: Mapping[str, str] = {}
    #: The ids that were ticked in a list.
    ids: Sequence[str] = ()

    @contextmanager
    def listing(self) -> Iterator[Connection]:
        """Opens the transaction in which a list is read: the primary's right after a change."""
        if self.request.method == "POST" or _MESSAGE in self.request.cookies:
            with self.reading() as connection:
                yield connection
            return
        with super().listing() as connection:
            self.now = connections.now(connection)
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Opens the transaction in which the rows of the page are read."""
        with self.backend.transaction() as connection:
            self.now = connections.now(connection)
            yield connection

    def verb(self, verbs: Iterable[T]) -> T:
        """Returns the form's `do`, which must be one of the page's verbs."""
        verb = self.posted.get("do", "")
        for known in verbs:
            if known == verb:
                return known
        raise HTTPException(422, f"{verb!r} can't be done here")

    def given(self, fields: Iterable[FormField]) -> dict[str, str]:
        """Returns what was posted in each of the fields."""
        names = (field.name for field in fields)
        return {name: self.posted.get(name, "").replace("\r\n", "\n").strip() for name in names}

    def text(self, name: str, most: int | None = None) -> str:
        """Returns what was posted in a field; of a longer text the first `most` characters."""
        return self.posted.get(name, "").strip()[:most]

    def reason(self, most: int = 500) -> str | None:
        """Returns the reason that was posted, if there is one."""
        return self.text("reason", most) or None

    def changed(self, written: Mapping[str, str]) -> dict[str, str]:
        """Returns those that differ from what the form was made with. Raises `InvalidJob`."""
        first = forms.before(self.posted)
        return {name: value for name, value in written.items() if value != first.get(name, "")}

    def refused(
        self, error: Exception, written: Mapping[str, str], nothing: str, **more: Any
    ) -> Form:
        """Returns the form that an error refused, as `forms.refused` does."""
        before = self.posted.get("before", "")
        return forms.refused(self.request, error, written, nothing, before=before, **more)

    def page(
        self,
        template: str,
        here: str,
        *,
        status: int = 200,
        form: Form | None = None,
        error: Exception | None = None,
        **values: Any,
    ) -> Response:
        """Renders the page `here` of the navigation.

        A refused `form`, or else the `error` of a change, gives the status and the alert.
        """
        alert = None
        if error is not None:
            status, _, alert = problems.described(self.request, error)
        elif form is not None and form.errors:
            status, alert = form.status, form.alert
        return _render(
            self.request,
            template,
            self.caller,
            status,
            here=here,
            now=self.now,
            form=form,
            error=alert,
            **values,
        )

    def fragment(self, template: str, **values: Any) -> Markup:
        """Renders a part of a page. Nothing in it may depend on the caller's last change."""
        text = _environment.get_template(template).render(
            root=root(self.request), now=self.now, may_change=not self.caller.is_read_only, **values
        )
        return Markup(text)  # noqa: S704  # the template has escaped it

    def redirect(self, where: str, message: str, *, is_good: bool = True) -> Response:
        """Leads to another page (`path`), which says once what was done."""
        response = RedirectResponse(root(self.request) + where, 303)
        # Browsers drop a cookie of more than 4 kB: a character is four bytes at most, not twelve.
        cookie = json.dumps([is_good, message[:_LONGEST]], ensure_ascii=False)
        response.set_cookie(
            _MESSAGE,
            urlsafe_b64encode(cookie.encode(errors="replace")).decode(),
            max_age=60,
            **cookie_options(self.request),
        )
        return response


def _by(who: Any) -> Any:
    """Returns the dependency on a visit, with what a form has posted."""

    async def visit(opened: Annotated[Visit, by(Visit, who)]) -> Visit:
        if opened.request.method == "POST":
            form = await opened.request.form()
            texts = {key: text for key, text in form.items() if not isinstance(text, UploadFile)}
            opened.posted = texts
            opened.ids = [id for id in form.getlist("id") if isinstance(id, str)]
        return opened

    return Depends(visit)


#: A visit as an endpoint's parameter: by any caller, by one with the right to change something,
#: by a viewer, and by an administrator.
TheVisit = Annotated[Visit, _by(TheCaller)]
ChangeVisit = Annotated[Visit, _by(TheChanger)]
ViewerVisit = Annotated[Visit, _by(TheViewer)]
AdminVisit = Annotated[Visit, _by(TheAdmin)]

#: A name in a path.
Name = Annotated[str, Path(max_length=200)]


# -- errors


class PageRoute(APIRoute):
    """Answers errors with a page, and leads unknown callers to the sign-in page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wraps FastAPI's handler."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except InvalidToken as error:
                if request.app.state.pgbeat.authenticate is not None:
                    return _problem(request, error)
                return _to_sign_in(request)
            except _KNOWN as error:
                return _problem(request, error)

        return handled


_KNOWN = (
    PgbeatError,
    IssuerAway,
    RequestValidationError,
    HTTPException,
    DBAPIError,
    PoolTimeout,
    UnicodeEncodeError,
    RecursionError,
)


def _to_sign_in(request: Request) -> Response:
    wanted = ""
    if request.method == "GET":
        wanted = request.url.path.removeprefix(root(request))
        wanted += f"?{request.url.query}" if request.url.query else ""
    query = f"?{urlencode({'next': wanted})}" if wanted not in ("", "/") else ""
    return RedirectResponse(f"{root(request)}/login{query}", 303)


def _problem(request: Request, error: Exception) -> Response:
    status, title, detail = problems.described(request, error)
    caller = getattr(request.state, "caller", None)
    section = {500: runbook.TOP, 503: runbook.AWAY}.get(status)
    shown = {"title": title, "detail": detail, "section": section}
    response = _render(request, "problem.html", caller, status, **shown)
    response.headers.update(getattr(error, "headers", None) or {})
    return response


# -- how things look


def moment(value: datetime | None, now: datetime, *, exact: bool = False) -> Markup | str:
    """Renders a time as how far away it is, with the exact time as its title."""
    if value is None:
        return Markup('<span class="none">–</span>')
    utc = value.astimezone(UTC)
    clock = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    near = relative(value, now)
    if abs(value - now) < timedelta(seconds=1):
        near = "now" if value > now else "just now"
    shown = f"{clock}, {near}" if exact else near
    return Markup('<time datetime="{}" title="{}">{}</time>').format(utc.isoformat(), clock, shown)


def _breakable(name: str) -> Markup:
    """Returns a dotted name that may be broken after its dots, and inside of long parts."""
    parts = (
        part if len(part) <= _LONG_PART else Markup("_<wbr>").join(part.split("_"))
        for part in name.split(".")
    )
    return Markup(".<wbr>").join(parts)


_compact = partial(json.dumps, ensure_ascii=False, default=str)


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.1f} s" if value < 60_000 else words.length(value / 1000)


_environment = Environment(
    loader=PackageLoader("pgbeat.web.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "breakable": _breakable,
    "pretty": partial(_compact, indent=2),
    "compact": _compact,
    "ms": _milliseconds,
    "number": "{:,.10g}".format,
    "counted": words.counted,
    "first_line": words.first_line,
    "span": span,
    "lasting": words.length,
}
_environment.globals |= {
    "moment": moment,
    "path": path,
    "words": words,
    "changed": audit_words.changes,
    "runbook": runbook,
}
