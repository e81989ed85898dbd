"""Receives webhooks by a real HTTP server, and checks signatures by the specification."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: bytes
    #: The client's port: the same for all requests over one connection.
    client: int = 0

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def is_signed_with(self, secret: str) -> bool:
        """Returns whether a signature is the secret's, and the attempt's time is now."""
        timestamp = self.headers["webhook-timestamp"]
        key = base64.b64decode(secret.split("_", 1)[1])
        content = b".".join([self.id.encode(), timestamp.encode(), self.body])
        expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        given = [each.split(",") for each in self.headers["webhook-signature"].split(" ")]
        is_now = abs(int(timestamp) - time.time()) < 300
        return is_now and ["v1", expected] in given


#: A status to answer with, or what to do instead.
Behaviour = int | Callable[[BaseHTTPRequestHandler], None]


class Receiver:
    """Answers 200, or what `answers` holds next. `received` has the requests, oldest first."""

    def __init__(self) -> None:
        self.answers: deque[Behaviour] = deque()
        #: What is done with all requests to a path.
        self.by_path: dict[str, Behaviour] = {}
        self.received: list[Request] = []
        #: Set when those who `hang` may end.
        self.released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                behaviour = receiver.by_path.get(self.path, 200)
                if receiver.answers:
                    behaviour = receiver.answers.popleft()
                request = Request(self.path, headers, body, self.client_address[1])
                receiver.received.append(request)
                if isinstance(behaviour, int):
                    self.answer(behaviour)
                else:
                    behaviour(self)

            do_GET = do_POST

            def answer(self, status: int, **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Logs nothing: pytest shows what matters."""

        self._handler = Handler

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 100

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Ignores clients that have gone away."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def keep_connections(self) -> None:
        """Keeps connections open after answers that say where they end."""
        self._handler.protocol_version = "HTTP/1.1"

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        """Answers nothing until it is released."""
        self.released.wait(60)

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def answering(status: int, **headers: str) -> Callable[[Any], None]:
    """Returns an answer: a status with headers (`Retry_After="3"`)."""
    return lambda handler: handler.answer(status, **headers)
