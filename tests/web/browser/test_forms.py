"""The console's forms and newer pages in a real browser."""

import re
from typing import Any

import pytest

from tests.support.browser import AXE, fits
from tests.support.command_line import Sql
from tests.support.rows import make_schedule
from tests.support.web import Web, done

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_schedule_is_made_run_and_backfilled_on_a_phone(window: Any, web: Web, sql: Sql) -> None:
    phone = window(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = phone.sign_in(web.token("root", "admin"))
    page.click("text=Create the first one")
    page.fill("#f-name", "nightly")
    page.fill("#f-timetable", "61 2 * * *")
    page.fill("#f-task", "tests.add")
    assert page.get_attribute("#f-task", "list") == "l-tasks"
    page.click("summary:has-text('Overlap and skipping')")
    page.select_option("#f-overlap", "skip")
    page.click("button:has-text('Create schedule')")
    page.wait_for_selector("#e-timetable:has-text('minute')")
    assert fits(page)
    assert page.input_value("#f-overlap") == "skip"
    page.fill("#f-timetable", "0 * * * *")
    page.click("summary:has-text('Start and end')")
    page.fill("#f-starts_at", "2026-01-01T10:30:00")
    page.click("button:has-text('Create schedule')")
    page.wait_for_selector("[role=status]:has-text('was created')")
    assert sql("SELECT cron, overlap, starts_at::text FROM pgbeat.schedules") == [
        ("0 * * * *", "skip", "2026-01-01 10:30:00+00")
    ]
    # Saved as it is, nothing is changed: a browser writes times as the page does.
    page.click("summary:has-text('Edit')")
    page.click("button:has-text('Save')")
    page.wait_for_selector("[role=status]:has-text('Nothing was changed')")
    page.click("a:has-text('Backfill')")
    page.fill("#f-start", "2026-01-02T00:00:00")
    page.fill("#f-end", "2026-01-02T02:00:00")
    page.click("button:has-text('Show what was missed')")
    page.wait_for_selector("h2:has-text('3 due times missed')")
    assert fits(page)
    page.click("button:has-text('Launch all 3')")
    page.wait_for_selector("[role=status]:has-text('backfilled: 3 launched')")
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(3,)]


def test_a_template_is_made_and_a_job_run_from_it(window: Any, web: Web, sql: Sql) -> None:
    page = window(viewport={"width": 1280, "height": 800}).sign_in(web.token("root", "admin"))
    page.click("nav >> text=Jobs")
    page.click("nav.tabs >> text=Templates")
    page.click("text=Create the first one")
    page.fill("#f-name", "t")
    page.fill("#f-task", "tests.add")
    page.fill("#f-args", "[1]")
    page.click("button:has-text('Create template')")
    page.wait_for_selector("[role=status]:has-text('was created')")
    page.click("a:has-text('Run a job from it')")
    assert page.input_value("#f-template") == "t"
    page.click("button:has-text('Run it')")
    page.wait_for_selector("[role=status]:has-text('The job was created')")
    assert sql("SELECT args, template, created_by FROM pgbeat.jobs") == [([1], "t", "user:root")]


def test_a_webhooks_secret_is_shown_and_kept(window: Any, web: Web, sql: Sql) -> None:
    page = window(viewport={"width": 390, "height": 800}).sign_in(web.token("root", "admin"))
    page.click("nav >> text=System")
    page.click("nav.tabs >> text=Webhooks")
    page.click("text=Create the first one")
    page.fill("#f-name", "ops")
    page.fill("#f-url", "https://example.com/hook")
    page.check("text=a schedule could not be launched")
    page.click("button:has-text('Create webhook')")
    page.wait_for_selector(".secret pre")
    [(secret, events)] = sql("SELECT secret, events FROM pgbeat.webhooks")
    assert page.inner_text(".secret pre") == secret
    assert events == ["job.failed", "schedule.disabled", "tick.failed"]
    assert fits(page)
    page.click("text=I have copied it")
    page.wait_for_selector("h1:has-text('ops')")
    assert secret not in page.content()


def test_a_group_is_cancelled(window: Any, web: Web, sql: Sql) -> None:
    page = window(viewport={"width": 390, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto("/console/new/group")
    page.fill("#f-jobs", 'tests.add\n{"task": "tests.add", "args": [1]}')
    page.click("button:has-text('Create group')")
    page.wait_for_selector("[role=status]:has-text('The group was created')")
    page.click("summary:has-text('Cancel')")
    page.click("button:has-text('Cancel the group')")
    page.wait_for_selector("[role=status]:has-text('2 jobs ended now')")
    assert fits(page)
    assert sql("SELECT DISTINCT state FROM pgbeat.jobs") == [("cancelled",)]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (npm install axe-core)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(window: Any, web: Web, sql: Sql, scheme: str) -> None:
    make_schedule(sql, "nightly", cron="0 2 * * *")
    admin = web.admin
    done(admin.put("/templates/t", json={"task": "tests.add", "job_policy": {"tags": ["a"]}}), 201)
    group = done(admin.post("/groups", json={"name": "g", "jobs": ["tests.add"]}), 201)["id"]
    sql(
        "INSERT INTO pgbeat.webhooks (name, url, secret, events) VALUES ('h', 'https://a.b',"
        " 'whsec_' || repeat('a', 40), '{job.failed}')"
    )
    sql(
        "INSERT INTO pgbeat.deliveries (webhook_id, event, payload, state, finished_at, next_at,"
        " log) SELECT id, 'job.failed', '{\"a\": 1}', 'failed', now(), NULL,"
        ' \'[{"at": "2026-01-01", "error": "refused"}]\' FROM pgbeat.webhooks'
    )
    shown = window(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page = shown.sign_in(web.token("root", "admin"))
    wrong = []
    for path in (
        "groups",
        f"groups/{group}",
        "templates",
        "templates/t",
        "webhooks",
        "webhooks/h",
        "new/schedule",
        "new/job?template=t",
        "new/group",
        "new/template",
        "new/webhook",
        "backfill/nightly",
        "schedules/nightly",
    ):
        page.goto(f"/console/{path}")
        for part in page.query_selector_all("details:not([open]) > summary"):
            part.evaluate("each => each.parentElement.open = true")
        if re.match("new/(schedule|job|group|template|webhook)", path):
            page.click("main button.main")  # and what is wrong with an empty one
            page.wait_for_selector("main .wrong, main [role=status] p")
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run()")["violations"]
        wrong += [
            (path, each["id"], each["nodes"][0]["html"])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
    assert wrong == []


def test_the_audit_breaks_no_words_of_usual_length(window: Any, web: Web) -> None:
    admin = web.admin
    made = {"name": "category_refresh_of_all_shops", "task": "tests.add", "args": [1], "every": 600}
    done(admin.post("/admin/scheduled-jobs", json=made), 201)
    name = made["name"]
    done(admin.patch(f"/admin/scheduled-jobs/{name}", json={"max_retries": 9, "owner": "data"}))
    page = window(viewport={"width": 1280, "height": 800}).sign_in(web.token("root", "admin"))
    page.click("nav >> text=System")
    page.click("nav.tabs >> text=Audit")
    for words in (f"td >> text={name}", "td:has-text('user:root')"):
        lines = page.eval_on_selector(
            words,
            "e => { const r = document.createRange(); r.selectNodeContents(e.firstChild);"
            " return new Set([...r.getClientRects()].map(x => x.top)).size }",
        )
        assert lines == 1, words
    assert fits(page)
