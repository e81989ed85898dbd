"""One request of a webhook: how it is signed, where it may go, what may come back."""

import base64
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from pgbeat.webhooks import pool
from pgbeat.webhooks.addresses import refusal
from pgbeat.webhooks.http import Reply, check_url, post
from pgbeat.webhooks.signing import check_secret, headers, new_secret
from tests.support.webhook_receiver import Receiver, answering

BODY = '{"type": "job.failed", "data": {"error": "Søndag går ikke"}}'.encode()
Send = Callable[..., Reply]


@pytest.fixture
def send(receiver: Receiver) -> Send:
    """Posts to the receiver, which is on a private network, and that is allowed."""

    def call(url: str | None = None, sent: dict[str, str] | None = None, **options: Any) -> Reply:
        return post(url or receiver.url(), sent or {}, BODY, **{"private": True, **options})

    return call


# -- signatures --------------------------------------------------------------------------------


def test_a_request_is_signed_as_the_specification_says(receiver: Receiver, send: Send) -> None:
    secret = new_secret()
    sent = headers("0d3f", int(time.time()), BODY, [secret])
    assert send(receiver.url("/in?token=x%20y"), sent).is_delivered
    (request,) = receiver.received
    assert request.body == BODY
    assert request.path == "/in?token=x%20y"
    assert request.id == "0d3f"
    assert request.is_signed_with(secret)
    assert not request.is_signed_with(new_secret())
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"] == "pgbeat"
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"


def test_the_signature_is_the_one_of_the_specification_s_libraries() -> None:
    """Made with the secret, id, time and body that their test suites share."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    made = headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [secret])
    assert made["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_specification_s_own_library_accepts_it(receiver: Receiver, send: Send) -> None:
    secrets = [new_secret(), new_secret()]
    send(sent=headers("0d3f", int(time.time()), BODY, secrets))
    (request,) = receiver.received
    for secret in secrets:
        Webhook(secret).verify(request.body, request.headers)


def test_secrets() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(check_secret(secret) == [] for secret in made)
    for size in (24, 32, 64):
        assert check_secret("whsec_" + base64.b64encode(b"k" * size).decode()) == []
    bare = base64.b64encode(b"k" * 32).decode()
    for wrong in ("", "hunter2", "whsec_no base64!", bare):
        [found] = check_secret(wrong)
        assert (found.field, found.code) == ("secret", "malformed")
    for size in (23, 65):
        [found] = check_secret("whsec_" + base64.b64encode(b"k" * size).decode())
        assert (found.field, found.code) == ("secret", "out_of_range")


# -- what comes back ---------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_delivered(status: int, receiver: Receiver, send: Send) -> None:
    receiver.answers.append(status)
    answer = send()
    assert (answer.status, answer.error, answer.is_delivered) == (status, None, True)
    assert answer.ms > 0


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, "it answered 400 Bad Request"),
        (404, "it answered 404 Not Found"),
        (410, "it answered 410 Gone"),
        (500, "it answered 500 Internal Server Error"),
        (599, "it answered 599"),
    ],
)
def test_not_delivered(status: int, error: str, receiver: Receiver, send: Send) -> None:
    receiver.answers.append(status)
    answer = send()
    assert (answer.status, answer.error, answer.is_delivered) == (status, error, False)
    assert answer.is_gone == (status == 410)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int, receiver: Receiver, send: Send) -> None:
    receiver.answers.append(answering(status, Location=receiver.url("/elsewhere")))
    answer = send()
    assert answer.error is not None and "redirects are not followed" in answer.error
    assert [request.path for request in receiver.received] == ["/hook"]


def test_when_to_come_back(receiver: Receiver, send: Send) -> None:
    def after(text: str) -> float | None:
        receiver.answers.append(answering(503, Retry_After=text))
        return send().retry_after

    assert after("120") == 120
    date = after(format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True))
    assert date is not None and 80 < date <= 90
    assert after(format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)) == 0
    assert after("soon") is None
    assert after("-5") is None
    receiver.answers.append(503)
    assert send().retry_after is None


def test_a_receiver_that_hangs(receiver: Receiver, send: Send) -> None:
    receiver.answers.append(receiver.hang)
    answer = send(timeout=0.3)
    assert (answer.status, answer.error) == (None, "no answer within 0.3 s")
    assert 300 <= answer.ms < 5000


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n"])
def test_a_receiver_that_sends_a_byte_now_and_then(
    beginning: bytes, receiver: Receiver, send: Send
) -> None:
    """Each of its bytes comes in time; the answer doesn't."""

    def drip(handler: Any) -> None:
        handler.wfile.write(beginning)
        while not receiver.released.wait(0.05):
            handler.wfile.write(b"x")

    receiver.answers.append(drip)
    answer = send(timeout=0.5)
    assert (answer.status, answer.error) == (None, "no answer within 0.5 s")
    assert answer.ms < 5000


