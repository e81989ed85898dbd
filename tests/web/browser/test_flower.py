"""Flower in a browser: what it shows before and after a restart is the same."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pgbeat.access.redaction import MASK
from tests.support.browser import Window
from tests.support.flower import APP, OUTCOMES, WORKER, Flower, free_port
from tests.support.processes import Processes, until

#: Times that an event brings, and what it says beside them.
TIMES = ("started", "succeeded", "failed", "retried", "revoked", "timestamp", "runtime")
SAME = ("uuid", "name", "state", "worker", "retries", "result", "args", "kwargs")


@pytest.fixture
def flower(processes: Processes, database: str, tmp_path: Path) -> Flower:
    """Returns a Flower that is not started yet, beside a worker and a console."""
    (tmp_path / "flower_app.py").write_text(APP)
    port = free_port()
    processes.env |= {
        "BROKER": f"pgbeat+{database}",
        "BACKEND": f"pgbeat+{database}",
        "PYTHONPATH": str(tmp_path),
        "PGBEAT_WEB_URL": f"http://127.0.0.1:{port}",
    }
    processes.celery("pgbeat", "web", f"--port={port}", app="flower_app").says(
        "Ctrl-C ends it.", 90
    )
    worker = processes.celery("worker", "-c", "3", "-n", WORKER, "-l", "INFO", app="flower_app")
    worker.says("ready", 90)
    return Flower(processes, "flower_app")


def send(processes: Processes) -> dict[str, str]:
    """Sends a task for each outcome; returns their ids."""
    code = "import json, flower_app; print(json.dumps(flower_app.send()))"
    sender = processes.run(sys.executable, "-c", code)
    assert sender.wait(60) == 0, sender.output
    return dict(json.loads(sender.output.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_restarted_flower_shows_the_same(
    flower: Flower, processes: Processes, browser: Any, tmp_path: Path
) -> None:
    flower.start()
    until(lambda: WORKER in flower.json("/api/workers?refresh=1"))
    ids = send(processes)
    until(lambda: flower.states.get(ids["revoked"]) == "STARTED")
    flower.json(f"/api/task/revoke/{ids['revoked']}?terminate=true", b"")
    live = {**OUTCOMES, "skipped": "STARTED"}  # Celery says nothing of the end of an ignored task
    wanted = {ids[name]: state for name, state in live.items()}
    until(lambda: flower.states == wanted, what=str(wanted))
    before = flower.tasks
    page = Window(browser, flower.base).page
    page.goto("/tasks")
    page.wait_for_selector(f"#tasks-table a[href*='{ids['success']}']")
    page.screenshot(path=tmp_path / "before.png", full_page=True)
    flower.stop()

    assert "has read the history" in flower.start().output
    wanted[ids["skipped"]] = OUTCOMES["skipped"]
    until(lambda: flower.states == wanted, what=str(wanted))
    after = flower.tasks
    for name, task_id in ids.items():
        old, new = before[task_id], after[task_id]
        if name != "skipped":
            assert {key: new[key] for key in SAME} == {key: old[key] for key in SAME}, name
