"""Signs webhooks as the Standard Webhooks specification says (https://www.standardwebhooks.com)."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable

from pgbeat.errors import Problem

_PREFIX = "whsec_"


def new_secret() -> str:
    """Returns a random secret: `whsec_` and 32 bytes in base64."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def check_secret(secret: str) -> list[Problem]:
    """Returns what is wrong with a secret. The messages don't repeat it."""
    try:
        size = len(_key(secret))
    except ValueError:
        size = None
    if size is None or not secret.startswith(_PREFIX):
        message = "secret: it must be whsec_ and 24 to 64 random bytes in base64"
        return [Problem("secret", "malformed", message)]
    if 24 <= size <= 64:
        return []
    return [Problem("secret", "out_of_range", f"secret: it has {size} bytes; it needs 24 to 64")]


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)


def headers(
    message_id: str, timestamp: int, body: bytes, signed_with: Iterable[str]
) -> dict[str, str]:
    """Returns the headers of an attempt, with a signature for each secret.

    `timestamp` is the attempt's, in seconds since 1970. All attempts have the same id.
    """
    content = f"{message_id}.{timestamp}.".encode() + body
    digests = [hmac.digest(_key(secret), content, hashlib.sha256) for secret in signed_with]
    signatures = [f"v1,{base64.b64encode(digest).decode()}" for digest in digests]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
