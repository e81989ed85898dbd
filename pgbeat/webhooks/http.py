"""Sends webhooks over HTTP, by default only to public addresses.

Redirects are not followed, and proxies of the environment are not used. Connections stay open for
further requests to the same receiver.
"""

import asyncio
import http.client
import re
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from pgbeat.errors import Problem
from pgbeat.webhooks.addresses import refusal
from pgbeat.webhooks.connection import Connection, Origin
from pgbeat.webhooks.pool import UNLESS, Pool, Refused

#: Seconds for a whole request: resolving, connecting, handshake, and the head of the response.
TIMEOUT = 10.0
# Seconds for the body of a response.
_BODY_SECONDS = 1.0


class Reply(NamedTuple):
    """The result of a request."""

    #: Status of the HTTP response; `None` if none came.
    status: int | None
    #: What went wrong; `None` for a status of 200 to 299.
    error: str | None
    #: Milliseconds that it took.
    ms: float
    #: Seconds after which the receiver wants the next attempt.
    retry_after: float | None = None

    @property
    def is_delivered(self) -> bool:
        """Returns whether the receiver has accepted the event."""
        return self.error is None

    @property
    def is_gone(self) -> bool:
        """Returns whether the receiver wants no more events of this webhook."""
        return self.status == http.client.GONE


def check_url(url: str, *, private: bool) -> list[Problem]:
    """Returns what is wrong with a webhook's URL. The messages don't repeat it: passwords.

    Unless `private`, refuses hosts that are an address of this machine or a private network. Names
    are checked when they are resolved.
    """
    if not re.fullmatch(r"[!-~]{1,2000}", url):
        message = "it must have 1 to 2000 printable ASCII characters; encode others as %.. or xn--…"
        return [Problem("url", "malformed", f"url: {message}")]
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError as error:
        return [Problem("url", "malformed", f"url: {error}")]
    mistakes = []
    if parts.scheme not in ("http", "https"):
        mistakes.append("it must begin with http:// or https://")
    if not host:
        mistakes.append("it has no host")
    if port == 0:
        mistakes.append("the port can't be 0")
    if "@" in parts.netloc:
        mistakes.append("it has a user or a password in it; receivers check the signature instead")
    if parts.fragment:
        mistakes.append("it has a fragment (#…), which is never sent")
    kind = None if private else refusal(_literal(host))
    if kind is not None:
        mistakes.append(f"{host} is {kind}, to which webhooks are not sent{UNLESS}")
    return [Problem("url", "malformed", f"url: {mistake}") for mistake in mistakes]


def _literal(host: str) -> str:
    """Returns the host, as a normal address if it is one in another form: `127.1`, `0x7f000001`."""
    if host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost"):
        return "127.0.0.1"
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return host


def post(
    url: str,
    sent: Mapping[str, str],
    body: bytes | None,
    *,
    private: bool,
    timeout: float = TIMEOUT,
) -> Reply:
    """Posts a body with these headers once. Without a body, makes a GET request.

    Reports errors in the reply, and never raises. `private` allows this machine and private
    networks. `timeout` is for the whole request, in seconds, even if the receiver sends slowly.
    """

    async def call() -> Reply:
        client = Client(private=private)
        try:
            return await client.request(url, sent, body, timeout=timeout)
        finally:
            client.close()

    return asyncio.run(call())


class Client:
    """Sends requests, many at once, over connections that stay open. For one event loop."""

    def __init__(self, *, private: bool) -> None:
        """Allows this machine and private networks if `private`."""
        self._pool = Pool(private=private)

    async def request(
        self, url: str, sent: Mapping[str, str], body: bytes | None, *, timeout: float = TIMEOUT
    ) -> Reply:
        """Posts a body as the function `post` does. Without a body, makes a GET request."""
        begun = time.monotonic()
        status, retry_after = None, None
        try:
            response = await self._exchange(url, sent, body, timeout)
            status, retry_after = response.status, _seconds(response.getheader("Retry-After"))
            error = _problem(status)
        except Refused as refused:
            error = str(refused)
        except TimeoutError:
            error = f"no answer within {timeout:g} s"
        except ssl.SSLCertVerificationError as wrong:
            error = f"its certificate is not accepted: {wrong.verify_message}"
        except http.client.RemoteDisconnected:
            error = "it closed the connection without an answer"
        except (OSError, http.client.HTTPException, ValueError) as wrong:
            error = f"{type(wrong).__name__}: {getattr(wrong, 'strerror', None) or wrong}"
        if error is not None:
            error = "".join(
                c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in error[:300]
            )
        return Reply(status, error, round((time.monotonic() - begun) * 1000, 1), retry_after)

    def close(self) -> None:
        """Closes the connections that no request uses."""
        self._pool.close()

    async def _exchange(
        self, url: str, sent: Mapping[str, str], body: bytes | None, timeout: float
    ) -> http.client.HTTPResponse:
        mistakes = check_url(url, private=True)
        if mistakes:
            raise Refused("; ".join(problem.message for problem in mistakes))
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        origin = Origin(is_secure, str(parts.hostname), parts.port or (443 if is_secure else 80))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with asyncio.timeout_at(deadline):
            request = _head(parts, sent, body) + (body or b"")
            connection, response = await self._send(origin, request, deadline)
        is_reusable = False
        # If the connection were closed while the body is on its way, the receiver would fail.
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + _BODY_SECONDS)):
                is_reusable = await connection.read_body(response)
        except OSError:  # the receiver has the event all the same
            is_reusable = False
        finally:
            if is_reusable:
                self._pool.keep(connection)
            else:
                connection.close()
        return response

    async def _send(
        self, origin: Origin, request: bytes, deadline: float
    ) -> tuple[Connection, http.client.HTTPResponse]:
        kept = self._pool.take(origin)
        if kept is not None:
            # A receiver may close a connection just when it is used again.
            with suppress(OSError, http.client.RemoteDisconnected):
                return kept, await kept.send(request)
        connection = await self._pool.connect(origin, deadline)
        return connection, await connection.send(request)


def _head(parts: SplitResult, sent: Mapping[str, str], body: bytes | None) -> bytes:
    """Returns the first lines of a request."""
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Host": _host(parts), "User-Agent": "pgbeat", "Accept-Encoding": "identity", **sent}
    if body is not None:
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    first = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1"
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _host(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else str(parts.hostname)
    return host if parts.port is None else f"{host}:{parts.port}"


def _problem(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"it answered {status}; redirects are not followed, give the webhook the new URL"
    return f"it answered {status} {http.client.responses.get(status, '')}".rstrip()


def _seconds(text: str | None) -> float | None:
    """Returns the seconds of a `Retry-After` header, which may be a date."""
    if text is None:
        return None
    with suppress(ValueError, OverflowError, TypeError):
        if text.strip().isdecimal():
            return float(text)
        moment = parsedate_to_datetime(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(0.0, moment.timestamp() - time.time())
    return None
