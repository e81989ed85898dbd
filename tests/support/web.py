"""Serves the web side on the test's database to clients with different tokens."""

import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any

import uvicorn
from celery import Celery
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import event

from pgbeat.access import tokens
from pgbeat.access.tokens import Scope
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections
from pgbeat.web import create_app
from pgbeat.web.backend import WebBackend
from pgbeat.web.slow_clients import PunctualProtocol
from tests.support.processes import until

#: Seconds until what is awaited has to be there; the machine may be busy.
PATIENCE = 60.0
#: What browsers and clients call it.
HOST = "http://pgbeat.test"


#: Apps that no test uses just now.
_free: list[FastAPI] = []


def _app(celery: Celery, settings: Settings, demo: bool) -> FastAPI:
    """Returns an app that an earlier test had, with another backend.

    The first request of a new app takes half a second.
    """
    app = _free.pop() if _free else create_app(celery, settings, demo=demo)
    vars(app.state)["_state"].clear()
    app.state.pgbeat = WebBackend(celery, settings, demo=demo)
    return app


class Web:
    """The web app of a Celery app, and its clients.

    They are `admin`, `viewer`, `user` (alice), `other` (bob) and `nobody`, who has no token. They
    follow no redirect, and raise what the app doesn't handle.
    """

    def __init__(self, celery: Celery, *, demo: bool = False, **settings: Any) -> None:
        given = {"web_tasks": ["*"], "web_direct": True, "webhook_private": True, **settings}
        celery.conf.update({f"pgbeat_{key}": value for key, value in given.items()})
        self.settings = Settings.load(celery.conf, environ={})
        self.app = _app(celery, self.settings, demo)
        self._clients: list[TestClient] = []
        #: Those of the server that `served` runs.
        self.connections: set[Any] = set()

    def client(self, token: str | None = None, **options: Any) -> TestClient:
        """Returns a client with that token, or none; `options` are those of `TestClient`."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        client = TestClient(
            self.app, **{"base_url": HOST, "headers": headers, "follow_redirects": False, **options}
        )
        self._clients.append(client)
        return client

    def token(self, actor: str, scope: Scope = "user", **options: Any) -> str:
        """Makes a token, and returns its text."""
        return make_token(self.settings.url, actor, scope, self.settings.namespace, **options)

    @cached_property
    def admin(self) -> TestClient:
        """An administrator, `user:root`; the same each time, since tests ask for it often."""
        return self.client(self.token("root", "admin"))

    @cached_property
    def admins_browser(self) -> TestClient:
        """A browser that `user:root` is signed in with; the same each time."""
        return self.browser(self.token("root", "admin"))

    @property
    def viewer(self) -> TestClient:
        """Returns a viewer, `user:vera`."""
        return self.client(self.token("vera", "viewer"))

    @property
    def user(self) -> TestClient:
        """Returns a user, `user:alice`."""
        return self.client(self.token("alice"))

    @property
    def other(self) -> TestClient:
        """Returns another user, `user:bob`."""
        return self.client(self.token("bob"))

    @property
    def nobody(self) -> TestClient:
        """Returns a client without a token."""
        return self.client()

    def browser(self, token: str, **headers: str) -> TestClient:
        """Opens a browser that is signed in, on one of the app's own pages."""
        client = self.client(headers={"Sec-Fetch-Site": "same-origin", **headers})
        client.cookies.set("pgbeat_token", token)
        return client

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """Collects the statements that are sent to the database during the block.

        Except those that check the schema, every other second.
        """
        sent: list[str] = []

        def note(*given: Any) -> None:
            if not any(word in given[2] for word in ("to_regclass", "oldest_program")):
                sent.append(given[2])

        engine = self.app.state.pgbeat._engine
        event.listen(engine, "before_cursor_execute", note)
        try:
            yield sent
        finally:
            event.remove(engine, "before_cursor_execute", note)

    def statements(self, page: Any, paths: Iterable[str]) -> dict[str, int]:
        """Returns how many statements each page sends to the database."""
        counts = {}
        for path in paths:
            with self.counted() as sent:
                assert page.get(path).status_code == 200
            counts[path] = len(sent)
        return counts

    def close(self) -> None:
        """Closes clients and connections."""
        for client in self._clients:
            client.close()
        watch = getattr(self.app.state, "pgbeat_watch", None)
        if watch is not None:
            watch.close()
            watch.join()
        self.app.state.pgbeat.dispose()
        _free.append(self.app)


def make_token(
    url: Any,
    actor: str,
    scope: Scope = "user",
    namespace: str = "default",
    lifetime: timedelta | None = tokens.LIFETIME,
) -> str:
    """Makes a token in the database of that URL, and returns its text."""
    dsn = postgres_url(url) if isinstance(url, str) else url
    with connections.engine(dsn, "tests").begin() as connection:
        return tokens.create(
            connection,
            namespace=namespace,
            actor=actor,
            scope=scope,
            lifetime=lifetime,
            created_by="user:tests",
        )[1]


@contextmanager
def opened(celery: Celery, **options: Any) -> Iterator[Web]:
    """Opens a web app, closed at the end."""
    web = Web(celery, **options)
    try:
        yield web
    finally:
        web.close()


@contextmanager
def served(web: Web) -> Iterator[str]:
    """Serves the app on a server of its own; yields its address."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1000)
        config = uvicorn.Config(
            web.app, http=PunctualProtocol, log_config=None, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        web.connections = server.server_state.connections
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        try:
            until(lambda: server.started, PATIENCE, "the server answers")
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


def problem(response: Response, status: int) -> str:
    """Returns the sentence of an error, which is a problem document."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found = response.json()
    assert found["status"] == status
    assert found["title"]
    assert found["code"]
    assert ("retry-after" in response.headers) is (status == 503)
    return str(found["detail"])


def errors(response: Response, status: int = 422) -> list[tuple[str, str]]:
    """Returns the field and the code of each problem, or the code of an error without fields."""
    problem(response, status)
    found = response.json()
    return [(each["field"], each["code"]) for each in found.get("errors", [])] or [
        ("", found["code"])
    ]


def done(response: Response, status: int = 200) -> Any:
    """Returns the JSON of a good answer."""
    assert response.status_code == status, response.text
    return response.json()
