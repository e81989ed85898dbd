"""`/admin/scheduled-jobs`: what can be asked and told of schedules, and what is refused."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import event

from pgbeat.beat.scheduler import Scheduler
from pgbeat.schedules import model as schedules
from tests.support.web import Web, done, problem

Sql = Callable[..., list[tuple[Any, ...]]]
Beat = Callable[..., Scheduler]

PATH = "/admin/scheduled-jobs"
CRON = {"task": "tests.add", "cron": "0 */6 * * *"}


def make(admin: Any, name: str = "s", **values: Any) -> Any:
    """A schedule of every six hours, unless told otherwise."""
    return done(admin.post(PATH, json={"name": name, **CRON, **values}), 201)


def audited(admin: Any) -> list[tuple[str, str, str]]:
    """Verb, kind and subject of the changes, the oldest first."""
    found = done(admin.get("/audit"))["changes"]
    return [(each["verb"], each["kind"], each["subject"]) for each in reversed(found)]


# -- made and looked at --------------------------------------------------------------------------


def test_a_schedule_is_made_and_found(admin: Any) -> None:
    made = make(
        admin, "category_refresh", kwargs={"x": 3}, timezone="Europe/Oslo", jitter="2 minutes",
        grace=90, owner="data", queue="slow", max_retries=2,
    )  # fmt: skip
    found = done(admin.get(f"{PATH}/category_refresh"))
    assert found == made | {"recent_jobs": []}
    wanted = {
        "name": "category_refresh", "launcher_class": "GenericLauncher", "source": "api",
        "schedule_cron": "0 */6 * * *", "kwargs": {"x": 3}, "timezone": "Europe/Oslo",
        "jitter": 120, "grace": 90, "owner": "data", "queue": "slow", "max_retries": 2,
        "enabled": True, "state": "active", "retry_count": 0, "last_run": None,
    }  # fmt: skip
    assert found.items() >= wanted.items()
    assert audited(admin) == [("create", "schedule", "category_refresh")]


def test_the_seeds_names_of_fields_are_understood(admin: Any) -> None:
    body = {"name": "s", "task": "tests.add", "schedule_cron": "5 4 * * *",
            "launcher_class": "GenericLauncher"}  # fmt: skip
    assert done(admin.post(PATH, json=body), 201)["schedule_cron"] == "5 4 * * *"
    done(admin.patch(f"{PATH}/s", json={"schedule_cron": "0 */2 * * *", "max_retries": 10}))
    found = done(admin.get(f"{PATH}/s"))
    assert (found["schedule_cron"], found["max_retries"]) == ("0 */2 * * *", 10)


def test_new_schedules_have_the_apps_defaults(app: Celery) -> None:
    from tests.support.web import opened

    with opened(app, max_retries=2, retry_base=7, retry_cap=70) as web:
        made = make(web.admin)
    assert (made["max_retries"], made["retry_base"], made["retry_cap"]) == (2, 7, 70)


@pytest.mark.parametrize("name", ["é ü", "a?b#c", "docs", "history", "'\"<b>", "..."])
def test_any_name_can_be_a_path(admin: Any, name: str) -> None:
    from urllib.parse import quote

    make(admin, name)
    path = f"{PATH}/{quote(name, safe='')}"
    assert done(admin.post(f"{path}/pause"))["message"] == f"Schedule '{name}' paused"
    assert done(admin.get(path))["name"] == name
    assert done(admin.get(f"{path}/history"))["schedule_name"] == name


def test_pages_by_name(admin: Any) -> None:
    names = [f"s{number}" for number in range(5)]
    for name in reversed(names):
        make(admin, name)
    first = done(admin.get(PATH, params={"limit": 3}))
    assert [each["name"] for each in first["schedules"]] == names[:3]
    second = done(admin.get(PATH, params={"limit": 3, "after": first["next"]}))
    assert [each["name"] for each in second["schedules"]] == names[3:]
    assert second["next"] is None


def test_pages_by_state_and_part_of_the_name(admin: Any) -> None:
    for name in ("Daily_report", "hourly", "daily%"):
        make(admin, name)
    done(admin.post(f"{PATH}/hourly/pause"))
    done(admin.post(f"{PATH}/daily%25/disable"))

    def names(**which: str) -> list[str]:
        found = done(admin.get(PATH, params=which))["schedules"]
        return sorted(each["name"] for each in found)

    assert names(state="paused") == ["hourly"]
    assert names(state="disabled") == ["daily%"]
    assert names(state="active") == ["Daily_report"]
    assert names(search="DAILY") == ["Daily_report", "daily%"]
    assert names(search="%") == ["daily%"]
    assert names(search="daily", state="active") == ["Daily_report"]


def test_a_page_takes_the_same_queries_however_long(web: Web, admin: Any) -> None:
    for number in range(12):
        make(admin, f"s{number}")
    counts = []
    for limit in (1, 10):
        statements: list[str] = []
        engine = web.app.state.pgbeat._engine
        note = lambda *given, into=statements: into.append(given[2])  # noqa: E731
        event.listen(engine, "before_cursor_execute", note)
        done(admin.get(PATH, params={"limit": limit}))
        event.remove(engine, "before_cursor_execute", note)
        counts.append(len(statements))
    assert counts[0] == counts[1] <= 3


# -- changed --------------------------------------------------------------------------------------


def test_a_change_is_noted_with_before_and_after(admin: Any) -> None:
    make(admin)
    answer = done(admin.patch(f"{PATH}/s", json={"max_retries": 10}))
    assert (answer["success"], answer["message"]) == (True, "Schedule 's' updated")
    assert datetime.fromisoformat(answer["next_run"]) > datetime.now(UTC)
    [change, _] = done(admin.get("/audit"))["changes"]
    assert (change["actor"], change["origin"], change["verb"]) == ("user:root", "api", "update")
    assert (change["before"], change["after"]) == ({"max_retries": 5}, {"max_retries": 10})


def test_a_new_timetable_takes_the_place_of_the_old_one(admin: Any) -> None:
    make(admin)
    done(admin.patch(f"{PATH}/s", json={"every": "15 minutes"}))
    found = done(admin.get(f"{PATH}/s"))
    assert (found["schedule_cron"], found["every"]) == (None, 900)


def test_null_clears(admin: Any) -> None:
    make(
        admin,
        queue="q",
        owner="o",
        jitter=5,
        kwargs={"x": 1},
        max_runs=3,
        job_policy={"priority": 3},
    )
    cleared = {"queue": None, "owner": None, "jitter": None, "kwargs": None, "max_runs": None,
               "job_policy": None}  # fmt: skip
    done(admin.patch(f"{PATH}/s", json=cleared))
    found = done(admin.get(f"{PATH}/s"))
    assert found.items() >= {
        "queue": None, "owner": None, "jitter": 0, "kwargs": {}, "max_runs": None, "job_policy": {},
    }.items()  # fmt: skip


@pytest.mark.parametrize("state", [True, False])
def test_enabled_can_be_patched(admin: Any, state: bool) -> None:
    make(admin)
    if state:
        done(admin.post(f"{PATH}/s/disable"))
    answer = done(admin.patch(f"{PATH}/s", json={"enabled": state}))
    assert (answer["next_run"] is not None) is state
    assert done(admin.get(f"{PATH}/s"))["enabled"] is state


@pytest.mark.parametrize(
    ("verb", "past", "state"),
    [
        ("disable", "disabled", "disabled"),
        ("enable", "enabled", "active"),
        ("pause", "paused", "paused"),
        ("resume", "resumed", "active"),
    ],
)
def test_switches(admin: Any, verb: str, past: str, state: str) -> None:
    make(admin)
    before = {"enable": "disable", "resume": "pause"}.get(verb)
    if before is not None:
        done(admin.post(f"{PATH}/s/{before}"))
    for _ in range(2):  # once more changes nothing
        answer = done(admin.post(f"{PATH}/s/{verb}"))
        assert answer["message"] == f"Schedule 's' {past}"
        assert (answer["next_run"] is None) is (state != "active")
    assert done(admin.get(f"{PATH}/s"))["state"] == state
    assert audited(admin).count((verb, "schedule", "s")) == 1


def test_delete(admin: Any, sql: Sql) -> None:
    make(admin)
    assert done(admin.delete(f"{PATH}/s"))["message"] == "Schedule 's' deleted"
    assert sql("SELECT 1 FROM pgbeat.schedules") == []
    [change, _] = done(admin.get("/audit"))["changes"]
    assert (change["verb"], change["before"]["cron"]) == ("delete", "0 */6 * * *")
    assert "there is no schedule 's'" in problem(admin.delete(f"{PATH}/s"), 404)


def test_what_the_code_made_comes_back(app: Celery, beat: Beat, web: Web) -> None:
    app.conf.beat_schedule = {"coded": {"task": "tests.add", "schedule": 60.0}}
    beat().run_due()
    admin = web.admin
    assert "resets it" in done(admin.patch(f"{PATH}/coded", json={"every": 90}))["note"]
    assert done(admin.patch(f"{PATH}/coded", json={"max_retries": 1}))["note"] is None
    assert "adds it again" in done(admin.delete(f"{PATH}/coded"))["note"]


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
    assert (recent["job_id"], recent["status"]) == (answer["job_id"], "pending")
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
        "outcome": "launched", "reason": None, "error": None, "objections": [], "jobs": 1,
    }  # fmt: skip
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
    outcomes = [each["outcome"] for each in found["history"]]
    assert outcomes == ["failed", "skipped", "success", "success", "success"]
    assert [each["conditions_met"] for each in found["history"]] == [False, False, True, True, True]
    assert found["stats"] == {
        "total_runs": 5, "successful_runs": 3, "skipped_runs": 1, "failed_runs": 1,
        "jobs_completed": 2, "jobs_failed": 1, "success_rate": "50%",
    }  # fmt: skip
    seen: list[Any] = []
    after = None
    while True:
        params = {"limit": 2, **({"after": after} if after else {})}
        page = done(admin.get(f"{PATH}/s/history", params=params))
        seen, after = seen + page["history"], page["next"]
        if after is None:
            break
    assert seen == found["history"]


def test_a_schedule_without_ticks_has_no_rate(admin: Any) -> None:
    make(admin)
    found = done(admin.get(f"{PATH}/s/history"))
    assert (found["history"], found["stats"]["success_rate"]) == ([], None)


def test_forecast(admin: Any, sql: Sql) -> None:
    make(admin)
    times = [each["at"] for each in done(admin.get(f"{PATH}/s/forecast?count=3"))["upcoming"]]
    assert len(times) == 3
    assert all(datetime.fromisoformat(time).hour % 6 == 0 for time in times)
    sql("""INSERT INTO pgbeat.calendars (name, definition)
           VALUES ('never', '{"weekdays": ["mon","tue","wed","thu","fri","sat","sun"]}')""")
    done(admin.patch(f"{PATH}/s", json={"calendar": "never"}))
    [due] = done(admin.get(f"{PATH}/s/forecast?count=1"))["upcoming"]
    assert "calendar 'never'" in due["skip"]
    done(admin.post(f"{PATH}/s/disable"))
    assert done(admin.get(f"{PATH}/s/forecast"))["upcoming"] == []


# -- backfilled -----------------------------------------------------------------------------------


def span(hours: int = 12) -> dict[str, str]:
    """The hours before the last full one."""
    end = datetime.now(UTC).replace(minute=1, second=0, microsecond=0) - timedelta(hours=1)
    return {"start": (end - timedelta(hours=hours)).isoformat(), "end": end.isoformat()}


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
    ("body", "refusal"),
    [
        ({}, "start: Field required"),
        ({"start": "2026-01-01T00:00:00"}, "start: Input should have timezone info"),
        ({"start": "2999-01-01T00:00:00Z"}, "2999-01-01T00:00:00+00:00 is in the future"),
        ({"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}, "the end, 2026-"),
        ({"start": "2026-01-01T00:00:00Z", "end": "2999-01-01T00:00:00Z"}, "in the future"),
        ({"start": "2026-01-01T00:00:00Z", "limit": 0}, "greater than or equal to 1"),
        ({"start": "2026-01-01T00:00:00Z", "limt": 1}, "did you mean 'limit'?"),
        (
            {"start": "2026-01-01T00:00:00Z", "end": "2026-01-03T00:00:00Z", "limit": 5},
            "more than the limit 5",
        ),
        ({"start": "0001-01-01T00:00:00Z"}, "give a shorter period"),
        ({"start": "2020-01-01T00:00:00Z"}, "more than the 20,000 that are looked at"),
    ],
)
def test_a_bad_backfill_launches_nothing(
    admin: Any, sql: Sql, body: dict[str, Any], refusal: str
) -> None:
    make(admin, cron="0 * * * *")
    assert refusal in problem(admin.post(f"{PATH}/s/backfill", json=body), 422)
    assert sql("SELECT 1 FROM pgbeat.ticks") == []


def test_what_has_no_times_has_no_backfill(admin: Any) -> None:
    make(admin, "t")
    done(admin.post(PATH, json={"name": "s", "task": "tests.add", "after": "t"}), 201)
    answer = admin.post(f"{PATH}/s/backfill", json=span())
    assert "has no times of its own" in problem(answer, 422)


# -- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"cron": "61 * * * *"}, "cron '61 * * * *'"),
        ({"cron": "every day"}, "cron 'every day'"),
        ({"cron": 5}, "cron: Input should be a valid string"),
        ({"timezone": "Oslo"}, "timezone 'Oslo'"),
        ({"every": "1 month"}, "months and years have no fixed length"),
        ({"every": True}, "not true or false"),
        ({"every": 1e300}, "at most 999,999,999 days"),
        ({"every": 0}, "every"),
        ({"every": -5}, "every"),
        ({"every": "1 hour", "solar": "noon 0 0"}, "it has both every and solar; keep one"),
        ({"once_at": "2026-12-24T09:00"}, "once_at: Input should have timezone info"),
        ({"once_at": "0001-01-01T00:00:00+14:00"}, ""),
        ({"solar": "lunch 0 0"}, "lunch"),
        ({"rrule": "FREQ=SOMETIMES"}, "rrule"),
        ({"task": "tests.ad"}, "did you mean 'tests.add'?"),
        ({"launcher": "os.system"}, "launcher 'os.system' is not registered"),
        ({"args": [1, 2, 3]}, "the arguments don't fit task 'tests.add'"),
        ({"args": {}}, "args: Input should be a valid list"),
        ({"kwargs": {"z": 1}}, "the arguments don't fit task 'tests.add'"),
        ({"options": {"prioriti": 1}}, "no publish option"),
        ({"condition_sql": "SELEC 1"}, "write one SELECT"),
        ({"condition_sql": "DELETE FROM pgbeat.schedules"}, "write one SELECT"),
        ({"max_retries": -1}, "greater than or equal to 0"),
        ({"max_retries": 2**31}, "less than or equal to"),
        ({"max_retries": 2**63}, "less than or equal to"),
        ({"catch_up": "some"}, "catch_up: Input should be"),
        ({"retry_base": 100, "retry_cap": 99}, "retry_cap"),
        ({"job_policy": {"lane": 5}}, "lane"),
        ({"job_policy": {"lanes": "x"}}, "lane"),
        ({"calendar": "nope"}, "calendar"),
        ({"schedule_crn": "* * * * *"}, "there is no field 'schedule_crn'; did you mean"),
        ({"next_run": "2026-01-01T00:00:00Z"}, "there is no field 'next_run'"),
        ({"owner": "a\0b"}, "NUL"),
        ({"kwargs": {"x": "\0"}}, ""),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    admin: Any, sql: Sql, change: dict[str, Any], refusal: str
) -> None:
    timetable = {"every", "once_at", "solar", "rrule"} & change.keys()
    base: dict[str, Any] = {"name": "bad", "task": "tests.add"}
    base |= {} if timetable else {"cron": "0 * * * *"}
    assert refusal in problem(admin.post(PATH, json=base | change), 422)
    make(admin)
    before = done(admin.get(f"{PATH}/s"))
    assert refusal in problem(admin.patch(f"{PATH}/s", json=change), 422)
    assert done(admin.get(f"{PATH}/s")) == before
    assert sql("SELECT name FROM pgbeat.schedules") == [("s",)]
    assert audited(admin) == [("create", "schedule", "s")]


def test_a_wrong_cron_says_how_to_write_it(admin: Any) -> None:
    said = problem(
        admin.post(PATH, json={"name": "s", "task": "tests.add", "cron": "0 25 * *"}), 422
    )
    assert "cron '0 25 * *': it has 4 fields, not 5" in said
    assert 'for example "*/15 * * * *"' in said


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"task": "tests.add", "cron": "0 * * * *"}, "name: Field required"),
        ({"name": "", "task": "tests.add", "cron": "0 * * * *"}, "at least 1 character"),
        ({"name": "x" * 201, "task": "tests.add", "cron": "0 * * * *"}, "at most 200 characters"),
        ({"name": "a\0b", "task": "tests.add", "cron": "0 * * * *"}, "NUL"),
        ({"name": "s", "cron": "0 * * * *"}, "task"),
        ({"name": "s", "task": "tests.add"}, "it has no timetable; set cron"),
        ([], "valid dictionary"),
        (None, "Field required"),
        ("s", "valid dictionary"),
    ],
)
def test_what_can_be_no_schedule_is_refused(admin: Any, sql: Sql, body: Any, refusal: str) -> None:
    assert refusal in problem(admin.post(PATH, json=body), 422)
    assert sql("SELECT 1 FROM pgbeat.schedules") == []


@pytest.mark.parametrize(
    ("content", "status", "refusal"),
    [
        (b'{"name": "s"', 422, "JSON decode error"),
        (b"", 422, "Field required"),
        (b'{"name": "\xff"}', 400, "parsing the body"),
        (b'{"name": "s\\ud800", "task": "tests.add", "cron": "* * * * *"}', 422, ""),
        (b'{"name": "s", "task": "tests.add", "cron": "* * * * *", "kwargs": {"x": NaN}}', 422, ""),
        (b'{"name": "s", "task": "tests.add", "every": 1e999}', 422, ""),
        (b'{"name": "s", "every": ' + b"9" * 5000 + b"}", 400, ""),
        (b"[" * 100_000, 400, "parsing the body"),
    ],
)
def test_what_is_no_json_is_refused(
    admin: Any, sql: Sql, content: bytes, status: int, refusal: str
) -> None:
    headers = {"Content-Type": "application/json"}
    assert refusal in problem(admin.post(PATH, content=content, headers=headers), status)
    assert sql("SELECT 1 FROM pgbeat.schedules") == []


def test_json_has_to_say_that_it_is(admin: Any, sql: Sql) -> None:
    """A form of another site can't send JSON under its own name."""
    body = b'{"name": "s", "task": "tests.add", "cron": "* * * * *"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = admin.post(PATH, content=body, headers={"Content-Type": kind})
        problem(answer, 422)
    assert sql("SELECT 1 FROM pgbeat.schedules") == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"enabled": None},
        {"max_retries": None},
        {"overlap": None},
        {"launcher": None},
        {"cron": None},
        {"task": None},
        {"name": "other"},
    ],
)
def test_what_can_be_no_change_is_refused(admin: Any, body: dict[str, Any]) -> None:
    make(admin)
    before = done(admin.get(f"{PATH}/s"))
    problem(admin.patch(f"{PATH}/s", json=body), 422)
    assert done(admin.get(f"{PATH}/s")) == before


