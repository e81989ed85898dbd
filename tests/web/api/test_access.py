"""What a token lets its bearer run: the allow-list of tasks, `/direct`, approval that stays."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from psycopg.types.json import Jsonb

from pgbeat.access.actors import Actor
from pgbeat.jobs.verbs import template_control
from tests.support.command_line import Sql
from tests.support.jobs import messages
from tests.support.pages import html
from tests.support.rows import make_job, make_lane
from tests.support.web import Web, done, opened, problem

INTERNAL = ("celery.backend_cleanup", "celery.chain", "pgbeat.anything")


@pytest.fixture
def app(app: Celery) -> Celery:
    """The app, with a task that nobody may run."""

    @app.task(name="jobs.wipe", shared=False)
    def wipe() -> None: ...

    return app


@pytest.fixture
def closed(app: Celery) -> Iterator[Web]:
    """A web side as it is without a setting about what users may run."""
    with opened(app, web_tasks=[], web_direct=False) as web:
        yield web


@pytest.fixture
def narrow(app: Celery) -> Iterator[Web]:
    """A web side where users may run `jobs.a…`."""
    with opened(app, web_tasks=["jobs.a*"], web_direct=True) as web:
        yield web


def template(web: Web, name: str = "t", **values: Any) -> None:
    with web.app.state.pgbeat.unit(Actor("user:root", True)) as unit:
        template_control.put(unit, name, **{"task": "jobs.add", "args": [1], **values})


def count(sql: Sql) -> Any:
    return sql("SELECT count(*) FROM pgbeat.jobs")[0][0]


# -- which tasks ----------------------------------------------------------------------------------


def test_by_default_users_run_templates_only(closed: Web) -> None:
    template(closed)
    said = problem(closed.user.post("/jobs", json={"task": "jobs.add", "args": [1]}), 403)
    assert "pgbeat_web_tasks" in said
    made = done(closed.user.post("/jobs", json={"template": "t"}), 201)
    assert made["task"] == "jobs.add"
    assert done(closed.admin.post("/jobs", json={"task": "jobs.add", "args": [1]}), 201)


def test_users_run_what_the_list_names(narrow: Web, sql: Sql) -> None:
    assert done(narrow.user.post("/jobs", json={"task": "jobs.add", "args": [1]}), 201)
    problem(narrow.user.post("/jobs", json={"task": "jobs.wipe"}), 403)
    # Which tasks there are is not theirs to find out.
    said = problem(narrow.user.post("/jobs", json={"task": "nosuch"}), 403)
    assert "jobs.wipe" not in said
    group = {"jobs": [{"task": "jobs.add", "args": [1]}, "jobs.wipe"]}
    problem(narrow.user.post("/groups", json=group), 403)
    link = {"task": "jobs.wipe", "args": [], "kwargs": {}, "options": {}}
    for links in (
        {"link": link},
        {"link_error": [link]},
        {"link": {"task": "jobs.add", "args": [], "kwargs": {}, "options": {"link": link}}},
    ):
        order = {"task": "jobs.add", "args": [1], "options": links}
        assert "jobs.wipe" in problem(narrow.user.post("/jobs", json=order), 403)
    assert count(sql) == 1
    # What a task does with its arguments is its own concern.
    given: Any = {"task": "jobs.add", "args": [link], "kwargs": {}, "options": {}}
    accepted: dict[str, Any] = {"task": "jobs.add", "args": [1], "options": {"link": given}}
    assert done(narrow.user.post("/jobs", json=accepted), 201)


@pytest.mark.parametrize("task", INTERNAL)
def test_internal_tasks_are_for_nobody(narrow: Web, sql: Sql, task: str) -> None:
    link = {"task": task, "args": [], "kwargs": {}, "options": {}}
    # A chain is no task's signature.
    refused = 422 if task == "celery.chain" else 403
    for client in (narrow.user, narrow.admin):
        assert "internal" in problem(client.post("/jobs", json={"task": task}), 403)
        assert "internal" in problem(client.post("/groups", json={"jobs": [task]}), 403)
        order = {"task": "jobs.add", "args": [1], "options": {"link": link}}
        problem(client.post("/jobs", json=order), refused)
        assert "internal" in problem(client.post(f"/direct/{task}", json={"lane": "l"}), 403)
    admin = narrow.admin
    schedule = {"name": "s", "every": 60}
    problem(admin.post("/admin/scheduled-jobs", json={**schedule, "task": task}), 403)
    options = {"task": "jobs.add", "args": [1], "options": {"link": link}}
    problem(admin.post("/admin/scheduled-jobs", json={**schedule, **options}), refused)
    done(
        admin.post("/admin/scheduled-jobs", json={**schedule, "task": "jobs.add", "args": [1]}), 201
    )
    problem(admin.patch("/admin/scheduled-jobs/s", json={"task": task}), 403)
    problem(admin.patch("/admin/scheduled-jobs/s", json={"options": options["options"]}), refused)
    problem(admin.post("/templates", json={"name": "t", "task": task}), 403)
    problem(admin.post("/templates", json={"name": "t", **options}), refused)
    assert count(sql) == 0


def test_a_retry_is_of_a_task_that_is_still_allowed(app: Celery) -> None:
    with opened(app, web_tasks=["jobs.*"]) as web:
        made = done(web.user.post("/jobs", json={"task": "jobs.add", "args": [1]}), 201)
        done(web.user.post(f"/jobs/{made['id']}/cancel"))
    with opened(app, web_tasks=[]) as web:
        problem(web.user.post(f"/jobs/{made['id']}/retry"), 403)
        assert done(web.admin.post(f"/jobs/{made['id']}/retry"))["retry_of"] == made["id"]


def test_an_unknown_tasks_error_names_only_tasks_that_one_may_run(narrow: Web) -> None:
    for answer in (
        narrow.user.post("/jobs", json={"task": "jobs.ad"}),
        narrow.user.post("/direct/jobs.ad", json={"lane": "gpu"}),
    ):
        said = problem(answer, 422)
        assert "jobs.add" in said
        assert "jobs.wipe" not in said


def test_options_that_only_administrators_give(narrow: Web, sql: Sql) -> None:
    order = {"task": "jobs.add", "args": [1]}
    for options in (
        {"retry_policy": {"max_retries": None}},
        {"shadow": "jobs.harmless"},
        {"immediate": True},
    ):
        problem(narrow.user.post("/jobs", json={**order, "options": options}), 403)
    problem(narrow.user.post("/jobs", json={**order, "queue": "a@b.celery.pidbox"}), 422)
    assert count(sql) == 0
    done(narrow.admin.post("/jobs", json={**order, "options": {"shadow": "jobs.sum"}}), 201)


def test_the_form_offers_what_may_be_run(narrow: Web) -> None:
    for client, offered in ((narrow.user, False), (narrow.admin, True)):
        token = client.headers["Authorization"].removeprefix("Bearer ")
        page = narrow.browser(token).get("/console/new/job").text
        assert 'value="jobs.add"' in page
        assert ('value="jobs.wipe"' in page) is offered


def test_direct_is_for_administrators(closed: Web, narrow: Web, sql: Sql) -> None:
    make_lane(sql, limit=2)
    body = {"lane": "l", "args": [1]}
    assert "administrators" in problem(closed.user.post("/direct/jobs.add", json=body), 403)
    assert done(closed.admin.post("/direct/jobs.add", json=body))["result"] == 3
    with opened(narrow.app.state.pgbeat.celery, web_tasks=["jobs.a*"], web_direct=True) as web:
        assert done(web.user.post("/direct/jobs.add", json=body))["result"] == 3
        problem(web.user.post("/direct/jobs.wipe", json={"lane": "l"}), 403)


def test_direct_keeps_what_a_task_s_policy_says(app: Celery, sql: Sql) -> None:
    refunds: list[int] = []

    @app.task(name="jobs.refund", shared=False, pgbeat={"requires_approval": True})
    def refund() -> None:
        refunds.append(1)

    @app.task(name="jobs.once", shared=False, pgbeat={"unique": True})
    def once() -> None: ...

    @app.task(name="jobs.laned", shared=False, pgbeat={"lane": "l", "tags": ["a"]})
    def laned() -> None: ...

    make_lane(sql, limit=2)
    make_lane(sql, "other")
    with opened(app, web_tasks=["jobs.*"], web_direct=True) as web:
        for task, given in (
            ("refund", {"lane": "l"}),
            ("once", {"lane": "l"}),
            ("laned", {"lane": "other"}),
            ("laned", {"lane": "l", "tags": ["b"]}),
        ):
            said = problem(web.user.post(f"/direct/jobs.{task}", json=given), 403)
            assert "administrator may" in said
        assert refunds == []
        assert done(web.user.post("/direct/jobs.laned", json={"lane": "l"}))["success"]
        assert done(web.admin.post("/direct/jobs.refund", json={"lane": "other"}))["success"]
        assert refunds == [1]


# -- approval -------------------------------------------------------------------------------------


def test_a_retry_waits_for_approval_again(web: Web, sql: Sql) -> None:
    order = {"task": "jobs.add", "args": [1], "requires_approval": True}
    made = done(web.user.post("/jobs", json=order), 201)
    # Rejected by an administrator, or cancelled by the owner: both end it.
    for who in (web.user, web.admin):
        done(who.post(f"/jobs/{made['id']}/cancel"))
        made = done(web.user.post(f"/jobs/{made['id']}/retry"))
        assert (made["state"], made["awaits_approval"], made["requires_approval"]) == (
            "paused",
            True,
            True,
        )
        problem(web.user.post(f"/jobs/{made['id']}/resume"), 409)
        problem(web.user.post(f"/jobs/{made['id']}/approve"), 403)
    assert messages(sql) == []
    done(web.admin.post(f"/jobs/{made['id']}/approve"))
    assert messages(sql) == [made["id"]]


def test_a_template_s_approval_is_waived_by_administrators_only(web: Web, sql: Sql) -> None:
    template(web, job_policy={"requires_approval": True})
    order = {"template": "t", "requires_approval": False}
    assert "administrator" in problem(web.user.post("/jobs", json=order), 403)
    problem(web.user.post("/groups", json={"jobs": [order]}), 403)
    assert count(sql) == 0
    made = done(web.user.post("/jobs", json={"template": "t"}), 201)
    assert made["awaits_approval"] is True
    made = done(web.admin.post("/jobs", json=order), 201)
    assert (made["state"], made["requires_approval"]) == ("pending", False)


def test_a_program_waives_no_approval(app: Celery, web: Web) -> None:
    import pgbeat
    from pgbeat.errors import Forbidden

    template(web, job_policy={"requires_approval": True})
    with pytest.raises(Forbidden):
        pgbeat.submit(template="t", requires_approval=False, app=app)
    with pytest.raises(Forbidden):
        pgbeat.submit_group([{"template": "t", "requires_approval": False}], app=app)
    assert pgbeat.submit(template="t", app=app).awaits_approval


def test_the_database_keeps_what_is_not_approved_from_running(web: Web, sql: Sql) -> None:
    order = {"task": "jobs.add", "args": [1], "requires_approval": True}
    made = done(web.user.post("/jobs", json=order), 201)
    with pytest.raises(Exception, match="jobs_approved"):
        sql(
            "UPDATE pgbeat.jobs SET awaits_approval = false, state = 'pending' WHERE id = %s",
            made["id"],
        )


def test_users_make_so_many_changes_in_a_minute_at_most(app: Celery) -> None:
    order = {"task": "jobs.add", "args": [1]}
    with opened(app, web_tasks=["jobs.*"], web_user_rate=2) as web:
        for _ in range(2):
            done(web.user.post("/jobs", json=order), 201)
        refused = web.user.post("/jobs", json=order)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many")
        assert 0 < int(refused.headers["Retry-After"]) <= 60
        done(web.user.get("/jobs"))
        for client in (web.other, web.admin, web.admin, web.admin):
            done(client.post("/jobs", json=order), 201)


def test_statements_in_sql_are_for_administrators(app: Celery, sql: Sql) -> None:
    settings = {"sql_roles": ["reports"], "sql_url": "postgresql://nobody@localhost/x"}
    with opened(app, web_tasks=["*"], web_direct=True, **settings) as web:
        order = {"task": "pgbeat.sql", "args": ["SELECT 1"]}
        template(web, task="pgbeat.sql", args=["SELECT 1"])
        link = {**order, "kwargs": {}, "options": {}}
        for refused in (
            order,
            {"template": "t"},
            {"template": "t", "args": ["DROP TABLE orders"]},
            {"task": "jobs.add", "args": [1], "options": {"link": link}},
        ):
            problem(web.user.post("/jobs", json=refused), 403)
        direct = {"args": ["SELECT 1"], "lane": "l"}
        problem(web.user.post("/direct/pgbeat.sql", json=direct), 403)
        problem(web.user.post("/groups", json={"jobs": [order]}), 403)
        browser = web.browser(web.token("alice"))
        form = {"task": "pgbeat.sql", "args": '["SELECT 1"]', "kwargs": "{}"}
        assert "only administrators may" in html(browser.post("/console/new/job", data=form), 403)
        for each in (web.viewer, web.nobody):
            assert each.post("/jobs", json=order).status_code in (401, 403)
        assert count(sql) == 0
        # Hers, since she was an administrator then.
        old = make_job(
            sql, "failed", task="pgbeat.sql", args=Jsonb(["SELECT 1"]), created_by="user:alice"
        )
        problem(web.user.post(f"/jobs/{old}/retry"), 403)
        assert browser.post(f"/console/jobs/{old}", data={"do": "retry"}).status_code == 403
        sql("DELETE FROM pgbeat.jobs")
        assert done(web.admin.post("/jobs", json=order), 201)
        schedule = {**order, "name": "s", "every": 60}
        assert done(web.admin.post("/admin/scheduled-jobs", json=schedule), 201)
        other = {"role": "postgres"}
        for path in ("/jobs", "/admin/scheduled-jobs"):
            answer = web.admin.post(path, json={**schedule, "name": "t", "kwargs": other})
            assert answer.status_code == 422, answer.text