def test_a_receiver_that_takes_nothing_in(send: Send) -> None:
    """It accepts the connection, and reads nothing: a large body fills all buffers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        answer = post(url, {}, b"x" * 50_000_000, private=True, timeout=0.5)
    assert answer.error == "no answer within 0.5 s"
    assert answer.ms < 10_000


def test_a_huge_response(receiver: Receiver, send: Send) -> None:
    """It has the event, and is no longer listened to."""
    written: list[int] = []
    stopped = threading.Event()

    def flood(handler: Any) -> None:
        handler.answer(200, Content_Type="text/plain")
        try:
            while len(written) < 100_000:
                handler.wfile.write(b"x" * 65_536)
                written.append(65_536)
        finally:
            stopped.set()

    receiver.answers.append(flood)
    answer = send()
    assert answer.is_delivered
    assert stopped.wait(30)
    assert sum(written) < 50_000_000  # what the kernel's buffers hold, of 6.5 GB


def test_a_response_whose_body_never_ends_is_not_waited_for(receiver: Receiver, send: Send) -> None:
    def begin(handler: Any) -> None:
        handler.answer(200, Content_Length="10")
        handler.wfile.flush()
        receiver.hang(handler)

    receiver.answers.append(begin)
    answer = send()
    assert answer.is_delivered
    assert answer.ms < 8000


@pytest.mark.parametrize(
    "reply",
    [
        b"\x1b[31mSSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200,
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
        b"HTTP/1.1 abc\r\n\r\n",
        b"",
    ],
)
def test_what_is_no_answer_of_http(reply: bytes, receiver: Receiver, send: Send) -> None:
    def say(handler: Any) -> None:
        handler.wfile.write(reply)
        handler.close_connection = True

    receiver.answers.append(say)
    answer = send()
    assert answer.status is None
    assert answer.error and answer.error.isprintable() and len(answer.error) <= 300


def test_nobody_there(send: Send) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert send(f"http://127.0.0.1:{port}/").error == "ConnectionRefusedError: Connection refused"
    answer = send("http://no-such-host.invalid/")
    assert answer.error is not None
    assert answer.error.startswith("no-such-host.invalid ")


def test_proxies_of_the_environment_are_not_used(
    receiver: Receiver, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    assert send().is_delivered


# -- where it may go ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("127.0.0.1", "a loopback address"), ("127.255.0.3", "a loopback address"),
        ("::1", "a loopback address"), ("0.0.0.0", "the unspecified address"),  # noqa: S104
        ("::", "the unspecified address"), ("169.254.169.254", "a link-local address"),
        ("fe80::1", "a link-local address"), ("fe80::1%eth0", "a link-local address"),
        ("224.0.0.1", "a multicast address"), ("ff02::1", "a multicast address"),
        *[(address, "an address of a private or reserved network") for address in (
            "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "0.1.2.3",
            "192.0.0.1", "192.0.2.1", "198.18.0.1", "203.0.113.1", "240.0.0.1", "255.255.255.255",
            "fc00::1", "fd12:3456::1", "fec0::1", "2001:db8::1", "100::1", "64:ff9b:1::1",
        )],
        ("::ffff:127.0.0.1", "a loopback address"),
        ("::ffff:169.254.169.254", "a link-local address"),
        ("::127.0.0.1", "a loopback address"), ("64:ff9b::127.0.0.1", "a loopback address"),
        ("64:ff9b::a00:1", "an address of a private or reserved network"),
        ("2002:7f00:1::", "a loopback address"),
    ],
)  # fmt: skip
def test_addresses_that_are_refused(address: str, what: str) -> None:
    assert refusal(address) == what


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "172.32.0.1",
        "100.128.0.1",
        "2606:4700:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::",
        "example.com",
    ],
)
def test_addresses_that_are_public(address: str) -> None:
    assert refusal(address) is None


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0",
    ],
)
def test_a_name_of_this_machine_is_refused(host: str, receiver: Receiver, send: Send) -> None:
    """However it is written, and whatever has to be asked for its address."""
    answer = send(f"http://{host}:{receiver.port}/hook", private=False)
    assert answer.error is not None
    assert "pgbeat_webhook_private" in answer.error
    assert receiver.received == []
    assert check_url(f"http://{host}/", private=False)
    assert not check_url(f"http://{host}/", private=True)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Has a name mean these addresses, one list after the other; the names that were asked for.

    It stands for a name server of the internet, which can't be reached from a test.
    """

    def answer(*answers: list[str]) -> list[str]:
        left, asked = list(answers), []

        def getaddrinfo(host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
            asked.append(host)
            addresses = left.pop(0) if len(left) > 1 else left[0]
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port))
                for address in addresses
            ]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return asked

    return answer


