"""What the tasks of apps share with a test by files in `TESTS_FOLDER`: gates, a journal, deaths."""

import os
import signal
import time
from pathlib import Path

FOLDER = Path(os.environ.get("TESTS_FOLDER", "."))


def wait_for(gate: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not (FOLDER / f"gate-{gate}").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opened {gate}")
        time.sleep(0.005)


def note(line: str) -> None:
    """Adds a line to the journal, which stays whatever becomes of this process."""
    file = os.open(FOLDER / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def is_first(name: str) -> bool:
    """Makes the file of that name; returns whether no process made it before."""
    try:
        os.close(os.open(FOLDER / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die_once(name: str) -> None:
    """Kills this process, unless another was killed by that name."""
    if is_first(name):
        os.kill(os.getpid(), signal.SIGKILL)
