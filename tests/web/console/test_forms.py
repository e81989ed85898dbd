"""The console's forms: a schedule made, a job run, what was missed launched."""

import re
from datetime import timedelta
from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.pages import EVIL, Page, after, html
from tests.support.rows import make_schedule
from tests.support.web import Web, done

NEW = "/console/new/schedule"
RUN = "/console/new/job"


def noted(sql: Sql) -> list[tuple[Any, ...]]:
    """Who changed what, by which way."""
    return sql("SELECT actor, origin, verb, kind, subject FROM pgbeat.audit ORDER BY id")


# -- schedules -----------------------------------------------------------------------------------


def test_a_schedule_is_made(page: Any, sql: Sql) -> None:
    form = html(page.get(NEW)).fields
    assert form["kind"] == "cron"
    form |= {
        "name": "nightly",
        "timetable": "30 2 * * *",
        "timezone": "Europe/Oslo",
        "task": "tests.add",
        "args": "[1]",
        "kwargs": '{"y": 3}',
        "grace": "15 min",
        "starts_at": "2026-01-01T02:00",
        "overlap": "skip",
        "max_retries": "7",
        "owner": "data",
        "job_policy.max_attempts": "4",
        "job_policy.retry_base": "90 s",
        "job_policy.tags": "a, b",
        "job_policy.requires_approval": "yes",
        "do": "make",
    }
    said = after(page, page.post(NEW, data=form)).words
    assert "Schedule 'nightly' was created." in said
    assert "every day at 02:30 (Europe/Oslo)" in said
    assert "the console," in said
    [found] = sql(
        "SELECT cron, timezone, task, args, kwargs, grace::text, starts_at::text, overlap,"
        " max_retries, owner, job_policy, source FROM pgbeat.schedules"
    )
    assert found == (
        "30 2 * * *",
        "Europe/Oslo",
        "tests.add",
        [1],
        {"y": 3},
        "00:15:00",
        "2026-01-01 02:00:00+00",
        "skip",
        7,
        "data",
        {"tags": ["a", "b"], "max_attempts": 4, "retry_base": 90, "requires_approval": True},
        "page",
    )
    assert noted(sql) == [("user:root", "page", "create", "schedule", "nightly")]


@pytest.mark.parametrize(
    ("kind", "timetable", "column"),
    [
        ("every", "15 min", "00:15:00"),
        ("once_at", "2030-12-24T18:00:00Z", "2030-12-24 18:00:00+00"),
        ("solar", "sunset 59.91 10.75", "sunset 59.91 10.75"),
        ("rrule", "FREQ=WEEKLY;BYDAY=MO", "FREQ=WEEKLY;BYDAY=MO"),
    ],
)
def test_a_schedule_of_each_timetable(
    page: Any, sql: Sql, kind: str, timetable: str, column: str
) -> None:
    form = {"name": "s", "kind": kind, "timetable": timetable, "task": "tests.add"}
    after(page, page.post(NEW, data=form))
    assert sql(f"SELECT {kind}::text FROM pgbeat.schedules") == [(column,)]
    # And its form is as it was made.
    shown = html(page.get("/console/schedules/s"))
    edit = shown.edit
    assert edit["kind"] == kind
    assert "Nothing was changed" in after(
        page, page.post("/console/schedules/s", data=edit | {"do": "edit"})
    )


WRONG_SCHEDULES: list[tuple[str, str, str]] = [
    ("name", "", "the name is missing"),
    ("name", "a/b", "no slash"),
    ("name", "taken", "already"),
    ("timetable", "", "the timetable is missing"),
    ("timetable", "61 * * * *", "minute"),
    ("timezone", "Mars/Olympus", "Mars/Olympus"),
    ("task", "tests.ad", "did you mean 'tests.add'"),
    ("task", "", "task"),
    ("args", "{", "invalid JSON"),
    ("args", '{"a": 1}', "list"),
    ("args", "[NaN]", "NaN"),
    ("args", "[" * 500 + "]" * 500, "100 deep"),
    ("args", "[1, 2, 3]", "don't fit"),
    ("kwargs", "[]", "dictionary"),
    ("condition_sql", "SELEC 1", "condition_sql can't run"),
    ("grace", "soon", "length of time"),
    ("starts_at", "tomorrow", "must be a time"),
    ("max_runs", "many", "integer"),
    ("max_retries", "9" * 40, "integer"),
    ("overlap", "maybe", "allow"),
    ("calendar", "nowhere", "calendar"),
    ("launcher", "Nobody", "Nobody"),
    ("job_policy.priority", "300", "255"),
    ("job_policy.retry_base", "soon", "length of time"),
    ("job_policy.resources", "[1]", "resources"),
    ("owner", "\x00", ""),
]


