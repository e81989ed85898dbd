"""The pages of errors and of tasks in a real browser."""

from typing import Any

import pytest

from tests.support.browser import fits
from tests.support.command_line import Sql
from tests.support.rows import make_job
from tests.support.web import Web

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_all_jobs_of_one_error_are_read_and_retried(window: Any, web: Web, sql: Sql) -> None:
    for number in range(3):
        make_job(sql, "failed", task="tests.add", error=f"Boom: order {number}")
    make_job(sql, "failed", task="tests.note", error="KeyError: 'name'")
    page = window(viewport={"width": 390, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto("/console/errors")
    boom = page.locator(".errors li:has(h3:has-text('Boom: order *'))")
    assert boom.locator(".big").inner_text() == "3"
    assert boom.locator("svg path").bounding_box()["height"] > 0
    assert fits(page)
    boom.locator("a:has-text('failed jobs')").click()
    page.wait_for_function("document.querySelectorAll('#list tbody tr').length === 3")
    page.go_back()
    boom.locator("button:has-text('retry all')").click()
    page.wait_for_selector("h1:has-text('Retry 3 jobs?')")
    assert fits(page)
    page.click("main button:has-text('Retry 3 jobs')")
    page.wait_for_selector("[role=status]:has-text('Retried 3 jobs.')")
    assert sql(
        "SELECT task, count(*) FROM pgbeat.jobs WHERE retry_of IS NOT NULL GROUP BY task"
    ) == [("tests.add", 3)]


def test_untracked_tasks_come_with_the_setting_that_tracks_them(
    window: Any, web: Web, sql: Sql
) -> None:
    sql(
        "INSERT INTO pgbeat.untracked_tasks VALUES "
        "('default', date_trunc('hour', now(), 'UTC'), 'mail', 1204)"
    )
    page = window(viewport={"width": 390, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto("/console/tasks")
    hint = page.locator("#list .hint:has-text('1,204 tasks ran untracked')")
    assert hint.locator("code").inner_text() == 'pgbeat_track = "all"'
    assert fits(page)
    page.click("#list tbody a:has-text('mail')")
    page.wait_for_selector("h1:has-text('mail')")
    assert fits(page)
