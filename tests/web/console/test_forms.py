"""The console's forms: a schedule made, a job run, what was missed launched."""

import re
from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.pages import after, html
from tests.support.rows import make_calendar, make_lane, make_schedule
from tests.support.web import Web, done

NEW = "/console/new/schedule"
RUN = "/console/new/job"


# -- schedules -----------------------------------------------------------------------------------


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
    make_schedule(sql, job_policy={"max_attempts": 4, "tags": ["x"], "retry_base": 90})
    form = html(page.get("/console/schedules/s")).edit
    assert (form["job_policy.max_attempts"], form["job_policy.retry_base"]) == ("4", "1 min 30 s")
    form |= {"job_policy.max_attempts": "", "job_policy.priority": "9"}
    after(page, page.post("/console/schedules/s", data=form))
    assert sql("SELECT job_policy FROM pgbeat.schedules") == [
        ({"tags": ["x"], "priority": 9, "retry_base": 90},)
    ]


# -- jobs ----------------------------------------------------------------------------------------


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


# -- what was missed -----------------------------------------------------------------------------


@pytest.fixture
def missed(sql: Sql) -> str:
    """The page of a schedule of every hour, which has launched nothing."""
    make_schedule(sql, cron="0 * * * *", due="1 hour")
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
    assert sql("SELECT 1 FROM pgbeat.audit") == []
    sure = text.fields
    assert sure["end"].startswith("2026-01-01T03:30")
    said = after(page, page.post(missed, data=sure | {"do": "launch"})).words
    assert "Schedule 's' backfilled: 4 launched." in said
    assert sql("SELECT count(*) FROM pgbeat.ticks WHERE outcome = 'launched'") == [(4,)]
    said = html(page.post(missed, data=SPAN | {"do": "look"})).words
    assert "0 due times missed Besides, 4 times launched before. Nothing to launch" in said


def test_what_is_launched_is_what_was_looked_at(page: Any, sql: Sql, missed: str) -> None:
    text = html(page.post(missed, data={"start": "2026-01-01", "limit": "1", "do": "look"}), 422)
    assert "more than the limit 1" in text.words
    start = sql("SELECT (now() at time zone 'utc' - interval '90 minutes')::text")[0][0]
    text = html(page.post(missed, data={"start": start, "do": "look"}))
    sure = text.fields
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*\+00:00", sure["end"])


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
    make_lane(sql, "gpu")
    make_lane(sql, "elsewhere", namespace="other")
    make_calendar(sql, "holidays", dates=["2026-12-25"])
    text = html(page.get(NEW))
    lists = {each.get("id") for each in text.all("datalist")}
    assert lists >= {"l-tasks", "l-lanes", "l-calendars"}
    for name in ("tests.add", "gpu", "holidays"):
        assert f'<option value="{name}">' in text
    assert "elsewhere" not in text
    text = html(web.browser(web.token("alice")).get(RUN))
    assert '<option value="gpu">' in text
    assert "holidays" not in text
