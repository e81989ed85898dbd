"""`pgbeat web` as a process."""

import contextlib
import os
import re
import signal
import socket
import sys
from typing import Any

import httpx
import pytest
from celery import Celery

from tests.support.command_line import refused, run, run_with
from tests.support.processes import CELERY, PGBEAT, Process, Processes, until
from tests.support.web import make_token


def served(process: Process) -> str:
    """Where it is."""
    process.says("Ctrl-C ends it.")
    return process.output.partition("pgbeat is at ")[2].split()[0]


def get(url: str) -> Any:
    """The JSON at an address."""
    answer = httpx.get(url, timeout=30)
    assert answer.status_code == 200
    return answer.json()


def web_process(processes: Processes, *arguments: str) -> Process:
    """`celery -A tests.support.apps.basic pgbeat web` on a free port."""
    return processes.celery("pgbeat", "web", "--port", "0", *arguments)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_it_serves_until_it_is_told_to_end(processes: Processes, number: signal.Signals) -> None:
    process = web_process(processes)
    link = served(process)
    assert get(f"{link}healthz") == {"status": "ok"}
    assert "there is no token, so no user can log in" in process.output
    assert "#once=" not in process.output
    token = make_token(processes.database, "root", "admin")
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"{link}admin/scheduled-jobs", headers=headers, timeout=30)
    assert answer.json() == {"schedules": [], "next": None}
    assert "server" not in answer.headers
    process.send_signal(number)
    assert process.wait(20) == 0
    assert process.output.endswith("Stopped.\n")
    assert "Traceback" not in process.output


def test_a_signal_in_a_finalizer(processes: Processes) -> None:
    """Python drops what a signal's handler raises there."""
    process = processes.run(sys.executable, "-c", _SIGNALLED_BY_A_FINALIZER)
    assert process.wait(20) == 0
    assert process.output == ""


_SIGNALLED_BY_A_FINALIZER = """
import os, signal
from fastapi import FastAPI
from pgbeat.web import serving

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

def ready():
    Cycle()

serving.serve(FastAPI, serving.listen("127.0.0.1", 0), ready=ready)
"""


@pytest.mark.slow
def test_a_terminal_shows_a_link_that_signs_in_once(processes: Processes) -> None:
    terminal = (sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])")
    app = ("-A", "tests.support.apps.basic")
    process = processes.run(*terminal, *CELERY, *app, "pgbeat", "web", "--port", "0")
    link = served(process)
    [code] = re.findall(rf"{re.escape(link)}login#once=(\S+)", process.output)
    for location in ("/", "/login?failed=1&next=%2F"):
        answer = httpx.post(f"{link}login", data={"token": code}, timeout=30)
        assert answer.headers["location"] == location
    [server] = _children(process.pid)  # started by nohup, it would outlive its terminal
    os.kill(server, signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.mark.slow
def test_several_processes_share_the_port(processes: Processes) -> None:
    process = web_process(processes, "--workers", "2", "--demo")
    link = served(process)
    until(lambda: _answers(link))
    assert httpx.get(f"{link}scheduler/status", timeout=30).status_code == 200
    [one, two] = _children(process.pid)
    os.kill(one, signal.SIGKILL)
    until(lambda: len(_children(process.pid)) == 2 and one not in _children(process.pid))
    until(lambda: _answers(link))
    process.terminate()
    assert process.wait(20) == 0
    assert two not in _children(process.pid)
    assert "ended by itself (-9); starting another" in process.output


def _answers(link: str) -> bool:
    with contextlib.suppress(OSError, httpx.HTTPError):
        return httpx.get(f"{link}healthz").status_code == 200
    return False


def _children(process: int) -> list[int]:
    import psutil

    try:
        return [each.pid for each in psutil.Process(process).children()]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.slow
def test_it_is_a_command_of_its_own_too(processes: Processes) -> None:
    options = ("--port", "0", "--root-path", "/pgbeat/")
    process = processes.run(*PGBEAT, "-A", "tests.support.apps.basic", "web", *options)
    link = served(process)
    assert link.endswith("/pgbeat/")
    document = get(f"{link.removesuffix('/pgbeat/')}/openapi.json")
    assert document["servers"] == [{"url": "/pgbeat"}]


def test_a_port_that_is_taken(app: Celery) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = refused(run_with(app, "web", "--port", port), 1)
    assert said == (
        f"can't listen on 127.0.0.1 port {port}: Address already in use; try another "
        "--port or --host"
    )


def test_an_address_that_is_none(app: Celery) -> None:
    said = refused(run_with(app, "web", "--host", "nowhere.invalid"), 1)
    assert said.startswith("can't listen on nowhere.invalid port 8080: ")


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--demo", "--host", "0.0.0.0"], "--demo lets everyone in, so not on 0.0.0.0"),  # noqa: S104
        (["--root-path", "pgbeat"], "'pgbeat' is not a path"),
        (["--root-path", "//evil.test"], "is not a path"),
    ],
)
def test_what_would_be_unsafe_is_refused(app: Celery, arguments: list[str], refusal: str) -> None:
    assert refusal in refused(run_with(app, "web", *arguments))


def test_it_needs_the_app(database: str) -> None:
    assert "give it with -A APP" in refused(run(database, "web"))


def test_settings_that_are_wrong_are_told_at_once(app: Celery) -> None:
    app.conf.pgbeat_web_jwt_key = "short"
    said = run_with(app, "web", "--port", "0")
    assert said.exit_code == 2
    assert "a secret of at least 32 bytes" in said.stderr
