"""Holds back messages that a task sends until its end is committed.

These are its retry (the message with its own id), and, once it has returned, its callbacks and the
next link of its chain, with what belongs to them: the size of a chord.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

_held: ContextVar["HeldMessages | None"] = ContextVar("pgbeat_held_messages", default=None)


class _Held(NamedTuple):
    channel: Any
    message: dict[str, Any]
    exchange: str
    routing_key: str
    options: dict[str, Any]


class HeldMessages:
    """The messages of one task, held back from now on in its thread (greenlet)."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        #: Whether to hold all tasks' messages, not only those with the task's own id.
        self.takes_all = False
        self._held: list[_Held | Callable[[], object]] = []
        self._is_publishing = False
        _held.set(self)

    def __bool__(self) -> bool:
        return bool(self._held)

    def takes(self, message: Any) -> bool:
        """Returns whether the message must be held back."""
        headers = message["headers"] or {}
        if self._is_publishing or "task" not in headers:
            return False
        return self.takes_all or headers.get("id") == self._task_id

    def takes_action(self) -> bool:
        """Returns whether what belongs to the messages must be held back."""
        return self.takes_all and not self._is_publishing

    def add(self, held: "_Held | Callable[[], object]") -> None:
        """Adds a message, or what belongs to it."""
        self._held.append(held)

    def clear(self) -> None:
        """Drops them."""
        self._held.clear()

    def publish(self, block: Any = None) -> None:
        """Publishes them: in the transaction of a block, or at once. May be called again."""
        self._is_publishing = True
        try:
            for held in self._held:
                if not isinstance(held, _Held):
                    held()
                    continue
                joined = None if block is None else block.channel_for(held.channel.broker)
                # Publishing changes the message.
                properties = held.message["properties"]
                info = dict(properties.get("delivery_info") or {})
                message = {**held.message, "properties": {**properties, "delivery_info": info}}
                channel = held.channel if joined is None else joined
                channel.basic_publish(message, held.exchange, held.routing_key, **held.options)
        finally:
            self._is_publishing = False

    def close(self) -> None:
        """Holds back nothing more."""
        if _held.get() is self:
            _held.set(None)


def would_hold(task_id: str) -> bool:
    """Returns whether a task's message is held back here."""
    held = _held.get()
    return held is not None and held.takes({"headers": {"task": True, "id": task_id}})


def hold(
    channel: Any, message: Any, exchange: str, routing_key: str, options: dict[str, Any]
) -> bool:
    """Holds back a message, if the running task's end is to publish it; returns whether it does."""
    held = _held.get()
    if held is None or not held.takes(message):
        return False
    held.add(_Held(channel, message, exchange, routing_key, options))
    return True


def hold_action(action: Callable[[], object]) -> bool:
    """Holds back what belongs to messages that are held back here; returns whether it does."""
    held = _held.get()
    if held is None or not held.takes_action():
        return False
    held.add(action)
    return True
