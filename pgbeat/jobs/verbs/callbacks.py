"""Signs URLs of the web app by which third parties emit an event, and verifies them.

A URL ends in a code: the end of its validity and the event's key, and a signature of both and of
the namespace. So nothing is stored, and who has no URL learns nothing about keys.
"""

import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from math import ceil

from celery import Celery, current_app

from pgbeat.config import Settings, settings_of
from pgbeat.errors import ConfigError, InvalidInput, InvalidToken, Problem
from pgbeat.jobs.running.steps import checked_name
from pgbeat.jobs.running.task_exceptions import LONGEST, Snooze
from pgbeat.timetables.durations import span

#: Where the web app has them.
PATH = "/callbacks/"
#: For how long they are valid, unless it is said.
_USUAL = timedelta(days=7)


def callback_url(
    key: str, *, expires: str | float | timedelta | None = None, app: Celery | None = None
) -> str:
    """Returns a URL to which a third party may POST to emit an event, without a token.

        request_payment(order_id, pgbeat.callback_url(f"paid/{order_id}"))
        paid = pgbeat.wait_for(f"paid/{order_id}", timeout="7 days")

    The body is the event's value: JSON of up to 1 MB, or nothing. As by `pgbeat.emit`, the first
    call emits the event, and later ones change nothing.

    Needs `pgbeat_web_url`, and the same `pgbeat_callback_key` as the web app has.

    Args:
        key: The event's: 1 to 200 printable characters.
        expires: For how long it is valid, as the delay of `pgbeat.sleep`; up to
            `pgbeat_event_days`, since an event that is forgotten could be emitted again. By default
            7 days, or those if they are fewer.
        app: By default Celery's current app.

    Raises:
        InvalidInput: The key or the time is invalid.
        ValueError, TypeError: `expires` is no length of time.
        ConfigError: A setting is missing.
    """
    settings = settings_of(app or current_app._get_current_object())
    lifetime = None if expires is None else Snooze(expires).delay
    return signed(settings, key, lifetime, now=time.time())[0]


def signed(
    settings: Settings, key: str, lifetime: timedelta | None, *, now: float
) -> tuple[str, datetime]:
    """Returns the URL of a key, and its end. `now` is in seconds since 1970."""
    checked_name(key, "key")
    needed = {"web_url": settings.web_url, "callback_key": settings.callback_key}
    if missing := [name for name, value in needed.items() if not value]:
        raise ConfigError(
            Problem(f"pgbeat_{name}", "required", f"pgbeat_{name}: callback URLs need it")
            for name in missing
        )
    longest = timedelta(days=settings.event_days) or timedelta(seconds=LONGEST)
    lifetime = min(_USUAL, longest) if lifetime is None else lifetime
    if not timedelta(0) < lifetime <= longest:
        message = (
            f"a callback URL must expire within {span(longest)} (pgbeat_event_days), when its "
            "event may be forgotten"
        )
        raise InvalidInput.of("expires", "out_of_range", message)
    end = ceil(now + lifetime.total_seconds())
    payload = _text(f"{end} {key}".encode())
    code = f"{payload}.{_signature(settings, payload)}"
    return f"{settings.web_url.rstrip('/')}{PATH}{code}", datetime.fromtimestamp(end, UTC)


def verify(settings: Settings, code: str, *, now: float) -> str:
    """Returns the key of the event that a code may emit.

    Raises `InvalidToken`, which is the same whatever is wrong. Reads nothing that is not signed.
    """
    payload, _, signature = code.partition(".")
    is_signed = settings.callback_key and code.isascii()
    if is_signed and hmac.compare_digest(_signature(settings, payload), signature):
        end, _, key = urlsafe_b64decode(payload + "=" * (-len(payload) % 4)).decode().partition(" ")
        if now < int(end):
            return key
    raise InvalidToken("the callback URL is invalid, or has expired")


def _signature(settings: Settings, payload: str) -> str:
    content = f"pgbeat callback\n{settings.namespace}\n{payload}".encode()
    return _text(hmac.digest(settings.callback_key.encode(), content, sha256))


def _text(value: bytes) -> str:
    return urlsafe_b64encode(value).decode().rstrip("=")
