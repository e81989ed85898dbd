"""Headers that messages carry from where they are sent, such as the W3C context of a trace."""

from collections.abc import Callable, Mapping
from typing import Any

#: Each returns headers for what is sent now. Integrations add theirs.
carriers: list[Callable[[], Mapping[str, str]]] = []


def carried_headers() -> dict[str, str]:
    """Returns these headers of now; none without an integration."""
    return {name: value for carry in carriers for name, value in carry().items()}


def with_headers(options: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """Returns publish options with headers; those that the options have are stronger."""
    return {**options, "headers": {**headers, **(options.get("headers") or {})}}
