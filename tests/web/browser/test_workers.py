"""The page of workers in a real browser, with a real worker."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import fits
from tests.support.command_line import Sql
from tests.support.processes import until
from tests.support.recorded_workers import TrackedWorkers
from tests.support.web import Web, opened

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def web(tracked_workers: TrackedWorkers) -> Iterator[Web]:
    """Serves the app that the workers have."""
    with opened(tracked_workers.app) as found:
        yield found


def ask(tracked_workers: TrackedWorkers, command: str) -> Any:
    """Returns the only worker's answer to a command of Celery's."""
    [replies] = tracked_workers.app.control.broadcast(command, reply=True, limit=1, timeout=10)
    [answer] = replies.values()
    return answer


def test_an_administrator_controls_a_worker(
    window: Any, web: Web, tracked_workers: TrackedWorkers, sql: Sql
) -> None:
    """Its pool grows, it consumes from another queue and then no more, and it shuts down."""
    worker = tracked_workers.start("-c", "1")
    page = window(viewport={"width": 1280, "height": 800}).sign_in(web.token("root", "admin"))
    page.goto("/console/workers")
    page.wait_for_selector("td:has-text('0 of 1')")
    page.click("button:has-text('Grow')")
    page.wait_for_selector("[role=status]:has-text('pool will grow')")
    until(lambda: len(ask(tracked_workers, "stats")["pool"]["processes"]) == 2)
    for button, queues in (("Consume from it", {"celery", "late"}), ("Stop consuming", {"celery"})):
        page.click("summary:has-text('Queues')")
        page.fill("main input[name=queue]", "late")
        assert fits(page)
        page.click(f"button:has-text('{button}')")
        page.wait_for_selector("[role=status]:has-text('answers')")
        assert {each["name"] for each in ask(tracked_workers, "active_queues")} == queues
    page.click("summary:has-text('Shut down')")
    page.click(".ask button:has-text('Shut down')")
    page.wait_for_selector("[role=status]:has-text('was told to shut down')")
    assert worker.wait(30) == 0
    page.wait_for_selector("h2:has-text('No workers')")
    assert sql("SELECT verb, actor FROM pgbeat.audit WHERE kind = 'worker' ORDER BY id") == [
        (verb, "user:root") for verb in ("grow", "add-consumer", "cancel-consumer", "shutdown")
    ]


@pytest.mark.parametrize("width", [1280, 380])
def test_a_running_task_says_where_it_is(
    window: Any, web: Web, tracked_workers: TrackedWorkers, width: int
) -> None:
    """From the list of workers, and from the job's page."""
    tracked_workers.start("-c", "1")
    job_id = tracked_workers.one("hold", "a")
    tracked_workers.runs(job_id)
    page = window(viewport={"width": width, "height": 800}).sign_in(web.token("vera", "viewer"))
    page.goto("/console/workers")
    page.wait_for_selector("[title='What is it doing?']")
    assert fits(page)
    page.click("td a:has-text('Stack')")
    page.wait_for_url(f"**/console/jobs/{job_id}#stack-*-asked")
    page.wait_for_selector("pre.trace:has-text('wait_for(gate)')")
    assert fits(page)
    page.click("text=What is it doing?")
    page.wait_for_selector("[role=status]:has-text('This is what it was doing just now')")
    tracked_workers.open("a")
    page.wait_for_selector("h1 .chip:has-text('completed')")
    assert page.locator("text=What is it doing?").count() == 0
    assert page.is_visible("pre.trace:has-text('wait_for(gate)')")
