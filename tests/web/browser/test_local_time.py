"""Times of the console in the browser's time zone."""

from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.rows import make_schedule
from tests.support.web import Web

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_times_are_local_if_one_wants_them_so(window: Any, web: Web, sql: Sql) -> None:
    make_schedule(sql, "n", cron="0 12 1 1 *")
    page = window(viewport={"width": 1280, "height": 800}, timezone_id="Asia/Tokyo").sign_in(
        web.token("root", "admin")
    )
    page.goto("/console/schedules/n")
    assert "-01-01 12:00:00 UTC" in page.inner_text("#coming-box")
    page.click("button:has-text('Local time')")
    page.wait_for_selector("footer:has-text('Times are in Asia/Tokyo')")
    assert "-01-01 21:00:00 local time" in page.inner_text("#coming-box")
    assert "UTC" not in page.inner_text("#coming-box")
    page.goto("/console/overview")
    page.wait_for_selector("footer:has-text('Times are in Asia/Tokyo')")
    page.click("button:has-text('Local time')")
    page.wait_for_selector("footer:has-text('Times are in UTC')")
