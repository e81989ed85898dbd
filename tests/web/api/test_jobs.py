"""The API's jobs: made and controlled."""

from datetime import datetime, timedelta
from typing import Any

from celery import Celery

from tests.support.command_line import Sql
from tests.support.jobs import make_app, messages
from tests.support.rows import make_job, make_lane
from tests.support.web import Web, done, errors, problem
from tests.web.api.made_jobs import audited, fails, make, tell

# -- made -----------------------------------------------------------------------------------------


def test_a_job_is_made_and_found(alice: Any, admin: Any, sql: Sql) -> None:
    sql("INSERT INTO kombu_queue (name) VALUES ('slow') RETURNING id")
    made = make(
        alice,
        args=[1],
        kwargs={"y": 3},
        priority=7,
        tags=["a"],
        max_attempts=4,
        retry_base="30 seconds",
        queue="slow",
    )
    wanted = {
        "state": "pending",
        "task": "jobs.add",
        "args": [1],
        "kwargs": {"y": 3},
        "priority": 7,
        "tags": ["a"],
        "max_attempts": 4,
        "retry_base": 30,
        "queue": "slow",
        "attempt": 1,
        "created_by": "user:alice",
        "job_source": "user_api",
        "is_system_job": False,
        "is_new": True,
        "error": None,
    }
    assert made.items() >= wanted.items()
    found = done(alice.get(f"/jobs/{made['id']}"))
    del made["is_new"]
    assert found.items() >= made.items()
    assert found["where"]["cause"] == "queue"
    assert (found["executions"], found["progress"]) == ([], None)
    assert [each["id"] for each in found["chain"]] == [made["id"]]
    assert messages(sql) == [made["id"]]
    assert audited(admin) == [("create", "user:alice", made["id"])]


def test_a_job_of_a_template(alice: Any, admin: Any) -> None:
    done(
        admin.put(
            "/templates/t", json={"task": "jobs.add", "args": [5], "job_policy": {"priority": 9}}
        ),
        201,
    )
    made = done(alice.post("/jobs", json={"template": "t", "kwargs": {"y": 1}}), 201)
    assert (made["task"], made["args"], made["kwargs"]) == ("jobs.add", [5], {"y": 1})
    assert (made["priority"], made["template"]) == (9, "t")


def test_a_job_for_later(alice: Any) -> None:
    made = make(alice, countdown="10 minutes")
    assert made["state"] == "scheduled"
    due = datetime.fromisoformat(made["run_at"])
    created = datetime.fromisoformat(made["created_at"])
    assert timedelta(minutes=9) < due - created <= timedelta(minutes=10, seconds=1)


def test_a_job_with_a_key_is_made_once(web: Web, alice: Any, admin: Any, sql: Sql) -> None:
    first = make(alice, unique_key="k")
    order = {"task": "jobs.add", "args": [2], "unique_key": "k"}
    again = done(alice.post("/jobs", json=order), 200)
    assert (again["id"], again["is_new"]) == (first["id"], False)
    assert audited(admin) == [("create", "user:alice", first["id"])]
    # A user's key is theirs, …
    for client in (admin, web.other):
        assert done(client.post("/jobs", json=order), 201)["id"] != first["id"]
    assert len(messages(sql)) == 3
    # … a template's is everybody's.
    template = {"task": "jobs.add", "args": [1], "job_policy": {"unique_key": "t"}}
    done(admin.put("/templates/t", json=template), 201)
    of_template = done(alice.post("/jobs", json={"template": "t"}), 201)
    said = problem(web.other.post("/jobs", json={"template": "t"}), 409)
    assert of_template["id"] not in said
    assert done(admin.post("/jobs", json={"template": "t"}), 200)["id"] == of_template["id"]


def test_many_at_once(web: Web, alice: Any, admin: Any, sql: Sql) -> None:
    orders = [{"task": "jobs.add", "args": [n]} for n in range(3)]
    ids = done(alice.post("/jobs/many", json={"jobs": orders}), 201)["ids"]
    found = sql("SELECT id::text, created_by FROM pgbeat.jobs ORDER BY args")
    assert found == [(job_id, "user:alice") for job_id in ids]
    assert len(messages(sql)) == 3
    assert audited(admin) == [("create", "user:alice", "3 jobs")]
    # All or none; and whose job has a key is nobody's business.
    template = {"task": "jobs.add", "args": [1], "job_policy": {"unique_key": "t"}}
    done(admin.put("/templates/t", json=template), 201)
    keyed = {"template": "t"}
    done(alice.post("/jobs", json=keyed), 201)
    said = problem(web.other.post("/jobs/many", json={"jobs": [orders[1], keyed]}), 409)
    assert all(job_id not in said for job_id in ids)
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(4,)]


