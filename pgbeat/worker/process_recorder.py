"""Keeps this process's recorder, and gives a forked child one of its own."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgbeat.worker.recorder import Recorder


class _Busy:
    """A lock that the recorder holds while it works.

    No child is forked meanwhile, unless that takes too long.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_held = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        self._is_held = self._lock.acquire(timeout=1.0)

    def after_fork(self) -> None:
        if self._is_held:
            self._is_held = False
            self._lock.release()


busy = _Busy()
_make: "Callable[[], Recorder] | None" = None
_recorder: "Recorder | None" = None
_making = threading.Lock()
#: The parent's recorders: kept, so that nothing closes their connections in its name.
_inherited: "list[Recorder]" = []


def use(make: "Callable[[], Recorder] | None") -> None:
    """Sets how this process and its children make their recorders; `None` turns that off."""
    global _make
    _make = make


def get() -> "Recorder | None":
    """Returns this process's recorder, made when first asked for."""
    global _recorder
    if _recorder is None and _make is not None:
        with _making:
            if _recorder is None:
                _recorder = _make()
    return _recorder


def close(seconds: float) -> None:
    """Writes what is left to record, within so many seconds, and ends the recorder."""
    global _recorder
    found, _recorder = _recorder, None
    if found is not None:
        found.close(seconds)


def _in_child() -> None:
    """Drops the parent's recorder in a child, which must not keep its connection open."""
    global busy, _recorder, _making
    found, _recorder = _recorder, None
    busy, _making = _Busy(), threading.Lock()
    if found is not None:
        _inherited.append(found)
        file = found.fileno()
        if file is not None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            with suppress(OSError):
                os.dup2(nowhere, file)
            os.close(nowhere)


os.register_at_fork(
    before=lambda: busy.before_fork(),
    after_in_parent=lambda: busy.after_fork(),
    after_in_child=_in_child,
)