def test_all_are_paused_and_resumed(admin: Any) -> None:
    for name in ("a", "b"):
        make(admin, name)
    done(admin.post(f"{PATH}/a/pause", json={"reason": "broken"}))
    assert done(admin.get(f"{PATH}/a"))["paused_reason"] == "broken"
    moving = {"reason": "moving"}
    assert done(admin.post(f"{PATH}/pause", json=moving)) == {"schedules": ["b"]}
    make(admin, "later")
    assert done(admin.get(f"{PATH}/later"))["state"] == "active"
    assert done(admin.post(f"{PATH}/resume", json=moving)) == {"schedules": ["b"]}
    assert done(admin.post(f"{PATH}/resume")) == {"schedules": ["a"]}
    assert done(admin.get(f"{PATH}/a"))["paused_reason"] is None
    verbs = [change[::2] for change in audited(admin) if change[0] != "create"]
    assert verbs == [("pause", "a"), ("pause", "b"), ("resume", "b"), ("resume", "a")]


def test_a_cursor_is_set_and_cleared(admin: Any) -> None:
    make(admin)
    assert done(admin.get(f"{PATH}/s/cursor")) == {"cursor": None}
    for cursor in ({"last": 7}, None):
        assert done(admin.put(f"{PATH}/s/cursor", json={"cursor": cursor})) == {"cursor": cursor}
        assert done(admin.get(f"{PATH}/s/cursor")) == {"cursor": cursor}
    assert problem(admin.put(f"{PATH}/s/cursor", json={"cursor": "\0"}), 422)
    assert audited(admin)[1:] == [("update", "schedule", "s")] * 2