ORDER = {"task": "jobs.add", "args": [1]}
BAD_ORDERS: list[tuple[Any, tuple[str, str]]] = [
    ({}, ("task", "required")),
    ({"task": "jobs.ad"}, ("task", "unknown")),
    ({"template": "none"}, ("template", "unknown")),
    ({"task": "jobs.add"}, ("args", "malformed")),
    ({"task": "jobs.add", "args": [1, 2, 3]}, ("args", "malformed")),
    ({"task": "jobs.add", "args": {"x": 1}}, ("args", "malformed")),
    ({"task": "jobs.add", "kwargs": [1]}, ("kwargs", "malformed")),
    ({**ORDER, "lane": "nope"}, ("lane", "unknown")),
    ({**ORDER, "priority": 256}, ("priority", "out_of_range")),
    ({**ORDER, "priority": -1}, ("priority", "out_of_range")),
    ({**ORDER, "max_attempts": 0}, ("max_attempts", "out_of_range")),
    ({**ORDER, "retry_base": 100, "retry_cap": 9}, ("retry_cap", "out_of_range")),
    ({**ORDER, "retry_base": -1}, ("retry_base", "out_of_range")),
    ({**ORDER, "tags": [""]}, ("tags", "malformed")),
    ({**ORDER, "resources": {"gpu": -1}}, ("resources", "malformed")),
    ({**ORDER, "unique_key": ""}, ("unique_key", "malformed")),
    ({**ORDER, "options": {"prio": 1}}, ("options", "unknown_field")),
    ({**ORDER, "options": {"countdown": 1}}, ("options", "conflict")),
    ({**ORDER, "options": {"serializer": "nope"}}, ("", "invalid_job")),
    ({**ORDER, "run_at": "2026-12-24T09:00:00"}, ("run_at", "malformed")),
    ({**ORDER, "run_at": "2999-01-01T00:00:00Z", "countdown": 5}, ("run_at", "conflict")),
    ({**ORDER, "countdown": "soon"}, ("countdown", "malformed")),
    ({**ORDER, "countdown": 1e300}, ("countdown", "malformed")),
    ({**ORDER, "countdown": 3e11}, ("countdown", "out_of_range")),
    ({"task": "jobs.add", "args": ["\0"]}, ("", "unstorable")),
    ({"task": "jobs.add\0", "args": [1]}, ("task", "unknown")),
    ({**ORDER, "queue": "\0"}, ("queue", "unknown")),
    ({**ORDER, "queue": "nosuch"}, ("queue", "unknown")),
    ({**ORDER, "unique_key": "content:ab"}, ("unique_key", "reserved")),
    ({**ORDER, "kwargs": {"__type__": "x", "__value__": 1}}, ("kwargs", "malformed")),
    ({**ORDER, "countdown": "31 days"}, ("run_at", "out_of_range")),
    ({**ORDER, "queue": "q" * 201}, ("queue", "too_long")),
    ({**ORDER, "created_by": "user:root"}, ("created_by", "unknown_field")),
    ({**ORDER, "prioritty": 1}, ("prioritty", "unknown_field")),
    ([], ("", "malformed")),
    (None, ("", "required")),
]


def test_a_bad_order_makes_nothing(alice: Any, admin: Any, sql: Sql) -> None:
    for order, expected in BAD_ORDERS:
        answer = alice.post("/jobs", json=order)
        assert answer.status_code == 422, (order, answer.text)
        assert errors(answer) == [expected]
    assert sql("SELECT 1 FROM pgbeat.jobs") == []
    assert sql("SELECT 1 FROM kombu_message") == []
    assert audited(admin) == []


NO_JSON = [
    b'{"task": "jobs.add", "args": [NaN]}',
    b'{"task": "jobs.add", "args": [1e999]}',
    b'{"task": "jobs.add", "args": ["\\ud800"]}',
    b'{"task": "\\ud800", "args": [1]}',
    b'{"task": "jobs.add", "args": [1], "resources": {"a": Infinity}}',
    b'{"task": "jobs.add", "args": [' + b"[" * 900 + b"]" * 900 + b"]}",
]


def test_what_is_no_json_makes_nothing(alice: Any, sql: Sql) -> None:
    headers = {"Content-Type": "application/json"}
    for content in NO_JSON:
        problem(alice.post("/jobs", content=content, headers=headers), 422)
    assert sql("SELECT 1 FROM pgbeat.jobs") == []


def test_what_is_nested_too_deeply_is_left_out(admin: Any, sql: Sql) -> None:
    make_job(sql, args="[" * 500 + "]" * 500)
    [job] = done(admin.get("/jobs"))["jobs"]
    assert job["args"] is None


