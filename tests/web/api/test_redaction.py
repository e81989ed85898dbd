"""Masked arguments and results: no route shows them to anybody but administrators."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from psycopg.types.json import Jsonb

from pgbeat.access.redaction import MASK
from tests.support.command_line import Sql
from tests.support.rows import (
    insert,
    make_dead_letter,
    make_execution,
    make_job,
    make_schedule,
    make_stack,
    make_template,
    make_tick,
)
from tests.support.web import Web, done, opened
from tests.web.api.test_permissions import TABLE

#: What nobody else may read. It has no digits: patterns of errors would leave these out.
SECRET = "open-sesame"


@pytest.fixture
def web(app: Celery) -> Iterator[Web]:
    with opened(app, redact={"pay": "*", "jobs.add": "*", "jobs.buy": ["card"]}) as found:
        yield found


@pytest.fixture
def places(sql: Sql) -> dict[str, str]:
    """Things with the secret wherever a task's data can be; what stands for them in paths."""
    call = {"args": f'["{SECRET}"]', "kwargs": f'{{"a": ["{SECRET}"]}}'}
    link = f'{{"link": [{{"task": "pay", "args": ["{SECRET}"], "kwargs": {{}}}}]}}'
    key = make_schedule(
        sql,
        "s",
        task="pay",
        **call,
        options=link,
        cron="0 0 * * *",
        check_in_url=f"https://checks.test/{SECRET}",
    )
    job = make_job(
        sql,
        state="failed",
        task="pay",
        **call,
        options=link,
        error=f"Declined: {SECRET}",
        checkpoint=f'"{SECRET}"',
        created_by="user:alice",
        schedule="s",
        schedule_id=key,
        finished_at="now",
        unique_key=f"content:{SECRET}",
    )
    said = f"Declined: {SECRET}"
    run = make_execution(
        sql,
        job,
        "failed",
        **dict.fromkeys(("error", "traceback", "result", "progress_message"), said),
        metadata={"a": said, "artifacts": [said], "steps_out_of_order": said},
        log={"lines": [["0", "INFO", "a", said]]},
    )
    make_stack(sql, job, run, stack=said)
    waits_for = {"key": SECRET, "since": "2026-01-01T00:00:00+00:00", "until": None}
    make_job(
        sql,
        "scheduled",
        task="pay",
        root_id=job,
        started_at="now",
        run_at="tomorrow",
        message={"waits_for": waits_for},
    )
    step: dict[str, Any] = {"root_id": job, "job_id": job, "namespace": "default", "n": 1}
    step |= {"began_at": "now", "finished_at": "now", "content_type": "application/json"}
    for kind in ("step", "wait"):
        name = SECRET if kind == "wait" else "one"
        value = f'"{SECRET}"'.encode()
        insert(sql, "steps", {**step, "kind": kind, "name": name, "value": value}, "id")
    sql(
        """INSERT INTO pgbeat.results (task_id, status, content_type, content_encoding, body,
                                       traceback)
           VALUES (%s, 'FAILURE', 'application/json', 'utf-8', %s::text::bytea, %s)""",
        job,
        f'"{SECRET}"',
        SECRET,
    )
    make_template(sql, task="pay", **call, options=link)
    values = {"kwargs": {"a": SECRET}, "check_in_url": f"https://x.test/{SECRET}"}
    change = {"actor": "user:root", "origin": "cli", "verb": "update", "kind": "schedule"}
    insert(sql, "audit", {"subject": "s", "after": values, **change}, "id")
    event = {"key": f"paid/{SECRET}", "value": Jsonb([SECRET]), "emitted_by": "user:root"}
    insert(sql, "events", {"namespace": "default", **event}, "id")
    insert(sql, "audit", {**change, "kind": "event", "subject": f"paid/{SECRET}"}, "id")
    retried = {"verb": "retry", "kind": "job", "subject": job}
    insert(sql, "audit", {**change, **retried, "after": {"forgotten_steps": [SECRET]}}, "id")
    payload = f'{{"headers": {{"task": "pay", "argsrepr": "{SECRET}"}}}}'
    letter = make_dead_letter(sql, payload=payload)
    return {
        "job_id": job,
        "execution_id": run,
        "task_id": job,
        "letter_id": str(letter),
        "group_id": "0",
        "delivery_id": "0",
        "number": "0",
        "section": "jobs",
    }


