"""Posts webhooks over HTTP, by default only to public addresses.

The name in the URL is resolved once, and all its addresses are checked. The connection goes to one
of these, even if the name has other addresses a moment later. Redirects are not followed, and
proxies of the environment are not used.
"""

import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from pgbeat.errors import Problem
from pgbeat.webhooks.addresses import refusal

#: Seconds for a whole request: resolving, connecting, handshake, and the head of the response.
#: Resolving can't be interrupted. If it takes longer, the request ends after it.
TIMEOUT = 10.0
# How many bytes of a response's body are read, and for how many seconds.
_BODY, _BODY_SECONDS = 65_536, 1.0
_PIECE = 16_384


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
        said = "it must have 1 to 2000 printable ASCII characters; encode others as %.. or xn--…"
        return [Problem("url", "malformed", f"url: {said}")]
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
    found = None if private else refusal(_literal(host))
    if found is not None:
        mistakes.append(f"{host} is {found}, to which webhooks are not sent{_UNLESS}")
    return [Problem("url", "malformed", f"url: {mistake}") for mistake in mistakes]


_UNLESS = "; the setting pgbeat_webhook_private allows it"


def _literal(host: str) -> str:
    """Returns the host, as a normal address if it is one in another form: `127.1`, `0x7f000001`."""
    if host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost"):
        return "127.0.0.1"
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return host


class _Refused(Exception):
    """The request is not made, for the reason in the message."""


def _resolve(host: str, port: int, *, private: bool) -> list[tuple[Any, ...]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _Refused(f"{host} can't be resolved: {reason}") from None
    for *_, address in found:
        problem = None if private else refusal(str(address[0]))
        if problem is not None:
            raise _Refused(f"{host} is {address[0]}, {problem}: not sent{_UNLESS}")
    return found


def post(
    url: str, sent: Mapping[str, str], body: bytes, *, private: bool, timeout: float = TIMEOUT
) -> Reply:
    """Posts a body with these headers once. Reports errors in the reply, and never raises.

    `private` allows this machine and private networks. `timeout` is for the whole request, in
    seconds, even if the receiver sends slowly.
    """
    begun = time.monotonic()
    status, retry_after = None, None
    try:
        response = _exchange(url, sent, body, private=private, deadline=begun + timeout)
        status, retry_after = response.status, _seconds(response.getheader("Retry-After"))
        error = _problem(status)
    except _Refused as refused:
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
        error = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in error[:300])
    return Reply(status, error, round((time.monotonic() - begun) * 1000, 1), retry_after)


def _problem(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"it answered {status}; redirects are not followed, give the webhook the new URL"
    return f"it answered {status} {http.client.responses.get(status, '')}".rstrip()


def _exchange(
    url: str, sent: Mapping[str, str], body: bytes, *, private: bool, deadline: float
) -> http.client.HTTPResponse:
    mistakes = check_url(url, private=True)
    if mistakes:
        raise _Refused("; ".join(each.message for each in mistakes))
    parts = urlsplit(url)
    host, secure = str(parts.hostname), parts.scheme == "https"
    found = _resolve(host, parts.port or (443 if secure else 80), private=private)
    with _connect(found, deadline) as plain, _secured(plain, host, secure) as raw:
        connection = http.client.HTTPConnection("receiver")
        timed: Any = _Timed(raw, deadline)
        connection.sock = timed
        named = {
            "Host": _host(parts),
            "User-Agent": "pgbeat",
            "Content-Type": "application/json",
            "Connection": "close",
            **sent,
        }
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, body, named)
        response = connection.getresponse()
        # If the connection were closed while the body is on its way, the receiver would fail.
        timed.deadline = min(deadline, time.monotonic() + _BODY_SECONDS)
        with suppress(OSError, http.client.HTTPException, ValueError):
            response.read(_BODY)
        return response


def _host(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else str(parts.hostname)
    return host if parts.port is None else f"{host}:{parts.port}"


def _connect(found: list[tuple[Any, ...]], deadline: float) -> socket.socket:
    """Connects to the first address that answers. Each gets its share of the time."""
    error: OSError = OSError("it has no address")
    for position, (family, kind, protocol, _, address) in enumerate(found):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(_left(deadline) / (len(found) - position))
            made.connect(address)
            made.settimeout(_left(deadline))
            return made
        except OSError as wrong:
            made.close()
            error = wrong
    raise error


def _secured(plain: socket.socket, host: str, secure: bool) -> socket.socket:
    return _context().wrap_socket(plain, server_hostname=host) if secure else plain


@lru_cache(maxsize=1)
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


class _Timed(io.RawIOBase):
    """Gives a socket one deadline for all its work, instead of a timeout for each piece."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        super().__init__()
        self._socket, self.deadline = connected, deadline

    def sendall(self, data: Any) -> None:
        """Sends data in pieces of one TLS record, and checks the time between them."""
        for start in range(0, len(data), _PIECE):
            self._socket.settimeout(_left(self.deadline))
            self._socket.sendall(data[start : start + _PIECE])

    def makefile(self, mode: str) -> io.BufferedReader:
        """Returns a file that reads from the socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Returns True, as files do."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Receives some bytes."""
        self._socket.settimeout(_left(self.deadline))
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        """Does nothing: http.client calls it before the response is read."""


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
