"""Takes the time from a Celery project to its first tick: `python benchmarks/first_tick.py`.

A new environment has Celery and a project whose broker is Redis, which needs not run. Then the
clock starts: pgbeat is installed, one line of the project is changed, `pgbeat dev` starts, and the
console is asked until it shows that a schedule was launched. With `--record FILE`, what the
terminal showed is drawn as a picture.
"""

import argparse
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import httpx

ROOT = Path(__file__).parents[1]
_OLD = 'app = Celery("proj", broker="redis://localhost")'
_NEW = 'app = Celery("proj", broker="pgbeat+postgresql://localhost/proj")'
_APP = f"""\
from celery import Celery

{_OLD}
app.conf.beat_schedule = {{"tidy": {{"task": "proj.tasks.tidy", "schedule": 5}}}}
app.autodiscover_tasks(["proj"])
"""
_TASKS = """\
from celery import shared_task


@shared_task
def tidy():
    return "tidied"
"""
_COLUMNS, _ROWS = 110, 30
#: Seconds in which all must have happened.
_PATIENCE = 300


class Terminal:
    """A program on a terminal of its own, and all that it shows."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self._screen, other = pty.openpty()
        size = {"COLUMNS": str(_COLUMNS), "LINES": str(_ROWS), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command, cwd=folder, env=env | size, stdin=other, stdout=other, stderr=other
        )
        os.close(other)
        self._shown = b""
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # the program has ended
            while more := os.read(self._screen, 65536):
                self._shown += more

    @property
    def shown(self) -> str:
        """What it has shown, with its colours."""
        return self._shown.decode(errors="replace").replace("\r\n", "\n")

    def await_match(self, pattern: str) -> str:
        """Waits until the pattern is shown; returns its first group. Raises `RuntimeError`."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            if match := re.search(pattern, plain(self.shown)):
                return match[1]
            time.sleep(0.02)
        raise RuntimeError(f"it does not show {pattern!r}:\n{self.shown}")

    def close(self) -> None:
        """Presses Ctrl-C, and waits."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self._reader.join(5)


def plain(shown: str) -> str:
    """Returns what is shown without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


@contextmanager
def project(wheel: str) -> Iterator[tuple[Path, Path, str]]:
    """A folder with the project, an environment's programs, and what pip is to install."""
    with tempfile.TemporaryDirectory(prefix="t") as name:
        Path(name).chmod(0o755)  # root's embedded server runs as another user
        folder = Path(name, "shop")
        folder.mkdir()
        _run(sys.executable, "-m", "venv", folder / "venv")
        programs = folder / "venv" / "bin"
        _run(programs / "pip", "install", "-q", "celery[redis]")
        if not wheel:
            _run(programs / "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
            wheel = str(next(folder.glob("pgbeat-*.whl")))
        (folder / "proj").mkdir()
        for module, text in (("__init__", ""), ("celery", _APP), ("tasks", _TASKS)):
            (folder / "proj" / f"{module}.py").write_text(text)
        yield folder, programs, f"pgbeat[dev] @ file://{wheel}"


def measure(wheel: str) -> tuple[dict[str, float], str]:
    """Returns the seconds of each step, and what the terminal showed."""
    with project(wheel) as (folder, programs, requirement):
        clock = Clock()
        _run(programs / "pip", "install", "-q", requirement)
        clock.stop("pip install")
        app = folder / "proj" / "celery.py"
        app.write_text(app.read_text().replace(_OLD, _NEW))
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PGBEAT_", "CELERY_"))}
        env |= {"XDG_CACHE_HOME": str(folder.parent), "PYTHONWARNINGS": "ignore"}
        command = [str(programs / "celery"), "-A", "proj", "pgbeat", "dev"]
        terminal = Terminal(command, folder, env)
        try:
            link = terminal.await_match(r"(http://\S+/login#once=\S+)")
            clock.stop("console")
            _await_tick(link)
            clock.stop("first tick in it")
            terminal.await_match(r"(succeeded in )")
        finally:
            terminal.close()
        shown = terminal.shown.replace(socket.gethostname(), "laptop")
        for path in (str(folder.parent), quote(str(folder.parent), safe="")):
            shown = shown.replace(path, "~/.cache")
        return clock.steps, shown


class Clock:
    """Notes how long each step takes."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.steps: dict[str, float] = {}

    def stop(self, step: str) -> None:
        """Ends a step."""
        now = time.monotonic()
        self.steps[step], self._last = now - self._last, now


def _await_tick(link: str) -> None:
    base, _, code = link.partition("/login#once=")
    with httpx.Client(base_url=base, timeout=30) as client:
        client.post("/login", data={"token": code})
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            page = client.get("/console/schedules/tidy")
            if page.status_code == 200 and "launched" in page.text:
                return
            time.sleep(0.1)
    raise RuntimeError("the console shows no tick")


def draw(shown: str, file: Path) -> None:
    """Draws what a terminal showed as a picture."""
    from rich.console import Console
    from rich.text import Text

    console = Console(width=_COLUMNS, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi(shown))
    picture = console.export_svg(title="celery -A proj pgbeat dev")
    # Fonts of the reader's, none from elsewhere.
    file.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S))


def _run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True)


def main() -> None:
    """Measures, and prints each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", default="", help="of pgbeat; by default one is built")
    parser.add_argument("--record", type=Path, metavar="FILE", help="draw the terminal as SVG")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the seconds")
    given = parser.parse_args()
    steps, shown = measure(given.wheel)
    for step, seconds in steps.items():
        print(f"{step:18} {seconds:6.1f} s")
    print(f"{'together':18} {sum(steps.values()):6.1f} s")
    if given.record:
        draw(shown, given.record)
    if given.json:
        given.json.write_text(json.dumps(steps) + "\n")


if __name__ == "__main__":
    main()
