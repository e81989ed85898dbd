"""Reads single keys from the terminal."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

try:
    import termios
    import tty
except ImportError:  # not on this system
    HAS_KEYS = False
else:
    HAS_KEYS = True


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Yields a function that waits some seconds for a key, and returns it, or "" without one.

    Keys are not shown, and Ctrl-C interrupts as usual. The end of input counts as a q. If standard
    input is no terminal, it only waits.
    """
    if not (HAS_KEYS and sys.stdin is not None and sys.stdin.isatty()):
        yield _pause
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        yield _key
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _pause(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _key(seconds: float) -> str:
    file = sys.stdin.fileno()
    ready, _, _ = select.select([file], [], [], seconds)
    return os.read(file, 64).decode(errors="replace") or "q" if ready else ""
