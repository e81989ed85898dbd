"""Declares the ports through which the broker uses packages above it; `pgbeat.wiring` fills them.

The functions load what they need when they are first called: the broker works without jobs.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from pgbeat.broker.messages import Message
    from pgbeat.broker.transport.broker import Working


class JobWriter(Protocol):
    """Makes jobs of tasks that have a policy."""

    def has_policy(self, app: Any, name: str) -> bool:
        """Returns whether sending a task makes a job. Raises `InvalidJob`."""

    def send(self, app: Any, sender: Any, name: str, args: Any, kwargs: Any, options: Any) -> Any:
        """Sends a task that has a policy by `sender`, an app's `send_task`; returns its result."""

    def write(
        self, connection: "Connection", batch: "Sequence[Message]", *, is_own: bool = False
    ) -> "list[Message]":
        """Writes the jobs that messages make, and returns the messages to write now.

        `is_own` is whether the transaction is pgbeat's.
        """

    def write_at_once(self, working: "Working", message: "Message") -> bool:
        """Writes a message with the job that it makes; returns false if `write` must do it.

        The connection is in autocommit mode.
        """

    def end_discarded(self, connection: "Connection") -> None:
        """Ends jobs without lane and group whose messages the open transaction has discarded."""


job_writer: Callable[[], JobWriter]
#: Makes Celery's apps send plain tasks by templates, if Celery is what publishes here.
equip_apps: Callable[[], None]
