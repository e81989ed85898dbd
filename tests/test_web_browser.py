"""The console in a real browser: Chromium, driven by Playwright."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import uvicorn

from pgbeat.web import serving
from tests.processes import until
from tests.webs import Web

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("there is no Chromium", allow_module_level=True)
AXE = Path(os.environ.get("AXE", "node_modules/axe-core/axe.min.js"))

pytestmark = pytest.mark.timeout(300)
Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def address(web: Web) -> Iterator[str]:
    """Where the web side is served."""
    sock = serving.listen("127.0.0.1", 0)
    config = uvicorn.Config(web.app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        sock.close()


@pytest.fixture
def browser() -> Iterator[Any]:
    """A browser."""
    with sync_api.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Window:
    """A page of the browser, and what went wrong in it."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        context = browser.new_context(base_url=address, **options)
        context.set_default_timeout(60_000)
        self.page = context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        # A form that was wrong is answered by 422, which the browser remarks on.
        if message.type == "error" and "422" not in message.text:
            self.wrong.append(message.text)

    def sign_in(self, token: str) -> Any:
        """Signs in, by the keyboard alone."""
        self.page.goto("/")
        self.page.keyboard.type(token)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("h1:has-text('Schedules')")
        return self.page


@pytest.fixture
def window(browser: Any, address: str) -> Iterator[Callable[..., Window]]:
    """Opens windows; nothing went wrong in them."""
    opened: list[Window] = []

    def make(**options: Any) -> Window:
        opened.append(Window(browser, address, **options))
        return opened[-1]

    yield make
    assert [each.wrong for each in opened] == [[] for _ in opened]


def fits(page: Any) -> bool:
    """Whether nothing is wider than the window."""
    width, room = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    return bool(width <= room)


def make_schedule(sql: Sql, name: str = "nightly", **values: Any) -> int:
    row = {"name": name, "task": "tests.add", "cron": "0 2 * * *", **values}
    marks = ", ".join(["%s"] * len(row))
    statement = f"INSERT INTO pgbeat.schedules ({', '.join(row)}) VALUES ({marks}) RETURNING id"
    return int(sql(statement, *row.values())[0][0])


def test_sign_in_trigger_and_a_wrong_cron_on_a_phone_in_the_dark(
    window: Any, web: Web, sql: Sql
) -> None:
    make_schedule(sql)
    phone = window(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = phone.sign_in(web.token("root", "admin"))
    assert fits(page)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(17, 20, 24)"
    page.click("text=nightly")
    page.click("button:has-text('Run now')")
    page.wait_for_selector("[role=status]:has-text('triggered manually')")
    assert sql("SELECT outcome FROM pgbeat.ticks") == [("launched",)]
    page.click("summary:has-text('Edit')")
    page.fill("#f-timetable", "61 2 * * *")
    page.click("button:has-text('Save')")
    page.wait_for_selector("#e-timetable:has-text('minute')")
    assert fits(page)
    assert page.get_attribute("#f-timetable", "aria-describedby") == "h-timetable e-timetable"
    page.fill("#f-timetable", "30 2 * * *")
    page.click("button:has-text('Save')")
    page.wait_for_selector("dd:has-text('every day at 02:30')")
    assert sql("SELECT cron FROM pgbeat.schedules") == [("30 2 * * *",)]


@pytest.mark.slow
def test_progress_is_live_and_what_is_used_stays(window: Any, web: Web, sql: Sql) -> None:
    page = window(viewport={"width": 1280, "height": 800}).sign_in(web.token("root", "admin"))
    job_id = str(uuid4())
    sql(
        "INSERT INTO pgbeat.jobs (id, task, state, created_by, job_source, is_system_job, args,"
        " kwargs, started_at) VALUES (%s, 'tests.add', 'running', 'user:root', 'user_api', false,"
        " '[]', '{}', now()) RETURNING id", job_id,
    )  # fmt: skip
    sql(
        "INSERT INTO pgbeat.executions (job_id, number, worker, progress_done, progress_total)"
        " VALUES (%s, 1, 'w', 1, 10) RETURNING id", job_id,
    )  # fmt: skip
    page.goto(f"/console/jobs/{job_id}")
    page.wait_for_selector("text=1 of 10")
    sql("UPDATE pgbeat.executions SET progress_done = 7 RETURNING id")
    page.wait_for_selector("text=7 of 10")
    page.click("summary:has-text('Cancel')")
    sql("UPDATE pgbeat.executions SET progress_done = 8 RETURNING id")
    for _ in range(2):
        with page.expect_response("**/console/jobs/*"):
            pass
    assert page.is_visible("#reason")
    page.fill("#reason", "enough")
    page.click("button:has-text('Cancel the job')")
    page.wait_for_selector("text=asked to end it")
    assert sql("SELECT cancel_requested_by FROM pgbeat.jobs") == [("user:root",)]


@pytest.mark.slow
def test_a_dead_letter_is_put_back_by_its_button(window: Any, web: Web, sql: Sql) -> None:
    make_schedule(sql)
    page = window(viewport={"width": 390, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto("/console/schedules/nightly")
    page.click("button:has-text('Run now')")
    page.wait_for_selector("[role=status]:has-text('triggered')")
    sql(
        "WITH gone AS (DELETE FROM kombu_message RETURNING *) "
        "INSERT INTO kombu_message_dead (id, queue, payload, priority, reason, deliveries) "
        "SELECT id, 'celery', payload, priority, 'rejected', 3 FROM gone RETURNING id"
    )
    page.goto("/console/queues")
    assert fits(page)
    page.click("button:has-text('Put back')")
    page.wait_for_selector("[role=status]:has-text('back in queue')")
    assert sql("SELECT count(*) FROM kombu_message") == [(1,)]


@pytest.mark.slow
@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (npm install axe-core)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(window: Any, web: Web, sql: Sql, scheme: str) -> None:
    make_schedule(sql, enabled=False, disabled_reason="failed 5 times")
    schedule_id = make_schedule(sql, "hourly")
    job_id = str(uuid4())
    sql(
        "INSERT INTO pgbeat.jobs (id, task, state, created_by, job_source, is_system_job, args,"
        " kwargs, started_at, finished_at, error) VALUES (%s, 'tests.add', 'failed', 'user:root',"
        " 'user_api', false, '[]', '{\"a\": 1}', now(), now(), 'no') RETURNING id", job_id,
    )  # fmt: skip
    sql(
        "INSERT INTO pgbeat.executions (job_id, number, worker, state, finished_at, traceback)"
        " VALUES (%s, 1, 'w', 'failed', now(), 'Traceback') RETURNING id", job_id,
    )  # fmt: skip
    sql(
        "INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, outcome, reason) VALUES"
        " (%s, 'hourly', now(), 'skipped', 'no work') RETURNING id", schedule_id,
    )  # fmt: skip
    sql("INSERT INTO pgbeat.lanes (name, max_running) VALUES ('gpu', 1) RETURNING name")
    shown = window(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page = shown.sign_in(web.token("root", "admin"))
    found = {}
    for path in ("schedules", "schedules/hourly", "jobs", f"jobs/{job_id}", "lanes", "lanes/gpu",
                 "queues", "beats", "audit"):  # fmt: skip
        page.goto(f"/console/{path}")
        for summary in page.query_selector_all("details.edit summary"):
            summary.click()
        page.evaluate(AXE.read_text())
        result = page.evaluate("axe.run()")
        found[path] = [
            (each["id"], [node["html"] for node in each["nodes"]][:3])
            for each in result["violations"]
            if each["impact"] in ("serious", "critical")
        ]
    assert found == {path: [] for path in found}
