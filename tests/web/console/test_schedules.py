"""The console's pages of schedules."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.pages import after, html, words_of
from tests.support.rows import make_job, make_schedule
from tests.support.schedulers import Beat

LIST = "/console/schedules"


def test_the_overview_and_the_list_say_what_ran_was_skipped_and_failed(
    page: Any, schedule: Any, sql: Sql, beat: Beat
) -> None:
    schedule("runs", cron=None, every="1 hour")
    schedule("skips", cron=None, every="1 hour", condition_sql="SELECT false")
    schedule("fails", cron=None, every="1 hour", condition_sql="SELECT * FROM nothing")
    sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 second' RETURNING id")
    beat().run_due()
    said = html(page.get("/console/overview")).words
    assert "1 skipped condition_sql is false" in said
    assert 'UndefinedTable: relation "nothing" does not exist not launched: fails' in said
    assert "No schedule" in html(page.get(LIST, params={"search": "nowhere"}))
    said = html(page.get(LIST)).words
    assert "retrying failed 1 of 5 times" in said
    assert "every hour" in said
    text = html(page.get(LIST))
    assert "Last 1 time: 0 good, 0 skipped, 1 bad" not in text
    assert "Last 1 time: 0 good, 0 skipped, 1 failed; the last one failed:" in text
    assert "Last 1 time: 0 good, 1 skipped, 0 failed" in text


def test_a_schedule_shows_its_decisions(page: Any, schedule: Any, sql: Sql, beat: Beat) -> None:
    schedule("nightly", condition_sql="SELECT false", owner="data", timezone="Europe/Oslo")
    sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 second' RETURNING id")
    beat().run_due()
    said = html(page.get(f"{LIST}/nightly")).words
    assert "every 6 hours (Europe/Oslo) 0 */6 * * *" in said
    assert "SELECT false" in said
    assert "skipped" in said
    assert "Upcoming 2" in said
    assert "there is no schedule 'nigthly'; did you mean" in (
        html(page.get(f"{LIST}/nigthly"), 404).words
    )


def test_a_condition_is_tried(page: Any, schedule: Any, sql: Sql) -> None:
    schedule("s", condition_sql="SELECT 1 = 2")
    said = html(page.post(f"{LIST}/s", data={"do": "check"})).words
    assert "If it were due now skipped" in said
    sql("UPDATE pgbeat.schedules SET condition_sql = 'SELECT true' RETURNING id")
    said = html(page.post(f"{LIST}/s", data={"do": "check"})).words
    assert "If it were due now launched" in said
    assert sql("SELECT count(*) FROM pgbeat.ticks") == [(0,)]


def test_a_long_error_in_any_script_is_said(page: Any, schedule: Any) -> None:
    words = "\N{ROCKET}" * 700
    schedule("s", condition_sql=f"SELECT CAST('{words}' AS boolean)")
    answer = page.post(f"{LIST}/s", data={"do": "trigger"})
    assert len(answer.headers["set-cookie"]) < 4096
    assert "\N{ROCKET}" * 400 in page.get(f"{LIST}/s").text.partition("said bad")[2]


def test_a_cron_is_edited_wrongly_and_rightly(page: Any, schedule: Any, sql: Sql) -> None:
    schedule("s", condition_sql="SELECT true", jitter="2 minutes", kwargs='{"a": "<b>"}')
    form = html(page.get(f"{LIST}/s")).edit
    assert form["timetable"] == "0 */6 * * *"
    assert form["kwargs"] == '{"a": "<b>"}'
    text = html(page.post(f"{LIST}/s", data=form | {"timetable": "61 * * * *"}), 422)
    assert "minute" in text.wrong["timetable"]
    assert "\n61 * * * *</textarea>" in text
    assert sql("SELECT cron FROM pgbeat.schedules") == [("0 */6 * * *",)]
    changed = form | {"timetable": "*/5 * * * *", "jitter": "", "owner": "data", "grace": "1 h"}
    assert "updated" in after(page, page.post(f"{LIST}/s", data=changed))
    found = sql(
        "SELECT cron, jitter, owner, grace::text, condition_sql, kwargs FROM pgbeat.schedules"
    )[0]
    assert found[0] == "*/5 * * * *"
    assert not found[1]
    assert found[2:] == ("data", "01:00:00", "SELECT true", {"a": "<b>"})
    every = html(page.get(f"{LIST}/s")).edit | {"kind": "every", "timetable": "90 s"}
    after(page, page.post(f"{LIST}/s", data=every))
    assert sql("SELECT cron, every::text FROM pgbeat.schedules") == [(None, "00:01:30")]


def test_the_worst_schedules_come_first(page: Any, sql: Sql) -> None:
    for name in ("a", "b", "c"):
        key = make_schedule(sql, name)
        if name == "b":
            make_job(sql, "failed", schedule=name, schedule_id=key, error="no")
    [listed] = [page.get("/admin/scheduled-jobs", params={"sort": "health", "limit": 2}).json()]
    assert [each["name"] for each in listed["schedules"]] == ["b", "a"]
    assert listed["next"] is None
    wrong = page.get("/admin/scheduled-jobs?sort=health&state=active")
    assert [each["code"] for each in wrong.json()["errors"]] == ["conflict"]
    shown = html(page.get("/console/schedules?sort=health"))
    assert [words_of(each) for each in shown.all("#list tbody th a")] == ["b", "a", "c"]
    by_name = html(page.get("/console/schedules"))
    assert [words_of(each) for each in by_name.all("#list tbody th a")] == ["a", "b", "c"]
    [link] = by_name.all("#list thead a")
    assert link.get("href") == "/console/schedules?sort=health"
