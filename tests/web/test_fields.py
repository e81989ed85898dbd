"""What is made has the same fields, whichever face made it, and so it has once they are cleared."""

from typing import Any

import pytest
from celery import Celery

from pgbeat.jobs.policy.policies import parse
from tests.support.command_line import Sql, run_with
from tests.support.faces import NOUNS, ask_api, ask_cli, ask_page
from tests.support.pages import after
from tests.support.rows import make_calendar, make_lane
from tests.support.web import Web, opened

POLICY: dict[str, Any] = {
    "lane": "gpu",
    "priority": 3,
    "max_attempts": 5,
    "retry_base": 90,
    "retry_cap": 7200,
    "tags": ["a", "b"],
    "resources": {"gb": 0.5, "gpu": 1},
    "unique": True,
    "unique_for": 3600,
    "requires_approval": True,
}
CALL: dict[str, Any] = {
    "task": "jobs.add",
    "args": [1],
    "kwargs": {"y": 2},
    "queue": "slow",
    "options": {"expires": 60},
}
ABOUT: dict[str, Any] = {
    "description": "Adds.",
    "labels": {"team": "billing", "tier": "1"},
    "metadata": {"a": [1]},
}
#: All that one may have, as the API takes it and as the row has it.
ALL: dict[str, dict[str, Any]] = {
    "schedule": {
        **CALL,
        **ABOUT,
        "cron": "30 4 * * mon",
        "timezone": "Europe/Oslo",
        "starts_at": "2030-01-01T00:00:00Z",
        "ends_at": "2031-01-01T00:00:00Z",
        "max_runs": 9,
        "jitter": 300,
        "calendar": "office",
        "catch_up": "all",
        "catch_up_limit": 7,
        "grace": 600,
        "overlap": "queue_one",
        "min_interval": 3600,
        "max_retries": 7,
        "retry_base": 10,
        "retry_factor": 3.0,
        "retry_cap": 120,
        "probe_after": 21600,
        "pause_after_failures": 4,
        "fresh_within": 172800,
        "after_match": "any",
        "condition_sql": "SELECT 1",
        "owner": "ops",
        "job_policy": POLICY,
    },
    "job": CALL | ABOUT | {k: each for k, each in POLICY.items() if "unique" not in k},
    "template": {**CALL, "description": "Adds.", "job_policy": POLICY},
    "lane": {"max_running": 2, "rate": "10/minute", "policy": "resources", "options": {"gpu": 2}},
    "webhook": {
        "url": "https://example.com/in",
        "events": ["job.failed", "tick.failed"],
        "per_incident": True,
        "labels": {"team": "billing"},
        "schedules": ["nightly-*", "report"],
        "tasks": ["shop.*"],
    },
}
#: Those of a schedule that may be empty.
CLEARED = (
    "timezone",
    "starts_at",
    "ends_at",
    "max_runs",
    "jitter",
    "calendar",
    "grace",
    "min_interval",
    "probe_after",
    "pause_after_failures",
    "fresh_within",
    "condition_sql",
    "owner",
    "queue",
    *ABOUT,
)
#: Columns that tell which one it is, or when and by whom it was made.
OWN = {
    "id", "uid", "name", "created_at", "updated_at", "created_by", "job_source", "source", "secret",
    "paused_at", "stale_at", "dispatched_at", "root_id", "unique_key", "position", "last_seen_at",
}  # fmt: skip


@pytest.fixture(autouse=True)
def named(sql: Sql) -> None:
    """Writes what the fields name."""
    make_lane(sql, "gpu")
    make_calendar(sql, weekdays=["sat"])


def rows(sql: Sql, noun: str) -> list[dict[str, Any]]:
    """Returns the noun's rows without what is each one's own; lengths of time are seconds."""
    sql("SET intervalstyle = 'iso_8601'")
    query = f"SELECT to_jsonb(t) FROM pgbeat.{noun}s t ORDER BY created_at"
    found = [row for (row,) in sql(query) if row.get("name") not in ("gpu", "office")]
    for row in found:
        row["job_policy"] = parse(row.get("job_policy", {}))
    return [{key: value for key, value in row.items() if key not in OWN} for row in found]


#: A job that runs a statement in SQL, which stays as it was written.
STATEMENT: dict[str, Any] = {
    "task": "pgbeat.sql",
    "args": ["SELECT '%s', ':x', '<b>', \"é\" -- {{ due_at }}\n FROM \\t"],
    "kwargs": {"role": "reports", "timeout": "90 s"},
}


@pytest.mark.parametrize(
    ("noun", "wanted"), [*ALL.items(), *((noun, STATEMENT) for noun in ("job", "template"))]
)
def test_each_face_gives_it_the_same_fields(
    app: Celery, sql: Sql, noun: str, wanted: dict[str, Any]
) -> None:
    app.conf.pgbeat_sql_roles = ["reports", "billing"]
    app.conf.pgbeat_sql_url = "postgresql://sql_jobs@127.0.0.1:9/x"
    with opened(app) as web:
        same_fields(web, sql, noun, wanted)


