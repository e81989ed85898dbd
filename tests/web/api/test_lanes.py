"""`/lanes` and `/direct`: limits set, held, let go, deleted; tasks run here and now."""

import threading
from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery

from tests.support.command_line import Sql
from tests.support.jobs import make_app, messages
from tests.support.rows import make_lane
from tests.support.web import Web, done, errors, problem
from tests.web.api.made_jobs import audited, make


@pytest.fixture
def app(database: str) -> Celery:
    """An app on pgbeat's transport."""
    app = make_app(database)

    @app.task(name="jobs.fail", shared=False)
    def fail(kind: str = "value") -> None:
        if kind == "exit":
            raise SystemExit(3)
        from pgbeat.errors import NotFound

        raise NotFound("oops")

    @app.task(name="jobs.odd", shared=False)
    def odd() -> object:
        return {1, 2}

    return app


def test_a_lane_is_made_changed_and_deleted(web: Web, admin: Any, sql: Sql) -> None:
    body = {"max_running": 2, "rate": "10/minute", "rate_key": "task"}
    made = done(admin.put("/lanes/gpu", json=body), 201)
    wanted = {
        "name": "gpu",
        "max_running": 2,
        "rate": "10/minute of each task",
        "rate_limit": 10,
        "rate_period": 60,
        "rate_key": "task",
        "policy": None,
        "options": {},
        "paused_at": None,
    }
    assert made.items() >= wanted.items()
    changed = done(admin.put("/lanes/gpu", json={"max_running": None}))
    assert (changed["max_running"], changed["rate_limit"]) == (None, 10)
    changed = done(admin.put("/lanes/gpu", json={"rate": "1/m", "rate_for": "1 hour"}))
    assert (changed["rate"], changed["temporary_rate"]) == (
        "10/minute of each task",
        "1/minute of each task",
    )
    changed = done(admin.put("/lanes/gpu", json={"rate": "9/m", "rate_unit": "tokens"}))
    assert (changed["rate"], changed["temporary_until"]) == ("9 tokens/minute of each task", None)
    changed = done(admin.put("/lanes/gpu", json={"fair_by": "kwargs.n", "max_per_key": 2}))
    assert (changed["fair_by"], changed["max_per_key"]) == ("kwargs.n", 2)
    changed = done(admin.put("/lanes/gpu", json={"fair_by": None}))
    assert (changed["fair_by"], changed["max_per_key"]) == (None, None)
    changed = done(admin.put("/lanes/gpu", json={"rate": None}))
    assert (changed["rate"], changed["rate_key"]) == (None, None)
    [listed] = done(web.user.get("/lanes"))["lanes"]
    assert listed.items() >= {"name": "gpu", "running": 0, "waiting": 0}.items()
    assert done(admin.delete("/lanes/gpu"))["message"] == "Lane 'gpu' deleted"
    assert done(admin.get("/lanes"))["lanes"] == []
    assert audited(admin, "lane") == [
        (verb, "user:root", "gpu") for verb in ("create", *["update"] * 6, "delete")
    ]


def test_a_new_limit_lets_jobs_go_at_once(web: Web, admin: Any, sql: Sql) -> None:
    make_lane(sql, "l", 0)
    ids = [make(web.user, lane="l")["id"] for _ in range(3)]
    assert messages(sql) == []
    done(admin.put("/lanes/l", json={"max_running": 2}))
    assert messages(sql) == ids[:2]
    done(admin.post("/lanes/l/pause"))
    done(admin.put("/lanes/l", json={"max_running": 3}))
    assert messages(sql) == ids[:2]
    [found] = done(admin.get("/lanes"))["lanes"]
    assert (found["running"], found["waiting"]) == (2, 1)
    assert found["paused_at"] is not None
    assert done(admin.post("/lanes/l/resume"))["message"] == "Lane 'l' resumed"
    assert messages(sql) == ids
    for _ in range(2):  # again is nothing
        done(admin.post("/lanes/l/resume"))
    verbs = [verb for verb, _, _ in audited(admin, "lane")]
    assert verbs == ["update", "pause", "update", "resume"]