def paths(places: dict[str, str]) -> Iterator[str]:
    """The path of each route that only reads."""
    names = {"/templates": "t", "/console/templates": "t", "/console/{": "x"}
    for route in TABLE:
        method, path = route.split(" ")
        if method == "GET":
            name = next((each for start, each in names.items() if path.startswith(start)), "s")
            path = re.sub(r"\{name(:path)?\}", name, path)
            yield re.sub(r"\{(\w+)\}", lambda found: places[found[1]], path)
    yield "/console/new/job?template=t"


def test_no_route_shows_what_is_masked(
    web: Web, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgbeat.web.api.jobs import events

    monkeypatch.setattr(events, "LONGEST", 0.1)
    viewer = web.browser(web.token("vera", "viewer"))
    alice = web.browser(web.token("alice"))
    root = web.browser(web.token("root", "admin"))
    shown_to_root = set()
    for path in paths(places):
        assert SECRET not in viewer.get(path).text, path
        if SECRET in root.get(path).text:
            assert SECRET not in alice.get(path).text, path
            shown_to_root.add(path.replace(places["job_id"], "JOB"))
    assert {
        "/errors", "/jobs", "/jobs/JOB", "/jobs/JOB/tree", "/jobs/JOB/logs", "/jobs/JOB/trace",
        "/jobs/JOB/events",
        "/jobs/JOB/stack", "/results/JOB",
        "/templates", "/templates/t", "/audit", "/admin/scheduled-jobs", "/admin/scheduled-jobs/s",
        "/events", "/admin/scheduled-jobs/s/forecast", "/console/jobs", "/console/jobs/JOB",
        "/console/jobs/JOB/tree", "/console/templates", "/console/templates/t", "/console/audit",
        "/console/schedules/s", "/console/new/job?template=t", "/console/schedules",
        "/console/overview", "/timeline", "/console/errors",
        f"/executions/{places['execution_id']}", f"/dead/{places['letter_id']}",
    } <= shown_to_root  # fmt: skip


def test_what_a_user_writes_comes_back_masked(web: Web) -> None:
    order: Any = {"task": "jobs.add", "args": [1]}
    made = done(web.user.post("/jobs", json=order), 201)
    assert made["args"] == [MASK]
    assert done(web.user.post(f"/jobs/{made['id']}/cancel"))["args"] == [MASK]
    group = done(web.user.post("/groups", json={"jobs": [order]}), 201)
    assert group["jobs"][0]["args"] == [MASK]
    again = done(web.user.post(f"/jobs/{made['id']}/retry"))
    assert done(web.admin.get(f"/jobs/{again['id']}"))["args"] == [1]  # not what was shown


def test_errors_are_masked_by_the_task_that_a_schedule_had(
    web: Web, places: dict[str, str], sql: Sql
) -> None:
    """History, health and timeline of a schedule whose task was masked, and is another one now."""
    job = places["job_id"]
    [(key,)] = sql("SELECT id FROM pgbeat.schedules")
    make_tick(sql, key, "launched", job_id=job)
    sql("UPDATE pgbeat.executions SET schedule_id = (SELECT id FROM pgbeat.schedules)")
    sql(
        "UPDATE pgbeat.schedules SET task = 'jobs.shown', args = '[]', kwargs = '{}', "
        "options = '{}', check_in_url = NULL"
    )
    viewer, root = web.browser(web.token("vera", "viewer")), web.browser(web.token("r", "admin"))
    for path in (
        "/admin/scheduled-jobs",
        "/admin/scheduled-jobs/s",
        "/admin/scheduled-jobs/s/history",
        "/timeline",
        "/console/schedules",
        "/console/schedules/s",
        "/console/overview",
    ):
        assert SECRET in root.get(path).text, path
        assert SECRET not in viewer.get(path).text, path


@pytest.mark.parametrize(
    "values",
    [
        {"retry_count": 1, "last_failure": "now", "last_error": f"Declined: {SECRET}"},
        {"paused_at": "now", "paused_reason": f"1 job in a row failed; last: {SECRET}"},
        {"enabled": False, "disabled_reason": f"failed 5 times in a row; last: {SECRET}"},
        {},
    ],
)
def test_why_a_schedule_failed_is_masked(web: Web, sql: Sql, values: dict[str, Any]) -> None:
    key = make_schedule(sql, "s", task="pay", cron="0 0 * * *", **values)
    pages = ["/admin/scheduled-jobs", "/admin/scheduled-jobs/s", "/console/schedules/s"]
    if not values:
        make_tick(sql, key, "failed", error=f"Declined: {SECRET}")
        decided = {"actor": "user:root", "origin": "cli", "verb": "trigger", "kind": "schedule"}
        insert(sql, "audit", {**decided, "subject": "s", "after": {"why": SECRET}}, "id")
        pages = ["/admin/scheduled-jobs/s/history", "/timeline", "/audit", "/console/audit"]
        pages += ["/console/overview", "/console/schedules", "/console/schedules/s"]
    for path in [*pages, "/console/schedules"]:
        assert SECRET not in web.viewer.get(path).text, path
        if path in pages:
            assert SECRET in web.admin.get(path).text, path


def test_why_a_schedule_is_complete_is_shown(web: Web, sql: Sql) -> None:
    done_for = {"enabled": False, "completed_at": "now", "disabled_reason": "launched once"}
    make_schedule(sql, "s", task="pay", cron="0 0 * * *", **done_for)
    assert "launched once" in web.viewer.get("/admin/scheduled-jobs/s").text


def test_only_the_named_arguments_are_masked(web: Web, sql: Sql) -> None:
    job = make_job(
        sql,
        task="jobs.buy",
        kwargs=f'{{"card": "{SECRET}", "n": 1}}',
        args="[]",
        error="no",
        state="failed",
    )
    found = done(web.viewer.get(f"/jobs/{job}"))
    assert (found["kwargs"], found["error"]) == ({"card": MASK, "n": 1}, "no")
    assert done(web.admin.get(f"/jobs/{job}"))["kwargs"]["card"] == SECRET


def test_what_may_tell_a_named_argument_is_masked(web: Web, sql: Sql) -> None:
    job = make_job(sql, task="jobs.buy", state="completed", unique_key=SECRET)
    result, metadata = f"{{'card': '{SECRET}'}}", {"card": SECRET, "rows": 1}
    make_execution(sql, job, "completed", result=result, metadata=metadata)
    for path in (f"/jobs/{job}", f"/jobs/{job}/executions", f"/console/jobs/{job}"):
        assert SECRET in web.admin.get(path).text
        assert SECRET not in web.viewer.get(path).text
    [run] = done(web.viewer.get(f"/jobs/{job}"))["executions"]
    assert run["metadata"] == {"card": MASK, "rows": 1}
    assert done(web.viewer.get(f"/executions/{run['id']}"))["result"] == MASK


def test_whoever_sees_keys_masked_finds_no_event_by_them(web: Web, places: dict[str, str]) -> None:
    [event] = done(web.viewer.get("/events"))["events"]
    assert (event["key"], event["value"]) == (MASK, MASK)
    assert done(web.viewer.get("/events?prefix=paid"))["events"] == []
    assert len(done(web.admin.get("/events?prefix=paid"))["events"]) == 1
    for key, of_viewer, of_admin in ((f"paid/{SECRET}", 0, 1), ("s", 1, 1)):
        for client, number in ((web.viewer, of_viewer), (web.admin, of_admin)):
            found = done(client.get("/audit", params={"subject": key}))["changes"]
            assert len(found) == number
