"""With `pgbeat_log_format = "json"`, each line that a process writes is JSON, from start to end."""

import json
import signal
import sys
from typing import Any

import pytest

from tests.support.processes import Process, Processes

_JSON = {"PGBEAT_LOG_FORMAT": "json"}


def ended(process: Process, said: str) -> list[dict[str, Any]]:
    """Ends a process once it has said something; returns its lines."""
    process.says(said, 60)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    return [json.loads(line) for line in process.output.splitlines()]


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_worker(processes: Processes, pool: str) -> None:
    worker = processes.worker("-P", pool, "-c", "1", "-Q", "one,two", **_JSON)
    lines = ended(worker, " ready.")
    [start] = [line for line in lines if line["message"].startswith("Worker ")]
    assert start["queues"] == ["one", "two"]
    assert start["concurrency"] == 1
    messages = [line["message"] for line in lines]
    assert messages.count("worker: Warm shutdown (MainProcess)") == 1


def test_a_beat(processes: Processes) -> None:
    lines = ended(processes.beat(**_JSON), "This beat leads")
    [start] = [line for line in lines if line["message"] == "Beat starts"]
    assert {"app", "broker", "celery", "pgbeat"} <= start.keys()


def test_the_web_side(processes: Processes) -> None:
    app = ("-A", "tests.support.apps.basic")
    web = processes.run(
        sys.executable, "-m", "pgbeat", *app, "web", "--port", "0", "--access-log", **_JSON
    )
    lines = ended(web, "pgbeat is at ")
    assert lines[-1]["message"] == "Stopped."


def test_without_the_setting_the_banner_is_there(processes: Processes) -> None:
    worker = processes.worker("-c", "1")
    worker.says(" ready.", 60)
    assert "- ** ----------" in worker.output
    assert "Worker w" not in worker.output
