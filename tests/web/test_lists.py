"""Lists: each is read page by page, and narrowed down to the same rows by every face."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from celery import Celery

from tests.support.command_line import Sql, run_with
from tests.support.pages import html, words_of
from tests.support.rows import (
    ago,
    insert,
    make_dead_letter,
    make_delivery,
    make_execution,
    make_incident,
    make_job,
    make_lane,
    make_schedule,
    make_tick,
    make_webhook,
)
from tests.support.web import Web, done


class Listed(NamedTuple):
    """A list: what writes a row at a time, and where the rows are shown."""

    #: Writes the row of that number about a thing, whose id it is given and returns.
    write: Callable[[Sql, Any, int], Any]
    #: The API's path and key; {id} is the thing.
    path: str
    key: str
    #: The console's page, and its rows.
    page: str = ""
    rows: str = "#list [scope=row]"


def of_job(sql: Sql, job: Any, number: int) -> Any:
    job = job or make_job(sql)
    make_execution(sql, job, "completed", number=number + 1)
    return job


def of_schedule(sql: Sql, key: Any, number: int) -> Any:
    key = key or make_schedule(sql)
    make_tick(sql, key, due_at=ago(sql, f"{number} hours"))
    return key


def of_webhook(sql: Sql, key: Any, number: int) -> Any:
    key = key or make_webhook(sql)
    make_delivery(sql, key, "failed")
    return key


def an_incident(sql: Sql, key: Any, number: int) -> Any:
    key = key or make_webhook(sql)
    make_incident(sql, key, f"s{number}", began_at=ago(sql, f"{number // 2} hours"))
    return key


def a_group(sql: Sql, _: Any, number: int) -> Any:
    made = {"name": f"g{number}", "job_source": "user_api", "created_by": "user:root"}
    insert(sql, "groups", made | {"created_at": ago(sql, f"{number} seconds")}, "id")


def a_change(sql: Sql, _: Any, number: int) -> Any:
    change = {"actor": "user:root", "origin": "cli", "verb": "pause", "kind": "lane"}
    insert(sql, "audit", change | {"subject": f"l{number}"}, "id")


LISTS = {
    "jobs": Listed(
        lambda sql, _, number: make_job(sql, created_at=ago(sql, f"{number // 2} seconds")),
        "/jobs", "jobs", "jobs", "#list tbody tr",
    ),
    "schedules": Listed(
        lambda sql, _, number: make_schedule(sql, f"s{number}"),
        "/admin/scheduled-jobs", "schedules", "schedules",
    ),
    "groups": Listed(a_group, "/groups", "groups", "groups"),
    "executions": Listed(of_job, "/jobs/{id}/executions", "executions"),
    "history": Listed(of_schedule, "/admin/scheduled-jobs/s/history", "ticks"),
    "deliveries": Listed(
        of_webhook, "/webhooks/w/deliveries", "deliveries", "webhooks/w?state=failed", "[name=id]"
    ),
    "incidents": Listed(an_incident, "/webhooks/w/incidents", "incidents"),
    "dead letters": Listed(lambda sql, _, number: make_dead_letter(sql), "/dead", "dead"),
    "audit": Listed(a_change, "/audit", "changes"),
}  # fmt: skip


@pytest.mark.parametrize("of", LISTS.values(), ids=LISTS)
def test_the_api_leads_from_page_to_page(web: Web, sql: Sql, of: Listed) -> None:
    thing: Any = None
    for number in range(5):
        thing = of.write(sql, thing, number)
    path = of.path.format(id=thing)
    whole = done(web.admin.get(path))
    assert (len(whole[of.key]), whole["next"]) == (5, None)
    found: list[Any] = []
    after: dict[str, Any] | None = {}
    while after is not None:
        page = done(web.admin.get(path, params={"limit": 2, **after}))
        assert len(page[of.key]) <= 2
        found += page[of.key]
        after = page["next"] and {"after": page["next"]}
    ids = [[each.get(key) for key in ("id", "name", "due_at")] for each in found]
    assert ids == [[each.get(key) for key in ("id", "name", "due_at")] for each in whole[of.key]]


@pytest.mark.parametrize("of", [of for of in LISTS.values() if of.page], ids=lambda of: of.key)
def test_the_console_leads_from_page_to_page(web: Web, sql: Sql, of: Listed) -> None:
    thing: Any = None
    for number in range(60):
        thing = of.write(sql, thing, number)
    address, found = f"/console/{of.page}", []
    for _ in range(9):
        shown = html(web.admins_browser.get(address))
        found += [each.get("value") or words_of(each) for each in shown.all(of.rows)]
        if not shown.all("[rel=next]"):
            break
        address = shown.next
    assert len(found) == len(set(found)) == 60


GROUP = "00000000-0000-4000-8000-000000000007"
#: By what jobs are found, with the columns of such a job; where a face asks otherwise, its way.
FILTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "state": ("failed", {"state": "failed"}),
    "task": ("other.task", {"task": "other.task"}),
    "schedule": ("s", {"schedule": "s", "schedule_id": 1}),
    "lane": ("l", {"lane": "l"}),
    "template": ("t", {"template": "t"}),
    "group": (GROUP, {"group_id": GROUP}),
    "label": ("team=a", {"labels": {"team": "a", "tier": "1"}}),
    "late": ("true", {"late_at": "now", "missed_deadlines": ["end"]}),
    "system": ("true", {"is_system_job": True}),
    "created_by": ("user:bob", {"created_by": "user:bob"}),
}


@pytest.mark.parametrize("name", FILTERS)
def test_each_face_finds_the_same_jobs(
    web: Web, app: Celery, sql: Sql, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PGBEAT_ADMIN", "1")
    make_schedule(sql, id=1)
    make_lane(sql)
    group = {"id": GROUP, "job_source": "user_api", "created_by": "user:root"}
    insert(sql, "groups", group, "id")
    value, columns = FILTERS[name]
    make_job(sql)
    job = make_job(sql, **columns)
    by_api = done(web.admin.get("/jobs", params={name: value}))["jobs"]
    assert [each["id"] for each in by_api] == [job]
    flag = [f"--{name.replace('_', '-')}", value]
    result = run_with(app, "jobs", "list", *(flag[:1] if value == "true" else flag), "--json")
    assert [each["id"] for each in json.loads(result.stdout)] == [job]
    if name != "system":
        asked = {"by" if name == "created_by" else name: value}
        shown = html(web.admins_browser.get("/console/jobs", params=asked))
        [row] = shown.all("#list tbody tr")
        assert job[:8] in words_of(row)


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"state": "disabled"}, ["off_100%"]),
        ({"state": "paused"}, ["held"]),
        ({"state": "active"}, ["Daily_report"]),
        ({"search": "DAILY"}, ["Daily_report"]),
        ({"search": "%"}, ["off_100%"]),
        ({"search": "daily", "state": "paused"}, []),
        ({"label": "team=a"}, ["held"]),
        ({"label": "team=b"}, []),
    ],
)
def test_the_api_and_the_console_find_the_same_schedules(
    web: Web, sql: Sql, asked: dict[str, str], names: list[str]
) -> None:
    make_schedule(sql, "Daily_report")
    make_schedule(sql, "held", paused_at="now", labels={"team": "a"})
    make_schedule(sql, "off_100%", enabled=False)
    found = done(web.admin.get("/admin/scheduled-jobs", params=asked))["schedules"]
    assert [each["name"] for each in found] == names
    shown = html(web.admins_browser.get("/console/schedules", params=asked))
    assert [words_of(each) for each in shown.all("#list tbody th a:first-child")] == names
