"""The page of a job in a real browser."""

from typing import Any

import pytest

from tests.support.browser import fits
from tests.support.command_line import Sql
from tests.support.rows import make_execution, make_job
from tests.support.web import Web

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def make_failed(sql: Sql) -> str:
    """Writes a job that failed in both of its executions, which logged; returns its id."""
    job_id = make_job(
        sql,
        "failed",
        task="tests.add",
        args="[1]",
        error="ValueError: no",
        job_source="user_api",
        created_by="user:root",
        created_at="2026-01-01T00:00:00Z",
        dispatched_at="2026-01-01T00:00:02Z",
        started_at="2026-01-01T00:00:05Z",
        finished_at="2026-01-01T00:01:00Z",
    )
    for number, (began, ended) in enumerate((("05", "10"), ("30", "59")), 1):
        lines = [[1.0, "WARNING", "shop", f"lines of number {number}"]]
        make_execution(
            sql,
            job_id,
            "failed",
            number=number,
            started_at=f"2026-01-01T00:00:{began}Z",
            finished_at=f"2026-01-01T00:00:{ended}Z",
            log={"omitted": 0, "lines": lines},
        )
    return job_id


@pytest.mark.parametrize("width", [1280, 390])
def test_a_failed_job_is_understood_and_run_again_changed(
    window: Any, web: Web, sql: Sql, width: int
) -> None:
    job_id = make_failed(sql)
    page = window(viewport={"width": width, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto(f"/console/jobs/{job_id}")
    bars = page.locator(".bar-of rect")
    assert [each.get_attribute("class") for each in bars.all()].count("bad") == 2
    lefts = [each.bounding_box()["x"] for each in bars.all()]
    assert lefts == sorted(lefts) and lefts[0] < lefts[-1]
    assert page.locator("#phases tbody tr").count() >= 5
    assert page.is_visible(".log >> text=lines of number 2")
    assert fits(page)
    page.click("#runs-box a:has-text('Log')")
    page.wait_for_selector("#log-1:has-text('lines of number 1')")
    page.click("a:has-text('Run again with changes')")
    assert page.input_value("#f-args") == "[1]"
    page.fill("#f-args", "[5]")
    page.click("button:has-text('Run it')")
    page.wait_for_selector("[role=status]:has-text('The job was created')")
    assert fits(page)
    assert sql("SELECT args, state FROM pgbeat.jobs ORDER BY created_at") == [
        ([1], "failed"),
        ([5], "pending"),
    ]
