"""Converts values to what kombu's JSON serializer makes of them in a message."""

import json
from typing import Any

from kombu.utils.json import dumps


def as_json(value: Any) -> Any:
    """Returns a value as it arrives in a message, with times and the like as kombu writes them.

    Raises `TypeError` for a value that kombu can't write, and `ValueError` for a circular one.
    """
    return json.loads(dumps(value))
