"""`/lanes` and `/direct`: limits set, held, let go, deleted; tasks run here and now."""

from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery

from pgbeat.web.api.jobs.direct import EACH, MOST
from tests.support.command_line import Sql
from tests.support.rows import insert, make_lane
from tests.support.web import Web, done, errors, problem
from tests.web.api.made_jobs import audited, make


@pytest.fixture
def app(app: Celery) -> Celery:
    """The app, with tasks that fail."""

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
    direct = {"lane": "l", "task": "jobs.add", "created_by": "user:bob", "started_at": "now"}
    insert(sql, "reservations", direct, "id")
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


# -- direct ---------------------------------------------------------------------------------------


def run(client: Any, task: str = "jobs.add", status: int = 200, **body: Any) -> Any:
    """Runs a task directly; the answer, or the sentence of a problem."""
    answer = client.post(f"/direct/{task}", json={"lane": "l", **body})
    return done(answer) if status == 200 else problem(answer, status)


def test_a_task_is_run_here_and_now(web: Web, sql: Sql) -> None:
    make_lane(sql, "l", 1)
    found = run(web.user, args=[1], kwargs={"y": 4})
    assert found == {"success": True, "result": 5, "error": None}
    assert sql("SELECT 1 FROM pgbeat.jobs") == []
    # What it raises is told.
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


def test_so_many_at_once_and_no_more(web: Web, admin: Any, sql: Sql) -> None:
    make_lane(sql, "l", 1)
    web.app.state.pgbeat_direct = under_way = ["user:alice"] * EACH
    assert "user:alice has 4 direct executions under way" in run(web.user, args=[1], status=503)
    assert run(admin, args=[1], kwargs={"y": 1})["result"] == 2
    under_way[:] = ["user:bob"] * (MOST - 1)
    assert run(web.user, args=[1], kwargs={"y": 1})["result"] == 2
    under_way.append("user:bob")
    assert "are under way in this process" in run(admin, args=[1], status=503)
    assert under_way == ["user:bob"] * MOST
