"""The console's pages of lanes, queues and beats."""

import re
from typing import Any

from celery import Celery

from tests.support.command_line import Sql
from tests.support.databases import broker_url
from tests.support.pages import after, html
from tests.support.rows import make_dead_letter, make_lane


def test_a_lane_shows_who_is_in_it_and_who_waits(page: Any, job: Any, sql: Sql) -> None:
    make_lane(sql, "gpu")
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
    sql("UPDATE pgbeat.lanes SET paused_at = now()")
    assert "the lane is paused" in html(page.get("/console/lanes/gpu"))


def test_a_dead_letter_is_put_back(app: Celery, database: str, page: Any, sql: Sql) -> None:
    """Consumers on the stock transport are not seen."""
    app.conf.broker_url = broker_url(database)
    payload = '{"headers": {"task": "tests.add", "id": "i"}}'
    dead = make_dead_letter(sql, payload=payload, reason="delivered 3 times")
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
