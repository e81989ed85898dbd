"""Runs an app's worker, beat and console, and new ones in their place when its source changes."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO

from pgbeat.dev import processes
from pgbeat.dev.lines import Log
from pgbeat.dev.member import BROKEN, GO, READY
from pgbeat.dev.sources import Watch

#: Seconds between two looks at the processes, and that they have to end.
_PAUSE, _PATIENCE = 0.1, 10.0
#: The console comes last, so that worker and beat are there sooner. Only one process can have its
#: port: the next one waits for the end of the last.
_LAST = "web"


@dataclass(eq=False)
class _Member:
    """A process, and what it wrote before it had its turn."""

    name: str
    process: "subprocess.Popen[bytes]"
    output: IO[bytes]
    turn: socket.socket
    held: list[str] | None = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class DevSession:
    """The processes of an app.

    `commands` returns them by name, each as the arguments of `celery -A APP`, for the first, second
    … generation: workers need names of their own.
    """

    def __init__(
        self,
        app: str,
        commands: Callable[[int], Mapping[str, Sequence[str]]],
        environment: Mapping[str, str],
        log: Log,
    ) -> None:
        self._app, self._commands, self._environment = app, commands, environment
        self._log = log
        self._running: dict[str, _Member] = {}
        self._coming: dict[str, _Member] = {}
        self._leaving: list[_Member] = []
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        #: Those of a generation that start when the others have had their turn.
        self._waiting: dict[str, Sequence[str]] = {}
        self._numbers = count(1)

    def run(self, changes: Watch | None, interruption: processes.Interruption) -> int:
        """Runs all until interrupted; without `changes`, also until one ends by itself.

        `changes` is called on a thread, and calls what it is given with the files that changed.
        Returns the exit status.
        """
        if changes is not None:
            watch = threading.Thread(target=changes, args=(self._note_changes,), daemon=True)
            watch.start()
        self._start_all()
        try:
            while not interruption.came:
                with suppress(queue.Empty):
                    self._events.get(timeout=_PAUSE)()
                if self._reap() and changes is None:
                    return 1
        except KeyboardInterrupt:
            pass
        finally:
            self._stop_all()
        return 0

    def _note_changes(self, paths: Sequence[Path]) -> None:
        """Has the main thread start the next generation."""

        def replace() -> None:
            names = ", ".join(os.path.relpath(path) for path in paths[:3])
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            self._log("dev", f"{names}{more} changed; loading the app again")
            self._start_all()

        self._events.put(replace)

    def _start_all(self) -> None:
        self._drop_coming()
        self._waiting = dict(self._commands(next(self._numbers)))
        for name in set(self._waiting) - {_LAST}:
            self._coming[name] = self._start(name, self._waiting.pop(name))

    def _start(self, name: str, arguments: Sequence[str]) -> _Member:
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        module = [sys.executable, "-m", "pgbeat.dev.member", str(theirs.fileno()), self._app]
        output = os.fdopen(reader, "rb")
        with theirs, os.fdopen(writer, "wb") as sink:
            process = processes.start(
                [*module, *arguments], self._environment, Path.cwd(), sink, keep=[theirs.fileno()]
            )
        member = _Member(name, process, output, ours)
        for target in (self._read, self._await_ready):
            threading.Thread(target=target, args=(member,), daemon=True).start()
        return member

    def _read(self, member: _Member) -> None:
        """Shows what a process writes; until it has its turn, keeps it."""
        with member.output:
            for raw in member.output:
                line = raw.decode(errors="replace").rstrip("\n")
                with member.lock:
                    if member.held is not None:
                        member.held.append(line)
                        continue
                self._log(member.name, line)

    def _await_ready(self, member: _Member) -> None:
        with suppress(OSError):
            if member.turn.recv(len(READY)) == READY:
                self._events.put(lambda: self._take_turn(member))

    def _take_turn(self, member: _Member) -> None:
        """Ends the process of the last generation, and lets its successor begin."""
        if self._coming.get(member.name) is not member:
            return
        last = self._running.get(member.name)
        if last is not None and member.name == _LAST:
            processes.stop([[last.process]], _PATIENCE / 2)
        elif last is not None:
            last.process.terminate()
            self._leaving.append(last)
        self._running[member.name] = self._coming.pop(member.name)
        with member.lock:
            held, member.held = member.held or [], None
            for line in held:
                self._log(member.name, line)
        with suppress(OSError):
            member.turn.sendall(GO)
        member.turn.close()
        if not self._coming:
            for name in tuple(self._waiting):
                self._coming[name] = self._start(name, self._waiting.pop(name))

    def _drop_coming(self) -> None:
        self._waiting.clear()
        for member in self._coming.values():
            member.process.kill()
            member.turn.close()
            self._leaving.append(member)
        self._coming.clear()

    def _reap(self) -> bool:
        """Notes which processes have ended. Returns whether one did that by itself."""
        self._leaving = [m for m in self._leaving if m.process.poll() is None]
        for member in list(self._coming.values()):
            status = member.process.poll()
            if status is not None and self._coming.pop(member.name, None) is not None:
                self._say_broken(member, status)
                self._drop_coming()
        ended = [m for m in self._running.values() if m.process.poll() is not None]
        for member in ended:
            del self._running[member.name]
            self._log("dev", f"{member.name} has ended{_how(member.process.returncode)}")
        return bool(ended) or not (self._running or self._coming)

    def _say_broken(self, member: _Member, status: int) -> None:
        deadline = time.monotonic() + 1
        while not member.output.closed and time.monotonic() < deadline:
            time.sleep(_PAUSE / 10)
        with member.lock:
            for line in member.held or ():
                self._log(member.name, line)
        what = "can't load the app" if status == BROKEN else f"has ended{_how(status)}"
        goes_on = "the processes that run go on" if self._running else "nothing runs"
        self._log("dev", f"{member.name} {what}; {goes_on}")

    def _stop_all(self) -> None:
        self._drop_coming()
        self._log("dev", "stopping; Ctrl-C again doesn't wait for running tasks")
        members = [*self._running.values(), *self._leaving]
        processes.stop([[member.process for member in members]], _PATIENCE)


def _how(status: int) -> str:
    if status < 0:
        return f" by {signal.Signals(-status).name}"
    return f" with status {status}"
