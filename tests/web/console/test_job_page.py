"""The page of a job: its trace."""

from typing import Any

from tests.support.pages import after, html, words_of
from tests.support.rows import Sql, make_execution, make_lane, make_stack
from tests.support.web import Web, done


def test_the_trace_of_all_attempts(page: Any, job: Any, sql: Sql) -> None:
    """As bars, and as a table."""
    policy = {"max_attempts": 2, "retry_base": "30 seconds", "queue": "mail"}
    start, then, end = (f"2026-01-01T00:{minute}Z" for minute in ("00:00", "00:10", "01:00"))
    first = job(
        state="failed",
        created_at=start,
        dispatched_at="2026-01-01T00:00:03Z",
        finished_at=then,
        lane="<gpu>",
        **policy,
    )
    second = job(
        created_at=then, dispatched_at=then, finished_at=end, attempt=2, retry_of=first, **policy
    )
    for job_id, state, *times in (
        (first, "failed", "00:00:05", "00:00:10"),
        (second, "completed", "00:00:50", "00:01:00"),
    ):
        began, ended = (f"2026-01-01T{each}Z" for each in times)
        make_execution(sql, job_id, state, started_at=began, finished_at=ended)
    shown = html(page.get(f"/console/jobs/{first}"))
    assert "waiting in lane &lt;gpu&gt;" in shown and "backing off" in shown.words
    bars = shown.tree.xpath("//div[@class='bar-of']//rect")
    assert [(bar.get("class"), bar.get("x"), bar.get("width")) for bar in bars] == [
        ("lane", "0.0%", "5.0%"),
        ("queue", "5.0%", "3.33%"),
        ("bad", "8.33%", "8.33%"),
        ("backoff", "16.67%", "50.0%"),
        ("queue", "66.67%", "16.67%"),
        ("good", "83.33%", "16.67%"),
    ]
    assert len(shown.tree.xpath("//*[@id='phases']//tbody/tr")) == 10


def test_run_again_with_changed_arguments(web: Web, page: Any, sql: Sql) -> None:
    """The form is filled in with what the job had; sections that hold something are open."""
    make_lane(sql, "gpu")
    given = {
        "task": "tests.add",
        "args": [1],
        "kwargs": {"y": 2},
        "lane": "gpu",
        "priority": 7,
        "labels": {"team": "a"},
        "unique_key": "once",
    }
    made = done(web.admin.post("/jobs", json=given), 201)
    link = f"/console/new/job?like={made['id']}"
    assert link in html(page.get(f"/console/jobs/{made['id']}"))
    shown = html(page.get(link))
    form = shown.fields
    assert {name: form[name] for name in ("task", "args", "kwargs", "lane", "priority")} == {
        "task": "tests.add",
        "args": "[1]",
        "kwargs": '{"y": 2}',
        "lane": "gpu",
        "priority": "7",
    }
    assert form["unique_key"] == form["run_at"] == ""
    assert len(shown.tree.xpath("//details[@open]//input[@name='lane']")) == 1
    assert not shown.tree.xpath("//details[@open]//input[@name='queue']")
    after(page, page.post("/console/new/job", data=form | {"kwargs": '{"y": 5}', "do": "make"}))
    assert sql(
        "SELECT args, kwargs, lane, priority, labels, unique_key FROM pgbeat.jobs"
        " ORDER BY created_at DESC LIMIT 1"
    ) == [([1], {"y": 5}, "gpu", 7, {"team": "a"}, None)]


def test_jobs_whose_arguments_one_does_not_see(web: Web) -> None:
    """Can't be run again with changes; those of others don't exist."""
    web = Web(web.app.state.pgbeat.celery, redact={"tests.add": ["y"]})
    made = done(web.user.post("/jobs", json={"task": "tests.add", "kwargs": {"x": 1, "y": 2}}), 201)
    alice, root = web.browser(web.token("alice")), web.browser(web.token("root", "admin"))
    link = f"/console/new/job?like={made['id']}"
    assert link not in html(alice.get(f"/console/jobs/{made['id']}"))
    assert alice.get(link).status_code == 403
    assert html(root.get(link)).fields["kwargs"] == '{"x": 1, "y": 2}'
    assert web.browser(web.token("bob")).get(link).status_code == 404
    refused = web.user.post("/jobs", json={"like": made["id"]})
    assert (refused.status_code, refused.json()["code"]) == (403, "masked")
    assert web.other.post("/jobs", json={"like": made["id"]}).status_code == 404
    copy = done(web.admin.post("/jobs", json={"like": made["id"], "kwargs": {"y": 3}}), 201)
    assert (copy["kwargs"], copy["created_by"]) == ({"x": 1, "y": 3}, "user:root")


def test_what_a_job_logged(web: Web, page: Any, job: Any, sql: Sql) -> None:
    """The newest lines are open, others a click away; the API has all."""
    own = job(state="failed")
    for number, message in ((1, "<b>one"), (2, "two"), (3, None)):
        lines = {"omitted": 4, "lines": [[1.5, "ERROR", "shop", message]]}
        given = {"log": lines if message else None, "started_at": "2026-01-01T00:00:00Z"}
        make_execution(sql, own, "failed", number=number, **given)
    shown = html(page.get(f"/console/jobs/{own}"))
    assert "two" in shown.words and "&lt;b&gt;one" not in shown
    assert f"/console/jobs/{own}?log=1#log-1" in shown and "log=3" not in shown
    shown = html(page.get(f"/console/jobs/{own}?log=1"))
    assert "&lt;b&gt;one" in shown and "00:00:01" in shown and "4 lines before" in shown.words
    found = done(web.admin.get(f"/jobs/{own}/logs"))["executions"]
    assert [(each["number"], each["omitted"]) for each in found] == [(2, 4), (1, 4)]
    assert found[0]["lines"] == [
        {"at": "2026-01-01T00:00:01.500000Z", "level": "ERROR", "logger": "shop", "message": "two"}
    ]
    [only] = done(web.admin.get(f"/jobs/{own}/logs?execution=1"))["executions"]
    assert only["lines"][0]["message"] == "<b>one"


def test_what_a_job_is_doing(page: Any, viewer: Any, job: Any, sql: Sql) -> None:
    """Viewers may ask, too; the stacks of an execution are shown with it."""
    job_id = job(state="running", finished_at=None)
    run = make_execution(sql, job_id)
    make_stack(sql, job_id, run, reason="deadline", stack='  File "<a>", line 1, in crawl\n')
    path = f"/console/jobs/{job_id}"
    shown = html(viewer.get(path))
    summary = words_of(shown.one(f"#stack-{run}-deadline summary"))
    assert summary == "Stack when it missed its deadline, just now , 12 MB"
    assert shown.one("pre.trace").text == '  File "<a>", line 1, in crawl\n'
    assert shown.one(f"a[href='{path}?ask=1']").text == "What is it doing?"
    sql("UPDATE pgbeat.executions SET state = 'completed', finished_at = now()")
    sql("UPDATE pgbeat.jobs SET state = 'completed', finished_at = now()")
    assert not html(page.get(path)).all("a[href$='ask=1']")
    assert "only running jobs have a stack" in after(page, page.get(f"{path}?ask=1"))
