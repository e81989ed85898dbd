"""Middleware: security headers, a limit on bodies, and HEAD."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pgbeat.web.backend import path_below_root

#: The largest body of a request, in bytes.
LARGEST = 1_000_000

#: Seconds after which a client may retry a request that got 503.
_RETRY_AFTER = "5"

#: Headers of every response.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self'; img-src 'self' data:; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Tells how many seconds a replica was behind that a list was read from.
_LAG = "Pgbeat-Read-Lag"
#: Files that browsers may cache.
_STATIC = "/static/"
_TOO_LARGE = (
    b'{"type":"about:blank","title":"Content Too Large","status":413,"code":"too_large",'
    b'"detail":"the request has more than 1 MB"}'
)


class Guards:
    """ASGI middleware that doesn't buffer, because events are streamed.

    It answers HEAD as GET, without the body (RFC 9110, 9.3.2).
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = path_below_root(scope)
        is_head = scope["method"] == "HEAD"
        size, is_over = 0, False

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > LARGEST:
                raise HTTPException(413, "the request has more than 1 MB")
            return message

        async def guarded(message: Message) -> None:
            nonlocal is_over
            if is_over:
                return
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    if name == "Cache-Control" and path.startswith(_STATIC):
                        continue
                    headers.setdefault(name, value)
                if (lag := scope.get("state", {}).get("read_lag")) is not None:
                    headers[_LAG] = f"{lag:.3f}"
                if message["status"] == 503:
                    headers.setdefault("Retry-After", _RETRY_AFTER)
            elif is_head:  # ends streams too
                is_over, message = True, {"type": "http.response.body"}
            await send(message)

        if _announced(scope) > LARGEST:  # answered without waiting for the body
            headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
            await guarded({"type": "http.response.start", "status": 413, "headers": headers})
            await send({"type": "http.response.body", "body": _TOO_LARGE})
            return
        asked = {**scope, "method": "GET"} if is_head else scope
        await self.app(asked, bounded, guarded)


def _announced(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
