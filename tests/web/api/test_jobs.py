"""The API's jobs: what only it says of them."""

from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery

from tests.support.command_line import Sql
from tests.support.jobs import make_app
from tests.support.rows import make_job, make_lane
from tests.support.web import Web, done, errors, opened, problem
from tests.web.api.made_jobs import audited, make


def test_what_is_nested_too_deeply_is_left_out(admin: Any, sql: Sql) -> None:
    make_job(sql, args="[" * 500 + "]" * 500)
    [job] = done(admin.get("/jobs"))["jobs"]
    assert job["args"] is None


def test_a_job_with_a_key_is_made_once(web: Web, alice: Any, admin: Any) -> None:
    """Whose a template's job with that key is, others are not told."""
    first = make(alice, unique_key="k")
    order = {"task": "jobs.add", "args": [2], "unique_key": "k"}
    again = done(alice.post("/jobs", json=order), 200)
    assert (again["id"], again["is_new"]) == (first["id"], False)
    assert audited(admin) == [("create", "user:alice", first["id"])]
    template = {"task": "jobs.add", "args": [1], "job_policy": {"unique_key": "t"}}
    done(admin.put("/templates/t", json=template), 201)
    keyed = {"template": "t"}
    made = done(alice.post("/jobs", json=keyed), 201)
    many = {"jobs": [{"task": "jobs.add", "args": [1]}, keyed]}
    for answer in (web.other.post("/jobs", json=keyed), web.other.post("/jobs/many", json=many)):
        assert made["id"] not in problem(answer, 409)
    assert done(admin.post("/jobs", json=keyed), 200)["id"] == made["id"]


def test_where_a_job_can_not_be_moved(alice: Any, sql: Sql) -> None:
    make_lane(sql, limit=0)
    first, second = (make(alice, lane="l")["id"] for _ in range(2))
    line = done(alice.get("/lanes/l"))["line"]
    for body, expected in (
        ({"where": "before"}, ("other", "required")),
        ({"where": "front", "other": first}, ("other", "conflict")),
        ({"where": "before", "other": first, "priority": 1}, ("priority", "conflict")),
        ({"where": "before", "other": second}, ("other", "conflict")),
        ({"where": "top"}, ("where", "unknown")),
        ({}, ("where", "required")),
        ({"where": "front", "priority": 999}, ("priority", "out_of_range")),
    ):
        assert errors(alice.post(f"/jobs/{second}/move", json=body)) == [expected]
    moved = alice.post(f"/jobs/{make(alice)['id']}/move", json={"where": "front"})
    assert errors(moved, 409) == [("", "invalid_transition")]
    assert done(alice.get("/lanes/l"))["line"] == line


@pytest.mark.parametrize(
    ("verb", "body", "expected"),
    [
        ("cancel", {"reason": 5}, ("reason", "malformed")),
        ("cancel", {"reason": "x" * 1001}, ("reason", "too_long")),
        ("cancel", {"reason": "\0"}, ("", "invalid")),
        ("retry", {"priority": 256}, ("priority", "out_of_range")),
    ],
)
def test_a_bad_body_changes_nothing(
    admin: Any, sql: Sql, verb: str, body: Any, expected: tuple[str, str]
) -> None:
    job_id = make_job(sql, state="failed" if verb == "retry" else "pending")
    before = sql("SELECT * FROM pgbeat.jobs")
    assert errors(admin.post(f"/jobs/{job_id}/{verb}", json=body)) == [expected]
    assert sql("SELECT * FROM pgbeat.jobs") == before


def test_jobs_of_another_namespace_are_not_there(app: Celery, sql: Sql) -> None:
    job_id = make_job(sql)
    with opened(app, namespace="other") as other:
        root = other.admin
        assert done(root.get("/jobs"))["jobs"] == []
        problem(root.get(f"/jobs/{job_id}"), 404)
        problem(root.post(f"/jobs/{job_id}/cancel"), 404)
    assert sql("SELECT state FROM pgbeat.jobs") == [("pending",)]


def test_a_broker_that_is_away_is_no_failure_of_ours(database: str, sql: Sql) -> None:
    elsewhere = make_app(database, "redis://127.0.0.1:1/0")
    elsewhere.conf.broker_transport_options = {"max_retries": 0}
    elsewhere.conf.task_publish_retry = False
    elsewhere.conf.broker_connection_timeout = 1
    with opened(elsewhere) as web:
        said = problem(web.user.post("/jobs", json={"task": "jobs.add", "args": [1]}), 503)
        assert said == "the broker can't be reached now"
    assert sql("SELECT 1 FROM pgbeat.jobs") == []
    assert sql("SELECT 1 FROM pgbeat.audit") == []


@pytest.mark.parametrize(
    ("path", "rest"), [("/jobs", ""), ("/admin/scheduled-jobs", '"name": "s", "every": 60, ')]
)
def test_arguments_are_json_that_can_be_shown(admin: Any, sql: Sql, path: str, rest: str) -> None:
    kind = {"Content-Type": "application/json"}
    for args, said in (("[" * 200 + "]" * 200, "nested"), ("[1e999]", "not JSON")):
        order = f'{{{rest}"task": "jobs.add", "args": {args}}}'.encode()
        assert said in problem(admin.post(path, content=order, headers=kind), 422)
    assert sql("SELECT 1 FROM pgbeat.jobs") == sql("SELECT 1 FROM pgbeat.schedules") == []


def test_few_ask_for_stacks_at_a_time(web: Web, admin: Any) -> None:
    """Each waits with a connection that others need."""
    job = make(web.user)["id"]  # that waits: nobody is asked
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(web.app.state.pgbeat.asking())
        refused = admin.get(f"/jobs/{job}/stack")
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many")
        assert refused.headers["Retry-After"] == "5"
        done(admin.get(f"/jobs/{job}/stack?ask=false"))
    done(admin.get(f"/jobs/{job}/stack"))
