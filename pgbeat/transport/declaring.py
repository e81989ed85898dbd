"""Declaring queues for what is published into a caller's transaction."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from sqlalchemy.exc import DBAPIError

from pgbeat import leases

#: Seconds to wait for a lock that the caller's own transaction may hold.
_PATIENCE = 1.0


def briefly(
    connection: Any,
    tables: Any,
    patience: float,
    function: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Calls a function of the domain that waits no longer than `patience` (seconds) for a lock."""
    leases.limit_waiting(connection, patience)
    return function(connection, tables, *args, **kwargs)


def at_once(declare: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a channel's method declare at once, also for what goes into a caller's transaction:
    others must not wait for that to end before they can publish to the same queue.

    Where the transaction has declared the same already, by another way, waiting for it would be in
    vain; then it is declared once more in there.
    """

    @wraps(declare)
    def declare_at_once(self: Any, *args: Any, **kwargs: Any) -> Any:
        other = self.enclosing(*args[:1], kwargs.get("queue"), kwargs.get("exchange"))
        if other is None or self.patience is not None:
            return declare(self, *args, **kwargs)
        self.patience = _PATIENCE
        try:
            return declare(self, *args, **kwargs)
        except DBAPIError as error:
            if not leases.is_lock_timeout(error):
                raise
        finally:
            self.patience = None
        other.note_client(self.connection.client)
        return getattr(other, declare.__name__)(*args, **kwargs)

    return declare_at_once
