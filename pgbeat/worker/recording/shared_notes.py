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
from collections.abc import Iterable
from contextlib import suppress
from struct import Struct

from pgbeat.processes.probe import is_alive
from pgbeat.worker.recording.attempts import Attempt

logger = logging.getLogger("celery.worker.pgbeat")

#: How the beginning of an attempt is noted: its id, its job's, when it began (`time.monotonic()`),
#: `retry_attempt`, `acks_late` and `is_repeated`.
_BEGINNING = Struct("=32s36sdi2?")
#: Attempts of a process that are noted at a time. Each has a slot: a byte that says what is noted,
#: its beginning, and bytes for its end. Before the slots is the process's id.
_SLOTS, _END_BYTES = 2_000, 384
_FREE, _BEGUN, _ENDED = 0, 1, 2
_BEGINNING_AT, _END_AT = 1, 1 + _BEGINNING.size
_SIZE = _END_AT + _END_BYTES
_PID = slice(0, 8)
_OFFSETS = range(8, 8 + _SLOTS * _SIZE, _SIZE)
#: Characters of a long error that are noted, of up to four bytes each.
_ERROR = 64
_pack, _dumps = _BEGINNING.pack_into, marshal.dumps
#: Seconds until a process counts as gone that was never there, since its fork failed.
_PATIENCE = 60.0


class SharedNotes:
    """The notes of one process. Only its recorder's outbox writes them."""

    def __init__(self) -> None:
        """Maps the memory. Raises `OSError`."""
        self._memory = mmap.mmap(-1, _OFFSETS.stop)
        self._made = time.monotonic()
        #: The offsets of free slots.
        self._free: list[int] = []

    # ----- the process

    def use(self) -> None:
        """Makes them this process's notes."""
        self._free = list(reversed(_OFFSETS))
        self._memory[_PID] = os.getpid().to_bytes(8, "little")

    def begin(self, attempt: Attempt) -> None:
        """Notes that an attempt began, if there is room."""
        if not self._free:
            return
        attempt.slot = slot = self._free.pop()
        _pack(
            self._memory,
            slot + _BEGINNING_AT,
            attempt.id.encode(),
            attempt.job_id.encode(),
            attempt.began,
            attempt.retry_attempt,
            attempt.acks_late,
            attempt.is_repeated,
        )
        self._memory[slot] = _BEGUN

    def end(self, attempt: Attempt) -> None:
        """Notes how an attempt ended whose beginning is noted.

        If its job runs again by a message that it keeps, its time and the message are too long for
        a note: it counts as killed while it ran.
        """
        slot = attempt.slot
        if slot is None:
            return
        attempt.is_fully_noted = True
        if attempt.state == "snoozed" and attempt.runs_in is not None:
            return
        end = (
            attempt.state,
            attempt.job_state,
            attempt.ended,
            attempt.cpu_time_ms,
            attempt.memory_peak_mb,
            attempt.result,
            attempt.error,
        )
        note = _dumps(end)
        if len(note) > _END_BYTES:
            note = _dumps((*end[:-2], None, attempt.error and attempt.error[:_ERROR]))
        start = slot + _END_AT
        self._memory[start : start + len(note)] = note
        self._memory[slot] = _ENDED

    def forget(self, attempts: Iterable[Attempt]) -> None:
        """Deletes the notes of attempts that are recorded, or never will be."""
        for attempt in attempts:
            slot = attempt.slot
            if slot is not None:
                attempt.slot = None
                self._memory[slot] = _FREE
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
        return [self._attempt(slot, worker) for slot in _OFFSETS if self._memory[slot] != _FREE]

    def _attempt(self, slot: int, worker: str) -> Attempt:
        beginning = _BEGINNING.unpack_from(self._memory, slot + _BEGINNING_AT)
        own_id, job_id, began, retry_attempt, acks_late, is_repeated = beginning
        attempt = Attempt(job_id.rstrip(b"\0").decode(), worker, retry_attempt, acks_late, None)
        attempt.id, attempt.began, attempt.is_repeated = own_id.decode(), began, is_repeated
        attempt.pid, attempt.was_tried = self.pid, True
        if self._memory[slot] == _ENDED:
            note = self._memory[slot + _END_AT : slot + _SIZE]
            own_state, attempt.job_state, ended, *rest = marshal.loads(note)  # noqa: S302
            attempt.cpu_time_ms, attempt.memory_peak_mb, attempt.result, attempt.error = rest
            attempt.ended, attempt.duration_ms = ended, 1000 * (ended - began)
            attempt.state = own_state
        return attempt


#: The process whose children have notes, and the name of its worker.
_main: tuple[int, str] | None = None
#: The notes of its children, those of the child that it is about to fork, and this process's own.
_of_children: list[SharedNotes] = []
_next: SharedNotes | None = None
_own: SharedNotes | None = None


def share(worker: str | None) -> None:
    """Gives notes to the children that this worker forks from now on; `None` turns that off."""
    global _main
    _main = None if worker is None else (os.getpid(), worker)
    _of_children.clear()


def own() -> SharedNotes | None:
    """Returns this process's notes, if it is a child of such a worker."""
    return _own


def take_unrecorded() -> list[Attempt]:
    """Returns, once, the attempts that dead children left unrecorded, in order."""
    unrecorded: list[Attempt] = []
    for notes in list(_of_children):
        if _main is not None and notes.is_left():
            with suppress(ValueError):  # another thread has taken them
                _of_children.remove(notes)
                unrecorded += notes.read(_main[1])
    return sorted(unrecorded, key=lambda attempt: attempt.began)


def _before_fork() -> None:
    global _next
    _next = None
    if _main is None or _main[0] != os.getpid():
        return
    try:
        _next = SharedNotes()
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
