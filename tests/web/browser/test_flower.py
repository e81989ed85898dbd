"""Flower in a browser: what it shows before and after a restart is the same."""

import json
import sys
from typing import Any

import pytest

from pgbeat.access.redaction import MASK
from tests.support.browser import Window
from tests.support.flower import OUTCOMES, WORKER, Flower, with_worker
from tests.support.processes import Processes, free_port, until
from tests.support.web import make_token

#: What an event says, and its times.
SAME = ("uuid", "name", "state", "worker")
TIMES = ("started", "succeeded", "failed", "retried", "revoked", "runtime")
#: Seconds by which the worker's and the recorder's may differ on a busy machine.
CLOSE = 5.0
#: What a filled task shows: no more than the console.
SHOWN = {
    "success": ("(2, 3)", "{}", "5", None),
    "failure": ("('no such thing',)", "{}", None, "ValueError: no such thing"),
    "masked": (f"(12, '{MASK}')", "{'note': '4112'}", MASK, None),
    "hidden": (f"('{MASK}',)", "{}", None, f"ValueError: {MASK}"),
}


@pytest.fixture
def flower(processes: Processes, database: str) -> Flower:
    """Returns a Flower that is not started yet, beside a worker and a console."""
    port = free_port()
    processes.env["PGBEAT_WEB_URL"] = f"http://127.0.0.1:{port}"
    found = with_worker(processes, database)
    web = processes.celery("pgbeat", "web", f"--port={port}", app="flower_app")
    web.says("Ctrl-C ends it.", 90)
    return found


def send(processes: Processes) -> dict[str, str]:
    """Sends a task for each outcome; returns their ids."""
    code = "import json, flower_app; print(json.dumps(flower_app.send()))"
    sender = processes.run(sys.executable, "-c", code)
    assert sender.wait(90) == 0, sender.output
    return dict(json.loads(sender.output.splitlines()[-1]))


def rows(page: Any) -> dict[str, list[str]]:
    """Returns the name and the state of each task in the list."""
    page.goto("/tasks")
    page.wait_for_selector("#tasks-table tbody a[href*='/task/']")
    cells = page.locator("#tasks-table tbody tr").evaluate_all(
        "all => all.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    )
    return {uuid: [name, state] for name, uuid, state, *_ in cells}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_restarted_flower_shows_the_same(
    flower: Flower, processes: Processes, browser: Any, database: str
) -> None:
    flower.start()
    until(lambda: WORKER in flower.json("/api/workers?refresh=1"), 90)
    ids = send(processes)
    until(lambda: flower.states.get(ids["revoked"]) == "STARTED", 90)
    flower.json(f"/api/task/revoke/{ids['revoked']}?terminate=true", b"")
    wanted = {ids[name]: state for name, state in OUTCOMES.items()}
    # Celery says nothing of the end of an ignored task.
    live = {**wanted, ids["skipped"]: "STARTED"}
    until(lambda: flower.states == live, 90, what=str(live))
    before = flower.tasks
    window = Window(browser, flower.base)
    seen = rows(window.page)
    flower.stop()

    flower.start()
    until(lambda: flower.states == wanted, 90, what=str(wanted))
    after = flower.tasks
    for name in OUTCOMES.keys() - {"skipped"}:
        old, new = before[ids[name]], after[ids[name]]
        assert {key: new[key] for key in SAME} == {key: old[key] for key in SAME}
        for key in TIMES:
            assert new[key] == (old[key] and pytest.approx(old[key], abs=CLOSE)), (name, key)
    for name, shown in SHOWN.items():
        task = after[ids[name]]
        assert tuple(task[key] for key in ("args", "kwargs", "result", "exception")) == shown
    secrets = ("4111", "swordfish")
    assert not [secret for secret in secrets if secret in str(before) + str(after)]
    # They are no events that Flower has seen.
    assert "flower_events_total{" not in "".join(
        line for line in flower.ask("/metrics")[1].splitlines() if '"task-' in line
    )

    page = window.page
    assert rows(page) == {**seen, ids["skipped"]: ["flower.skip", "REVOKED"]}
    page.click(f"#tasks-table a[href*='{ids['masked']}']")
    page.wait_for_selector("text=This job in pgbeat")
    assert f"(12, '{MASK}')" in page.inner_text("body")
    page.click("text=This job in pgbeat")
    page.fill("#token", make_token(database, "root", "admin"))
    page.keyboard.press("Enter")
    page.wait_for_url(f"{processes.env['PGBEAT_WEB_URL']}/console/jobs/{ids['masked']}")
    assert "flower.pay" in page.inner_text("main")
    page.goto("/broker")
    page.wait_for_selector("td:has-text('celery')")
    assert window.wrong == []
