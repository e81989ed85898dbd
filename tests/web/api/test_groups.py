"""`/groups` and `/templates`: jobs given together, and what jobs are made from."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.rows import make_schedule, make_template
from tests.support.web import Web, done, errors, problem
from tests.web.api.made_jobs import audited

ORDER = {"task": "jobs.add", "args": [1]}


def group(client: Any, *jobs: Any, **values: Any) -> Any:
    """A group of two jobs, unless told otherwise."""
    body = {"jobs": list(jobs) or [ORDER, ORDER], **values}
    return done(client.post("/groups", json=body), 201)


def test_members_depend_on_each_other_and_a_callback_follows(web: Web) -> None:
    alice = web.user
    second = {**ORDER, "key": "b", "depends_on": ["a"]}
    made = group(alice, {**ORDER, "key": "a"}, second, callback=ORDER)
    assert (made["callback_outcome"], [job["is_blocked"] for job in made["jobs"]]) == (
        "finished",
        [False, True],
    )
    first, second = (job["id"] for job in made["jobs"])
    shown = done(alice.get(f"/jobs/{second}"))
    assert shown["depends_on"] == [{"id": first, "needs": "completed", "outcome": None}]
    assert done(alice.get(f"/jobs/{first}"))["dependents"] == [second]
    assert done(alice.get(f"/jobs/{made['callback_id']}"))["callback_of"] == made["id"]
    after = done(alice.post("/jobs", json={**ORDER, "depends_on": [second]}), 201)
    assert (after["is_blocked"], after["unfinished_parents"]) == (True, 1)
    for body, field in (
        ({**ORDER, "depends_on": [first[:-1]]}, "depends_on"),
        ({**ORDER, "depends_on": [first], "depends_on_outcome": "failed"}, "depends_on_outcome"),
        ({**ORDER, "key": "k"}, "key"),
    ):
        assert [found for found, _ in errors(alice.post("/jobs", json=body))] == [field]


def test_a_group_of_another_is_not_there(web: Web, admin: Any) -> None:
    made, bob = group(web.user), web.other
    assert done(bob.get("/groups"))["groups"] == []
    problem(bob.get(f"/groups/{made['id']}"), 404)
    assert [each["id"] for each in done(admin.get("/groups"))["groups"]] == [made["id"]]
    problem(bob.get("/groups?created_by=user:alice"), 403)


def test_a_bad_group_makes_nothing(web: Web, admin: Any, sql: Sql) -> None:
    for body, status, expected in (
        ({}, 422, ("jobs", "required")),
        ({"jobs": []}, 422, ("jobs", "too_short")),
        ({"jobs": ["jobs.ad"]}, 422, ("jobs[0].task", "unknown")),
        ({"jobs": [ORDER, {"task": "jobs.add"}]}, 422, ("jobs[1].args", "malformed")),
        ({"jobs": [ORDER, {"args": [1]}]}, 422, ("jobs[1].task", "required")),
        ({"jobs": [ORDER], "mode": "random"}, 422, ("mode", "unknown")),
        ({"jobs": [ORDER], "on_failure": "cry"}, 422, ("on_failure", "unknown")),
        ({"jobs": [ORDER], "nam": "x"}, 422, ("nam", "unknown_field")),
        ({"jobs": [ORDER], "name": "\0"}, 422, ("name", "malformed")),
        (
            {"jobs": [ORDER | {"subtask_type": None}]},
            422,
            ("jobs[0].subtask_type", "unknown_field"),
        ),
        ({"jobs": [5]}, 422, ("jobs[0]", "malformed")),
        ({"jobs": ["x" * 256]}, 422, ("jobs[0].task", "too_long")),
        ({"jobs": [ORDER], "callback": {"tags": 5}}, 422, ("callback.tags", "malformed")),
        ({"jobs": [ORDER | {"unique_key": "k"}] * 2}, 409, ("", "not_unique")),
        ({"jobs": [ORDER | {"lane": "nope"}]}, 422, ("jobs[0].lane", "unknown")),
    ):
        assert errors(web.user.post("/groups", json=body), status) == [expected], body
    assert sql("SELECT 1 FROM pgbeat.groups") == sql("SELECT 1 FROM pgbeat.jobs") == []
    assert sql("SELECT 1 FROM kombu_message") == []
    assert audited(admin, "group") == []


# -- templates ------------------------------------------------------------------------------------


def test_users_see_templates_without_their_schedules(web: Web, admin: Any, sql: Sql) -> None:
    make_template(sql)
    make_schedule(sql, job_policy={"template": "t"})
    assert done(admin.get("/templates/t"))["schedules"] == ["s"]
    assert done(web.user.get("/templates/t"))["schedules"] == []
