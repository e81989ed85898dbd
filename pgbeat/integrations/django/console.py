"""Serves pgbeat's console and API as a view, to members of the staff.

The web app is an ASGI app. The view is async, so Django runs it under ASGI and WSGI alike.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import NoReverseMatch, reverse
from django.views.decorators.csrf import csrf_exempt

from pgbeat.integrations.django import databases, schema
from pgbeat.integrations.django.models import ADMINISTER, OBSERVE

#: The user, in the scope of a request to the web app.
_USER = "pgbeat.django.user"


# The web app refuses changes that don't come from its own pages, by the browser's word.
@csrf_exempt
async def console(request: Any, path: str = "") -> HttpResponseBase:
    """Responds as the web app does, if the user is an active member of the staff."""
    user = await request.auser()
    if not (user.is_active and user.is_staff):
        if user.is_authenticated or request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        return redirect_to_login(request.get_full_path(), _sign_in_url())
    rights = {
        "is_admin": await sync_to_async(user.has_perm)(ADMINISTER),
        "is_viewer": await sync_to_async(user.has_perm)(OBSERVE),
    }
    app, user_class = await sync_to_async(_app)()
    scope = _scope(request, path) | {_USER: user_class(user.get_username(), **rights)}
    exchange = _Exchange(app, scope, request.body)
    return await exchange.response(is_streaming=isinstance(request, ASGIRequest))


def _sign_in_url() -> str:
    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return str(settings.LOGIN_URL)


@cache
def _app() -> tuple[Any, Any]:
    """Returns this process's web app, and the class of its users."""
    try:
        from pgbeat import web
    except ModuleNotFoundError as error:
        message = "pgbeat's console needs packages: pip install 'pgbeat[django,web]'"
        raise ImproperlyConfigured(message) from error
    celery = databases.any_app()
    app = web.create_app(celery, schema.settings(), authenticate=lambda asked: asked.scope[_USER])
    return app, web.User


def _scope(request: Any, path: str) -> dict[str, Any]:
    host = request.get_host()  # which must be in ALLOWED_HOSTS
    headers = {**{name.lower(): value for name, value in request.headers.items()}, "host": host}
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.path.encode(errors="replace"),
        "root_path": request.path.removesuffix(path).rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode(errors="replace"),
        "headers": [
            (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in headers.items()
        ],
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        "server": (host.partition(":")[0], int(request.get_port())),
    }


class _Exchange:
    """One request to the web app, and its messages."""

    def __init__(self, app: Any, scope: dict[str, Any], body: bytes) -> None:
        self._app, self._scope = app, scope
        self._bodies = [{"type": "http.request", "body": body, "more_body": False}]
        #: What the app has sent; `None` at the end.
        self._sent: asyncio.Queue[Any] = asyncio.Queue()

    async def response(self, *, is_streaming: bool) -> HttpResponseBase:
        """Returns the app's response.

        Event streams are refused unless it `is_streaming`: each would hold a worker. Pages then
        poll.
        """
        task = asyncio.create_task(self._run())
        start = await self._sent.get()
        if start is None:
            await task
            raise RuntimeError("the web app ended without a response")
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]
        ]
        response: Any
        if not dict(headers).get("content-type", "").startswith("text/event-stream"):
            body = b"".join([chunk async for chunk in self._chunks(task)])
            response = HttpResponse(body, status=start["status"])
        elif is_streaming:
            response = StreamingHttpResponse(self._chunks(task), status=start["status"])
        else:
            await _end(task)
            return HttpResponse(status=204)
        for name, value in headers:
            if name == "set-cookie":
                response.cookies.load(value)
            else:
                response.headers[name] = value
        return response

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._sent.put)
        finally:
            self._sent.put_nowait(None)

    async def _receive(self) -> Any:
        if self._bodies:
            return self._bodies.pop()
        await asyncio.Event().wait()  # a disconnected client cancels the task

    async def _chunks(self, task: "asyncio.Task[None]") -> AsyncIterator[bytes]:
        try:
            while (message := await self._sent.get()) is not None:
                yield message.get("body", b"")
                if not message.get("more_body"):
                    break
            await task
        finally:
            await _end(task)


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
