"""Notes a pool process's attempts where they outlive it, for the worker's main process.

A process records executions a moment late. If it is killed before, the main process finds its notes
and records them in its place, with the same ids, so that recording twice writes one row.

The main process maps anonymous memory before each fork and shares it with that child. No file can
be left behind, and the notes last as long as the main process: after that, the worker is dead.
"""

import logging
import marshal
import mmap
import os
import time
from contextlib import suppress
from struct import Struct

from pgbeat.worker.attempts import Attempt

logger = logging.getLogger("celery.worker.pgbeat")

#: How the beginning of an attempt is noted: its id, its job's, when it began (`time.monotonic()`),
#: `retry_attempt`, `acks_late` and `is_repeated`.
_BEGINNING = Struct("=32s36sdi2?")
#: Attempts of a process that are noted at a time, and bytes for the end of each, and for all of it.
_SLOTS, _END = 2_000, 384
_SIZE = _BEGINNING.size + _END
#: Where the process's id is, the states of the slots, and the slots.
_PID, _STATES, _NOTES = slice(0, 8), slice(8, 8 + _SLOTS), 8 + _SLOTS
_FREE, _BEGUN, _ENDED = 0, 1, 2
#: Characters of a long error that are noted, of up to four bytes each.
_ERROR = 64
#: The format of marshal that looks for no repeated objects.
_FORMAT = 2
#: Seconds until a process counts as gone that was never there, since its fork failed.
_PATIENCE = 60.0


class Notes:
    """The notes of one process. Only its recorder's outbox writes them."""

    def __init__(self) -> None:
        """Maps the memory. Raises `OSError`."""
        self._memory = memoryview(mmap.mmap(-1, _NOTES + _SLOTS * _SIZE))
        self._states = self._memory[_STATES]
        self._made = time.monotonic()
        self._free: list[int] = []

    # ----- the process

    def use(self) -> None:
        """Makes them this process's notes."""
        self._free = list(range(_SLOTS - 1, -1, -1))
        self._memory[_PID] = os.getpid().to_bytes(8, "little")

    def begin(self, attempt: Attempt) -> None:
        """Notes that an attempt began, if there is room."""
        if not self._free:
            return
        attempt.slot = slot = self._free.pop()
        _BEGINNING.pack_into(
            self._memory, _NOTES + slot * _SIZE, attempt.id.encode(), attempt.job_id.encode(),
            attempt.began, attempt.retry_attempt, attempt.acks_late, attempt.is_repeated,
        )  # fmt: skip
        self._states[slot] = _BEGUN

    def end(self, attempt: Attempt) -> None:
        """Notes how an attempt ended whose beginning is noted."""
        slot = attempt.slot
        if slot is None:
            return
        note = _end_note(attempt, attempt.result, attempt.error)
        if len(note) > _END:
            note = _end_note(attempt, None, attempt.error and attempt.error[:_ERROR])
        start = _NOTES + slot * _SIZE + _BEGINNING.size
        self._memory[start : start + len(note)] = note
        self._states[slot] = _ENDED
        attempt.is_end_noted = True

    def forget(self, attempt: Attempt) -> None:
        """Deletes the note of an attempt that is recorded, or never will be."""
        slot, attempt.slot = attempt.slot, None
        if slot is not None:
            self._states[slot] = _FREE
            self._free.append(slot)

    # ----- the main process

    @property
    def pid(self) -> int:
        """The id of the process; 0 until it has begun."""
        return int.from_bytes(self._memory[_PID], "little")

    def is_left(self) -> bool:
        """Returns whether the process is gone."""
        if self.pid:
            return not is_alive(self.pid)
        return time.monotonic() > self._made + _PATIENCE

    def read(self, worker: str) -> list[Attempt]:
        """Returns the attempts that it had not recorded, or not yet noted as recorded."""
        states = enumerate(bytes(self._states))
        return [self._attempt(slot, state, worker) for slot, state in states if state != _FREE]

    def _attempt(self, slot: int, state: int, worker: str) -> Attempt:
        start = _NOTES + slot * _SIZE
        found = _BEGINNING.unpack_from(self._memory, start)
        own_id, job_id, began, retry_attempt, acks_late, is_repeated = found
        attempt = Attempt(job_id.rstrip(b"\0").decode(), worker, retry_attempt, acks_late, None)
        attempt.id, attempt.began, attempt.is_repeated = own_id.decode(), began, is_repeated
        attempt.pid, attempt.was_tried = self.pid, True
        if state == _ENDED:
            note = self._memory[start + _BEGINNING.size : start + _SIZE]
            own_state, attempt.job_state, ended, *rest = marshal.loads(note)  # noqa: S302
            attempt.cpu_time_ms, attempt.memory_peak_mb, attempt.result, attempt.error = rest
            attempt.ended, attempt.duration_ms = ended, 1000 * (ended - began)
            attempt.state = own_state
        return attempt


def _end_note(attempt: Attempt, result: str | None, error: str | None) -> bytes:
    return marshal.dumps(
        (
            attempt.state, attempt.job_state, attempt.ended, attempt.cpu_time_ms,
            attempt.memory_peak_mb, result, error,
        ),
        _FORMAT,
    )  # fmt: skip


def is_alive(pid: int) -> bool:
    """Returns whether there is such a process."""
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


#: The process whose children have notes, and the name of its worker.
_main: tuple[int, str] | None = None
#: The notes of its children, those of the child that it is about to fork, and this process's own.
_of_children: list[Notes] = []
_next: Notes | None = None
_own: Notes | None = None


def share(worker: str | None) -> None:
    """Gives notes to the children that this worker forks from now on; `None` turns that off."""
    global _main
    _main = None if worker is None else (os.getpid(), worker)
    _of_children.clear()


def own() -> Notes | None:
    """Returns this process's notes, if it is a child of such a worker."""
    return _own


def take_unrecorded() -> list[Attempt]:
    """Returns, once, the attempts that children left unrecorded which are gone, in order."""
    found: list[Attempt] = []
    for notes in list(_of_children):
        if _main is not None and notes.is_left():
            with suppress(ValueError):  # another thread has taken them
                _of_children.remove(notes)
                found += notes.read(_main[1])
    return sorted(found, key=lambda attempt: attempt.began)


def _before_fork() -> None:
    global _next
    _next = None
    if _main is None or _main[0] != os.getpid():
        return
    try:
        _next = Notes()
    except OSError as error:
        logger.warning("What this process has not recorded is lost if it is killed: %s", error)


def _in_parent() -> None:
    if _next is not None:
        _of_children.append(_next)


def _in_child() -> None:
    global _own
    _own = _next
    _of_children.clear()
    if _own is not None:
        _own.use()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
