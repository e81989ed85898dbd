"""The API's decisions on schedules: triggers, checks, history, forecasts, backfills."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.web import done, errors
from tests.web.api.made_schedules import PATH, audited, make

# -- decided ---------------------------------------------------------------------------------------


def test_a_trigger_launches(admin: Any, sql: Sql) -> None:
    make(admin, kwargs={"x": 3})
    answer = done(admin.post(f"{PATH}/s/trigger"))
    assert (answer["success"], answer["outcome"]) == (True, "launched")
    assert answer["message"] == "Schedule 's' triggered manually"
    assert sql("SELECT id::text, job_source, created_by, state FROM pgbeat.jobs") == [
        (answer["job_id"], "user_api", "user:root", "pending")
    ]
    assert len(sql("SELECT 1 FROM kombu_message")) == 1
    [recent] = done(admin.get(f"{PATH}/s"))["recent_jobs"]
    assert (recent["id"], recent["state"]) == (answer["job_id"], "pending")
    assert done(admin.get("/audit"))["changes"][0]["after"]["job_id"] == answer["job_id"]


def test_a_trigger_is_skipped_or_fails(admin: Any, sql: Sql) -> None:
    make(admin, "no", condition_sql="SELECT false")
    answer = done(admin.post(f"{PATH}/no/trigger"))
    assert (answer["success"], answer["outcome"], answer["job_id"]) == (True, "skipped", None)
    assert answer["message"].startswith("Schedule 'no' was skipped: ")
    make(admin, "bad", condition_sql="SELECT 1 FROM not_there_yet")
    answer = done(admin.post(f"{PATH}/bad/trigger"))
    assert (answer["success"], answer["outcome"]) == (False, "failed")
    assert "not_there_yet" in answer["error"]
    assert sql("SELECT 1 FROM pgbeat.jobs") == []
    assert [each[0] for each in audited(admin)] == ["create", "trigger", "create", "trigger"]


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


def test_history_with_stats(admin: Any, sql: Sql) -> None:
    make(admin)
    for _ in range(3):
        done(admin.post(f"{PATH}/s/trigger"))
    done(admin.patch(f"{PATH}/s", json={"condition_sql": "SELECT false"}))
    done(admin.post(f"{PATH}/s/trigger"))
    done(admin.patch(f"{PATH}/s", json={"condition_sql": "SELECT 1 FROM nowhere"}))
    done(admin.post(f"{PATH}/s/trigger"))
    sql("UPDATE pgbeat.jobs SET state = 'running', started_at = now()")
    sql(
        "UPDATE pgbeat.jobs SET finished_at = now(), "
        "state = CASE WHEN id = (SELECT min(id::text)::uuid FROM pgbeat.jobs) THEN 'failed' "
        "ELSE 'completed' END"
    )
    found = done(admin.get(f"{PATH}/s/history"))
    outcomes = [each["outcome"] for each in found["ticks"]]
    assert outcomes == ["failed", "skipped", "launched", "launched", "launched"]
    assert found["stats"] == {
        "total": 5,
        "launched": 3,
        "skipped": 1,
        "failed": 1,
        "jobs_completed": 2,
        "jobs_failed": 1,
        "success_rate": 0.5,
    }
    seen: list[Any] = []
    after = None
    while True:
        params = {"limit": 2, **({"after": after} if after else {})}
        page = done(admin.get(f"{PATH}/s/history", params=params))
        seen, after = seen + page["ticks"], page["next"]
        if after is None:
            break
    assert seen == found["ticks"]


def test_history_has_when_each_run_began_and_ended(admin: Any, sql: Sql) -> None:
    make(admin)
    job_id = done(admin.post(f"{PATH}/s/trigger"))["job_id"]
    [tick] = done(admin.get(f"{PATH}/s/history"))["ticks"]
    assert (tick["started_at"], tick["finished_at"], tick["duration_ms"]) == (None, None, None)
    [(began, ended)] = sql(
        "UPDATE pgbeat.jobs SET state = 'completed', started_at = now(), "
        "finished_at = now() + interval '1.5 s' RETURNING started_at, finished_at"
    )
    [tick] = done(admin.get(f"{PATH}/s/history"))["ticks"]
    assert [datetime.fromisoformat(tick[name]) for name in ("started_at", "finished_at")] == [
        began,
        ended,
    ]
    assert tick["duration_ms"] == 1500
    [job] = tick["jobs"]
    assert (job["id"], job["finished_at"]) == (job_id, tick["finished_at"])
    assert "took 1.5 s" in admin.get("/console/schedules/s").text


def test_a_schedule_without_ticks_has_no_rate(admin: Any) -> None:
    make(admin)
    found = done(admin.get(f"{PATH}/s/history"))
    assert (found["ticks"], found["stats"]["success_rate"]) == ([], None)


def test_forecast(admin: Any, sql: Sql) -> None:
    make(admin)
    times = [each["at"] for each in done(admin.get(f"{PATH}/s/forecast?count=3"))["times"]]
    assert len(times) == 3
    assert all(datetime.fromisoformat(time).hour % 6 == 0 for time in times)
    sql("""INSERT INTO pgbeat.calendars (name, definition)
           VALUES ('never', '{"weekdays": ["mon","tue","wed","thu","fri","sat","sun"]}')""")
    done(admin.patch(f"{PATH}/s", json={"calendar": "never"}))
    [due] = done(admin.get(f"{PATH}/s/forecast?count=1"))["times"]
    assert "calendar 'never'" in due["skip"]
    done(admin.post(f"{PATH}/s/disable"))
    assert done(admin.get(f"{PATH}/s/forecast"))["times"] == []


def test_the_forecast_of_all_schedules(admin: Any, sql: Sql) -> None:
    """The same as `pgbeat forecast --json` says."""
    for name, more in (("a", {}), ("b", {"condition_sql": "SELECT true"}), ("off", {})):
        make(admin, name, kwargs={"x": "{{ due_at | date }}"}, **more)
    done(admin.post(f"{PATH}/off/disable"))
    day = (datetime.now(UTC) + timedelta(days=2)).date()
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    asked = {"start": start.isoformat(), "hours": 24, "limit": 3}
    found = done(admin.get("/forecast", params=asked))
    counts = [found[name] for name in ("total", "launches", "uncertain", "skipped")]
    assert (counts, found["disabled"]) == ([8, 4, 4, 0], ["off"])
    assert [(each["schedule"], each["certain"]) for each in found["times"]] == [
        ("a", True),
        ("b", False),
        ("a", True),
    ]
    assert found["times"][0]["kwargs"] == {"x": start.date().isoformat()}
    assert datetime.fromisoformat(found["from"]) == start
    assert found["peak"]["launches"] + found["peak"]["uncertain"] == 2
    assert done(admin.get("/forecast", params={**asked, "schedule": "b"}))["total"] == 4
    past = admin.get("/forecast", params={"start": "2020-01-01T00:00:00Z"})
    assert (past.status_code, past.json()["errors"][0]["field"]) == (422, "start")
    assert admin.get("/forecast", params={"schedule": "gone"}).status_code == 404


def span(hours: int = 12) -> dict[str, str]:
    """The hours before the last full one."""
    end = datetime.now(UTC).replace(minute=1, second=0, microsecond=0) - timedelta(hours=1)
    return {"start": (end - timedelta(hours=hours)).isoformat(), "end": end.isoformat()}


# -- backfilled -----------------------------------------------------------------------------------


def test_a_backfill_launches_what_was_missed(admin: Any, sql: Sql) -> None:
    make(admin, cron="0 * * * *")
    planned = done(admin.post(f"{PATH}/s/backfill", json={**span(3), "dry_run": True}))
    assert (planned["dry_run"], planned["launched"], len(planned["times"])) == (True, 0, 3)
    assert sql("SELECT 1 FROM pgbeat.jobs") == []
    filled = done(admin.post(f"{PATH}/s/backfill", json=span(3)))
    assert (filled["success"], filled["launched"], filled["remaining"]) == (True, 3, 0)
    assert filled["times"] == planned["times"]
    assert filled["message"] == "Schedule 's' backfilled: 3 launched"
    assert sql("SELECT DISTINCT job_source, created_by FROM pgbeat.jobs") == [
        ("user_api", "user:root")
    ]
    again = done(admin.post(f"{PATH}/s/backfill", json=span(3)))
    assert (again["times"], again["launched_before"]) == ([], 3)
    assert [each[0] for each in audited(admin)] == ["create"] + 3 * ["backfill"]


def test_a_backfill_stops_after_failures(admin: Any) -> None:
    make(admin, cron="0 * * * *", max_retries=2, condition_sql="SELECT 1 FROM nowhere")
    filled = done(admin.post(f"{PATH}/s/backfill", json=span(6)))
    assert (filled["success"], filled["failed"], filled["remaining"]) == (False, 2, 4)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, ("start", "required")),
        ({"start": "2026-01-01T00:00:00"}, ("start", "malformed")),
        ({"start": "2999-01-01T00:00:00Z"}, ("start", "out_of_range")),
        ({"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}, ("end", "out_of_range")),
        ({"start": "2026-01-01T00:00:00Z", "end": "2999-01-01T00:00:00Z"}, ("end", "out_of_range")),
        ({"start": "2026-01-01T00:00:00Z", "limit": 0}, ("limit", "out_of_range")),
        ({"start": "2026-01-01T00:00:00Z", "limt": 1}, ("limt", "unknown_field")),
        (
            {"start": "2026-01-01T00:00:00Z", "end": "2026-01-03T00:00:00Z", "limit": 5},
            ("limit", "out_of_range"),
        ),
        ({"start": "0001-01-01T00:00:00Z"}, ("start", "out_of_range")),
        ({"start": "2020-01-01T00:00:00Z"}, ("start", "out_of_range")),
    ],
)
def test_a_bad_backfill_launches_nothing(
    admin: Any, sql: Sql, body: dict[str, Any], expected: tuple[str, str]
) -> None:
    make(admin, cron="0 * * * *")
    assert errors(admin.post(f"{PATH}/s/backfill", json=body)) == [expected]
    assert sql("SELECT 1 FROM pgbeat.ticks") == []


def test_what_has_no_times_has_no_backfill(admin: Any) -> None:
    make(admin, "t")
    done(admin.post(PATH, json={"name": "s", "task": "tests.add", "after": "t"}), 201)
    answer = admin.post(f"{PATH}/s/backfill", json=span())
    assert errors(answer) == [("", "no_times")]