# -- steered --------------------------------------------------------------------------------------


def test_a_job_is_paused_and_resumed(alice: Any, admin: Any, sql: Sql) -> None:
    job_id = make(alice)["id"]
    paused = done(alice.post(f"/jobs/{job_id}/pause"))
    assert (paused["id"], paused["state"]) == (job_id, "paused")
    assert sql("SELECT paused_at FROM pgbeat.jobs") == [
        (datetime.fromisoformat(paused["paused_at"]),)
    ]
    assert messages(sql) == []
    resumed = done(alice.post(f"/jobs/{job_id}/resume"))
    assert (resumed["state"], resumed["paused_at"]) == ("pending", None)
    assert messages(sql) == [job_id]
    assert [verb for verb, _, _ in audited(admin)] == ["create", "pause", "resume"]
    [resume, pause, _] = done(admin.get("/audit?kind=job"))["changes"]
    assert pause["before"]["state"] == "pending"
    assert pause["after"]["state"] == "paused"
    assert resume["actor"] == "user:alice"


def test_a_waiting_job_is_cancelled_and_tried_again(alice: Any, admin: Any, sql: Sql) -> None:
    job_id = make(alice, max_attempts=3)["id"]
    cancelled = done(alice.post(f"/jobs/{job_id}/cancel", json={"reason": "wrong input"}))
    assert cancelled["state"] == "cancelled"
    assert cancelled["finished_at"] is not None
    assert cancelled["error"] == "cancelled by user:alice: wrong input"
    assert messages(sql) == []
    again = done(alice.post(f"/jobs/{job_id}/retry", json={"priority": 9}))
    assert again["id"] != job_id
    wanted = {"state": "pending", "attempt": 1, "priority": 9, "retry_of": job_id}
    assert again.items() >= wanted.items()
    assert messages(sql) == [again["id"]]
    chain = done(alice.get(f"/jobs/{job_id}"))["chain"]
    assert [each["id"] for each in chain] == [job_id, again["id"]]
    assert [verb for verb, _, _ in audited(admin)] == ["create", "cancel", "retry"]


def test_a_running_job_is_asked_to_end(web: Web, alice: Any) -> None:
    job_id = make(alice)["id"]
    tell(web, job_id)
    asked = done(alice.post(f"/jobs/{job_id}/cancel"))
    assert (asked["state"], asked["finished_at"]) == ("running", None)
    assert asked["cancel_requested_by"] == "user:alice"


def test_a_retry_that_waits_comes_now(web: Web, alice: Any) -> None:
    job_id = make(alice, max_attempts=3, retry_base="1 hour")["id"]
    fails(web, job_id)
    [_, waiting] = done(alice.get(f"/jobs/{job_id}"))["chain"]
    assert waiting["state"] == "scheduled"
    hastened = done(alice.post(f"/jobs/{job_id}/retry"))
    assert (hastened["id"], hastened["state"]) == (waiting["id"], "pending")


def test_approval_is_an_admins(alice: Any, admin: Any, sql: Sql) -> None:
    made = make(alice, requires_approval=True)
    assert (made["state"], made["awaits_approval"]) == ("paused", True)
    said = problem(alice.post(f"/jobs/{made['id']}/approve"), 403)
    assert "--admin" not in said
    assert errors(alice.post(f"/jobs/{made['id']}/resume"), 409) == [("", "invalid_transition")]
    approved = done(admin.post(f"/jobs/{made['id']}/approve"))
    assert (approved["state"], approved["approved_by"]) == ("pending", "user:root")
    assert messages(sql) == [made["id"]]
    assert [verb for verb, _, _ in audited(admin)] == ["create", "approve"]


def test_jobs_are_moved_in_their_lane(web: Web, alice: Any, admin: Any, sql: Sql) -> None:
    make_lane(sql, limit=0)
    first, second, third = (make(alice, lane="l")["id"] for _ in range(3))
    moved = done(alice.post(f"/jobs/{third}/move", json={"where": "front"}))
    assert (moved["id"], moved["place"]) == (third, 1)
    moved = done(alice.post(f"/jobs/{first}/move", json={"where": "after", "other": second}))
    assert moved["place"] == 3
    line = done(alice.get("/lanes/l"))["line"]
    assert [each["id"] for each in line] == [third, second, first]
    assert [verb for verb, _, _ in audited(admin)] == 3 * ["create"] + 2 * ["move"]
    for body, expected in (
        ({"where": "before"}, ("other", "required")),
        ({"where": "front", "other": first}, ("other", "conflict")),
        ({"where": "before", "other": first, "priority": 1}, ("priority", "conflict")),
        ({"where": "before", "other": third}, ("other", "conflict")),
        ({"where": "top"}, ("where", "unknown")),
        ({}, ("where", "required")),
        ({"where": "front", "priority": 999}, ("priority", "out_of_range")),
    ):
        assert errors(alice.post(f"/jobs/{third}/move", json=body)) == [expected]
    other = make(alice)["id"]
    moved = alice.post(f"/jobs/{other}/move", json={"where": "front"})
    assert errors(moved, 409) == [("", "invalid_transition")]
    assert done(alice.get("/lanes/l"))["line"] == line


