"""The API's jobs: listed and shown, with their executions."""

from typing import Any

from psycopg.types.json import Jsonb

from tests.support.command_line import Sql
from tests.support.rows import make_job, make_schedule
from tests.support.web import Web, done, errors, problem
from tests.web.api.made_jobs import NOBODY, audited, make, tell
from tests.web.api.test_permissions import TABLE


def test_a_user_sees_their_own_and_an_admin_all(web: Web, alice: Any, admin: Any, sql: Sql) -> None:
    own = make(alice)["id"]
    bobs = make(web.other)["id"]
    system = make_job(
        sql, is_system_job=True, created_by="system:beat", job_source="scheduled_task"
    )

    def seen(client: Any, **which: Any) -> list[str]:
        return [each["id"] for each in done(client.get("/jobs", params=which))["jobs"]]

    assert seen(alice) == [own]
    assert seen(web.other) == [bobs]
    assert sorted(seen(admin)) == sorted([own, bobs, system])
    assert seen(admin, created_by="user:bob") == [bobs]
    assert seen(admin, system=True) == [system]
    problem(alice.get("/jobs?created_by=user:bob"), 403)
    assert done(alice.get(f"/jobs/{own}"))["id"] == own
    for job_id in (bobs, system, NOBODY):
        assert problem(alice.get(f"/jobs/{job_id}"), 404) == f"there is no job {job_id}"
    assert done(admin.get(f"/jobs/{bobs}"))["id"] == bobs


#: Routes about one job, each with its body.
ON_A_JOB = [(*route.split(" "), TABLE[route][1]) for route in TABLE if " /jobs/{job_id}" in route]


def test_a_job_of_another_is_not_there(web: Web, alice: Any, sql: Sql) -> None:
    made = make(alice)
    bob, before = web.other, sql("SELECT * FROM pgbeat.jobs")
    for method, path, body in ON_A_JOB:
        for job_id in (made["id"], NOBODY):
            said = problem(bob.request(method, path.format(job_id=job_id), json=body), 404)
            assert said == f"there is no job {job_id}"
    assert sql("SELECT * FROM pgbeat.jobs") == before
    assert audited(web.admin) == [("create", "user:alice", made["id"])]


def test_whether_there_is_a_schedule_is_told_to_administrators_alone(
    web: Web, admin: Any, sql: Sql
) -> None:
    key = make_schedule(sql, "nightly")
    make_job(sql, schedule_id=key, schedule="nightly")
    for name in ("nightly", "nightl"):
        found = done(web.other.get(f"/jobs?schedule={name}"))
        assert found == {"jobs": [], "next": None, "is_cut": False}
    assert "did you mean 'nightly'?" in problem(admin.get("/jobs?schedule=nightl"), 404)


def test_a_retry_that_is_told_of_before_what_it_retries(web: Web, alice: Any) -> None:
    """By two workers: the newest execution is the one that began last."""
    job_id = make(alice)["id"]
    tell(web, job_id, retry_attempt=1, began=1, progress_done=3, progress_total=4)
    tell(web, job_id, state="failed", job_state="scheduled", began=60, ended=59, error="not yet")
    [job] = done(alice.get("/jobs"))["jobs"]
    assert (job["state"], job["progress"]["percent"]) == ("running", 75)
    shown = done(alice.get(f"/jobs/{job_id}"))
    listed = done(alice.get(f"/jobs/{job_id}/executions"))
    for runs in (shown["executions"], listed["executions"]):
        assert [(run["number"], run["retry_attempt"]) for run in runs] == [(1, 1), (2, 0)]
    first = done(alice.get(f"/jobs/{job_id}/executions?limit=1"))
    second = done(alice.get(f"/jobs/{job_id}/executions?limit=1&after={first['next']}"))
    assert first["executions"] + second["executions"] == listed["executions"][::-1]
    assert second["next"] is None