def test_a_change_takes_one_connection(web: Web, admin: Any, sql: Sql) -> None:
    """As many changes at once as there are connections don't wait for each other."""
    make_lane(sql, "l", 0)
    backend = web.app.state.pgbeat
    with ExitStack() as stack:
        for _ in range(19):
            stack.enter_context(backend.session())
        done(admin.put("/lanes/l", json={"max_running": 2}))
        done(admin.post("/lanes/l/pause"))
        done(admin.post("/lanes/l/resume"))
        problem(admin.delete("/lanes/l/reservations/1"), 404)
        done(admin.delete("/lanes/l"))


def test_who_has_slots_and_who_waits(web: Web, admin: Any, sql: Sql) -> None:
    make_lane(sql, "l", 1)
    mine, bobs = make(web.user, lane="l")["id"], make(web.other, lane="l")["id"]
    sql(
        """INSERT INTO pgbeat.reservations (namespace, lane, task, created_by, started_at)
           VALUES ('default', 'l', 'jobs.add', 'user:bob', now())"""
    )
    whole = done(admin.get("/lanes/l"))
    assert {slot["id"] for slot in whole["slots"]} >= {mine}
    assert any(slot["is_direct"] for slot in whole["slots"])
    assert [(w["place"], w["id"]) for w in whole["line"]] == [(1, bobs)]
    assert whole["line"][0]["reason"]
    seen = done(web.user.get("/lanes/l"))
    assert [slot["id"] for slot in seen["slots"] if not slot["is_direct"]] == [mine]
    assert [slot["by"] for slot in seen["slots"] if slot["is_direct"]] == [None]
    [waiter] = seen["line"]
    assert (waiter["id"], waiter["task"], waiter["created_by"]) == (None, None, None)
    assert "bob" not in str(seen)
    [own] = done(web.other.get("/lanes/l"))["line"]
    assert (own["id"], own["created_by"]) == (bobs, "user:bob")


def test_a_lane_in_use_is_not_deleted(web: Web, admin: Any, sql: Sql) -> None:
    make_lane(sql, "l", 0)
    job_id = make(web.user, lane="l")["id"]
    said = problem(admin.delete("/lanes/l"), 422)
    assert "1 job to come" in said
    assert "force=true" in said
    assert messages(sql) == []
    done(admin.delete("/lanes/l?force=true"))
    assert messages(sql) == [job_id]
    assert [verb for verb, _, _ in audited(admin, "lane")] == ["delete"]


BAD_LANES: list[tuple[str, Any, tuple[str, str]]] = [
    ("l", {"max_running": -1}, ("max_running", "out_of_range")),
    ("l", {"max_running": 2**40}, ("max_running", "out_of_range")),
    ("l", {"max_running": "many"}, ("max_running", "malformed")),
    ("l", {"rate": "often"}, ("rate", "malformed")),
    ("l", {"rate_key": "task"}, ("rate_key", "conflict")),
    ("l", {"rate_for": "1 hour"}, ("rate_for", "conflict")),
    ("l", {"rate": "1/m", "rate_for": "soon"}, ("rate_for", "malformed")),
    ("l", {"options": {"x": 1}}, ("options", "conflict")),
    ("l", {"limit": 1}, ("limit", "unknown_field")),
    ("l", [], ("", "malformed")),
    (" l", {"max_running": 1}, ("name", "malformed")),
    ("%00", {"max_running": 1}, ("", "invalid")),
    ("x" * 201, {"max_running": 1}, ("name", "too_long")),
]


def test_a_bad_lane_is_refused(admin: Any, sql: Sql) -> None:
    for name, body, expected in BAD_LANES:
        answer = admin.put(f"/lanes/{name}", json=body)
        assert errors(answer) == [expected], (name, body)
    assert sql("SELECT 1 FROM pgbeat.lanes") == []
    make_lane(sql, "l", 3)
    before = sql("SELECT * FROM pgbeat.lanes")
    for name, body, expected in BAD_LANES:
        if name == "l":
            assert errors(admin.put("/lanes/l", json=body)) == [expected]
    assert sql("SELECT * FROM pgbeat.lanes") == before
    assert audited(admin, "lane") == []