def test_a_schedule_is_made_in_the_state_that_was_chosen(page: Any, sql: Sql) -> None:
    for option in html(page.get(NEW)).all("select[name=state] option"):
        state = option.text
        form = {"name": state, "kind": "cron", "timetable": "@daily", "task": "tests.add"}
        after(page, page.post(NEW, data={**form, "state": state}))
    found = sql("SELECT name, enabled, paused_at IS NOT NULL FROM pgbeat.schedules ORDER BY 1")
    expected = [("active", True, False), ("disabled", False, False), ("paused", True, True)]
    assert found == expected
    wrong = html(page.post(NEW, data={**form, "name": "s", "state": "off"}), 422).wrong
    assert set(wrong) == {"state"}


def test_a_schedule_that_is_wrong_is_not_made(page: Any, sql: Sql) -> None:
    sql("INSERT INTO pgbeat.schedules (name, task, cron) VALUES ('taken', 'tests.add', '@daily')")
    for field, value, said in WRONG_SCHEDULES:
        form = {
            "name": "s",
            "kind": "cron",
            "timetable": "0 2 * * *",
            "task": "tests.add",
            "overlap": "allow",
            "catch_up": "latest",
            field: value,
        }
        answer = page.post(NEW, data=form)
        assert 400 <= answer.status_code < 500, answer.text
        text = Page(answer.text)
        assert "No schedule was created" in text or 'role="alert"' in text
        if said:
            wrong = text.wrong
            assert said in wrong[field.replace(".", "-")]
        # What was written is still there.
        written = text.fields
        assert {written["name"], written["timetable"]} >= {form["name"], form["timetable"]}
        assert sql("SELECT name FROM pgbeat.schedules") == [("taken",)]
        assert noted(sql) == []


def test_all_mistakes_of_a_schedule_are_shown_at_once(page: Any, sql: Sql) -> None:
    wrong = {
        "name": "a/b",
        "kind": "cron",
        "timetable": "61 * * * *",
        "timezone": "Oslo",
        "task": "tests.ad",
        "max_runs": "many",
        "grace": "soon",
        "calendar": "nope",
        "catch_up_limit": "0",
        "job_policy.priority": "300",
        "condition_sql": "SELEC 1",
    }
    names = {name.replace(".", "-") for name in wrong if name != "kind"}
    shown = html(page.post(NEW, data={"overlap": "allow", "catch_up": "latest", **wrong}), 422)
    assert set(shown.wrong) == names
    previewed = html(page.post("/console/preview", data=wrong))
    assert len(previewed.all(".problems li")) == len(names)
    make_schedule(sql, "n", every="1h")
    fields = html(page.get("/console/schedules/n")).fields
    edit = fields | wrong | {"do": "edit"}
    shown = html(page.post("/console/schedules/n", data=edit), 422)
    assert set(shown.wrong) == names - {"name"}
    assert sql("SELECT name, every FROM pgbeat.schedules") == [("n", timedelta(hours=1))]


def test_what_is_wrong_is_in_a_part_that_is_open(page: Any) -> None:
    form = {
        "name": "s",
        "kind": "cron",
        "timetable": "@daily",
        "task": "tests.add",
        "job_policy.priority": "x",
    }
    text = html(page.post(NEW, data=form), 422)
    assert text.one("details.part[open] #e-job_policy-priority") is not None


def test_a_policy_is_changed_as_far_as_it_was_written(page: Any, sql: Sql) -> None:
    sql(
        "INSERT INTO pgbeat.schedules (name, task, cron, job_policy) "
        "VALUES ('s', 'tests.add', '@daily',"
        ' \'{"max_attempts": 4, "tags": ["x"], "retry_base": 90}\')'
    )
    shown = html(page.get("/console/schedules/s"))
    form = shown.edit
    assert (form["job_policy.max_attempts"], form["job_policy.retry_base"]) == ("4", "1 min 30 s")
    form |= {"job_policy.max_attempts": "", "job_policy.priority": "9"}
    after(page, page.post("/console/schedules/s", data=form))
    assert sql("SELECT job_policy FROM pgbeat.schedules") == [
        ({"tags": ["x"], "priority": 9, "retry_base": 90},)
    ]


def test_a_new_schedule_is_an_administrators(web: Web, sql: Sql) -> None:
    form = {"name": "s", "kind": "cron", "timetable": "@daily", "task": "tests.add"}
    user = web.browser(web.token("alice"))
    assert user.get(NEW).status_code == user.post(NEW, data=form).status_code == 403
    crossed = web.browser(web.token("root", "admin"), **{"Sec-Fetch-Site": "cross-site"})
    assert crossed.post(NEW, data=form).status_code == 403
    assert sql("SELECT count(*) FROM pgbeat.schedules") == [(0,)]


