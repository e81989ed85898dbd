"""Makes a child process let go of its parent's property, such as open connections.

Two processes that write to one socket confuse the server, and a session lives as long as any
process has its socket open.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

_in_child: list[Callable[[], object]] = []
#: The process for which that was done.
_pid = 0
#: Objects of the parent's, kept so that nothing closes their connections.
_inherited: list[object] = []


def in_child(callback: Callable[[], object]) -> None:
    """Makes each child process of this one call `callback`."""
    _in_child.append(callback)
    os.register_at_fork(after_in_child=callback)


def check_process() -> None:
    """Calls what `in_child` was given if Python did not notice the fork, as under uWSGI.

    It must be called before a connection is used that a parent may have opened.
    """
    if os.getpid() != _pid:
        # `_note_process` comes last: other threads must not continue before.
        for callback in reversed(_in_child):
            callback()


def disown(owner: object, sockets: Iterable[int]) -> None:
    """Lets go of a parent's object and its sockets, without a word to the server."""
    _inherited.append(owner)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for socket in sockets:
        with suppress(OSError):
            # Not closed: libpq would write to the next file that gets this number.
            os.dup2(nowhere, socket)
    os.close(nowhere)


def _note_process() -> None:
    global _pid
    _pid = os.getpid()


_note_process()
in_child(_note_process)
