"""The console's page of workers, and the API's list."""

from typing import Any

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from tests.support.command_line import Sql
from tests.support.databases import sqlalchemy_url
from tests.support.jobs import make_app
from tests.support.pages import html
from tests.support.rows import make_job
from tests.support.web import Web, done, opened


def make_workers(sql: Sql) -> str:
    """Writes a worker that runs a job, and a dead one; returns the job's id."""
    sql(
        "INSERT INTO pgbeat.workers (id, name, pid, pool, concurrency, host, versions, queues, "
        "memory_mb, cpu, reported_at, alive_until) VALUES (7, 'celery@web1', 12, 'prefork', 4, "
        "'web1', '{\"celery\": \"5.6.0\"}', '{celery,late}', 312.4, 1.5, now(), 'infinity')"
    )
    sql("INSERT INTO pgbeat.workers (name, pid) VALUES ('celery@gone', 13)")  # nobody noticed
    job = make_job(sql, "running", task="shop.sync")
    sql(
        "INSERT INTO pgbeat.executions (job_id, number, worker, worker_id) VALUES (%s, 1, 'w', 7)",
        job,
    )
    return job


def test_workers_are_shown_with_what_they_run(web: Web, page: Any, sql: Sql) -> None:
    job = make_workers(sql)
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
    ):
        assert words in shown, words
    found = done(web.admin.get("/workers"))["workers"]
    assert [each["name"] for each in found] == ["celery@gone", "celery@web1"]
    assert found[1]["tasks"][0]["job_id"] == job
    assert found[1]["queues"] == ["celery", "late"]
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
