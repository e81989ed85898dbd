"""Makes functions of pgbeat's reach named steps, at which a process may die."""

from collections.abc import Callable
from typing import Any


def between(
    reached: Callable[[str], None], owner: Any, name: str, before: str | None, after: str | None
) -> None:
    """Makes a function, or a method, reach a step before it, and one after it."""
    function: Callable[..., Any] = getattr(owner, name)

    def stepping(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            reached(before)
        found = function(*args, **kwargs)
        if after is not None:
            reached(after)
        return found

    setattr(owner, name, stepping)
