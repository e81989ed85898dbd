"""Results as people see them: by the command line, the API and the console."""

from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.app.task import Context

from pgbeat.results import lookup
from pgbeat.results import values as values_of
from pgbeat.storable import DEEPEST
from tests.support.command_line import Sql, read, refused, run
from tests.support.databases import connected
from tests.support.pages import html
from tests.support.rows import insert, make_job
from tests.support.transport_workers import transport_url
from tests.support.web import Web, done, opened, problem


@pytest.fixture
def app(database: str) -> Celery:
    """Returns an app whose results are in the test's database."""
    url = transport_url(database)
    return Celery("results", broker=url, backend=url, set_as_current=False)


def test_a_result_that_is_not_json_is_not_loaded(app: Celery, database: str) -> None:
    app.conf.update(result_serializer="pickle", result_accept_content=["pickle"])
    app.backend.mark_as_done("t1", {1})
    with connected(database) as connection:
        found = lookup.find(connection, "t1")
        assert lookup.find(connection, "t\0") is None
    assert found is not None
    assert (found.value, found.is_readable, found.content_type) == (
        None,
        False,
        "application/x-python-serialize",
    )


def test_a_value_that_can_not_be_sent_as_it_is(app: Celery, sql: Sql, database: str) -> None:
    """Half of a surrogate pair, as of a file's name that is no UTF-8, NaN, and deep nesting."""
    deep: Any = "leaf"
    for _ in range(DEEPEST + 1):
        deep = [deep]
    values: dict[Any, Any] = {"\udce4": ("?", True), "🍏": ("🍏", True)}
    values |= {float("nan"): ("NaN", True), float("-inf"): ("-Infinity", True)}
    for value, shown in [*values.items(), (deep, (None, False))]:
        job = make_job(sql, state="completed")
        app.backend.mark_as_done(job, value)
        body = values_of.encode(value, "json").body
        of_step = {"namespace": "default", "root_id": job, "job_id": job, "n": 1, "name": "s"}
        of_step |= {"kind": "step", "began_at": "now", "finished_at": "now", "value": body}
        insert(sql, "steps", of_step | {"content_type": "application/json"}, "id")
        with opened(app) as web:
            result = done(web.admin.get(f"/results/{job}"))
            assert (result["value"], result["is_readable"]) == shown
            [step] = done(web.admin.get(f"/jobs/{job}"))["steps"]
            assert step["value"] == shown[0]
            html(web.admins_browser.get(f"/console/jobs/{job}"))
        assert read(database, "jobs", "show", job, "--admin")["result"]["value"] == shown[0]


def test_the_command_line(app: Celery, sql: Sql, database: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("PGBEAT_ADMIN", "1")
    job = make_job(sql, state="completed")
    assert read(database, "jobs", "show", str(job))["result"] is None
    app.backend.mark_as_done(str(job), {"rows": ["é"]})
    assert read(database, "jobs", "show", str(job))["result"]["value"] == {"rows": ["é"]}
    assert '"rows": [\n      "é"' in run(database, "jobs", "show", str(job)).output

    task = str(uuid4())
    app.backend.mark_as_failure(task, KeyError("k"), traceback="Traceback\nKeyError")
    shown = run(database, "jobs", "show", task).output
    assert "FAILURE" in shown and "exc_type" in shown and "  KeyError" in shown
    assert read(database, "jobs", "show", task)["result"]["status"] == "FAILURE"
    assert "there is no job" in refused(run(database, "jobs", "show", str(uuid4())), 1)


def test_users_see_the_results_of_their_jobs(app: Celery, sql: Sql) -> None:
    mine, other, task = (str(uuid4()) for _ in range(3))
    make_job(sql, id=mine, created_by="user:alice")
    make_job(sql, id=other, created_by="user:bob")
    request = Context(id=task, task="shop.sell", args=(), kwargs={}, delivery_info={})
    app.conf.result_extended = True
    for task_id in (mine, other, task):
        app.backend.mark_as_done(task_id, {"of": task_id}, request=request)
    with opened(app) as web:
        check_api(web, mine, other, task)
        check_console(web, mine, other, task)


def check_api(web: Web, mine: str, other: str, task: str) -> None:
    """Alice sees her job's result, an administrator all of them."""
    assert done(web.user.get(f"/results/{mine}"))["value"] == {"of": mine}
    for hidden in (other, task, "nothing", "a%00b"):
        assert "there is no result" in problem(web.user.get(f"/results/{hidden}"), 404)
    for shown in (mine, other, task):
        found = done(web.admin.get(f"/results/{shown}"))
        assert (found["status"], found["value"], found["task"]) == (
            "SUCCESS",
            {"of": shown},
            "shop.sell",
        )
    assert "there is no result" in problem(web.admin.get("/results/a%00b"), 404)


def check_console(web: Web, mine: str, other: str, task: str) -> None:
    """The same, on pages."""
    alice, admin = web.browser(web.token("alice")), web.browser(web.token("root", scope="admin"))
    assert f"&#34;of&#34;: &#34;{mine}" in alice.get(f"/console/jobs/{mine}").text
    assert alice.get(f"/console/jobs/{task}").status_code == 404
    assert "shop.sell" in admin.get(f"/console/jobs/{task}").text
    assert admin.get(f"/console/jobs/{uuid4()}").status_code == 404