def test_a_job_that_ended_is_deleted(web: Web, alice: Any, admin: Any, sql: Sql) -> None:
    job_id = make(alice, max_attempts=1)["id"]
    assert errors(alice.delete(f"/jobs/{job_id}"), 409) == [("", "invalid_transition")]
    run = fails(web, job_id)
    assert done(alice.delete(f"/jobs/{job_id}"))["message"] == f"Job {job_id} deleted"
    problem(alice.get(f"/jobs/{job_id}"), 404)
    problem(alice.get(f"/executions/{run}"), 404)
    assert [verb for verb, _, _ in audited(admin)] == ["create", "delete"]


def test_a_system_job_of_ones_own_is_seen_and_cancelled_and_no_more(
    alice: Any, admin: Any, sql: Sql
) -> None:
    job_id = make_job(sql, is_system_job=True, job_source="scheduled_task", schedule="nightly")
    assert done(alice.get(f"/jobs/{job_id}"))["is_system_job"] is True
    for verb in ("pause", "resume", "retry", "approve"):
        problem(alice.post(f"/jobs/{job_id}/{verb}"), 403)
    assert audited(admin) == []
    assert done(alice.post(f"/jobs/{job_id}/cancel"))["state"] == "cancelled"


REFUSED = [
    ("completed", "cancel"),
    ("completed", "retry"),
    ("pending", "retry"),
    ("running", "pause"),
    ("pending", "resume"),
    ("pending", "approve"),
    ("skipped", "pause"),
]


def test_what_a_state_does_not_allow_is_refused(admin: Any, sql: Sql) -> None:
    for state, verb in REFUSED:
        job_id = make_job(sql, state=state)
        before = sql("SELECT * FROM pgbeat.jobs")
        assert errors(admin.post(f"/jobs/{job_id}/{verb}"), 409) == [("", "invalid_transition")]
        assert sql("SELECT * FROM pgbeat.jobs") == before
    assert audited(admin) == []


BAD_BODIES: list[tuple[str, Any, tuple[str, str]]] = [
    ("cancel", {"reson": "x"}, ("reson", "unknown_field")),
    ("cancel", {"reason": 5}, ("reason", "malformed")),
    ("cancel", {"reason": "x" * 1001}, ("reason", "too_long")),
    ("cancel", {"reason": "\0"}, ("", "invalid")),
    ("retry", {"priority": 256}, ("priority", "out_of_range")),
    ("retry", [], ("", "malformed")),
]


def test_a_bad_body_changes_nothing(admin: Any, sql: Sql) -> None:
    for verb, body, expected in BAD_BODIES:
        job_id = make_job(sql, state="failed" if verb == "retry" else "pending")
        before = sql("SELECT * FROM pgbeat.jobs")
        assert errors(admin.post(f"/jobs/{job_id}/{verb}", json=body)) == [expected]
        assert sql("SELECT * FROM pgbeat.jobs") == before
    assert audited(admin) == []


def test_jobs_of_another_namespace_are_not_there(app: Celery, web: Web, sql: Sql) -> None:
    from tests.support.web import opened

    job_id = make_job(sql)
    with opened(app, namespace="other") as other:
        root = other.admin
        assert done(root.get("/jobs"))["jobs"] == []
        problem(root.get(f"/jobs/{job_id}"), 404)
        problem(root.post(f"/jobs/{job_id}/cancel"), 404)
    assert sql("SELECT state FROM pgbeat.jobs") == [("pending",)]


def test_a_broker_that_is_away_is_no_failure_of_ours(database: str, sql: Sql) -> None:
    from tests.support.web import opened

    elsewhere = make_app(database, "redis://127.0.0.1:1/0")
    elsewhere.conf.broker_transport_options = {"max_retries": 0}
    elsewhere.conf.task_publish_retry = False
    elsewhere.conf.broker_connection_timeout = 1
    with opened(elsewhere) as web:
        said = problem(web.user.post("/jobs", json={"task": "jobs.add", "args": [1]}), 503)
        assert said == "the broker can't be reached now"
    assert sql("SELECT 1 FROM pgbeat.jobs") == []
    assert sql("SELECT 1 FROM pgbeat.audit") == []
