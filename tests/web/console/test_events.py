"""Events, and the jobs that wait for them: on their pages, and in lists."""

import re
from typing import Any

from celery import Celery

from tests.support.command_line import Sql, run_with
from tests.support.pages import after, html, words_of
from tests.support.rows import make_schedule, make_waiting
from tests.support.web import Web, done, opened


def said(page: Any, response: Any) -> str:
    """Returns what the page after a change says."""
    return words_of(after(page, response).one("[role=status]"))


def test_the_page_of_a_job_has_its_steps_and_emits_what_it_waits_for(
    page: Any, viewer: Any, sql: Sql
) -> None:
    job = make_waiting(sql, "paid/<12>")
    path = f"/console/jobs/{job}"
    shown = html(page.get(path))
    assert "has waited for the event 'paid/<12>' for 5 min" in words_of(shown.one(".lead"))
    charge, wait = (words_of(row) for row in shown.all("#steps-box tbody tr"))
    assert charge.startswith("charge done") and charge.endswith('{"card": "4711"}')
    assert wait.startswith("paid/<12> wait waiting until 2") and "so far" in wait
    assert "waiting for event paid/<12>" in words_of(shown.one("#phases"))
    [form] = [each for each in shown.all("form.ask") if "Value of paid/<12>" in words_of(each)]
    given = {field.get("name"): field.get("value", "") for field in form.cssselect("input")}
    assert given == {"job": job, "key": "paid/<12>", "value": ""}
    assert "Emit" not in words_of(html(viewer.get(path)).one("main"))
    wrong = page.post(form.get("action"), data=given | {"value": "x", "do": "emit"})
    assert "invalid JSON" in html(wrong, 422).wrong["value"]
    emitted = page.post(form.get("action"), data=given | {"value": "[7]", "do": "emit"})
    assert emitted.headers["location"] == path
    assert said(page, emitted) == "Event 'paid/<12>' was emitted."
    assert sql("SELECT value, emitted_by FROM pgbeat.events") == [([7], "user:root")]
    assert sql("SELECT run_at <= now() FROM pgbeat.jobs") == [(True,)]
    again = page.post(form.get("action"), data=given | {"do": "emit"})
    assert said(page, again) == "There is an event 'paid/<12>' already; it stays."


def test_events_are_listed_and_emitted(page: Any, viewer: Any, sql: Sql) -> None:
    assert "No events yet" in html(page.get("/console/events")).words
    for key, value in (("paid/1", '"<b>"'), ("other", "")):
        form = {"key": key, "value": value, "do": "emit"}
        assert said(page, page.post("/console/events", data=form)) == f"Event '{key}' was emitted."
    wrong = html(page.post("/console/events", data={"key": "", "do": "emit"}), 422)
    assert "1 to 200 printable characters" in wrong.wrong["key"]
    rows = html(viewer.get("/console/events")).all("#list tbody tr")
    assert [words_of(row).split()[0] for row in rows] == ["other", "paid/1"]
    assert words_of(rows[1]).endswith('root "<b>"')
    assert len(html(viewer.get("/console/events?prefix=paid")).all("#list tbody tr")) == 1
    assert viewer.post("/console/events", data={"key": "k", "do": "emit"}).status_code == 403


def test_lists_and_the_timeline_say_what_a_job_waits_for(
    app: Celery, web: Web, page: Any, sql: Sql
) -> None:
    key = make_schedule(sql, "nightly")
    job = make_waiting(sql, "paid/12", schedule="nightly", schedule_id=key)
    listed = words_of(html(page.get("/console/jobs")).one("#list tbody tr"))
    assert "scheduled waiting for paid/12" in listed
    assert "waiting for paid/12" in run_with(app, "jobs", "list").stdout
    [found] = done(web.admin.get("/jobs"))["jobs"]
    assert found["waits_for_event"] == "paid/12"
    overview = html(page.get("/console/overview"))
    [title] = overview.tree.xpath(f"//*[@href='jobs/{job}']//*[local-name()='title']/text()")
    assert re.search(r"has waited for 6 min[\w ]*, now for paid/12$", title)
    printed = run_with(app, "jobs", "show", job, "--admin").stdout
    for said in ("has waited for the event 'paid/12'", "charge", '{"card": "4711"}', "waiting"):
        assert said in printed


def test_no_list_shows_a_key_that_is_masked(app: Celery, sql: Sql) -> None:
    """Which may be made of an argument."""
    key = make_schedule(sql, "nightly")
    job = make_waiting(sql, "paid/4711", schedule="nightly", schedule_id=key)
    with opened(app, redact={"jobs.add": ["card"]}) as web:
        viewer, root = web.browser(web.token("v", "viewer")), web.browser(web.token("r", "admin"))
        for path in ("/jobs", "/console/jobs", f"/jobs/{job}", f"/console/jobs/{job}", "/timeline",
                     f"/jobs/{job}/trace", "/console/overview"):  # fmt: skip
            assert "4711" in root.get(path).text, path
            assert "4711" not in viewer.get(path).text, path
    assert "4711" not in run_with(app, "jobs", "show", job).stdout
