"""A folder for programs that run an embedded server, and the processes that they leave in it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder with a short name that the server's user can reach."""
    path = Path(tempfile.mkdtemp(prefix="pgb-"))
    path.chmod(0o755)
    yield path
    for process in left(path):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    shutil.rmtree(path, ignore_errors=True)


def left(folder: Path) -> list[psutil.Process]:
    """Returns the processes that work in the folder, or have it in their arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            places = [process.cwd(), *process.cmdline()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if process.pid != os.getpid() and any(str(folder) in place for place in places):
            found.append(process)
    return found
