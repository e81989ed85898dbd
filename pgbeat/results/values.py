"""Encodes values beside results: those of steps by a task's serializer, those of events as JSON."""

import json
from collections.abc import Callable, Collection
from typing import Any

from celery.backends import base
from kombu.exceptions import EncodeError as EncodeError
from kombu.serialization import dumps, loads, prepare_accept_content
from kombu.utils import json as kombu_json

from pgbeat.results.rows import Encoded
from pgbeat.storable import storable_json

#: Decompresses a value's body. Of celery 5.7; before it none is compressed.
decompressed: Callable[[bytes], bytes] = getattr(
    base, "decompress_payload", lambda payload: payload
)


def encode(value: Any, serializer: str) -> Encoded:
    """Returns a value as the serializer of that name writes it. Raises `EncodeError`."""
    content_type, encoding, body = dumps(value, serializer=serializer)
    written = body.encode(errors="surrogatepass") if isinstance(body, str) else bytes(body)
    return Encoded(written, content_type, encoding)


def decode(value: Encoded, accept: Collection[str]) -> Any:
    """Returns a value.

    `accept` has serializers and content types. Raises kombu's `ContentDisallowed` for another.
    """
    return loads(
        value.body, value.content_type, value.content_encoding, prepare_accept_content(accept)
    )


def as_json(value: Any) -> str:
    """Returns a value as the serializer `json` writes it, if Postgres can keep that.

    Raises `TypeError`, `ValueError` or `RecursionError` otherwise.
    """
    return storable_json(json.loads(kombu_json.dumps(value)))


def from_json(text: str) -> Any:
    """Returns the value of such JSON."""
    return kombu_json.loads(text)
