"""The console's pages of groups."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.pages import after, html
from tests.support.web import Web, done


def make_group(client: Any, count: int = 2, **values: Any) -> str:
    """A group of the client's; its id."""
    body = {"jobs": [{"task": "tests.add", "args": [1]}] * count, **values}
    return str(done(client.post("/groups", json=body), 201)["id"])


def test_groups_are_listed_and_their_jobs_shown(web: Web, page: Any, user: Any, sql: Sql) -> None:
    mine = make_group(web.user, name="sales", mode="sequential", on_failure="skip_remaining")
    make_group(web.other)
    sql(
        "UPDATE pgbeat.jobs SET state = 'running', started_at = now()"
        " WHERE group_id = %s AND group_position = 0",
        mine,
    )
    sql(
        "UPDATE pgbeat.jobs SET state = 'failed', error = 'ValueError: no', finished_at = now()"
        " WHERE group_id = %s AND group_position = 0",
        mine,
    )
    text = html(page.get("/console/groups"))
    assert len(text.rows) == 2
    assert '<progress max="2" value="1" aria-label="jobs that have ended">' in text
    assert "1 of 2, 1 failed" in text.words
    assert len(html(user.get("/console/groups")).rows) == 1
    assert len(html(page.get("/console/groups?by=user:bob")).rows) == 1
    assert "No groups match" in html(page.get("/console/groups?state=cancelled"))
    said = html(user.get(f"/console/groups/{mine}")).words
    assert "2 jobs, one after the other; once one has failed, the rest is skipped." in said
    assert "1. tests.add failed ValueError: no" in said
    assert "2. tests.add pending waits for the one before it" in said
    jobs = html(page.get("/console/jobs", params={"group": mine}))
    assert len(jobs.rows) == 2
    job_id = sql("SELECT id FROM pgbeat.jobs WHERE group_id = %s", mine)[0][0]
    assert f'href="/console/groups/{mine}"' in html(page.get(f"/console/jobs/{job_id}"))


def test_a_large_group_shows_what_failed(web: Web, page: Any, sql: Sql) -> None:
    group = make_group(web.user, 110)
    sql("UPDATE pgbeat.jobs SET state = 'running', started_at = now() WHERE group_position = 105")
    sql(
        "UPDATE pgbeat.jobs SET state = 'failed', error = 'ValueError: far', finished_at = now()"
        " WHERE group_position = 105"
    )
    said = html(page.get(f"/console/groups/{group}")).words
    assert "ValueError: far" in said
    assert "The first 100; show all" in said


def test_a_graph_with_a_callback_is_made_and_shown(user: Any, sql: Sql) -> None:
    form = html(user.get("/console/new/group")).fields
    jobs = '{"task": "tests.add", "key": "a"}\n{"task": "tests.add", "depends_on": ["a"]}'
    form |= {"name": "g", "jobs": jobs, "callback": "tests.add"}
    said = after(user, user.post("/console/new/group", data=form))
    assert "waits for 1 job" in said
    assert "Callback" in said
    [(job, callback)] = sql(
        "SELECT j.id, g.callback_id FROM pgbeat.jobs j JOIN pgbeat.groups g ON g.id = j.group_id "
        "WHERE j.is_blocked"
    )
    assert "Depends on" in html(user.get(f"/console/jobs/{job}")).words
    assert "at the end of its group" in html(user.get(f"/console/jobs/{callback}")).words


WRONG_GROUPS: list[tuple[str, str]] = [
    ("", "which jobs?"),
    ("tests.add\n{", "line 2: invalid JSON"),
    ('tests.add\n{"tusk": "tests.add"}', "number 2: there is no field 'tusk'"),
    ("tests.add\ntests.ad", "tests.ad"),
    ('{"template": "nowhere"}', "nowhere"),
]


def test_a_group_that_is_wrong_is_not_made(user: Any, sql: Sql) -> None:
    for jobs, said in WRONG_GROUPS:
        form = {"mode": "parallel", "on_failure": "stop", "jobs": jobs}
        text = html(user.post("/console/new/group", data=form), 422)
        assert said in text.wrong["jobs"]
        assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]
        assert sql("SELECT 1 FROM pgbeat.audit") == []
