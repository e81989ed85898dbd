"""What users learn of jobs of others by errors and by their own jobs: nothing."""

import pytest

from tests.support.command_line import Sql
from tests.support.rows import make_job, make_lane, make_template
from tests.support.web import Web, done, problem
from tests.web.api.made_jobs import NOBODY

#: What stands in a job of bob's.
SECRETS = ("user:bob", "secret-task", "w@secret", "nightly-payroll")


@pytest.fixture
def bobs(sql: Sql) -> str:
    """The id of a job that has the slot of lane `l`, and the key `k` of jobs.add."""
    make_lane(sql)
    make_template(sql, task="jobs.add", args="[1]", job_policy={"unique_key": "k"})
    values = {"created_by": "user:bob", "dispatched_at": "now"}
    make_job(sql, "running", task="secret-task", lane="l", worker="w@secret", **values)
    return make_job(sql, unique_key="k", **values)


def is_silent(text: str, job_id: str) -> bool:
    """Whether a text says nothing of bob's jobs."""
    return not any(secret in text for secret in (job_id, *SECRETS))


def test_who_has_the_slots(web: Web, bobs: str) -> None:
    order = {"lane": "l", "args": [1], "timeout": 0}
    said = problem(web.user.post("/direct/jobs.add", json=order), 503)
    assert "had no free slot" in said
    assert is_silent(said, bobs)
    assert "secret-task" in problem(web.admin.post("/direct/jobs.add", json=order), 503)


def test_who_has_the_unique_key(web: Web, bobs: str, sql: Sql) -> None:
    mine = make_job(sql, "failed", unique_key="k")
    group = {"jobs": [{"template": "t"}]}
    several = {"verb": "retry", "filter": {"state": "failed"}}
    for path, body in (("/groups", group), (f"/jobs/{mine}/retry", None)):
        said = problem(web.user.post(path, json=body), 409)
        assert said.endswith("a job of somebody else has the same unique key")
        assert is_silent(said, bobs)
        assert f"job {bobs}, which is pending," in problem(web.admin.post(path, json=body), 409)
    answer = web.user.post("/jobs/bulk", json=several)
    [left] = done(answer)["problems"]
    assert left["code"] == "not_unique"
    assert is_silent(answer.text, bobs)


def test_what_depends_on_one_s_own(web: Web, sql: Sql) -> None:
    mine = make_job(sql)
    order = {"task": "jobs.add", "args": [1], "depends_on": [mine]}
    hers, his = (done(client.post("/jobs", json=order), 201) for client in (web.user, web.admin))
    assert done(web.user.get(f"/jobs/{mine}"))["dependents"] == [hers["id"]]
    assert done(web.admin.get(f"/jobs/{mine}"))["dependents"] == [hers["id"], his["id"]]


def test_on_what_one_may_not_depend(web: Web, bobs: str, sql: Sql) -> None:
    of_schedule = make_job(
        sql,
        created_by="system:beat",
        is_system_job=True,
        job_source="scheduled_task",
        schedule="nightly-payroll",
    )
    for job_id in (bobs, of_schedule, NOBODY):
        order = {"task": "jobs.add", "args": [1], "depends_on": [job_id]}
        for path, body in (("/jobs", order), ("/jobs/many", {"jobs": [order]})):
            said = problem(web.user.post(path, json=body), 422)
            assert said.endswith(f"depends_on: there is no job {job_id}")
    done(web.admin.post("/jobs", json=order | {"depends_on": [bobs, of_schedule]}), 201)