# -- jobs ----------------------------------------------------------------------------------------


def test_a_job_is_run(web: Web, sql: Sql) -> None:
    user = web.browser(web.token("alice"))
    form = html(user.get(RUN, params={"task": "tests.add"})).fields
    assert form["task"] == "tests.add"
    form |= {"args": "[1]", "kwargs": '{"y": 5}', "max_attempts": "2", "tags": "a,b"}
    said = after(user, user.post(RUN, data=form)).words
    assert "The job was created." in said
    found = sql("SELECT task, args, kwargs, max_attempts, tags, created_by, state FROM pgbeat.jobs")
    assert found == [("tests.add", [1], {"y": 5}, 2, ["a", "b"], "user:alice", "pending")]
    assert sql("SELECT count(*) FROM kombu_message") == [(1,)]
    assert [each[:4] for each in noted(sql)] == [("user:alice", "page", "create", "job")]


def test_a_job_is_run_later(page: Any, sql: Sql) -> None:
    after(page, page.post(RUN, data={"task": "tests.add", "run_at": "2036-01-01T12:30"}))
    after(page, page.post(RUN, data={"task": "tests.add", "countdown": "1 h"}))
    found = sql("SELECT state, run_at::text FROM pgbeat.jobs ORDER BY run_at DESC")
    assert found[0] == ("scheduled", "2036-01-01 12:30:00+00")
    assert found[1][0] == "scheduled"


def test_a_job_is_run_from_a_template(web: Web, page: Any, sql: Sql) -> None:
    body = {"task": "tests.add", "args": [7], "description": "adds"}
    done(web.admin.put("/templates/t", json=body), 201)
    text = html(page.get(RUN, params={"template": "t"}))
    assert "It runs tests.add with [7]" in text.words
    after(page, page.post(RUN, data=text.fields))
    assert sql("SELECT task, args, template FROM pgbeat.jobs") == [("tests.add", [7], "t")]
    assert 'href="/console/templates/t"' in html(page.get("/console/new/job?template=t"))


def test_a_job_that_is_there_already_is_shown(page: Any, sql: Sql) -> None:
    form = {"task": "tests.add", "args": "[1]", "unique": "yes"}
    after(page, page.post(RUN, data=form))
    assert "This unfinished job is the same" in after(page, page.post(RUN, data=form))
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(1,)]


WRONG_JOBS: list[tuple[dict[str, str], str, str]] = [
    ({}, "task", "which task?"),
    ({"task": "tests.ad"}, "task", "tests.add"),
    ({"task": EVIL}, "task", "not registered"),
    ({"template": "nowhere"}, "template", "nowhere"),
    ({"task": "tests.add", "args": "1"}, "args", "list"),
    ({"task": "tests.add", "args": "[NaN]"}, "args", "NaN"),
    ({"task": "tests.add", "args": "[" * 5000}, "args", "JSON"),
    ({"task": "tests.add", "kwargs": '{"z": 1}'}, "kwargs", "don't fit"),
    ({"task": "tests.add", "lane": "nowhere"}, "lane", "nowhere"),
    ({"task": "tests.add", "priority": "high"}, "priority", "integer"),
    ({"task": "tests.add", "countdown": "soon"}, "countdown", "length of time"),
    ({"task": "tests.add", "countdown": "1 h", "run_at": "2036-01-01"}, "run_at", "exclude"),
    ({"task": "tests.add", "run_at": "0001-01-01T00:00+14:00"}, "run_at", "must be a time"),
    ({"task": "tests.add", "options": '{"eta": 1}'}, "options", "run_at"),
]


def test_a_job_that_is_wrong_is_not_run(page: Any, sql: Sql) -> None:
    for form, field, said in WRONG_JOBS:
        text = html(page.post(RUN, data=form), 422)
        assert said in text.wrong[field]
        assert "<script>alert" not in text
        assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]
        assert noted(sql) == []


def test_another_site_runs_nothing(web: Web, sql: Sql) -> None:
    crossed = web.browser(web.token("alice"), **{"Sec-Fetch-Site": "cross-site"})
    assert crossed.post(RUN, data={"task": "tests.add"}).status_code == 403
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]


# -- what was missed -----------------------------------------------------------------------------


@pytest.fixture
def missed(sql: Sql) -> str:
    """The page of a schedule of every hour, which has launched nothing."""
    sql(
        "INSERT INTO pgbeat.schedules (name, task, cron, next_run)"
        " VALUES ('s', 'tests.add', '0 * * * *', now() + interval '1 hour')"
    )
    return "/console/backfill/s"


SPAN = {"start": "2026-01-01T00:00", "end": "2026-01-01T03:30", "limit": "10"}


