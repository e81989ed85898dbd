"""The API's decisions on schedules: triggers, checks, history, forecasts, backfills."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.web import done, errors
from tests.web.api.made_schedules import PATH, make


def test_a_trigger_is_launched_skipped_or_fails(admin: Any, sql: Sql) -> None:
    make(admin)
    make(admin, "no", condition_sql="SELECT false")
    make(admin, "bad", condition_sql="SELECT 1 FROM not_there_yet")
    launched, skipped, failed = (
        done(admin.post(f"{PATH}/{name}/trigger")) for name in ("s", "no", "bad")
    )
    assert (launched["success"], launched["outcome"]) == (True, "launched")
    assert sql("SELECT id::text, job_source, created_by FROM pgbeat.jobs") == [
        (launched["job_id"], "user_api", "user:root")
    ]
    [recent] = done(admin.get(f"{PATH}/s"))["recent_jobs"]
    assert (recent["id"], recent["state"]) == (launched["job_id"], "pending")
    assert (skipped["success"], skipped["outcome"], skipped["job_id"]) == (True, "skipped", None)
    assert (failed["success"], failed["outcome"]) == (False, "failed")
    assert "not_there_yet" in failed["error"]


def test_a_check_writes_nothing(admin: Any, sql: Sql) -> None:
    make(admin)
    assert done(admin.post(f"{PATH}/s/check")) == {
        "outcome": "launched",
        "reason": None,
        "error": None,
        "objections": [],
        "jobs": 1,
    }
    done(admin.patch(f"{PATH}/s", json={"starts_at": "2999-01-01T00:00:00Z"}))
    found = done(admin.post(f"{PATH}/s/check"))
    assert found["outcome"] == "skipped"
    assert found["objections"] == [found["reason"]]
    assert sql("SELECT 1 FROM pgbeat.ticks") == []


def test_forecasts(admin: Any) -> None:
    make(admin)
    make(admin, "off")
    done(admin.post(f"{PATH}/off/disable"))
    assert len(done(admin.get(f"{PATH}/s/forecast?count=3"))["times"]) == 3
    assert done(admin.get(f"{PATH}/off/forecast"))["times"] == []
    found = done(admin.get("/forecast", params={"hours": 24, "limit": 3}))
    assert (len(found["times"]), found["disabled"]) == (3, ["off"])
    assert done(admin.get("/forecast", params={"schedule": "off"}))["total"] == 0
    past = admin.get("/forecast", params={"start": "2020-01-01T00:00:00Z"})
    assert errors(past)[0][0] == "start"
    assert admin.get("/forecast", params={"schedule": "gone"}).status_code == 404


def test_a_backfill_is_planned_and_then_launched(admin: Any, sql: Sql) -> None:
    make(admin, cron="0 * * * *", timezone="UTC")
    sql("UPDATE pgbeat.schedules SET next_run = '9999-01-01Z'")
    span = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T02:00:00Z"}
    planned = done(admin.post(f"{PATH}/s/backfill", json={**span, "dry_run": True}))
    assert (planned["dry_run"], planned["launched"], len(planned["times"])) == (True, 0, 3)
    filled = done(admin.post(f"{PATH}/s/backfill", json=span))
    assert (filled["success"], filled["launched"], filled["remaining"]) == (True, 3, 0)
    assert filled["times"] == planned["times"]
    again = done(admin.post(f"{PATH}/s/backfill", json=span))
    assert (again["times"], again["launched_before"]) == ([], 3)
    sql("UPDATE pgbeat.schedules SET cron = NULL, after = 'other'")
    assert errors(admin.post(f"{PATH}/s/backfill", json=span)) == [("", "no_times")]
