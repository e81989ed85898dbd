"""Keeps this process's recorder; a forked child gets a new one."""

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pgbeat.database import forks

if TYPE_CHECKING:
    from pgbeat.worker.recording.recorder import Recorder


class _Busy:
    """A lock that the recorder holds while it works, and that delays forks for up to a second."""

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


def use(make: "Callable[[], Recorder] | None") -> None:
    """Sets how this process and its children make their recorders; `None` turns that off."""
    global _make
    _make = make


def get() -> "Recorder | None":
    """Returns this process's recorder, made at the first call."""
    global _recorder
    if _recorder is None and _make is not None:
        with _making:
            if _recorder is None:
                _recorder = _make()
    return _recorder


def close(seconds: float) -> None:
    """Writes the rest, within `seconds`, and ends the recorder."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None:
        recorder.close(seconds)


def _disown() -> None:
    global busy, _recorder, _making
    recorder, _recorder = _recorder, None
    busy, _making = _Busy(), threading.Lock()
    if recorder is not None:
        file = recorder.fileno()
        forks.disown(recorder, [] if file is None else [file])


os.register_at_fork(before=lambda: busy.before_fork(), after_in_parent=lambda: busy.after_fork())
forks.in_child(_disown)
