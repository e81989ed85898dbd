"""Every process does its work directly, and behind a PgBouncer of either mode."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psycopg
import pytest
from celery import Celery

from pgbeat.database import connections
from tests.support.pgbouncer import needs_pgbouncer, pooler
from tests.support.processes import Processes, until
from tests.support.transport_workers import transport_url
from tests.support.web import make_token
from tests.support.webhook_receiver import Receiver

# Each starts every kind of process: minutes on a loaded machine.
pytestmark = [pytest.mark.slow, needs_pgbouncer, pytest.mark.timeout(600)]

APP = "tests.support.apps.behind_poolers"


class Site(Processes):
    """Processes of an app whose database is reached in one way."""

    def __init__(self, database: str, folder: Path, url: str, direct: str | None) -> None:
        super().__init__(database, folder)
        self.url, self.direct = transport_url(url), direct
        self.env |= {"TESTS_BROKER": self.url}
        if direct is not None:
            self.env |= {"TESTS_DIRECT": direct}

    def command(self, *arguments: str) -> str:
        """What `pgbeat` prints, which succeeds."""
        process = self.run(sys.executable, "-m", "celery", "-A", APP, "pgbeat", *arguments)
        assert process.wait(120) == 0, process.output
        return process.output


@pytest.fixture(params=["direct", "session", "transaction"])
def site(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[Site]:
    """A site with nothing running."""
    with ExitStack() as stack:
        url, direct = database, None
        if request.param != "direct":
            settings = {"pool_mode": request.param, "default_pool_size": 40}
            url = stack.enter_context(pooler(database, tmp_path, **settings)).url
        if request.param == "transaction":
            direct = database
        site = Site(database, tmp_path, url, direct)
        stack.callback(site.stop_all)
        yield site


def test_all_roles(site: Site, receiver: Receiver) -> None:
    beat = site.beat(app=APP)
    worker = site.worker("-P", "prefork", "-c", "1", app=APP)
    web = site.celery("pgbeat", "web", "--port", "0", app=APP)
    beat.says("This beat leads", 120)
    worker.says(" ready.", 120)

    # A publisher, and results.
    app = Celery("publisher", broker=site.url, backend="pgbeat", set_as_current=False)
    if site.direct is not None:
        app.conf.broker_transport_options = {"direct_url": site.direct}
    assert app.send_task("tests.add", (2, 3)).get(timeout=60) == 5
    app.close()

    # The command line, beat's launches, and the delivery of webhooks.
    site.command("doctor")
    site.command("webhooks", "add", "here", "--url", receiver.url(), "--event", "job.run.completed")
    site.command("lanes", "set", "hall", "--limit", "1")
    site.command("add", "each-second", "--task", "tests.add", "--every", "1s")
    until(lambda: any(b"job.run.completed" in each.body for each in receiver.received))
    jobs = json.loads(site.command("jobs", "list", "--state", "completed", "--json"))
    assert jobs

    # The API and the console, with a task that runs in their process.
    web.says("Ctrl-C ends it.", 120)
    link = web.output.partition("pgbeat is at ")[2].split()[0]
    token = make_token(site.database, "root", "admin")
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=30) as client:
        for path in ("admin/scheduled-jobs", "jobs", "metrics", "readyz", "console/"):
            assert client.get(link + path, follow_redirects=True).status_code == 200, path
        answer = client.post(f"{link}jobs", json={"task": "tests.add", "args": [1, 1]})
        assert answer.status_code == 201, answer.text
        answer = client.post(f"{link}direct/tests.add", json={"lane": "hall", "args": [4, 4]})
        assert answer.status_code == 200, answer.text
        assert answer.json()["result"] == 8
    for process in (beat, worker, web):
        assert process.poll() is None
        assert "Traceback" not in process.output


def test_the_web_process_limits_its_waits(site: Site) -> None:
    from pgbeat.web.backend import WebBackend

    app = Celery("web", broker=site.url, set_as_current=False)
    backend = WebBackend(app)
    shown = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
    with backend.transaction() as connection:
        assert connection.exec_driver_sql(shown).one() == ("10s", "3s")
    with backend.session() as connection:
        is_own = connections.has_own_session(connection)
        limits = connection.exec_driver_sql(shown).one()
    assert limits == (("10s", "3s") if is_own else ("0", "0"))
    backend.dispose()
    app.close()
    with psycopg.connect(site.database) as other:
        assert other.execute("SELECT 1").fetchone() == (1,)
