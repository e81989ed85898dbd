"""The console in a real browser: Chromium, driven by Playwright."""

import re
from functools import partial
from typing import Any

import pytest

from tests.support.browser import AXE, fits
from tests.support.command_line import Sql
from tests.support.processes import until
from tests.support.rows import make_execution, make_job, make_schedule
from tests.support.web import Web
from tests.web.console.shown_pages import shown_pages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

make_nightly = partial(make_schedule, cron="0 2 * * *")


def make_running(sql: Sql) -> str:
    """A job that runs, with 1 of 10 done; its id."""
    job_id = make_job(sql, "running", task="tests.add", created_by="user:root")
    make_execution(sql, job_id, progress_done=1, progress_total=10)
    return job_id


def streams(web: Web) -> int:
    """How many streams are open."""
    watch = getattr(web.app.state, "pgbeat_watch", None)
    return 0 if watch is None else int(watch.count)


def test_progress_moves_by_the_stream_without_a_reload(window: Any, web: Web, sql: Sql) -> None:
    """The page is read anew when there is something new, and else not."""
    page = window(viewport={"width": 1280, "height": 800}).sign_in(web.token("root", "admin"))
    job_id = make_running(sql)
    page.goto(f"/console/jobs/{job_id}")
    page.wait_for_selector(".progress:has-text('1 of 10')")
    page.evaluate("window.isSame = true")
    until(lambda: streams(web) == 1)
    read: list[str] = []
    page.wait_for_timeout(2500)  # it is read when the stream is open, and then is quiet
    page.on("request", lambda request: read.append(request.url))
    page.wait_for_timeout(3000)
    assert read == []
    for done in (4, 7):
        sql("UPDATE pgbeat.executions SET progress_done = %s RETURNING id", done)
        page.wait_for_selector(f".progress:has-text('{done} of 10')")
        bar = "[...document.querySelectorAll('progress')].map((each) => [each.value, each.max])"
        assert page.evaluate(bar)[0] == [done, 10]
    assert [url.endswith(job_id) for url in read] == [True, True]
    sql("UPDATE pgbeat.executions SET state = 'completed', finished_at = now() RETURNING id")
    sql("UPDATE pgbeat.jobs SET state = 'completed', finished_at = now() RETURNING id")
    page.wait_for_selector("h1 .chip:has-text('completed')")
    assert page.evaluate("window.isSame") is True
    assert streams(web) == 1


def test_long_words_fit_on_a_small_phone(window: Any, web: Web, sql: Sql) -> None:
    """What has no blank is broken, and a job's id on the list is not."""
    name, error = f"tenant.{'x' * 150}", f"ValueError: {'y' * 150}"
    make_nightly(sql, name)
    job_id = make_running(sql)
    sql("UPDATE pgbeat.executions SET progress_message = %s RETURNING id", "/path" * 40)
    sql("UPDATE pgbeat.jobs SET error = %s RETURNING id", error)
    page = window(viewport={"width": 320, "height": 800}).sign_in(web.token("root", "admin"))
    for path in (
        "overview",
        "schedules",
        f"schedules/{name}",
        f"backfill/{name}",
        "jobs",
        f"jobs/{job_id}",
        f"schedules?search={name}z",
    ):
        page.goto(f"/console/{path}")
        assert fits(page), path
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto("/console/jobs")
    assert page.locator("a.id").first.evaluate("each => each.getClientRects().length") == 1


def test_escape_closes_the_question_and_print_has_the_whole_traceback(
    window: Any, web: Web, sql: Sql
) -> None:
    page = window(viewport={"width": 1280, "height": 800}).sign_in(web.token("root", "admin"))
    job_id = make_running(sql)
    sql("UPDATE pgbeat.executions SET traceback = %s RETURNING id", "line\n" * 200)
    page.goto(f"/console/jobs/{job_id}")
    page.click("summary:has-text('Cancel')")
    page.focus("#reason")
    page.keyboard.press("Escape")
    page.wait_for_selector("summary:has-text('Cancel'):focus")
    assert not page.is_visible("#reason")
    page.click("summary:has-text('Traceback')")
    trace = page.locator(".trace")
    is_cut = "each => each.scrollHeight > each.offsetHeight"
    assert trace.evaluate(is_cut)
    page.emulate_media(media="print")
    assert not trace.evaluate(is_cut)
    assert not page.is_visible("nav")


