"""Declaring queues for what is published into a caller's transaction."""

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from sqlalchemy.exc import DBAPIError

from pgbeat.database import lock_waits
from pgbeat.errors import QueueLocked

T = TypeVar("T")
logger = logging.getLogger("pgbeat.transport")

#: Seconds to wait for a lock that the caller's own transaction may hold.
_PATIENCE = 1.0
#: Seconds between two attempts to declare a queue that another process has.
_PAUSE = 0.25


def briefly(
    connection: Any,
    tables: Any,
    patience: float,
    function: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Calls a function of the domain that waits no longer than `patience` (seconds) for a lock."""
    lock_waits.limit_waiting(connection, patience)
    return function(connection, tables, *args, **kwargs)


def after_lease(lease: float, declare: Callable[[], T]) -> T:
    """Calls `declare` until the queue is not exclusive to another process, for at most as long as
    its lease (seconds) lasts.

    Behind a pooler a worker that was killed counts as alive until then, and the one that is started
    in its place has the same name, so that it declares the same queues.
    """
    deadline, was_refused = time.monotonic() + 1.5 * lease, False
    while True:
        try:
            return declare()
        except QueueLocked as error:
            if lease == 0 or time.monotonic() > deadline:
                raise
            if not was_refused:
                logger.warning("Waiting up to %g s for the lease of its owner: %s", lease, error)
            was_refused = True
        time.sleep(_PAUSE)


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
            if not lock_waits.is_lock_timeout(error):
                raise
        finally:
            self.patience = None
        other.note_client(self.connection.client)
        return getattr(other, declare.__name__)(*args, **kwargs)

    return declare_at_once