def test_one_address_that_is_refused_is_enough(
    names: Callable[..., list[str]], receiver: Receiver, send: Send
) -> None:
    names(["93.184.215.14", "127.0.0.1"])
    answer = send(f"http://hook.example:{receiver.port}/", private=False)
    assert answer.error is not None
    assert answer.error.startswith("hook.example is 127.0.0.1, a loopback address: not sent")
    assert receiver.received == []


def test_the_name_is_asked_for_once_and_goes_along(
    names: Callable[..., list[str]], receiver: Receiver, send: Send
) -> None:
    """A second answer would be another one: that is how a check is got around."""
    asked = names(["127.0.0.1"], ["192.0.2.1"])
    assert send(f"http://hook.example:{receiver.port}/").is_delivered
    assert asked == ["hook.example"]
    assert receiver.received[0].headers["host"] == f"hook.example:{receiver.port}"


def test_the_next_address_is_tried(
    names: Callable[..., list[str]], receiver: Receiver, send: Send
) -> None:
    names(["127.0.0.2", "127.0.0.1"])  # nobody listens at the first
    assert send(f"http://hook.example:{receiver.port}/").is_delivered


@pytest.mark.parametrize(
    ("url", "count"),
    [
        ("ftp://example.com/", 1),
        ("example.com/hook", 2),
        ("https:///hook", 1),
        ("https://user:hunter2@example.com/", 1),
        ("https://example.com/#part", 1),
        ("https://example.com:99999/", 1),
        ("https://example.com:0/", 1),
        ("https://[::1/", 1),
        ("https://example.com/a b", 1),
        ("https://example.com/\r\nX: y", 1),
        ("", 1),
        ("http://10.0.0.1/", 1),
    ],
)
def test_urls_that_are_refused(url: str, count: int, receiver: Receiver) -> None:
    found = check_url(url, private=False)
    assert [(each.field, each.code) for each in found] == [("url", "malformed")] * count
    error = "; ".join(problem.message for problem in found)
    assert "hunter2" not in error
    if "10.0.0.1" not in url:  # which is only refused where private addresses are
        assert post(url, {}, BODY, private=True).error == error[:300]


# -- TLS ---------------------------------------------------------------------------------------


@pytest.fixture
def secured(
    tmp_path: Path, receiver: Receiver, names: Callable[..., list[str]]
) -> Iterator[list[str | None]]:
    """Puts the receiver behind TLS, with a certificate for `hook.example`, which is the name that
    127.0.0.1 has; the names that clients ask it for.
    """
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=hook.example -addext subjectAltName=DNS:hook.example"
    )
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request.split(), *files], check=True, capture_output=True)
    asked: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    plain = receiver.server.socket
    receiver.server.socket = context.wrap_socket(plain, server_side=True)
    names(["127.0.0.1"])
    pool._context.cache_clear()
    yield asked
    pool._context.cache_clear()


def test_tls_asks_for_the_name_and_checks_the_certificate(
    secured: list[str | None],
    tmp_path: Path,
    receiver: Receiver,
    send: Send,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    assert send(f"https://hook.example:{receiver.port}/").error is None
    assert secured == ["hook.example"]
    assert receiver.received[0].headers["host"] == f"hook.example:{receiver.port}"
    wrong = send(f"https://other.example:{receiver.port}/")
    assert wrong.error is not None and wrong.error.startswith("its certificate is not accepted: ")
    assert len(receiver.received) == 1


def test_a_certificate_that_nobody_vouches_for(
    secured: list[str | None], receiver: Receiver, send: Send
) -> None:
    answer = send(f"https://hook.example:{receiver.port}/")
    assert answer.error == "its certificate is not accepted: self-signed certificate"
    assert receiver.received == []