def test_a_page_that_nobody_sees_has_no_stream(window: Any, web: Web, sql: Sql) -> None:
    page = window().sign_in(web.token("root", "admin"))
    page.goto(f"/console/jobs/{make_running(sql)}")
    until(lambda: streams(web) == 1)
    hide = """(isHidden) => {
        Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    until(lambda: streams(web) == 0)
    sql("UPDATE pgbeat.executions SET progress_done = 5 RETURNING id")
    page.evaluate(hide, False)
    page.wait_for_selector("text=5 of 10")
    until(lambda: streams(web) == 1)
    page.click("#live")
    assert page.inner_text("#live") == "Not live"
    until(lambda: streams(web) == 0)
    page.click("#live")
    until(lambda: streams(web) == 1)
    page.goto("/console/jobs")
    until(lambda: streams(web) == 1)
    page.goto("/console/new/lane")
    until(lambda: streams(web) == 0)


def test_without_the_stream_the_page_asks(window: Any, web: Web, sql: Sql) -> None:
    shown = window()
    page = shown.sign_in(web.token("root", "admin"))
    page.route("**/console/changes*", lambda route: route.fulfill(status=503))
    page.goto(f"/console/jobs/{make_running(sql)}")
    for done in (5, 6):
        sql("UPDATE pgbeat.executions SET progress_done = %s RETURNING id", done)
        page.wait_for_selector(f"text={done} of 10")
    assert streams(web) == 0
    assert all("503" in each for each in shown.wrong)
    shown.wrong.clear()


def test_who_is_signed_out_is_led_to_the_form(
    window: Any, web: Web, sql: Sql, monkeypatch: Any
) -> None:
    from pgbeat.web import watch

    monkeypatch.setattr(watch, "CHECKED", 0.2)
    shown = window()
    page = shown.sign_in(web.token("root", "admin"))
    page.goto("/console/lanes")
    until(lambda: streams(web) == 1)
    sql("UPDATE pgbeat.tokens SET revoked_at = now() RETURNING id")
    page.wait_for_url("**/login*")
    until(lambda: streams(web) == 0)
    shown.wrong.clear()  # that the stream was refused


def test_what_is_used_stays(window: Any, web: Web, sql: Sql) -> None:
    page = window(viewport={"width": 1280, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto(f"/console/jobs/{make_running(sql)}")
    page.wait_for_selector("text=1 of 10")
    page.click("summary:has-text('Cancel')")
    for done in (7, 8):
        with page.expect_response("**/console/jobs/*"):
            sql("UPDATE pgbeat.executions SET progress_done = %s RETURNING id", done)
    assert page.is_visible("#reason")
    page.fill("#reason", "enough")
    page.click("button:has-text('Cancel the job')")
    page.wait_for_selector("text=asked to end it")
    assert sql("SELECT cancel_requested_by FROM pgbeat.jobs") == [("user:root",)]


def test_a_line_is_reordered_by_the_keyboard(window: Any, web: Web, sql: Sql) -> None:
    page = window(viewport={"width": 390, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto("/console/lanes")
    page.click("text=New lane")
    page.fill("#f-name", "gpu")
    page.fill("#f-max_running", "-1")
    page.keyboard.press("Enter")
    page.wait_for_selector("#e-max_running:has-text('0 to 1000000')")
    assert fits(page)
    page.fill("#f-max_running", "0")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=status]:has-text('was created')")
    for number in range(3):
        make_job(sql, task=f"task{number}", lane="gpu", position=number)
    page.wait_for_selector(".line li:nth-child(3)")  # told by the stream
    assert fits(page)

    def tasks() -> list[Any]:
        return [row[0] for row in sql("SELECT task FROM pgbeat.jobs ORDER BY position")]

    page.focus("button[aria-label^='Up: task2']")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=status]:has-text('is number 2')")
    assert tasks() == ["task0", "task2", "task1"]
    page.keyboard.press("Tab")  # from where the job is now
    said = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert said.startswith("job ")
    page.focus("button[aria-label^='To the end of its priority: task0']")
    page.keyboard.press("Space")
    page.wait_for_selector("[role=status]:has-text('is number 3')")
    assert tasks() == ["task2", "task1", "task0"]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (npm install axe-core)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(window: Any, web: Web, sql: Sql, scheme: str) -> None:
    """Nor in forms that were sent empty."""
    shown = window(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page = shown.sign_in(web.token("root", "admin"))
    wrong = []
    for path in [*shown_pages(sql), "jobs?q=state:failed"]:
        page.goto(f"/console/{path}")
        for part in page.query_selector_all("details:not([open]) > summary"):
            part.evaluate("each => each.parentElement.open = true")
        if re.match("new/(schedule|job|group|template|webhook)", path):
            page.click("main button.main")
            page.wait_for_selector("main .wrong, main [role=status] p")
        page.evaluate(AXE.read_text())
        wrong += [
            (path, each["id"], each["nodes"][0]["html"])
            for each in page.evaluate("axe.run()")["violations"]
            if each["impact"] in ("serious", "critical")
        ]
    assert wrong == []
