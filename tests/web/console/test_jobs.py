"""The console's pages of jobs."""

from typing import Any

import pytest
from celery import Celery

from pgbeat.web.pages import humanize
from tests.support.command_line import Sql
from tests.support.pages import html
from tests.support.rows import make_execution
from tests.support.web import Web, opened


def test_jobs_are_listed_for_whom_they_are(web: Web, page: Any, job: Any, schedule: Any) -> None:
    mine = job(created_by="user:alice", task="mine.task")
    job(state="failed", error="ValueError: broken", task="bad.task")
    every = html(page.get("/console/jobs"))
    assert "mine.task" in every
    assert "ValueError: broken" in every
    assert "there is no schedule" in html(page.get("/console/jobs?schedule=t"))
    alice = web.browser(web.token("alice"))
    schedule("payroll")
    assert "did you mean 'payroll'?" in html(page.get("/console/jobs?schedule=payrol")).words
    known = html(alice.get("/console/jobs?schedule=payroll")).words
    assert html(alice.get("/console/jobs?schedule=payrol")).words == known
    assert "not the `next` of a page" in html(page.get("/console/jobs?after=x"), 422)
    own = html(alice.get("/console/jobs"))
    assert "mine.task" in own
    assert "bad.task" not in own
    assert mine[:8] in own
    assert web.browser(web.token("bob")).get(f"/console/jobs/{mine}").status_code == 404


def test_names_of_tasks_are_broken_between_their_parts(page: Any, job: Any) -> None:
    long_part = "bring_all_that_is_new_up_to_date"
    job(task=f"shop.<b>.{long_part}")
    listed = page.get("/console/jobs").text
    long_part = long_part.replace("_", "_<wbr>")
    assert f">shop.<wbr>&lt;b&gt;.<wbr>{long_part}</a>" in listed


def test_a_job_shows_executions_chain_and_checkpoint(page: Any, job: Any, sql: Sql) -> None:
    first = job(state="failed", error="ValueError: one")
    second = job(
        state="running",
        finished_at=None,
        retry_of=first,
        attempt=2,
        max_attempts=3,
        checkpoint='{"row": 17}',
        worker="w@host",
    )
    sql("UPDATE pgbeat.jobs SET retried_by = %s WHERE id = %s RETURNING id", second, first)
    make_execution(sql, first, "failed", traceback="Traceback (most recent call last)")
    make_execution(sql, second, progress_done=17, progress_total=50, progress_message="rows")
    text = html(page.get(f"/console/jobs/{second}"))
    assert '<progress max="50.0" value="17.0"' in text
    said = text.words
    assert "17 of 50, rows" in said
    assert '"row": 17' in said
    assert f"before: {first[:8]} failed" in said
    said = html(page.get(f"/console/jobs/{first}")).words
    assert "Traceback (most recent call last)" in said
    assert f"after: {second[:8]} running" in said
    listed = html(page.get("/console/jobs?state=failed"))
    assert listed.one(f'[aria-label="retried as {second[:8]}"]').get("href").endswith(second)
    assert html(page.get("/console/jobs/nothing"), 404)


def test_buttons_are_what_a_job_and_the_caller_allow(web: Web, page: Any, job: Any) -> None:
    def verbs(browser: Any, job_id: str) -> set[str]:
        shown = html(browser.get(f"/console/jobs/{job_id}"))
        return {each.get("value") for each in shown.all("[name=do]")}

    user = web.browser(web.token("alice"))
    alice: dict[str, Any] = {"created_by": "user:alice"}
    unfinished: dict[str, Any] = alice | {"finished_at": None}
    again = {"retry", "delete"}
    # What an administrator is offered, and what of it a user is not.
    cases: list[tuple[dict[str, Any], set[str], set[str]]] = [
        (alice, {"delete"}, set()),
        (alice | {"state": "failed"}, again, set()),
        (unfinished | {"state": "pending"}, {"pause", "cancel", "update"}, set()),
        (paused := unfinished | {"state": "paused"}, {"resume", "cancel", "update"}, set()),
        (paused | {"awaits_approval": True}, {"approve", "cancel", "update"}, {"approve"}),
        (unfinished | {"state": "running"}, {"cancel"}, set()),
        (alice | {"state": "failed", "is_system_job": True}, again, again),
    ]
    for values, offered, of_admins in cases:
        job_id = job(**values)
        assert verbs(page, job_id) == offered, values
        assert verbs(user, job_id) == offered - of_admins, values


def test_flower_is_linked_where_it_is(app: Celery, job: Any) -> None:
    with opened(app, web_flower_url="https://flower.test/f/") as web:
        page = web.browser(web.token("root", "admin"))
        job_id = job()
        assert f'href="https://flower.test/f/task/{job_id}"' in html(
            page.get(f"/console/jobs/{job_id}")
        )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0 s"), (0.0002, "1 ms"), (0.038, "38 ms"), (0.4, "0.4 s"), (75.0, "1 min 15 s")],
)
def test_how_long_something_lasted(seconds: float, said: str) -> None:
    assert humanize.length(seconds) == said