def test_a_lane_that_is_not_there_names_the_near_one(admin: Any, sql: Sql) -> None:
    make_lane(sql, "gpu")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume")):
        said = problem(admin.request(method, f"/lanes/gpus{path}"), 404)
        assert said.startswith("there is no lane 'gpus'; did you mean 'gpu'? `pgbeat lanes list`")


# -- direct ---------------------------------------------------------------------------------------


def run(client: Any, task: str = "jobs.add", status: int = 200, **body: Any) -> Any:
    """Runs a task directly; the answer, or the sentence of a problem."""
    answer = client.post(f"/direct/{task}", json={"lane": "l", **body})
    return done(answer) if status == 200 else problem(answer, status)


def test_a_task_is_run_here_and_now(web: Web, admin: Any, sql: Sql) -> None:
    make_lane(sql, "l", 1)
    found = run(web.user, args=[1], kwargs={"y": 4})
    assert found == {"success": True, "result": 5, "error": None}
    assert sql("SELECT 1 FROM pgbeat.jobs") == []
    assert sql("SELECT 1 FROM pgbeat.reservations") == []
    assert audited(admin, "direct") == [("run", "user:alice", "jobs.add")]


def test_what_a_task_raises_is_told(web: Web, sql: Sql) -> None:
    make_lane(sql, "l", 1)
    found = run(web.user, "jobs.fail")
    assert found == {"success": False, "result": None, "error": "NotFound: oops"}
    assert run(web.user, "jobs.fail", args=["exit"])["error"] == "SystemExit: 3"
    assert run(web.user, "jobs.odd")["success"] is True
    assert sql("SELECT 1 FROM pgbeat.reservations") == []


def test_without_a_slot_it_says_who_has_it(web: Web, sql: Sql) -> None:
    make_lane(sql, "l", 1)
    make(web.user, lane="l")
    said = run(web.user, args=[1], timeout=0.2, status=503)
    assert "lane 'l' had no free slot within 0.2 s" in said
    assert sql("SELECT 1 FROM pgbeat.reservations") == []


def test_a_bad_direct_execution_runs_nothing(web: Web, admin: Any, sql: Sql) -> None:
    make_lane(sql, "l", 1)
    for task, body, status, expected in (
        ("jobs.ad", {}, 422, ("task", "unknown")),
        ("jobs.add", {"args": []}, 422, ("args", "malformed")),
        ("jobs.add", {"args": [1], "lane": "m"}, 404, ("", "not_found")),
        ("jobs.add", {"args": [1], "lane": None}, 422, ("lane", "malformed")),
        ("jobs.add", {"args": [1], "timeout": -1}, 422, ("timeout", "malformed")),
        ("jobs.add", {"args": [1], "timeout": "1 hour"}, 422, ("timeout", "malformed")),
        ("jobs.add", {"args": [1], "tags": [""]}, 422, ("tags", "malformed")),
        ("jobs.add", {"args": [1], "resources": {"g": 0}}, 422, ("resources", "malformed")),
        ("jobs.add", {"args": [1], "prio": 0}, 422, ("prio", "unknown_field")),
        ("jobs.add%00", {"args": [1]}, 422, ("task", "unknown")),
    ):
        answer = web.user.post(f"/direct/{task}", json={"lane": "l", **body})
        assert errors(answer, status) == [expected], (task, body)
    problem(web.user.post("/direct/jobs.add", json={"args": [1]}), 422)
    assert audited(admin, "direct") == []
    assert sql("SELECT 1 FROM pgbeat.reservations") == []


def test_so_many_at_once_and_no_more(web: Web, sql: Sql) -> None:
    web.app.state.pgbeat_direct = threading.BoundedSemaphore(1)
    web.app.state.pgbeat_direct.acquire()
    make_lane(sql, "l", 1)
    assert "are under way in this process" in run(web.user, args=[1], status=503)
