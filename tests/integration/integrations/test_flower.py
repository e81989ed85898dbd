"""Flower: each page, and its API, with a worker on pgbeat's transport."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pgbeat.config import Settings, postgres_url
from tests.support.command_line import Sql
from tests.support.flower import WORKER, Flower, with_worker
from tests.support.processes import Processes, until
from tests.support.rows import make_job

CONSOLE = "https://console.example.com/a&b/"


@pytest.fixture
def flower(processes: Processes, database: str, tmp_path: Path) -> Flower:
    """Returns Flower with one worker that sends events, once they see each other."""
    (tmp_path / "flowerconfig.py").write_text("import pgbeat.flower\n")
    processes.env |= {"PGBEAT_WEB_URL": CONSOLE, "TRACK": "off"}
    found = with_worker(processes, database)
    found.start(f"--conf={tmp_path}/flowerconfig.py")
    until(lambda: WORKER in found.json("/api/workers?refresh=1"))
    return found


@pytest.mark.slow
def test_every_page_and_the_api(flower: Flower) -> None:
    state = flower.json("/api/workers?status=1")
    assert state == {WORKER: True}
    found = flower.json("/api/workers")[WORKER]
    assert found["stats"]["broker"]["transport"] == "pgbeat"
    assert "celery" in [queue["name"] for queue in found["active_queues"]]

    # Tasks: sent, applied, found, with their results.
    result = flower.json("/api/task/apply/flower.add", {"args": [1, 2]})
    assert (result["state"], result["result"]) == ("SUCCESS", 3)
    sent = flower.json("/api/task/async-apply/flower.add", {"args": [2, 3]})["task-id"]
    by_name = flower.json("/api/task/send-task/flower.add", {"args": [3, 4]})["task-id"]
    for task, value in ((sent, 5), (by_name, 7)):
        until(lambda: flower.json(f"/api/task/result/{task}").get("result") == value)  # noqa: B023
        info = until(lambda: _succeeded(flower, task))  # noqa: B023
        assert info["name"] == "flower.add"
    assert {sent, by_name} <= set(flower.json("/api/tasks?taskname=flower.add"))
    assert "flower.add" in flower.json("/api/task/types")["task-types"]

    # Control of the worker.
    nap = flower.json("/api/task/async-apply/flower.nap", {"args": [300]})["task-id"]
    until(lambda: flower.json(f"/api/task/info/{nap}").get("state") == "STARTED")
    flower.json(f"/api/task/revoke/{nap}?terminate=true", b"")
    until(lambda: flower.json(f"/api/task/info/{nap}").get("state") == "REVOKED")
    for path, form in (
        ("/api/worker/pool/grow/" + WORKER + "?n=1", b""),
        ("/api/worker/pool/shrink/" + WORKER + "?n=1", b""),
        ("/api/worker/queue/add-consumer/" + WORKER + "?queue=more", b""),
        ("/api/worker/queue/cancel-consumer/" + WORKER + "?queue=more", b""),
        ("/api/task/rate-limit/flower.add", f"workername={WORKER}&ratelimit=200/m".encode()),
        ("/api/task/timeout/flower.add", f"workername={WORKER}&soft=10&hard=20".encode()),
    ):
        # Flower waits for the worker's answer for a second.
        until(lambda: "message" in flower.ask(path, form)[1], what=path)  # noqa: B023

    # The broker.
    [queue] = flower.json("/api/queues/length")["active_queues"]
    assert (queue["name"], queue["messages"], queue["consumers"]) == ("celery", 0, 1)
    assert "password" not in flower.ask("/broker")[1]

    for page, content in (
        ("/", WORKER),
        ("/workers", WORKER),
        (f"/worker/{WORKER}", "pgbeat"),
        ("/tasks", "Name"),
        (f"/task/{sent}", "flower.add"),
        ("/broker", "celery"),
        ("/metrics", "flower_worker_online"),
    ):
        status, body = flower.ask(page)
        assert status == 200 and content in body, f"{page}: {status}"

    # Of a job, the task's page links to the console; of what is none, it doesn't.
    assert "This job in pgbeat" not in flower.ask(f"/task/{nap}")[1]
    page = flower.ask(f"/task/{sent}")[1]
    link = f"https://console.example.com/a&amp;b/console/jobs/{sent}"
    assert f'<a href="{link}">This job in pgbeat</a>' in page
    assert page.index('id="taskid"') < page.index(link) < page.index("Arguments")
    assert flower.ask("/task/nonsense")[0] == 404

    flower.json(f"/api/worker/shutdown/{WORKER}", b"")
    until(lambda: flower.json("/api/workers?status=1") == {WORKER: False})


def test_only_jobs_have_a_page_in_the_console(database: str, sql: Sql) -> None:
    from pgbeat.integrations.flower import Console

    settings = Settings(postgres_url(database), web_url=CONSOLE)
    console = Console(settings)
    job = make_job(sql)
    assert console.page_of(job) == f"https://console.example.com/a&b/console/jobs/{job}"
    assert console.page_of(str(uuid4())) is None
    assert console.page_of("../audit") is None
    assert console.page_of(make_job(sql, namespace="other")) is None
    # Where nobody can say, the console does.
    away = postgres_url("postgresql://nobody@127.0.0.1:1/none")
    page = Console(replace(settings, url=away)).page_of("a/b")
    assert page is not None and page.endswith("/console/jobs/a%2Fb")


def _succeeded(flower: Flower, task: str) -> Any:
    info = flower.json(f"/api/task/info/{task}")
    return info if info.get("state") == "SUCCESS" else None
