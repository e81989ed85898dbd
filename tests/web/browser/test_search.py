"""The search, the palette, bulk actions and brushing in a real browser."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.browser import fits
from tests.support.command_line import Sql
from tests.support.rows import make_job, make_lane
from tests.support.web import Web

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("width", [1280, 390])
def test_anything_is_found_by_the_keyboard(window: Any, web: Web, sql: Sql, width: int) -> None:
    make_lane(sql, "gpu")
    page = window(viewport={"width": width, "height": 800}).sign_in(web.token("root", "admin"))
    page.keyboard.press("Control+k")
    page.wait_for_selector(".palette [role=option][aria-selected=true]:has-text('Overview')")
    page.keyboard.type("gp")
    page.wait_for_selector(".palette [role=option][aria-selected=true]:has-text('gpu')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert fits(page)
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/lanes/gpu")
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    page.wait_for_selector(".palette", state="hidden")


def test_a_search_is_the_url_and_narrows_down(window: Any, web: Web, sql: Sql) -> None:
    for number in range(3):
        make_job(sql, "failed", task=f"shop.t{number}", error="HTTPError: 503")
    make_job(sql, "completed", task="mail")
    page = window(viewport={"width": 1280, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto("/console/jobs")
    page.keyboard.press("/")
    page.keyboard.type("task:shop.*")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/jobs?q=task*")
    page.click("#facets a:has-text('failed')")
    page.wait_for_url("**state*failed*")
    assert page.input_value(".search [name=q]") == "task:shop.* state:failed"
    page.click("#facets a:has-text('shop.t1')")
    page.wait_for_function("document.querySelectorAll('#list tbody tr').length === 1")
    page.click(".terms a:has-text('task:')")
    page.wait_for_function("document.querySelectorAll('#list tbody tr').length === 3")
    page.reload()
    page.wait_for_function("document.querySelectorAll('#list tbody tr').length === 3")


def test_all_that_match_are_deleted_step_by_step(window: Any, web: Web, sql: Sql) -> None:
    sql(
        "INSERT INTO pgbeat.jobs (id, task, args, kwargs, state, job_source, created_by, "
        "is_system_job, finished_at) SELECT gen_random_uuid(), 't', '[]', '{}', 'failed', "
        "'user_cli', 'user:alice', false, now() FROM generate_series(1, 450)"
    )
    page = window(viewport={"width": 390, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto("/console/jobs?q=state:failed")
    page.check("input[name=id] >> nth=0")
    page.select_option("select[name=which]", "all")
    page.click("#several button:has-text('Delete')")
    page.wait_for_selector("h1:has-text('Delete 450 jobs?')")
    assert fits(page)
    page.click("main button:has-text('Delete 450 jobs')")
    page.wait_for_selector("[role=status]:has-text('Deleted 450 jobs.')")
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]


def test_dragging_over_the_load_picks_a_time(window: Any, web: Web, sql: Sql) -> None:
    now = datetime.now(UTC)
    for minutes in (50, 30, 10):
        sql(
            "INSERT INTO pgbeat.rollups (namespace, step, kind, name, at, completed) VALUES "
            "('default', 60, 'all', '', date_trunc('minute', now() - %s * interval '1 min'), 5)",
            minutes,
        )
    sql("INSERT INTO pgbeat.rollup_progress VALUES ('default', now(), now())")
    page = window(viewport={"width": 1280, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto("/console/jobs?span=1h")
    box = page.locator(".load svg.ends").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 10, steps=5)
    page.mouse.up()
    page.wait_for_selector(".terms a:has-text('since:')")
    found = page.input_value(".search [name=q]")
    begins, ends = (
        datetime.fromisoformat(each.split(":", 1)[1]) for each in found.split() if ":" in each
    )
    assert timedelta(minutes=8) < ends - begins < timedelta(minutes=20)
    assert now - timedelta(minutes=45) < begins < now - timedelta(minutes=28)
