"""The console's page of workers."""

from typing import Any

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from tests.support.command_line import Sql
from tests.support.databases import sqlalchemy_url
from tests.support.jobs import make_app
from tests.support.pages import html
from tests.support.rows import insert, make_execution, make_job
from tests.support.web import Web, opened


def make_workers(sql: Sql) -> None:
    """Writes a worker that runs a job, and a dead one."""
    of_process = {"pid": 12, "pool": "prefork", "concurrency": 4, "host": "web1"}
    told = {
        "versions": {"celery": "5.6.0", "app": "v2"},
        "queues": ["celery", "late"],
        "memory_mb": 312.4,
    }
    alive = {"cpu": 1.5, "reported_at": "now", "alive_until": "infinity"}
    insert(sql, "workers", {"id": 7, "name": "celery@web1"} | of_process | told | alive)
    insert(sql, "workers", {"name": "celery@gone", "pid": 13})  # nobody noticed
    make_execution(sql, make_job(sql, "running", task="shop.sync"), worker_id=7)
    make_job(sql, queue="celery.pinned.v1")


def test_workers_are_shown_with_what_they_run(web: Web, page: Any, sql: Sql) -> None:
    make_workers(sql)
    shown = html(page.get("/console/workers")).words
    for words in (
        "celery@web1",
        "1 of 4",
        "shop.sync",
        "celery , late",
        "150%",
        "312 MB",
        "5.6.0",
        "celery@gone",
        "lost",
        "v2 running 1 1 0",
        "v1 abandoned 0 0 1",
    ):
        assert words in shown, words
    viewer = web.browser(web.token("eve", "viewer"))
    assert html(viewer.get("/console/workers")).all("main button") == []


def test_queues_that_none_consumes_from_are_said_so(database: str) -> None:
    migrate.upgrade(postgres_url(database))
    app = make_app(database, f"pgbeat+{sqlalchemy_url(database)}")
    app.send_task("tests.add", queue="forgotten")
    with opened(app) as web:
        page = web.browser(web.token("root", "admin")).get("/console/workers")
        assert "No worker consumes from queue forgotten" in html(page).words


def test_a_dead_worker_is_told_nothing(page: Any, sql: Sql) -> None:
    make_workers(sql)
    answer = page.post("/console/workers", data={"worker": "celery@gone", "do": "grow"})
    assert "there is no living worker" in html(page.get(answer.headers["location"])).words