def test_a_name_is_had_once(admin: Any, sql: Sql) -> None:
    make(admin)
    assert "there is a schedule 's' already" in problem(
        admin.post(PATH, json={"name": "s", **CRON}), 409
    )
    assert audited(admin) == [("create", "schedule", "s")]


def test_a_condition_that_may_hold_later_is_taken(admin: Any) -> None:
    made = make(admin, condition_sql="SELECT count(*) > 0 FROM not_there_yet")
    assert made["condition_sql"].endswith("not_there_yet")


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=x", "state=odd", "after=x", "search=" + "x" * 201]
)
def test_a_bad_query_is_refused(admin: Any, query: str) -> None:
    assert problem(admin.get(f"{PATH}?{query}"), 422)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/enable"), ("POST", "/disable"),
        ("POST", "/pause"), ("POST", "/resume"), ("POST", "/trigger"), ("POST", "/check"),
        ("POST", "/backfill"), ("GET", "/history"), ("GET", "/forecast"),
    ],
)  # fmt: skip
def test_what_is_not_there_names_the_near_one(admin: Any, method: str, path: str) -> None:
    make(admin, "refresh_all")
    bodies = {"PATCH": {"max_retries": 1}, "/backfill": span()}
    body = bodies.get(method) or bodies.get(path)
    answer = admin.request(method, f"{PATH}/refresh_al{path}", json=body)
    said = problem(answer, 404)
    assert said == "there is no schedule 'refresh_al'; did you mean 'refresh_all'?"
    assert "NUL" in problem(admin.request(method, f"{PATH}/%00{path}", json=body), 422)


