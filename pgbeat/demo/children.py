"""Starts, checks and stops the processes of the demo."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Self

from pgbeat.dev import processes
from pgbeat.errors import PgbeatError

#: Seconds that a process may take to end after TERM.
_PATIENCE = 10.0


class Children:
    """The processes of the demo, each with its log in the folder; stopped when the block ends."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the processes, the price server last: by TERM, then KILL.

        An interruption kills the rest at once.
        """
        first = [process for name, process in self.running.items() if name != "prices"]
        processes.stop((first, [*self.running.values()]), _PATIENCE)

    def log(self, name: str) -> Path:
        """Returns the path of a process's log."""
        return self.folder / f"{name.replace(' ', '-')}.log"

    def start(self, name: str, module: str, *arguments: str) -> str:
        """Starts a Python module; returns the first line that the price server prints."""
        process = self._popen(name, module, *arguments, pipe=name == "prices")
        self.running[name] = process
        if process.stdout is None:
            return ""
        with process.stdout as output:
            line = output.readline().decode().strip()
        if not line:
            raise self._broken(name)
        return line

    def run(self, name: str, module: str, *arguments: str) -> None:
        """Runs a Python module to its end. Raises `PgbeatError` if it fails."""
        process = self._popen(name, module, *arguments)
        try:
            if process.wait() != 0:
                raise self._broken(name)
        finally:
            process.kill()
            process.wait()

    def link(self) -> str:
        """Returns the console's URL, once its process has printed it."""
        if "web" not in self.running:
            return ""
        match = re.search(r"https?://\S+", self.log("web").read_text(errors="replace"))
        return match[0] if match else ""

    def check(self) -> list[str]:
        """Returns the processes that have ended. Raises `PgbeatError` if the demo fails."""
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        if "worker" in ended or "prices" in ended or {"beat 1", "beat 2"} <= set(ended):
            raise self._broken(ended[0])
        return ended

    def _popen(
        self, name: str, module: str, *arguments: str, pipe: bool = False
    ) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", module, *arguments]
        with self.log(name).open("wb") as log:
            output = subprocess.PIPE if pipe else log
            return processes.start(command, self.environment, self.folder, output, errors=log)

    def _broken(self, name: str) -> PgbeatError:
        log = self.log(name)
        last = "\n".join(log.read_text(errors="replace").strip().splitlines()[-5:])
        return PgbeatError(f"{name} has ended; the end of {log}:\n{last}")
