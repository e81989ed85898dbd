"""Has a child process let go of what belongs to its parent, such as open connections."""

import os
from collections.abc import Callable

_in_child: list[Callable[[], object]] = []
#: The process for which that was done.
_pid = os.getpid()


def in_child(callback: Callable[[], object]) -> None:
    """Has `callback` called in each child process of this one."""
    _in_child.append(callback)


def check_process() -> None:
    """Calls what `in_child` was given if Python did not notice the fork, as under uWSGI.

    It must be called before a connection is used that a parent may have opened: both processes
    would use one socket.
    """
    if os.getpid() != _pid:
        _after_fork()


def _after_fork() -> None:
    global _pid
    _pid = os.getpid()
    for callback in _in_child:
        callback()


os.register_at_fork(after_in_child=_after_fork)
