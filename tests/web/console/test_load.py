"""The chart of the load on the pages of jobs, of a lane and of a task."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from pgbeat.beat.maintenance import load as keeper
from pgbeat.config import Settings, postgres_url
from tests.support.command_line import Sql
from tests.support.databases import connected
from tests.support.pages import html, words_of
from tests.support.rows import make_job, make_lane
from tests.support.web import Web


@pytest.fixture
def at(sql: Sql) -> datetime:
    """Ten minutes ago."""
    [(found,)] = sql("SELECT date_trunc('minute', now()) - interval '10 minutes'")
    moment: datetime = found
    return moment


@pytest.fixture
def ended(sql: Sql, database: str, at: datetime) -> Callable[..., None]:
    """Makes jobs that ended at that time, and counts them."""

    def end(*states: str, **values: Any) -> None:
        for state in states:
            make_job(
                sql,
                state,
                created_at=at,
                started_at=at,
                finished_at=at + timedelta(seconds=2),
                **values,
            )
        with connected(database) as connection:
            keeper.keep(connection, Settings(postgres_url(database)), lambda task: "celery")

    return end


def test_a_bar_leads_to_its_jobs(page: Any, ended: Callable[..., None], at: datetime) -> None:
    ended("completed", "completed", "failed", task="a")
    ended("completed", task="b", lane="gpu")
    shown = html(page.get("/console/jobs?task=a&state=completed&span=1h"))
    assert "2 completed" in words_of(shown.one(".panels > figure > figcaption"))
    (bar,) = shown.all(".load svg.ends a")
    assert len(bar.cssselect("rect")) == 3  # what is pointed at, completed, failed
    found = html(page.get(bar.get("href")))
    assert len(found.all("#list tbody tr")) == 2
    assert "since:" in found.one(".search [name=q]").get("value")
    earlier = (at - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%MZ")
    found = html(page.get(f"/console/jobs?until={earlier}"))
    assert found.all("#list tbody tr") == []
    assert "since:soon" in words_of(html(page.get("/console/jobs?from=soon")).one("[role=alert]"))


def test_a_lane_has_a_chart(page: Any, sql: Sql, ended: Callable[..., None]) -> None:
    make_lane(sql, "gpu")
    ended("completed", lane="gpu")
    ended("completed", lane="cpu")
    shown = html(page.get("/console/lanes/gpu?span=24h"))
    assert "1 completed" in words_of(shown.one(".panels > figure > figcaption"))
    assert shown.one(".spans [aria-current]").get("href") == "/console/lanes/gpu?span=24h"


def test_a_task_has_a_page(page: Any, ended: Callable[..., None]) -> None:
    ended("failed", "failed", "failed", task="shop/a")
    shown = html(page.get("/console/tasks/shop/a"))
    assert "3 failed" in words_of(shown.one(".panels > figure > figcaption"))
    assert len(shown.all("#newest-box li")) == 3
    nothing = html(page.get("/console/tasks/nowhere"))
    assert nothing.all("svg.ends") == []


def test_a_queue_has_a_page(page: Any, web: Web, sql: Sql, ended: Callable[..., None]) -> None:
    celery = web.app.state.pgbeat.celery
    celery.conf.task_routes = {"gpu.*": {"queue": "gpu"}}

    @celery.task(name="gpu.render", shared=False)
    def render() -> None:
        """Is never run."""

    sql("INSERT INTO kombu_queue (name) VALUES ('gpu') RETURNING name")
    ended("failed", task="gpu.render")  # to where its task is routed
    ended("failed", task="any", queue="gpu")
    ended("completed", task="any")
    ended("completed", task="gpu.render", queue="celery")
    counts = {}
    for queue in ("gpu", "celery"):
        shown = html(page.get(f"/console/queues/{queue}"))
        assert shown.words.count("Load of queue " + queue) == 1
        counts[queue] = sorted(words_of(each)[9:] for each in shown.all("#newest-box li"))
        (every,) = shown.all("#newest-box p a")
        listed = html(page.get(every.get("href"))).all("#list tbody tr")
        assert len(listed) == len(counts[queue])
    found = {queue: [each.split()[:2] for each in rows] for queue, rows in counts.items()}
    assert found == {
        "gpu": [["failed", "any"], ["failed", "gpu.render"]],
        "celery": [["completed", "any"], ["completed", "gpu.render"]],
    }
    (bar,) = html(page.get("/console/queues/celery?span=1h")).all(".load svg.ends a")
    assert "queue=celery" in bar.get("href")
    assert html(page.get("/console/queues/nowhere"), 404)


def test_the_chart_says_whose_load_it_is(page: Any, ended: Callable[..., None]) -> None:
    ended("completed", task="shop.a", lane="gpu")

    def whose(query: str) -> str:
        return words_of(html(page.get(f"/console/jobs?{query}")).one("#load"))

    assert whose("") == "Load of all jobs"
    assert whose("task=shop.a&state=failed") == "Load of task shop.a"
    assert whose("queue=celery") == "Load of queue celery"
    # It is kept of neither globs nor combinations.
    assert whose("task=shop.*") == whose("task=shop.a&lane=gpu") == "Load of all jobs"


def test_users_see_no_chart_of_what_others_run(user: Any, ended: Callable[..., None]) -> None:
    ended("completed")
    assert html(user.get("/console/jobs")).all(".load") == []
    assert user.get("/console/tasks/jobs.add").status_code == 403
