"""Connections to receivers: which are used again, and what is checked before one is made."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from pgbeat.webhooks import pool
from pgbeat.webhooks.http import Client, Reply
from tests.support.webhook_receiver import Receiver, answering

OK = answering(200, Content_Length="0")
Send = Callable[..., list[Reply]]


@pytest.fixture
def send(receiver: Receiver) -> Send:
    """Posts one request after the other, by one client."""
    receiver.keep_connections()

    def call(*urls: str, between: Callable[[], None] = lambda: None, **options: Any) -> list[Reply]:
        async def posted() -> list[Reply]:
            client = Client(**{"private": True, **options})
            replies = []
            for url in urls:
                replies.append(await client.request(url, {}, b"{}"))
                between()
            client.close()
            return replies

        return asyncio.run(posted())

    return call


def answer_raw(*pieces: bytes) -> Callable[[Any], None]:
    """Answers with these bytes, and leaves the connection open."""
    return lambda handler: handler.wfile.write(b"".join(pieces))


def connections(receiver: Receiver) -> int:
    return len({request.client for request in receiver.received})


@pytest.mark.parametrize(
    "answer",
    [
        204,
        OK,
        answer_raw(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\nbody"),
        answer_raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 OK\nContent-Length: 0\n\n"),
        answer_raw(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"4\r\nbody\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n",
        ),
    ],
)
def test_a_connection_takes_several_requests(answer: Any, receiver: Receiver, send: Send) -> None:
    receiver.answers += [answer] * 3
    assert all(reply.status for reply in send(*[receiver.url()] * 3))
    assert len(receiver.received) == 3
    assert connections(receiver) == 1


@pytest.mark.parametrize(
    "answer",
    [
        answering(200, Content_Length="0", Connection="close"),
        answering(200, Content_Length="1000000"),
        answer_raw(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"),
        answer_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
        answer_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        answer_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: y\r\n\r\n"),
    ],
)
def test_a_connection_whose_response_has_no_clear_end_takes_no_more(
    answer: Any, receiver: Receiver, send: Send
) -> None:
    receiver.answers += [answer, OK]
    assert [reply.status for reply in send(*[receiver.url()] * 2)] == [200, 200]
    assert len(receiver.received) == connections(receiver) == 2


def test_an_answer_that_no_request_asked_for_answers_none(receiver: Receiver, send: Send) -> None:
    """It comes when the connection waits, and would count for the next event."""
    handlers: list[Any] = []

    def remember(handler: Any) -> None:
        handlers.append(handler)
        handler.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        handler.answer(200, Content_Length="0")

    def push() -> None:
        if handlers:
            handlers.pop().wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    receiver.answers += [remember, 503]
    assert [reply.status for reply in send(*[receiver.url()] * 2, between=push)] == [200, 503]


def test_a_connection_that_the_receiver_closed_is_replaced(receiver: Receiver, send: Send) -> None:
    """Also where it closes it without a word when the next request comes."""

    def vanish(handler: Any) -> None:
        receiver.received.pop()
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    receiver.answers += [OK, vanish, OK]
    assert [reply.status for reply in send(*[receiver.url()] * 2)] == [200, 200]
    assert len(receiver.received) == connections(receiver) == 2


def test_a_new_connection_that_is_closed_without_an_answer_is_not_tried_again(
    receiver: Receiver, send: Send
) -> None:
    receiver.answers.append(answering(200, Content_Length="0", Connection="close"))
    receiver.answers.append(lambda handler: setattr(handler, "close_connection", True))
    replies = send(*[receiver.url()] * 2)
    assert [reply.error for reply in replies] == [
        None,
        "it closed the connection without an answer",
    ]
    assert len(receiver.received) == 2


def test_receivers_share_no_connection(receiver: Receiver, send: Send) -> None:
    """Though they are at the same address."""
    receiver.answers += [OK] * 3
    named = f"http://localhost:{receiver.port}/"
    assert all(reply.is_delivered for reply in send(receiver.url(), named, receiver.url("/b")))
    first, second, third = (request.client for request in receiver.received)
    assert first == third != second


def test_the_name_of_every_new_connection_is_resolved_and_checked(
    receiver: Receiver, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has grown old takes no more requests: the name may lead elsewhere by now."""
    answers = [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]]

    def getaddrinfo(host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
        found = answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, port)) for each in found]

    def refusal(address: str) -> str | None:
        """Stands in for the rules: no public address can be reached from a test."""
        return "forbidden" if address == "127.0.0.2" else None

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(pool, "refusal", refusal)
    receiver.answers += [OK] * 3
    urls = [f"http://hook.example:{receiver.port}/"] * 3
    replies = send(
        *urls[:2], private=False, between=lambda: monkeypatch.setattr(pool, "_LIFETIME", 0.0)
    )
    assert replies[0].is_delivered
    assert replies[1].error is not None
    assert replies[1].error.startswith("hook.example is 127.0.0.2, forbidden: not sent")
    assert len(receiver.received) == 1
    assert answers == []
