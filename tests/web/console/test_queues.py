"""The console's pages of lanes, queues and beats."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from pgbeat.beat.scheduler import Scheduler
from tests.support.command_line import Sql
from tests.support.databases import broker_url
from tests.support.pages import after, html

Beat = Callable[..., Scheduler]

LIST = "/console/schedules"


def test_a_lane_shows_who_is_in_it_and_who_waits(page: Any, job: Any, sql: Sql) -> None:
    sql("INSERT INTO pgbeat.lanes (name, max_running) VALUES ('gpu', 1) RETURNING name")
    job(
        lane="gpu",
        state="running",
        finished_at=None,
        dispatched_at="2026-01-01T00:00:00Z",
        task="in.slot",
    )
    job(lane="gpu", state="pending", finished_at=None, started_at=None, task="in.line")
    said = html(page.get("/console/lanes")).words
    assert "gpu active 1 of 1 1 " in said
    said = html(page.get("/console/lanes/gpu")).words
    assert re.search(r"Slots in use \w{8} running in.slot", said)
    assert re.search(r"Waiting line .*\bin\.line\b", said)
    assert "is paused" in after(page, page.post("/console/lanes/gpu", data={"do": "pause"}))
    assert "the lane is paused" in html(page.get("/console/lanes/gpu"))
    assert "continues" in after(page, page.post("/console/lanes/gpu", data={"do": "resume"}))
    assert sql("SELECT verb FROM pgbeat.audit WHERE kind = 'lane' ORDER BY id") == [
        ("pause",),
        ("resume",),
    ]
    assert html(page.get("/console/lanes/cpu"), 404)
    assert html(page.post("/console/lanes/cpu", data={"do": "pause"}), 404)


@pytest.fixture
def dead(page: Any, schedule: Any, sql: Sql) -> Iterator[int]:
    """A dead letter of queue `celery`; its number."""
    schedule("s")
    page.post(f"{LIST}/s", data={"do": "trigger"})
    [(name,)] = sql("SELECT name FROM kombu_queue")
    assert name == "celery"
    [(number,)] = sql(
        "WITH gone AS (DELETE FROM kombu_message RETURNING *) "
        "INSERT INTO kombu_message_dead "
        "(id, queue, payload, priority, reason, deliveries, enqueued_at) "
        "SELECT id, 'celery', payload, priority, 'delivered 3 times', 3, enqueued_at FROM gone "
        "RETURNING id"
    )
    yield number


def test_a_dead_letter_is_put_back(
    app: Celery, database: str, page: Any, dead: int, sql: Sql
) -> None:
    """Consumers on the stock transport are not seen."""
    app.conf.broker_url = broker_url(database)
    said = html(page.get("/console/queues")).words
    assert "celery 0 0 0 1 ? –" in said
    assert "delivered 3 times" in said
    assert "tests.add" in said
    form = {"do": "requeue", "id": str(dead)}
    assert "back in queue" in after(page, page.post("/console/dead", data=form))
    assert "celery 1 0 0 0 ? " in html(page.get("/console/queues")).words
    assert f"there is no dead letter {dead}" in html(page.post("/console/dead", data=form), 404)
    for number in ("x", "-1", str(2**63), "9" * 5000):
        assert html(page.post("/console/dead", data=form | {"id": number}), 404)
    assert sql("SELECT verb, kind FROM pgbeat.audit ORDER BY id DESC LIMIT 1") == [
        ("requeue", "dead letter")
    ]


def test_beats(page: Any, beat: Beat) -> None:
    assert "No beat runs" in html(page.get("/console/beats"))
    assert "No beat leads" in html(page.get(LIST))