def same_fields(web: Web, sql: Sql, noun: str, wanted: dict[str, Any]) -> None:
    """Makes it through each face, and compares what is shown and the rows."""
    of = NOUNS[noun]
    names = [{"name": f"n-{number}"} if "name" in of.good else {} for number in range(3)]
    made = ask_api(web, of.api[0], names[0] | wanted)
    assert made.status_code == 201, made.text
    assert {key: made.json()[key] for key in wanted} == wanted
    result = ask_cli(web, noun, of.cli[0], names[1] | wanted)
    assert result.exit_code == 0, result.output
    page = ask_page(web, of.pages[0], names[2] | wanted)
    assert page.status_code in (201, 303), page.text
    first, *others = rows(sql, noun)
    assert others == [first, first]


#: A timetable of each kind, which takes the place of the one before.
TIMETABLES = {
    "once_at": "2030-12-24T18:00:00Z",
    "cron": "@daily",
    "solar": "sunset 59.91 10.75",
    "rrule": "FREQ=WEEKLY;BYDAY=MO",
    "after": "t",
    "every": "15 min",
}


def test_each_face_takes_one_timetable_for_another(web: Web, sql: Sql) -> None:
    """And the form of each is as it was made."""
    of = NOUNS["schedule"]
    for number in range(3):
        ask_api(web, of.api[0], of.good | {"name": f"n-{number}"})
    for kind, value in TIMETABLES.items():
        changed = ask_api(web, "PATCH /admin/scheduled-jobs/n-0", {kind: value})
        assert changed.status_code == 200, changed.text
        result = ask_cli(web, "schedule", "update n-1", {kind: value})
        assert result.exit_code == 0, result.output
        assert ask_page(web, "schedules/n-2", {kind: value}).status_code == 303
        first, *others = rows(sql, "schedule")
        assert others == [first, first]
        assert [name for name in TIMETABLES if first[name] is not None] == [kind]
        again = ask_page(web, "schedules/n-2", {})
        assert "Nothing was changed" in after(web.admins_browser, again), kind


def test_each_face_takes_several_names_to_come_after(web: Web, sql: Sql) -> None:
    of = NOUNS["schedule"]
    for number in range(4):
        ask_api(web, of.api[0], of.good | {"name": f"n-{number}"})
    changed = ask_api(web, "PATCH /admin/scheduled-jobs/n-0", {"after": ["a", "b c"]})
    assert changed.status_code == 200, changed.text
    named = ["--after", "a", "--after", "b c"]
    assert run_with(web.app.state.pgbeat.celery, "update", "n-1", *named).exit_code == 0
    assert ask_page(web, "schedules/n-2", {"after": "a\r\nb c\r\n"}).status_code == 303
    sql("UPDATE pgbeat.schedules SET cron = NULL, after = E'a\n b c' WHERE name = 'n-3'")
    first, *others = rows(sql, "schedule")
    assert (first["after"], others) == ("a\nb c", [first, first, first])
    assert "after a and b c have completed" in web.admins_browser.get("/console/schedules").text


def test_each_face_gives_the_defaults_of_the_settings(app: Celery, sql: Sql) -> None:
    of = NOUNS["schedule"]
    with opened(app, max_retries=2, retry_base=7, retry_cap=70) as web:
        ask_api(web, of.api[0], of.good | {"name": "n-0"})
        ask_cli(web, "schedule", of.cli[0], of.good | {"name": "n-1"})
        ask_page(web, of.pages[0], of.good | {"name": "n-2"})
    first, *others = rows(sql, "schedule")
    assert others == [first, first]
    assert (first["max_retries"], first["retry_base"], first["retry_cap"]) == (2, "PT7S", "PT1M10S")


def test_each_face_clears_the_same_fields(web: Web, sql: Sql) -> None:
    cleared = [*CLEARED, *POLICY]
    flags = {"condition_sql": "condition", "tags": "tag", "resources": "resource"}
    flags |= {name: f"job-{name}" for name in ("retry_base", "retry_cap")}
    options = [f"--no-{flags.get(name, name).replace('_', '-')}" for name in cleared]
    of = NOUNS["schedule"]
    for number in range(3):
        ask_api(web, of.api[0], {"name": f"n-{number}"} | ALL["schedule"])
    changes = dict.fromkeys([*CLEARED, "job_policy"])
    assert ask_api(web, "PATCH /admin/scheduled-jobs/n-0", changes).status_code == 200
    assert run_with(web.app.state.pgbeat.celery, "update", "n-1", *options).exit_code == 0
    form = dict.fromkeys(CLEARED) | {"job_policy": dict.fromkeys(POLICY, "")}
    assert ask_page(web, "schedules/n-2", form).status_code == 303
    first, *others = rows(sql, "schedule")
    assert others == [first, first]
    assert [name for name in CLEARED if first[name] not in (None, "PT0S", {})] == []
    assert first["job_policy"] == parse({})
