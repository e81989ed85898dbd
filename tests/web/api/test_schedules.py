"""The API's schedules: made, listed, changed, deleted."""

from typing import Any

import pytest
from celery import Celery

from pgbeat.schedules import model as schedules
from tests.support.command_line import Sql
from tests.support.rows import make_schedule
from tests.support.schedulers import Beat
from tests.support.web import Web, done, problem
from tests.web.api.made_schedules import PATH, make

# -- made and looked at --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["é ü", "a?b#c", "docs", "history", "'\"<b>", "..."])
def test_any_name_can_be_a_path(admin: Any, name: str) -> None:
    from urllib.parse import quote

    make(admin, name)
    path = f"{PATH}/{quote(name, safe='')}"
    assert done(admin.post(f"{path}/pause"))["message"] == f"Schedule '{name}' paused"
    assert done(admin.get(path))["name"] == name
    assert done(admin.get(f"{path}/history"))["schedule"] == name


# -- changed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [True, False])
def test_enabled_can_be_patched(admin: Any, state: bool) -> None:
    make(admin)
    if state:
        done(admin.post(f"{PATH}/s/disable"))
    answer = done(admin.patch(f"{PATH}/s", json={"enabled": state}))
    assert (answer["next_run"] is not None) is state
    assert done(admin.get(f"{PATH}/s"))["enabled"] is state


def test_what_the_code_made_comes_back(app: Celery, beat: Beat, web: Web) -> None:
    app.conf.beat_schedule = {"coded": {"task": "tests.add", "schedule": 60.0}}
    beat().run_due()
    admin = web.admin
    assert "resets it" in done(admin.patch(f"{PATH}/coded", json={"every": 90}))["note"]
    assert done(admin.patch(f"{PATH}/coded", json={"max_retries": 1}))["note"] is None
    assert "adds it again" in done(admin.delete(f"{PATH}/coded"))["note"]


# -- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "other"},
        *({field: None} for field in ("enabled", "max_retries", "overlap", "launcher", "cron")),
        {"task": None},
    ],
)
def test_what_can_be_no_change_is_refused(admin: Any, body: dict[str, Any]) -> None:
    make(admin)
    before = done(admin.get(f"{PATH}/s"))
    problem(admin.patch(f"{PATH}/s", json=body), 422)
    assert done(admin.get(f"{PATH}/s")) == before


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
    assert sql("SELECT verb FROM pgbeat.audit") == [("create",)]


def test_the_backlog_is_what_is_due(sql: Sql, web: Web) -> None:
    make_schedule(sql, "a", due="-10 s")
    make_schedule(sql, "b", due="1 h")
    make_schedule(sql, "c", due="-20 s", paused_at="now")
    with web.app.state.pgbeat.transaction() as connection:
        backlog = schedules.backlog(connection)
    assert backlog.due == 1
    assert 10 <= backlog.lag < 20
