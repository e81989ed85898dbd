"""The console's forms and newer pages in a real browser."""

from typing import Any

import pytest

from tests.support.browser import fits
from tests.support.command_line import Sql
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