def test_what_was_missed_is_shown_and_then_launched(page: Any, sql: Sql, missed: str) -> None:
    assert 'href="/console/backfill/s"' in html(page.get("/console/schedules/s"))
    text = html(page.get(missed))
    assert "Its condition" not in text
    sql("UPDATE pgbeat.schedules SET condition_sql = 'SELECT true'")
    assert "Its condition is evaluated as of now." in html(page.get(missed))
    form = text.fields
    assert form["limit"] == "100"
    assert form["start"]
    text = html(page.post(missed, data=form | SPAN | {"do": "look"}))
    said = text.words
    assert "4 due times missed" in said
    assert "2026-01-01 03:00:00 UTC" in said
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(0,)]
    assert noted(sql) == []
    sure = text.fields
    assert sure["end"].startswith("2026-01-01T03:30")
    said = after(page, page.post(missed, data=sure | {"do": "launch"})).words
    assert "Schedule 's' backfilled: 4 launched." in said
    assert sql("SELECT count(*) FROM pgbeat.ticks WHERE outcome = 'launched'") == [(4,)]
    assert [each[:4] for each in noted(sql)] == [("user:root", "page", "backfill", "schedule")] * 4
    said = html(page.post(missed, data=SPAN | {"do": "look"})).words
    assert "0 due times missed Besides, 4 times launched before. Nothing to launch" in said


def test_what_is_launched_is_what_was_looked_at(page: Any, sql: Sql, missed: str) -> None:
    text = html(page.post(missed, data={"start": "2026-01-01", "limit": "1", "do": "look"}), 422)
    assert "more than the limit 1" in text.words
    start = sql("SELECT (now() at time zone 'utc' - interval '90 minutes')::text")[0][0]
    text = html(page.post(missed, data={"start": start, "do": "look"}))
    sure = text.fields
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*\+00:00", sure["end"])


WRONG_SPANS: list[tuple[dict[str, str], str, str]] = [
    ({"start": ""}, "start", "from when?"),
    ({"start": "yesterday"}, "start", "must be a time"),
    ({"start": "2999-01-01"}, "start", "in the future"),
    ({"end": "2999-01-01"}, "end", "in the future"),
    ({"end": "2025-01-01"}, "end", "is before"),
    ({"limit": "0"}, "limit", "greater"),
    ({"limit": "1001"}, "limit", "less"),
    ({"limit": "3"}, "limit", "more than the limit"),
]


def test_a_span_that_is_wrong_launches_nothing(page: Any, sql: Sql, missed: str) -> None:
    for form, field, said in WRONG_SPANS:
        for verb in ("look", "launch"):
            text = html(page.post(missed, data=SPAN | form | {"do": verb}), 422)
            assert said in text.wrong[field]
        assert sql("SELECT count(*) FROM pgbeat.ticks") == [(0,)]


def test_what_has_no_times_is_not_backfilled(page: Any, sql: Sql, missed: str) -> None:
    sql("UPDATE pgbeat.schedules SET cron = NULL, after = 'other'")
    assert "no times of its own" in html(page.post(missed, data=SPAN | {"do": "launch"}), 422)
    assert 'href="/console/backfill/s"' not in html(page.get("/console/schedules/s"))
    assert html(page.get("/console/backfill/nowhere"), 404)
    assert html(page.post("/console/backfill/nowhere", data={"do": "look"}), 404)
    assert html(page.post(missed, data={"do": "fly"}), 422)


def test_failures_of_a_backfill_are_said(page: Any, sql: Sql, missed: str) -> None:
    sql("UPDATE pgbeat.schedules SET condition_sql = 'SELECT * FROM nowhere', max_retries = 1")
    said = after(page, page.post(missed, data=SPAN | {"do": "launch"})).words
    assert "backfilled: 1 failed. 3 due times are left" in said


def test_names_are_offered_as_far_as_the_form_has_fields_for_them(
    web: Web, page: Any, sql: Sql
) -> None:
    sql("INSERT INTO pgbeat.lanes (name) VALUES ('gpu')")
    sql("INSERT INTO pgbeat.lanes (name, namespace) VALUES ('elsewhere', 'other')")
    sql(
        "INSERT INTO pgbeat.calendars (name, definition)"
        " VALUES ('holidays', '{\"dates\": [\"2026-12-25\"]}')"
    )
    text = html(page.get(NEW))
    lists = {each.get("id") for each in text.all("datalist")}
    assert lists >= {"l-tasks", "l-lanes", "l-calendars"}
    for name in ("tests.add", "gpu", "holidays"):
        assert f'<option value="{name}">' in text
    assert "elsewhere" not in text
    text = html(web.browser(web.token("alice")).get(RUN))
    assert '<option value="gpu">' in text
    assert "holidays" not in text
