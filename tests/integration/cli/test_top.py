"""`pgbeat top`: what it shows, cut to the terminal, and how it ends."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.command_line import Sql, read, run
from tests.support.processes import PGBEAT
from tests.support.rows import insert, make_execution, make_job, make_lane


def busy(sql: Sql) -> None:
    make_lane(sql, "gpu", 2)
    for _ in range(3):
        make_job(sql, lane="gpu")
    running = make_job(sql, "running", task="jobs.resize", worker="w1@host")
    make_job(sql, "failed")
    sql("INSERT INTO kombu_queue (name) VALUES ('mail')")
    worker = {"id": 1, "name": "celery@w1", "pid": 7, "pool": "prefork", "concurrency": 4}
    insert(sql, "workers", worker)
    make_execution(sql, running, worker_id=1)


def test_it_is_shown_once_where_the_output_is_no_terminal(database: str, sql: Sql) -> None:
    busy(sql)
    said = run(database, "top").stdout
    assert "no beat leads" in said
    assert "jobs: 3 pending, 1 running, 1 failed" in said
    [lane] = [line for line in said.splitlines() if line.startswith("gpu")]
    assert lane.split()[:4] == ["gpu", "0", "2", "3"]
    [job] = [line for line in said.splitlines() if "jobs.resize" in line]
    assert "w1@host" in job
    assert [line for line in said.splitlines() if line.startswith("mail")]
    [worker] = [line for line in said.splitlines() if line.startswith("celery@w1")]
    assert worker.split()[1:4] == ["1", "4", "prefork"]


def test_everybodys_jobs_are_shown(database: str, sql: Sql) -> None:
    busy(sql)
    found = read(database, "top")
    assert [job["task"] for job in found["running"]] == ["jobs.resize"]
    assert found["jobs"]["pending"] == 3
    assert [(each["name"], each["running"]) for each in found["workers"]] == [("celery@w1", 1)]
    lane = found["lanes"][0]
    assert (lane["name"], lane["running"], lane["max_running"], lane["waiting"]) == ("gpu", 0, 2, 3)


def test_an_empty_database(database: str, sql: Sql) -> None:
    sql("DELETE FROM kombu_queue")
    said = run(database, "top").stdout
    assert "jobs: none" in said
    assert "Nothing runs" in said


class Terminal:
    def __init__(self, file: int, process: subprocess.Popen[str]) -> None:
        self._file, self.process = file, process
        self.printed = ""

    def read_until(self, pattern: str) -> None:
        """Reads what is printed until it matches."""
        deadline = time.monotonic() + 30
        while not re.search(pattern, self.printed):
            assert time.monotonic() < deadline, self.printed[-2000:]
            self.printed += os.read(self._file, 65536).decode(errors="replace")


@contextmanager
def opened(database: str, *arguments: str, lines: int = 20) -> Iterator[Terminal]:
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 80, 0, 0))
    environment = {**os.environ, "PGBEAT_URL": database, "TERM": "xterm"}
    with subprocess.Popen(
        [*PGBEAT, *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(its)
        try:
            yield Terminal(ours, process)
        finally:
            process.kill()
            os.close(ours)


def test_it_is_live_fits_the_terminal_and_ends_with_ctrl_c(database: str, sql: Sql) -> None:
    for number in range(30):
        make_job(sql, "running", task=f"jobs.task{number:02}", worker="w")
    with opened(database, "top", "--interval", "0.2") as terminal:
        terminal.read_until(r"(?s)jobs\.task.*\x1b\[H")  # the cursor's way home begins a page
        page = next(page for page in terminal.printed.split("\x1b[H") if "jobs.task" in page)
        assert page.count("jobs.task") < 20 and re.search(r"… \d+ more", page)
        sql("DELETE FROM kombu_queue")
        sql("DELETE FROM pgbeat.jobs")
        terminal.read_until("Nothing runs")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until(re.escape("\x1b[?1049l"))  # the screen from before is back
        assert terminal.process.wait(30) == 0
    assert "Traceback" not in terminal.printed
