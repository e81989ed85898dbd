"""Reads what Celery wrote into a message: the payload is kombu's, as JSON."""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from kombu.compression import decompress
from kombu.serialization import loads, prepare_accept_content


def body(payload: Mapping[str, Any]) -> bytes:
    """Returns the body as its serializer wrote it."""
    written = payload["body"]
    is_encoded = payload["properties"].get("body_encoding") == "base64"
    raw = b64decode(written) if is_encoded else str(written).encode()
    compression = payload["headers"].get("compression")
    return bytes(decompress(raw, compression)) if compression else raw


def call(
    app: Celery, payload: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any], dict[str, Any]]:
    """Returns a task's arguments, and what the body says of others: callbacks, chain and chord.

    Raises kombu's errors for content that the app does not accept or can't decode.
    """
    accept = prepare_accept_content(app.conf.accept_content)
    kind, encoding = payload["content-type"], payload["content-encoding"]
    args, kwargs, embedded = loads(body(payload), kind, encoding, accept=accept)
    return args, kwargs, dict(embedded or {})
