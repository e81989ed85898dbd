"""The chart of the load on the pages of jobs, of a lane and of a task."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from pgbeat.beat import load as keeper
from pgbeat.config import Settings, postgres_url
from tests.support.command_line import Sql
from tests.support.databases import connected
from tests.support.pages import html, words_of
from tests.support.rows import make_job, make_lane


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
            make_job(sql, state, created_at=at, started_at=at,
                     finished_at=at + timedelta(seconds=2), **values)  # fmt: skip
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


def test_users_see_no_chart_of_what_others_run(user: Any, ended: Callable[..., None]) -> None:
    ended("completed")
    assert html(user.get("/console/jobs")).all(".load") == []
    assert user.get("/console/tasks/jobs.add").status_code == 403
