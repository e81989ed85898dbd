"""Probes of beats, workers and the web side, and what systemd hears of them."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from pgbeat.config import postgres_url
from pgbeat.processes import known, probe
from pgbeat.processes.pulse import Pulse
from tests.support.processes import Process, Processes, free_port, shell, until

#: Signs of life come every five seconds.
_WITHIN = ("--within", "8")


@pytest.fixture
def probed(processes: Processes, tmp_path: Path) -> Processes:
    processes.env["PGBEAT_HEALTH_DIR"] = str(tmp_path / "health")
    return processes


def health(processes: Processes, *arguments: str, **env: str) -> tuple[int, str]:
    """Returns the exit status and what was said."""
    base = {**processes.env, "PGBEAT_URL": processes.database, **env}
    done = shell(sys.executable, "-m", "pgbeat", "health", *arguments, base=base)
    return done.returncode, (done.stdout or done.stderr).strip()


def start(processes: Processes, role: str) -> Process:
    process = processes.beat() if role == "beat" else processes.worker("-P", "prefork", "-c", "1")
    until(lambda: health(processes, role)[0] == 0, 40)
    return process


@pytest.mark.parametrize("role", ["worker", pytest.param("beat", marks=pytest.mark.slow)])
def test_one_that_hangs_is_not_alive(probed: Processes, role: str) -> None:
    assert health(probed, role)[0] == 1
    process = start(probed, role)
    assert health(probed, role) == (0, f"{role} {process.pid}: alive")
    until(lambda: health(probed, role, "--ready")[0] == 0, 30)
    process.send_signal(signal.SIGSTOP)
    until(lambda: health(probed, role, *_WITHIN)[0] == 1, 30)
    said = health(probed, role, *_WITHIN, "--json")[1]
    assert json.loads(said)["ok"] is False
    assert f"{role} {process.pid} has given no sign of life for" in said
    process.send_signal(signal.SIGCONT)
    until(lambda: health(probed, role, *_WITHIN)[0] == 0, 30)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    assert health(probed, role)[1].startswith(f"no {role} gives signs of life in")


def test_one_that_was_killed_is_forgotten_though_its_id_is_another_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGBEAT_HEALTH_DIR", str(tmp_path / "health"))
    pulse, sign = Pulse("beat", 60), tmp_path / "health" / f"beat-{os.getpid()}.pulse"
    pulse.start()
    sign.write_text(f"{time.monotonic() - 60}\n")
    assert [one.pid for one in probe.heard("beat")] == [os.getpid()]
    pulse.stop()
    sign.write_text(f"{time.monotonic() - 60}\n")  # as SIGKILL leaves it
    assert probe.heard("beat") == []


@pytest.mark.parametrize("role", ["beat", "worker"])
def test_one_without_its_database_is_alive_but_not_ready(probed: Processes, role: str) -> None:
    """A restart would not bring the database back."""
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    process = (
        probed.beat(PGBEAT_URL=nowhere, TESTS_DATABASE=nowhere)
        if role == "beat"
        else probed.worker(TESTS_DATABASE=nowhere, PGBEAT_URL=nowhere)
    )
    until(lambda: health(probed, role)[0] == 0, 40)
    assert process.poll() is None
    status, said = health(probed, role, "--ready")
    assert status == 1
    assert str(process.pid) in said


@pytest.mark.slow
def test_systemd_hears_of_one_until_it_hangs(probed: Processes, tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(30)
        worker = probed.worker(NOTIFY_SOCKET=address)
        assert manager.recv(100) == b"READY=1\nWATCHDOG=1"
        assert manager.recv(100) == b"WATCHDOG=1"
        worker.send_signal(signal.SIGSTOP)
        manager.settimeout(8)
        with pytest.raises(TimeoutError):
            while True:
                manager.recv(100)


def test_the_web_side(probed: Processes) -> None:
    port = str(free_port())
    status, said = health(probed, "web", "--port", port)
    assert (status, said.split(":")[0]) == (1, f"web at port {port} doesn't answer")
    app = ("-A", "tests.support.apps.basic")
    probed.run(sys.executable, "-m", "pgbeat", *app, "web", "--port", port)
    until(lambda: health(probed, "web", "--port", port)[0] == 0, 40)
    assert health(probed, "web", "--port", port, "--ready")[0] == 0


@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_a_folder_in_which_others_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """They could lead the file elsewhere."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.setenv("PGBEAT_HEALTH_DIR", str(folder))
    made = Pulse("worker", 60)
    made.start()
    heard = probe.heard("worker")
    made.stop()
    assert [each.pid for each in heard] == ([os.getpid()] if mode == 0o700 else [])
    assert ("only this user may write" in caplog.text) is (mode == 0o777)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["beat"], ("celery", "click", "kombu", "logging", "psycopg", "socket", "sqlalchemy")),
        (["beat", "--ready"], ("celery", "click", "kombu", "sqlalchemy")),
        (["worker", "--ready"], ("celery", "click", "kombu", "sqlalchemy")),
        (["--json", "worker", "--ready"], ("celery", "kombu", "sqlalchemy")),
        (["web"], ("celery", "click", "http", "kombu", "psycopg", "sqlalchemy")),
    ],
)
def test_it_starts_without_the_app(
    database: str, tmp_path: Path, words: list[str], heavy: tuple[str, ...]
) -> None:
    """A probe runs every few seconds, beside the process that it asks."""
    for role in ("beat", "worker"):
        (tmp_path / f"{role}-{os.getpid()}.pulse").write_text(f"{time.monotonic()}\n")
    code = (
        "import sys; from pgbeat.__main__ import main\n"
        f"sys.argv = ['pgbeat', 'health', *{words}]\n"
        "try: main()\n"
        f"except SystemExit: print([name for name in {heavy!r} if name in sys.modules])"
    )
    env = {"PGBEAT_HEALTH_DIR": str(tmp_path), "PGBEAT_APP": "nothing", "PGBEAT_URL": database}
    done = shell(sys.executable, "-c", code, base={**os.environ, **env})
    assert done.stdout.splitlines()[-1] == "[]"
    said = done.stdout + done.stderr
    if "--ready" in words:
        assert "neither leads nor stands by" in said or "doesn't know it as alive" in said


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p%40ss%2F@db.example.com:5433/shop",
        "postgres://db/shop?sslmode=require&options=-cjit%3Doff",
        "postgresql://u@/shop",
    ],
)
def test_a_plain_url_is_read_by_libpq_as_by_sqlalchemy(url: str) -> None:
    dialect: Any = PGDialect_psycopg
    read = dialect().create_connect_args(postgres_url(url))[1]
    assert probe.is_plain(url)
    assert conninfo_to_dict(url) == {name: str(value) for name, value in read.items()}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqla+postgresql://u:p@db/shop",
        "postgresql+psycopg://u:p@db/shop",
        "postgresql://u:p@ss@db/shop",
        "postgresql://u:p@db/shop%20",
        "postgresql://u:p@db/shop?assume_role=x",
        "postgresql://u:p@db/shop?options=a+b",
        "postgresql://u:p@one,two/shop",
        "postgresql:///shop?host=one%2Ctwo",
        "postgresql://u:p@one/shop;postgresql://u:p@two/shop",
    ],
)
def test_any_other_url_is_not(url: str) -> None:
    assert not probe.is_plain(url)


@pytest.mark.parametrize("url", ["sqla+{}", "{}"])
def test_ready_reads_any_url(probed: Processes, url: str) -> None:
    (tmp := Path(probed.env["PGBEAT_HEALTH_DIR"])).mkdir()
    (tmp / f"beat-{os.getpid()}.pulse").write_text(f"{time.monotonic()}\n")
    said = health(probed, "beat", "--ready", PGBEAT_URL=url.format(probed.database))
    assert said == (1, f"beat {os.getpid()} neither leads nor stands by")
    lock = f"SET application_name = '{known.session_name(os.getpid())}'"
    with psycopg.connect(probed.database, autocommit=True) as connection:
        connection.execute(lock.encode())
        connection.execute("SELECT pg_advisory_lock(1050)")
        said = health(probed, "beat", "--ready", PGBEAT_URL=url.format(probed.database))
    assert said == (0, f"beat {os.getpid()} leads")
