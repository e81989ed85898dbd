"""Values that many viewers ask for at once, made once in a few seconds for all of them."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")

#: Values that are kept, at most.
_KEPT = 64


class Recent(Generic[Value]):
    """Keeps each value for some seconds. While one caller makes it, others of the same key wait."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._found: dict[Hashable, tuple[float, Value]] = {}
        self._making: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Returns the value of a key, which `make` makes if it is missing or too old."""
        with self._lock:
            kept = self._fresh(key)
            making = self._making.setdefault(key, threading.Lock())
        if kept is not None:
            return kept[1]
        with making:
            with self._lock:
                kept = self._fresh(key)
            if kept is not None:
                return kept[1]
            value = make()
            with self._lock:
                self._found.pop(key, None)
                self._found[key] = time.monotonic(), value
                while len(self._found) > _KEPT:
                    del self._found[next(iter(self._found))]
                self._making = {k: lock for k, lock in self._making.items() if lock.locked()}
        return value

    def _fresh(self, key: Hashable) -> tuple[float, Value] | None:
        kept = self._found.get(key)
        return kept if kept is not None and time.monotonic() - kept[0] < self._seconds else None
