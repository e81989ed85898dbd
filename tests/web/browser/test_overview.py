"""The overview in a real browser."""

from typing import Any

import pytest

from tests.support.browser import fits
from tests.support.command_line import Sql
from tests.support.rows import ago, make_run, make_schedule
from tests.support.web import Web

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def make_failure(sql: Sql, name: str, length: str) -> str:
    """Writes a schedule whose job failed that long ago; returns the job's id."""
    at = ago(sql, length)
    return make_run(sql, make_schedule(sql, name), at, at, "failed")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_run_is_found_on_the_timeline_and_opened(
    window: Any, web: Web, sql: Sql, width: int
) -> None:
    job_id = make_failure(sql, "nightly", "5 hours")
    make_failure(sql, "hourly", "10 minutes")
    page = window(viewport={"width": width, "height": 800}).sign_in(web.token("root", "admin"))
    page.click("nav >> text=Overview")
    page.wait_for_selector(".spans [aria-current]:has-text('1h')")
    assert page.locator(".timeline tbody rect.bad").count() == 1
    page.click(".spans a:has-text('1d')")
    page.wait_for_selector(".spans [aria-current]:has-text('1d')")
    assert page.locator(".timeline tbody rect.bad").count() == 2
    assert fits(page)
    page.fill(".timeline input[type=search]", "night")
    page.keyboard.press("Enter")
    page.wait_for_url("**search=night*")
    assert page.locator(".timeline tbody th a").all_inner_texts() == ["nightly"]
    page.click(".timeline tbody rect.bad")
    page.wait_for_url(f"**/console/jobs/{job_id}")
    page.wait_for_selector("h1 .chip:has-text('failed')")
