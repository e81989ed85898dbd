"""The API's schedules: made, listed, changed, deleted."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import event

from pgbeat.beat.scheduler import Scheduler
from pgbeat.schedules import model as schedules
from tests.support.command_line import Sql
from tests.support.web import Web, done, problem
from tests.web.api.made_schedules import CRON, PATH, audited, make

Beat = Callable[..., Scheduler]

# -- made and looked at --------------------------------------------------------------------------


def test_a_schedule_is_made_and_found(admin: Any) -> None:
    made = make(
        admin,
        "category_refresh",
        kwargs={"x": 3},
        timezone="Europe/Oslo",
        jitter="2 minutes",
        grace=90,
        owner="data",
        queue="slow",
        max_retries=2,
    )
    found = done(admin.get(f"{PATH}/category_refresh"))
    assert found.items() >= (made | {"recent_jobs": [], "last_check_in": None}).items()
    wanted = {
        "name": "category_refresh",
        "launcher": "GenericLauncher",
        "source": "api",
        "cron": "0 */6 * * *",
        "kwargs": {"x": 3},
        "timezone": "Europe/Oslo",
        "jitter": 120,
        "grace": 90,
        "owner": "data",
        "queue": "slow",
        "max_retries": 2,
        "enabled": True,
        "state": "active",
        "retry_count": 0,
        "last_run": None,
    }
    assert found.items() >= wanted.items()
    assert audited(admin) == [("create", "schedule", "category_refresh")]


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({"enabled": False}, "disabled"),
        ({"paused": True}, "paused"),
        ({"enabled": True, "paused": None}, "active"),
    ],
)
def test_a_schedule_is_made_out_of_service(admin: Any, given: Any, state: str) -> None:
    """And was never in service for the audit, or for beat."""
    made = make(admin, "s", **given)
    assert (made["state"], made["next_run"]) == (state, None)
    [entry] = done(admin.get("/audit"))["changes"]
    assert (entry["verb"], entry["after"]["enabled"]) == ("create", state != "disabled")
    assert ("paused_at" in entry["after"]) is (state == "paused")


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
    assert done(admin.get(f"{path}/history"))["schedule"] == name


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
    assert counts[0] == counts[1] <= 5  # BEGIN and COMMIT among them


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
    assert (found["cron"], found["every"]) == (None, 900)


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
    cleared = {
        "queue": None,
        "owner": None,
        "jitter": None,
        "kwargs": None,
        "max_runs": None,
        "job_policy": None,
    }
    done(admin.patch(f"{PATH}/s", json=cleared))
    found = done(admin.get(f"{PATH}/s"))
    assert (
        found.items()
        >= {
            "queue": None,
            "owner": None,
            "jitter": 0,
            "kwargs": {},
            "max_runs": None,
            "job_policy": {},
        }.items()
    )


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
    problem(admin.delete(f"{PATH}/s"), 404)


def test_what_the_code_made_comes_back(app: Celery, beat: Beat, web: Web) -> None:
    app.conf.beat_schedule = {"coded": {"task": "tests.add", "schedule": 60.0}}
    beat().run_due()
    admin = web.admin
    assert "resets it" in done(admin.patch(f"{PATH}/coded", json={"every": 90}))["note"]
    assert done(admin.patch(f"{PATH}/coded", json={"max_retries": 1}))["note"] is None
    assert "adds it again" in done(admin.delete(f"{PATH}/coded"))["note"]


# -- refused --------------------------------------------------------------------------------------


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
    said = problem(admin.post(PATH, json={"name": "s", **CRON}), 409)
    assert said == "there is a schedule 's' already; change it with `pgbeat update`"
    assert audited(admin) == [("create", "schedule", "s")]


def test_a_condition_that_may_hold_later_is_taken(admin: Any) -> None:
    made = make(admin, condition_sql="SELECT count(*) > 0 FROM not_there_yet")
    assert made["condition_sql"].endswith("not_there_yet")


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=x", "state=odd", "after=x", "search=" + "x" * 201]
)
def test_a_bad_query_is_refused(admin: Any, query: str) -> None:
    assert problem(admin.get(f"{PATH}?{query}"), 422)


HOUR = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00Z"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/enable"),
        ("POST", "/disable"),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("POST", "/trigger"),
        ("POST", "/check"),
        ("POST", "/backfill"),
        ("GET", "/history"),
        ("GET", "/forecast"),
    ],
)
def test_what_is_not_there_names_the_near_one(admin: Any, method: str, path: str) -> None:
    make(admin, "refresh_all")
    bodies = {"PATCH": {"max_retries": 1}, "/backfill": HOUR}
    body = bodies.get(method) or bodies.get(path)
    answer = admin.request(method, f"{PATH}/refresh_al{path}", json=body)
    said = problem(answer, 404)
    assert said.startswith(
        "there is no schedule 'refresh_al'; did you mean 'refresh_all'? `pgbeat "
    )
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
