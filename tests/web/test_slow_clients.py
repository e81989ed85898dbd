"""Clients that send half of a request, and no more, or read nothing of the answer."""

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
#: An answer that no socket buffers.
LARGE = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"


async def _read_body(scope: Any, receive: Any, send: Any) -> None:
    """Answers once it has the body, at `/large` with 20 MB."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body = b"a" * 20_000_000 if scope["path"] == "/large" else b"ok"
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def server() -> Iterator[uvicorn.Server]:
    """Serves on a port."""
    sock = serving.listen("127.0.0.1", 0)
    config = uvicorn.Config(_read_body, http=PunctualProtocol, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    until(lambda: server.started)
    yield server
    server.should_exit = True
    thread.join()


@pytest.fixture
def port(server: uvicorn.Server) -> int:
    """Where it serves."""
    return int(server.servers[0].sockets[0].getsockname()[1])


@pytest.fixture
def connect(port: int) -> Iterator[Callable[[bytes], socket.socket]]:
    """Opens a connection, and sends that."""
    opened = []

    def open_one(data: bytes) -> socket.socket:
        client = socket.socket()
        client.settimeout(20)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
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


def test_who_reads_nothing_of_the_answer_is_let_go(
    server: uvicorn.Server, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_clients, "DEADLINE", 0.5)
    connect(LARGE)
    connect(LARGE + LARGE)
    until(lambda: server.server_state.total_requests >= 2)
    until(lambda: not server.server_state.connections)


def test_who_reads_slowly_gets_all_of_the_answer(
    server: uvicorn.Server, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_clients, "DEADLINE", 1.0)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(LARGE)
        [connection] = until(lambda: paused(server))
        size, seen = 0, {connection.slow_since}
        for _ in range(2):
            size += read(client, 3_000_000)
            until(lambda: connection.slow_since not in seen)
            seen.add(connection.slow_since)
        assert read(client, 20_000_000 - size)


def paused(server: uvicorn.Server) -> list[Any]:
    """The connections whose clients don't take all of the answer."""
    connections: set[Any] = server.server_state.connections
    return [each for each in connections if each.flow.write_paused]


def read(client: socket.socket, size: int) -> int:
    """Reads at least so much."""
    count = 0
    while count < size:
        data = client.recv(1_000_000)
        assert data
        count += len(data)
    return count


def test_clients_that_read_nothing_make_room(
    server: uvicorn.Server, port: int, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_clients, "most_connections", lambda: 2)
    connect(LARGE)
    connect(LARGE)
    until(lambda: len(paused(server)) == 2)
    for _ in range(3):
        assert httpx.get(f"http://127.0.0.1:{port}/", timeout=20).text == "ok"
