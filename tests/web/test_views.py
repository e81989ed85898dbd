"""Each noun looks the same to programs, whichever way they look at it (`pgbeat.views`)."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from celery import Celery
from psycopg.types.json import Jsonb

from tests.support.command_line import Sql, run_with
from tests.support.rows import (
    insert,
    make_calendar,
    make_dead_letter,
    make_delivery,
    make_execution,
    make_incident,
    make_job,
    make_lane,
    make_schedule,
    make_stack,
    make_template,
    make_tick,
    make_waiting,
    make_webhook,
)
from tests.support.web import Web, done


class Noun(NamedTuple):
    """How to see one of a noun through each face, with what `{id}` stands for."""

    make: Callable[[Sql], str]
    path: str
    command: str
    #: What of the API's answer, and of what the command prints, is the noun.
    of_answer: Callable[[Any], Any] = lambda answer: answer
    of_command: Callable[[Any], Any] = lambda printed: printed


def a_job(sql: Sql) -> str:
    """Makes a job that has run, with all that a job may have."""
    job_id = make_job(
        sql,
        "failed",
        error="oops",
        worker="w",
        labels={"team": "a"},
        tags=["t"],
        metadata={"a": 1},
        checkpoint=Jsonb([3]),
        run_key="k",
        unique_key="u",
        lane="l",
    )
    run = make_execution(
        sql,
        job_id,
        "failed",
        pid=7,
        started_at="2026-01-01T00:00:00.5Z",
        finished_at="2026-01-01T00:00:02Z",
        duration_ms=1500.4,
        cpu_time_ms=20,
        progress_done=1,
        progress_total=3,
        error="oops",
        traceback="Traceback …",
        metadata={"n": 1, "artifacts": ["a"]},
        log={"omitted": 1, "lines": [[0.5, "INFO", "shop", "one"]]},
    )
    make_stack(sql, job_id, run, taken_at="2026-01-01T00:00:01Z")
    return job_id


def a_waiting_job(sql: Sql) -> str:
    """Makes a job that waits for an event."""
    return make_waiting(sql, "paid/12")


def a_schedule(sql: Sql) -> str:
    """Makes a schedule with a tick and its job."""
    made = make_schedule(
        sql,
        cron="0 4 * * *",
        every=None,
        timezone="Europe/Oslo",
        labels={"team": "a"},
        cursor=Jsonb({"n": 1}),
        retry_count=1,
    )
    job_id = make_job(sql, "failed", schedule_id=made, schedule="s", error="oops", run_key="k")
    make_tick(sql, made, "launched", job_id=job_id, due_at="2026-01-01T00:00:00Z")
    return "s"


def a_lane(sql: Sql) -> str:
    """Makes a lane with rates, a slot that is taken, and a line."""
    make_lane(
        sql,
        rate_limit=3,
        rate_period="1 minute",
        rate_key="task",
        temporary_limit=1,
        temporary_period="1 hour",
        temporary_until="2999-01-01Z",
    )
    make_job(sql, "running", lane="l", dispatched_at="now")
    make_job(sql, lane="l")
    return "l"


def a_group(sql: Sql) -> str:
    """Makes a group of one job."""
    values = {"name": "g", "mode": "parallel", "on_failure": "stop", "created_by": "user:alice"}
    key = insert(sql, "groups", values | {"job_source": "user_api", "is_system_job": False}, "id")
    make_job(sql, group_id=key, group_position=1)
    return str(key)


def a_webhook(sql: Sql) -> str:
    """Makes a webhook with a delivery that failed, and an incident."""
    log = Jsonb([{"at": "2026-01-01T00:00:00+00:00", "status": 503}])
    webhook = make_webhook(sql, slots=1)
    make_delivery(sql, webhook, "failed", payload={"a": 1}, attempts=1, log=log)
    make_incident(sql, webhook, "nightly", failures=12, alerts=2, made_at="now")
    return "w"


def a_queue(sql: Sql) -> str:
    """Makes a queue with a dead letter."""
    sql("INSERT INTO kombu_queue (name, paused_at) VALUES ('q', now())")
    make_dead_letter(sql, "q", payload='{"headers": {"task": "t", "id": "i"}}')
    return "q"


def a_worker(sql: Sql) -> str:
    """Makes a worker that has reported."""
    values = {"name": "w@host", "pid": 7, "pool": "prefork", "concurrency": 2, "host": "host"}
    insert(sql, "workers", values | {"queues": ["q"], "memory_mb": 12.5}, "id")
    return "w@host"


def a_version(sql: Sql) -> str:
    """Makes a worker of a version, and a job that is pinned to another one."""
    insert(sql, "workers", {"name": "w@host", "pid": 7, "versions": Jsonb({"app": "v2"})}, "id")
    make_job(sql, queue="celery.pinned.v1")
    return "v1"


def a_fence(sql: Sql) -> str:
    """Makes a fence that holds a queue."""
    insert(
        sql,
        "fences",
        {"epoch": 1, "raised_by": "user:alice", "queues": ["q"], "schedules": []},
        "epoch",
    )
    return "1"


def a_template(sql: Sql) -> str:
    """Makes a template."""
    make_template(sql, task="jobs.add", kwargs={"x": 1})
    return "t"


def a_calendar(sql: Sql) -> str:
    """Makes a calendar."""
    make_calendar(sql, "c", weekdays=["sat"])
    return "c"


def a_change(sql: Sql) -> str:
    """Makes a change."""
    change = {"actor": "user:alice", "verb": "pause", "kind": "lane", "subject": "l"}
    return str(insert(sql, "audit", change | {"origin": "cli", "after": {"a": 1}}, "id"))


def an_event(sql: Sql) -> str:
    """Makes an event."""
    sql("SELECT pgbeat.emit('paid/12', '{\"amount\": 12}')")
    return "paid/12"


def first(key: str | int) -> Callable[[Any], Any]:
    """Returns what gets the first of the list at a key."""
    return lambda found: found[key][0]


def without_durations(trace: Any) -> Any:
    """Returns a trace that lasts without what grows."""
    phases = [without("duration_seconds")(phase) for phase in trace["phases"]]
    return without("until")(trace) | {"phases": phases}


def without(*names: str) -> Callable[[Any], Any]:
    """Returns what leaves out fields that only one face adds."""
    return lambda found: {name: value for name, value in found.items() if name not in names}


SCHEDULES = "/admin/scheduled-jobs"
NOUNS = {
    "job": Noun(a_job, "/jobs/{id}", "jobs show {id}", of_command=without("trace", "result")),
    "job in a list": Noun(a_job, "/jobs", "jobs list", first("jobs"), lambda printed: printed[0]),
    "job that waits": Noun(
        a_waiting_job, "/jobs", "jobs list", first("jobs"), lambda printed: printed[0]
    ),
    "trace of steps": Noun(
        a_waiting_job,
        "/jobs/{id}/trace",
        "jobs show {id}",
        without_durations,
        lambda job: without_durations(job["trace"]),
    ),
    "trace": Noun(a_job, "/jobs/{id}/trace", "jobs show {id}", of_command=lambda job: job["trace"]),
    "tree": Noun(a_job, "/jobs/{id}/tree", "jobs tree {id}"),
    "log": Noun(
        a_job, "/jobs/{id}/logs", "jobs logs {id}", first("executions"), lambda logs: logs[0]
    ),
    "stack": Noun(
        a_job, "/jobs/{id}/stack", "jobs stack {id}", first("stacks"), lambda stacks: stacks[0]
    ),
    "statistics": Noun(a_job, "/jobs/{id}/stats", "jobs stats {id}"),
    "schedule": Noun(a_schedule, f"{SCHEDULES}/{{id}}", "status {id}"),
    "schedule in a list": Noun(
        a_schedule, SCHEDULES, "list", first("schedules"), lambda printed: printed[0]
    ),
    "ticks": Noun(a_schedule, f"{SCHEDULES}/{{id}}/history", "history {id}", without("next")),
    "due time": Noun(
        a_schedule,
        f"{SCHEDULES}/{{id}}/forecast",
        "next {id}",
        lambda answer: [without("args", "kwargs")(each) for each in answer["times"]],
        lambda printed: printed["times"],
    ),
    "cursor": Noun(
        a_schedule, f"{SCHEDULES}/{{id}}/cursor", "cursor show {id}", of_command=without("name")
    ),
    "lane": Noun(a_lane, "/lanes/{id}", "lanes show {id}"),
    "lane in a list": Noun(
        a_lane, "/lanes", "lanes list", first("lanes"), lambda printed: printed[0]
    ),
    "group": Noun(a_group, "/groups/{id}", "groups show {id}"),
    "group in a list": Noun(
        a_group, "/groups", "groups list", first("groups"), lambda printed: printed[0]
    ),
    "webhook": Noun(a_webhook, "/webhooks/{id}", "webhooks show {id}"),
    "webhooks": Noun(a_webhook, "/webhooks", "webhooks list", lambda found: found["webhooks"]),
    "delivery": Noun(
        a_webhook,
        "/webhooks/{id}/deliveries",
        "webhooks deliveries {id}",
        lambda found: found["deliveries"],
    ),
    "incident": Noun(
        a_webhook,
        "/webhooks/{id}/incidents",
        "webhooks incidents {id}",
        lambda found: found["incidents"],
    ),
    "queue": Noun(a_queue, "/queues", "queues", lambda found: found["queues"]),
    "dead letter": Noun(a_queue, "/dead", "dead list", lambda found: found["dead"]),
    "worker": Noun(a_worker, "/workers", "workers", lambda found: found["workers"]),
    "version": Noun(a_version, "/workers/versions", "versions", lambda found: found["versions"]),
    "fence": Noun(a_fence, "/fence", "fence"),
    "template": Noun(a_template, "/templates/{id}", "templates show {id}"),
    "calendar": Noun(a_calendar, "/calendars/{id}", "calendars show {id}"),
    "excluded time": Noun(
        a_calendar,
        "/calendars/{id}/check?at=2026-07-04T00:00:00Z",
        "calendars check {id} --at 2026-07-04T00:00:00Z",
    ),
    "load": Noun(a_job, "/load", "load", without("since", "until"), without("since", "until")),
    "forecast": Noun(
        a_schedule, "/forecast?start=2030-01-07T12:00:00Z", "forecast --from 2030-01-07T12:00:00Z"
    ),
    "change": Noun(a_change, "/audit", "audit", lambda found: found["changes"]),
    "event": Noun(an_event, "/events", "events list", lambda found: found["events"]),
    "error": Noun(a_job, "/errors", "errors", without("since", "until"), without("since", "until")),
}


@pytest.mark.parametrize("noun", NOUNS.values(), ids=NOUNS)
def test_the_api_and_the_command_line_send_the_same(
    noun: Noun, web: Web, app: Celery, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGBEAT_ADMIN", "1")
    key = noun.make(sql)
    printed = run_with(app, *noun.command.format(id=key).split(), "--json")
    assert printed.exit_code in (0, 3), printed.output
    answer = noun.of_answer(done(web.admin.get(noun.path.format(id=key))))
    assert answer == noun.of_command(json.loads(printed.stdout))
    assert answer
