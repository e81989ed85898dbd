"""Headers that messages carry from where they are sent, such as the W3C context of a trace."""

from collections.abc import Callable, Mapping
from typing import Any

#: Each returns headers for what is sent now. Integrations add theirs.
carriers: list[Callable[[], Mapping[str, str]]] = []


def carrying(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns publish options with these headers; those that the options have are stronger."""
    carried = {name: value for carry in carriers for name, value in carry().items()}
    headers = {**carried, **(options.get("headers") or {})}
    return {**options, "headers": headers} if carried else {**options}
