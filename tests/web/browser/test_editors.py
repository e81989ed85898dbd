"""The editor of a schedule in a real browser: what it shows before anything is saved."""

from typing import Any

import pytest

from tests.support.browser import fits
from tests.support.command_line import Sql
from tests.support.rows import make_schedule
from tests.support.web import Web

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_cron_is_read_back_while_it_is_written(window: Any, web: Web, sql: Sql) -> None:
    page = window(viewport={"width": 390, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto("/console/new/schedule")
    page.focus("#f-timetable")
    page.keyboard.type("0 2 * * 1-5")
    page.wait_for_selector("#preview:has-text('Monday to Friday')")
    times = page.locator("#preview ol li")
    assert times.count() == 5
    assert all("02:00" in each for each in times.all_inner_texts())
    assert "Name" in page.inner_text("#preview .problems")
    assert fits(page)
    page.keyboard.press("Backspace")
    page.keyboard.type("9")
    page.wait_for_selector("#preview .problems:has-text('Timetable')")
    assert times.count() == 0
    assert sql("SELECT count(*) FROM pgbeat.schedules") == [(0,)]


def test_an_edit_is_tested_compared_saved_and_remembered(window: Any, web: Web, sql: Sql) -> None:
    make_schedule(sql, "nightly", cron="0 2 * * *", condition_sql="SELECT true")
    page = window(viewport={"width": 1280, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto("/console/schedules/nightly")
    page.click("summary:has-text('Edit')")
    for part in page.query_selector_all("#edit details:not([open]) > summary"):
        part.click()
    page.fill("#f-condition_sql", "SELECT false")
    page.click("#edit button:has-text('Test condition')")
    page.wait_for_selector("#preview p:has-text('If it were due now: skipped')")
    assert " ms;" in page.inner_text("#preview")
    page.fill("#f-timetable", "30 2 * * *")
    page.wait_for_selector("#preview .diff ins:has-text('30 2 * * *')")
    changes = page.locator("#preview .diff li").all_inner_texts()
    assert sorted(each.split()[0] for each in changes) == ["condition_sql", "cron"]
    assert sql("SELECT cron, condition_sql FROM pgbeat.schedules") == [("0 2 * * *", "SELECT true")]
    page.click("#edit button:has-text('Save')")
    page.wait_for_selector("dd:has-text('every day at 02:30')")
    history = page.locator("section:has(#changes) tbody tr")
    assert history.count() == 1
    assert "cron 0 2 * * * → 30 2 * * *" in " ".join(history.first.inner_text().split())
    assert sql("SELECT cron, condition_sql FROM pgbeat.schedules") == [
        ("30 2 * * *", "SELECT false")
    ]
