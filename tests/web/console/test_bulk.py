"""Changes of several jobs, from the console's list."""

from typing import Any

import pytest

from pgbeat.web.pages.jobs import bulk
from tests.support.command_line import Sql
from tests.support.pages import Page, after, html, words_of
from tests.support.rows import make_job
from tests.support.web import Web


def fields(shown: Page, **more: str) -> dict[str, Any]:
    """The hidden fields of the form that goes on."""
    found: dict[str, Any] = {}
    for each in shown.all("#go-on input"):
        found.setdefault(each.get("name"), []).append(each.get("value"))
    return found | more


def test_ticked_jobs_are_shown_and_then_retried(page: Any, sql: Sql) -> None:
    ids = [make_job(sql, "failed", error="no") for _ in range(3)]
    listed = html(page.get("/console/jobs"))
    assert len(listed.all("td.tick input[form=several]")) == 3
    asked = html(page.post("/console/bulk", data={"do": "retry", "id": ids[:2]}))
    assert "Retry 2 jobs?" in asked.words
    assert sql("SELECT 1 FROM pgbeat.jobs WHERE retry_of IS NOT NULL") == []
    answer = page.post("/console/bulk", data=fields(asked, sure="yes"))
    assert answer.headers["location"] == "/console/jobs"
    assert "Retried 2 jobs." in html(page.get("/console/jobs")).words
    assert sql("SELECT count(*) FROM pgbeat.jobs WHERE retry_of IS NOT NULL") == [(2,)]


def test_all_that_match_go_step_by_step(
    page: Any, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_STEP", 2)
    for _ in range(3):
        make_job(sql, "failed", error="HTTPError: 503", task="shop.a")
    make_job(sql, "failed", error="no", task="shop.a")
    query = {"task": "shop.*", "error": "503"}
    listed = html(page.get("/console/jobs", params=query))
    assert len(listed.all("#list tbody tr")) == 3
    hidden = {
        each.get("name"): each.get("value") for each in listed.all("#several input[type=hidden]")
    }
    assert hidden == {"q": "task:shop.* error:503"}
    asked = html(page.post("/console/bulk", data=hidden | {"which": "all", "do": "delete"}))
    assert "Delete 3 jobs?" in asked.words
    step = html(page.post("/console/bulk", data=fields(asked, sure="yes")))
    assert "2 of 3 jobs" in step.words
    assert step.all("form[data-go-on]")
    answer = page.post("/console/bulk", data=fields(step, sure="yes"))
    assert answer.status_code == 303
    assert "Deleted 3 jobs." in html(page.get(answer.headers["location"])).words
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(1,)]


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"which": "ticked"},
        {"q": "state:failed"},
        {"which": "ticked", "q": "state:failed"},
        {"which": "all"},
    ],
)
def test_without_ticks_nothing_is_done_unless_all_that_match_is_chosen(
    page: Any, sql: Sql, choice: dict[str, str]
) -> None:
    make_job(sql, "failed")
    for form in ({"do": "delete"}, {"do": "delete", "sure": "yes"}):
        answer = page.post("/console/bulk", data=form | choice)
        assert "Nothing was done" in after(page, answer)
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(1,)]


def test_hidden_fields_that_are_wrong(page: Any, sql: Sql) -> None:
    assert page.post("/console/bulk", data={"do": "burn"}).status_code == 422
    for number in ("x", "-1", "9" * 5000):
        form = {"do": "delete", "id": make_job(sql, "failed"), "sure": "yes"}
        form |= {"number": number, "done": number, "left": number}
        assert "Deleted 1 job." in after(page, page.post("/console/bulk", data=form))


def test_jobs_in_no_fitting_state(page: Any, sql: Sql) -> None:
    ended = make_job(sql, "completed")
    shown = html(page.post("/console/bulk", data={"do": "cancel", "id": ended}))
    assert "None of them is in a state" in shown.words
    shown = html(page.post("/console/bulk", data={"do": "retry", "id": ended}))
    assert "None of them can be retried: they have not failed" in shown.words


def test_users_learn_that_only_their_own_are_meant(web: Web, sql: Sql) -> None:
    make_job(sql, "failed", created_by="user:alice")
    make_job(sql, "failed", created_by="user:bob")
    form = {"do": "delete", "which": "all", "q": "state:failed"}
    tokens = web.token("alice"), web.token("root", "admin")
    for token, number, said in zip(tokens, ("1 job", "2 jobs"), (True, False), strict=True):
        asked = html(web.browser(token).post("/console/bulk", data=form)).words
        assert f"Delete {number}?" in asked
        assert ("Only jobs of your own are meant" in asked) is said


def test_viewers_get_no_ticks(web: Web, sql: Sql) -> None:
    make_job(sql, "failed")
    viewer = web.browser(web.token("vera", "viewer"))
    shown = html(viewer.get("/console/jobs"))
    assert not shown.all(".tick")
    assert not shown.all("#several")
    assert words_of(shown.one("#list tbody tr")).startswith("jobs.add failed")
    assert viewer.post("/console/bulk", data={"do": "delete", "state": "failed"}).status_code == 403