def test_artifacts_are_those_of_all_executions(web: Web, alice: Any) -> None:
    job_id, other = make(alice)["id"], make(alice)["id"]
    for made, state in ((["a.pdf", "b.csv"], "failed"), (["b.csv", "c.png"], "completed")):
        so_far: Any = {"failed": "pending"}.get(state, state)
        metadata = {"artifacts": made, "rows": 3}
        tell(web, job_id, state=state, job_state=so_far, metadata=metadata)
    detail = done(alice.get(f"/jobs/{job_id}"))
    every = ["a.pdf", "b.csv", "c.png"]
    assert detail["artifacts"] == every
    own = sorted(run["artifacts"] for run in detail["executions"])
    assert own == [["a.pdf", "b.csv"], ["b.csv", "c.png"]]
    assert [run["metadata"] for run in detail["executions"]] == [{"rows": 3}] * 2
    listed = {each["id"]: each["artifacts"] for each in done(alice.get("/jobs"))["jobs"]}
    assert listed == {job_id: every, other: []}
    page = web.browser(web.token("alice")).get(f"/console/jobs/{job_id}").text
    assert "<code>c.png</code>" in page


def test_executions(web: Web, alice: Any) -> None:
    job_id = make(alice, max_attempts=1)["id"]
    run = tell(web, job_id)
    tell(web, job_id, is_new=False, run=run, progress_done=3, progress_total=4)
    assert done(alice.get(f"/jobs/{job_id}"))["progress"]["percent"] == 75
    metadata = {"items_crawled": 25, "source": "news"}
    ended: dict[str, Any] = {"state": "completed", "result": "3", "metadata": metadata}
    told: dict[str, Any] = {
        "is_new": False,
        "run": run,
        "job_state": "completed",
        "duration_ms": 1500.4,
    }
    tell(web, job_id, **told, **ended)
    listed = done(alice.get(f"/jobs/{job_id}/executions"))
    assert (listed["total"], listed["limit"], listed["next"]) == (1, 50, None)
    [execution] = listed["executions"]
    assert execution.items() >= (ended | {"duration_ms": 1500, "number": 1}).items()
    assert done(alice.get(f"/executions/{run}")) == execution
    problem(web.other.get(f"/executions/{run}"), 404)
    assert done(web.admin.get(f"/executions/{run}"))["id"] == run
    problem(alice.get(f"/executions/{NOBODY}"), 404)


def test_a_job_is_listed_whatever_its_row_holds(web: Web, alice: Any, sql: Sql) -> None:
    """A role that makes jobs, or a message that gets one, may write what no call has."""
    odd = {"args": {"a": 1}, "kwargs": [1], "resources": {"gpu": None}}
    ids = [make_job(sql, "failed", **{name: Jsonb(value)}) for name, value in odd.items()]
    ids.append(make_job(sql, "scheduled", run_at="tomorrow", message=Jsonb({"waits_for": 5})))
    for client in (web.admin, alice):
        shown = {job["id"]: job for job in done(client.get("/jobs"))["jobs"]}
        assert [shown[key][name] for key, name in zip(ids, odd, strict=False)] == [None, None, {}]
        assert shown[ids[-1]]["waits_for_event"] is None
    for key in ids[:2]:
        assert errors(web.admin.post(f"/jobs/{key}/retry")) == [("", "malformed")]
    assert done(web.admin.post(f"/jobs/{ids[2]}/retry"))["retry_of"] == ids[2]


def test_a_list_ends_with_a_megabyte_of_arguments(web: Web, alice: Any, sql: Sql) -> None:
    """Each list in it would take twenty times as much memory as in its text."""
    large: Any = [[]] * 80_000
    for _ in range(5):
        make_job(sql, args=Jsonb(large))
    first = done(alice.get("/jobs?limit=200"))
    assert (len(first["jobs"]), first["is_cut"]) == (4, True)
    second = done(alice.get("/jobs", params={"after": first["next"]}))
    assert (len(second["jobs"]), second["is_cut"], second["next"]) == (1, False, None)
    jobs = first["jobs"] + second["jobs"]
    assert len({job["id"] for job in jobs}) == 5
    assert all(job["args"] == large for job in jobs)
    order = {"task": "jobs.add", "args": [[[]] * 30_000]}
    group = done(alice.post("/groups", json={"jobs": [order] * 6}), 201)
    assert (group["progress"]["total"], len(group["jobs"])) == (6, 6)
    sql("UPDATE pgbeat.jobs SET args = %s WHERE group_id = %s", Jsonb(large), group["id"])
    assert len(done(alice.get(f"/groups/{group['id']}"))["jobs"]) == 4