def test_schedules_of_another_namespace_are_not_there(app: Celery, web: Web) -> None:
    from tests.support.web import opened

    make(web.admin, "mine")
    with opened(app, namespace="other") as other:
        assert done(other.admin.get(PATH))["schedules"] == []
        problem(other.admin.get(f"{PATH}/mine"), 404)
        problem(web.client(other.token("root", "admin")).get(PATH), 401)


def test_one_that_is_being_changed_is_not_waited_for_long(
    admin: Any, database: str, sql: Sql
) -> None:
    import psycopg

    make(admin)
    with psycopg.connect(database) as other:
        other.execute("SELECT 1 FROM pgbeat.schedules FOR UPDATE")
        said = problem(admin.post(f"{PATH}/s/pause"), 409)
    assert said == "another session is changing that at the same time; try again"
    assert audited(admin) == [("create", "schedule", "s")]


def test_the_backlog_is_what_is_due(sql: Sql, web: Web, admin: Any) -> None:
    for name, late in (("a", "10 s"), ("b", "-1 h"), ("c", "20 s")):
        make(admin, name)
        sql(
            "UPDATE pgbeat.schedules SET next_run = now() - %s::interval WHERE name = %s",
            late,
            name,
        )
    done(admin.post(f"{PATH}/c/pause"))
    with web.app.state.pgbeat.transaction() as connection:
        backlog = schedules.backlog(connection)
    assert backlog.due == 1
    assert 10 <= backlog.lag < 20
