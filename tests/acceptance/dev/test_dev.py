"""`pgbeat dev` and `pgbeat all` as processes: follow the source, lose no task, leave nothing."""

import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pgbeat.dev import processes
from pgbeat.dev.lines import Log
from pgbeat.dev.session import DevSession
from tests.support.processes import PGBEAT, Process, until
from tests.support.reachable_folder import folder as folder
from tests.support.reachable_folder import left

APP = """
from celery import Celery

app = Celery("proj", broker={broker!r}, backend={broker!r})
app.autodiscover_tasks(["proj"])
app.conf.update(
    beat_schedule={{"note": {{"task": "proj.tasks.note", "schedule": 0.5}}}},
    task_acks_late=True,
)
"""
TASKS = """
import time
from pathlib import Path

from proj.celery import app


@app.task
def note():
    with open("notes", "a") as notes:
        print("{text}", file=notes)


@app.task
def hold():
    with open("held", "a") as held:
        print("began", file=held)
    while not Path("release").exists():
        time.sleep(0.05)
    with open("held", "a") as held:
        print("ended", file=held)
"""


class Project:
    """A project in a folder that the embedded server's user can reach, and commands in it."""

    def __init__(self, folder: Path, broker: str) -> None:
        self.folder = folder
        (folder / "proj").mkdir()
        (folder / "proj" / "__init__.py").touch()
        (folder / "proj" / "celery.py").write_text(APP.format(broker=broker))
        self.write_tasks("one")
        self.started: list[Process] = []

    def write_tasks(self, text: str) -> None:
        """Writes the module of the tasks, whose notes say the text."""
        (self.folder / "proj" / "tasks.py").write_text(TASKS.replace("{text}", text))

    def run(self, *arguments: str, app: str = "proj.celery") -> Process:
        """Starts `pgbeat -A APP …`."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PGBEAT_", "CELERY_"))}
        environment = {**kept, "XDG_CACHE_HOME": str(self.folder / "cache")}
        command = [*PGBEAT, *(["-A", app] if app else []), *arguments]
        log = self.folder / f"log-{len(self.started)}"
        self.started.append(Process(command, log, environment, cwd=self.folder))
        return self.started[-1]

    def notes(self, name: str = "notes") -> list[str]:
        """Returns the lines that tasks wrote."""
        with suppress(FileNotFoundError):
            return (self.folder / name).read_text().splitlines()
        return []

    def await_notes(self, text: str, after: int = 0) -> None:
        """Waits for a note of this text behind the first `after` ones."""
        until(lambda: text in self.notes()[after:], 90, f"a note {text!r}")


@pytest.fixture
def make(folder: Path) -> Iterator[Callable[[str], Project]]:
    """Returns what makes a project, whose processes end with the test."""
    made: list[Project] = []

    def project(broker: str) -> Project:
        made.append(Project(folder, broker))
        return made[-1]

    yield project
    for process in (each for project in made for each in project.started):
        process.kill_group()
        print(f"--- {process.command[-60:]}\n{process.output[-6000:]}")


def test_it_follows_the_source(
    make: Callable[[str], Project], folder: Path, pgbeat_database: str
) -> None:
    project = make(f"pgbeat+{pgbeat_database}")
    dev = project.run("dev", "--concurrency=1")
    project.await_notes("one")
    dev.says("login#once=", 60)

    project.write_tasks("two")
    dev.says(f"{Path('proj', 'tasks.py')} changed")
    project.await_notes("two")

    (folder / "proj" / "tasks.py").write_text("def (")
    dev.says("SyntaxError", 60)
    dev.says("can't load the app; the processes that run go on")
    assert "site-packages" not in dev.output.split("def (")[0].rpartition("changed")[2]
    project.await_notes("two", after=len(project.notes()))

    project.write_tasks("three")
    project.await_notes("three")
    dev.send_signal(signal.SIGINT)
    assert dev.wait(60) == 0
    assert left(folder) == []


def test_a_task_ends_in_the_worker_that_began_it(
    make: Callable[[str], Project], folder: Path, pgbeat_database: str
) -> None:
    project = make(f"pgbeat+{pgbeat_database}")
    dev = project.run("dev", "--pool=threads", "--concurrency=2")
    project.await_notes("one")
    assert project.run("jobs", "run", "proj.tasks.hold").wait(60) == 0
    until(lambda: project.notes("held") == ["began"], 60)

    project.write_tasks("two")
    project.await_notes("two")
    assert project.notes("held") == ["began"]
    (folder / "release").touch()
    until(lambda: project.notes("held") == ["began", "ended"], 60)

    dev.send_signal(signal.SIGTERM)
    assert dev.wait(60) == 0
    assert project.notes("held") == ["began", "ended"]
    assert left(folder) == []


def test_an_embedded_server_stands_in(make: Callable[[str], Project], folder: Path) -> None:
    project = make("redis://127.0.0.1:1/0")
    dev = project.run("dev", "--concurrency=1")
    project.await_notes("one")
    assert f"its data in {folder}/cache/pgbeat/dev/" in dev.output
    [env] = (folder / "cache/pgbeat/dev").glob("*/env")
    assert f"in other terminals: . {env}" in dev.output
    query = (
        "import psycopg; psycopg.connect().execute('SELECT FROM pgbeat.ticks LIMIT 1').fetchall()"
    )
    subprocess.run(["sh", "-c", f'. {env} && exec {sys.executable} -c "{query}"'], check=True)

    second = project.run("dev")
    assert second.wait(60) != 0
    assert f"process {dev.pid} runs a server in" in second.output
    assert "Traceback" not in second.output

    dev.send_signal(signal.SIGINT)
    dev.says("Ctrl-C again", 30)
    dev.send_signal(signal.SIGINT)
    dev.wait(60)
    assert "Traceback" not in dev.output
    until(lambda: left(folder) == [], 30)

    again = project.run("dev", "--fresh", "--concurrency=1")
    again.says("Schedules added", 90)  # by the app's code: the last ones are gone
    again.send_signal(signal.SIGINT)
    assert again.wait(60) == 0


def test_all_ends_with_its_worker(
    make: Callable[[str], Project], folder: Path, pgbeat_database: str
) -> None:
    project = make(f"pgbeat+{pgbeat_database}")
    system = project.run("all", "--concurrency=1")
    project.await_notes("one")
    (worker,) = (
        process
        for process in psutil.Process(system.pid).children()
        if "worker" in process.cmdline()
    )
    worker.kill()
    assert system.wait(60) == 1
    assert "worker has ended by SIGKILL" in system.output
    assert left(folder) == []


def test_what_is_wrong_is_said(make: Callable[[str], Project], pgbeat_database: str) -> None:
    project = make(f"pgbeat+{pgbeat_database}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases = {
            "give it with -A APP": project.run("dev", app=""),
            "there is no module 'elsewhere'": project.run("dev", app="elsewhere"),
            f"can't listen on port {port}": project.run("dev", f"--port={port}"),
            "--fresh would empty the app's own database": project.run("dev", "--fresh"),
        }
        for words, process in cases.items():
            assert process.wait(60) != 0
            assert words in process.output
            assert "Traceback" not in process.output


def test_an_interruption_that_a_callback_drops_ends_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As while the collector calls back: Python only reports what that raises."""
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)

    class Thing: ...

    thing = Thing()
    session = DevSession("app", lambda generation: {}, {}, Log(has_colours=False))
    with processes.interruptible() as interruption:
        watched = weakref.ref(thing, lambda gone: signal.raise_signal(signal.SIGINT))
        del thing
        assert (len(dropped), watched()) == (1, None)
        assert session.run(None, interruption) == 0
