"""Clients that send half of a request, and no more."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from pgbeat.web import serving, slow_clients
from pgbeat.web.slow_clients import PunctualProtocol
from tests.support.processes import until

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"


async def _read_body(scope: Any, receive: Any, send: Any) -> None:
    """Answers once it has the body."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port() -> Iterator[int]:
    """Serves on a port."""
    sock = serving.listen("127.0.0.1", 0)
    config = uvicorn.Config(_read_body, http=PunctualProtocol, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    until(lambda: server.started)
    yield sock.getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture
def connect(port: int) -> Iterator[Callable[[bytes], socket.socket]]:
    """Opens a connection, and sends that."""
    opened = []

    def open_one(data: bytes) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", port), timeout=20)
        opened.append(client)
        client.sendall(data)
        return client

    yield open_one
    for client in opened:
        client.close()


def is_closed(client: socket.socket) -> bool:
    """Waits until the server has closed it or answered."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("half", [b"", b"GET / HTTP/1.1\r\nHost:", HEAD, HEAD + b"12345"])
def test_what_is_not_sent_in_time_is_closed(
    connect: Any, half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_clients, "DEADLINE", 0.2)
    assert is_closed(connect(half))


def test_requests_on_one_connection_have_a_deadline_each(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        assert client.post("/", content=b"a" * 900_000).text == "ok"
        monkeypatch.setattr(slow_clients, "DEADLINE", 0.0)
        with pytest.raises(httpx.TransportError):
            client.post("/", content=iter([b"a", b"b"] * 1000))


def test_the_client_that_has_waited_longest_makes_room(
    port: int, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_clients, "most_connections", lambda: 5)
    slow = [connect(HEAD) for _ in range(5)]
    for _ in range(3):
        assert httpx.get(f"http://127.0.0.1:{port}/", timeout=20).text == "ok"
    assert is_closed(slow[0])
    slow[-1].sendall(b"1234567890")
    assert slow[-1].recv(12) == b"HTTP/1.1 200"


def test_the_limit_leaves_files_for_the_database() -> None:
    assert 0 < slow_clients.most_connections() <= 10_000
