"""Forms of schedules show what they would make, before anything is saved."""

from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.pages import html
from tests.support.rows import make_schedule
from tests.support.web import Web, done, errors

NEW = "/console/new/schedule"


def test_a_form_is_previewed(page: Any, sql: Sql) -> None:
    form = {"kind": "cron", "timetable": "0 2 * * *", "timezone": "Europe/Oslo", "do": "preview"}
    shown = html(page.post("/console/preview", data=form))
    assert "Every day at 02:00 (Europe/Oslo)" in shown.words
    assert len(shown.all("ol li")) == 5
    assert {each.text.strip(": ") for each in shown.all(".problems b")} == {"Name", "Task"}
    form |= {"name": "n", "task": "tests.add", "args": "[1]"}
    assert html(page.post("/console/preview", data=form)).all(".problems") == []
    form |= {"timetable": "0 25 * * *", "max_runs": "many", "args": "[1"}
    wrong = html(page.post("/console/preview", data=form))
    assert len(wrong.all(".problems li")) >= 2
    assert wrong.all("ol") == []
    assert sql("SELECT count(*) FROM pgbeat.schedules") == [(0,)]
    assert sql("SELECT count(*) FROM pgbeat.audit") == [(0,)]


@pytest.mark.parametrize(
    ("condition", "said"),
    [("SELECT true", "launched"), ("SELECT false", "skipped"), ("SELECT 1/0", "failed")],
)
def test_a_condition_is_tested_as_it_is_written(
    page: Any, sql: Sql, condition: str, said: str
) -> None:
    form = {
        "name": "n",
        "kind": "every",
        "timetable": "1 h",
        "task": "tests.add",
        "args": "[1]",
        "condition_sql": condition,
        "do": "test",
    }
    shown = html(page.post(NEW, data=form))
    assert f"If it were due now: {said}" in shown.words
    assert shown.one("#f-condition_sql").text.strip() == condition
    assert sql("SELECT count(*) FROM pgbeat.schedules") == [(0,)]
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]


def test_an_edit_shows_what_it_changes(web: Web, page: Any, sql: Sql) -> None:
    make_schedule(sql, "n", every="1h")
    here = "/console/schedules/n"
    given = {"timetable": "2 h", "overlap": "skip", "do": "preview"}
    shown = html(page.post(here, data=html(page.get(here)).edit | given))
    assert "every 1 h → 2 h" in shown.words.replace("  ", " ")
    assert "overlap allow → skip" in shown.words
    assert shown.one("#edit").get("open") is not None
    assert sql("SELECT every::text FROM pgbeat.schedules") == [("01:00:00",)]
    done(web.admin.patch("/admin/scheduled-jobs/n", json={"overlap": "skip"}))
    done(web.admin.post("/admin/scheduled-jobs/n/pause"))
    changes = html(page.get(here)).words
    assert "Change history" in changes
    assert "overlap allow → skip" in changes
    assert "paused no → yes" in changes


def test_previews_have_an_api(web: Web, sql: Sql) -> None:
    make_schedule(sql, "n", every="1h")
    body = {"name": "m", "task": "tests.add", "args": [1], "cron": "0 2 * * *"}
    found = done(web.admin.post("/admin/scheduled-jobs/preview?check=true", json=body))
    assert len(found["upcoming"]) == 5
    assert found["condition"]["outcome"] == "launched"
    path = "/admin/scheduled-jobs/n/preview"
    found = done(web.admin.post(path, json={"cron": "5 * * * *"}))
    assert {each["field"] for each in found["changes"]} == {"cron", "every"}
    assert found["condition"] is None
    assert errors(web.admin.post(path, json={"cron": "61 * * * *"}))[0][0] == "cron"
    assert web.admin.post("/admin/scheduled-jobs/x/preview", json={"every": 60}).status_code == 404
    assert sql("SELECT name, cron FROM pgbeat.schedules") == [("n", None)]
