"""Puts off the look at an app's broker until the app sends its first task."""

from collections.abc import Callable
from typing import Any


class FirstSend:
    """An app's `send_task` until it is called; then `equip` may give the app another one.

    It is made with each of a process's apps, so this module imports nothing heavy.
    """

    def __init__(self, app: Any, equip: Callable[[Any], None]) -> None:
        self._app, self._equip = app, equip

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Sends the task as the app does from now on."""
        app = self._app
        if isinstance(sender_of(app), FirstSend):
            del app.send_task
            urls = app.conf.broker_transport, app.conf.broker_write_url, app.conf.broker_url
            if "pgbeat" in str(urls):
                self._equip(app)
        return app.send_task(*args, **options)


def sender_of(app: Any) -> Any:
    """Returns what stands in the place of an app's `send_task`; `None` if nothing does."""
    return vars(app).get("send_task")
