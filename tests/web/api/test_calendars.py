"""`/calendars` and their pages: listed, made, asked, changed, deleted."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.pages import html
from tests.support.web import Web, done, problem

WEEKEND = {"weekdays": ["sat", "sun"], "timezone": "Europe/Oslo"}


def make(admin: Any, name: str = "office", **definition: Any) -> Any:
    body = {"name": name, "definition": definition or WEEKEND}
    return done(admin.post("/calendars", json=body), 201)


def test_a_calendar_is_made_and_found(web: Web, admin: Any) -> None:
    made = make(admin)
    assert (made["name"], made["definition"], made["problem"]) == ("office", WEEKEND, None)
    schedule = {"name": "s", "task": "tests.add", "args": [1], "every": 60, "calendar": "office"}
    done(admin.post("/admin/scheduled-jobs", json=schedule), 201)
    assert done(admin.get("/calendars/office"))["schedules"] == ["s"]
    # Which schedules there are is not for everybody.
    [seen] = done(web.user.get("/calendars"))["calendars"]
    assert (seen["name"], seen["schedules"]) == ("office", [])
    assert "did you mean 'office'" in problem(admin.get("/calendars/ofice"), 404)
    problem(admin.post("/calendars", json={"name": "office", "definition": WEEKEND}), 409)


def test_a_bad_definition_is_refused(admin: Any, sql: Sql) -> None:
    for definition in ({"weekday": ["sat"]}, {"weekdays": ["funday"]}, {"dates": 5}):
        body = {"name": "c", "definition": definition}
        assert "calendar 'c'" in problem(admin.post("/calendars", json=body), 422)
    problem(admin.put("/calendars/c", json={"definition": []}), 422)
    problem(admin.put("/calendars/a%2Fb", json={"definition": WEEKEND}), 404)
    assert sql("SELECT count(*) FROM pgbeat.calendars") == [(0,)]


def test_a_time_is_asked_about(web: Web, admin: Any) -> None:
    make(admin)
    # 23:30 UTC on Friday is Saturday in Oslo.
    found = done(web.user.get("/calendars/office/check", params={"at": "2026-01-02T23:30:00Z"}))
    assert (found["excluded"], found["timezone"]) == (True, "Europe/Oslo")
    assert found["reason"] == "calendar 'office': Saturday"
    make(admin, "days", weekdays=["sat"])
    for zone, excluded in (("UTC", False), ("Europe/Oslo", True)):
        asked = {"at": "2026-01-02T23:30:00Z", "timezone": zone}
        assert done(admin.get("/calendars/days/check", params=asked))["excluded"] is excluded
    problem(admin.get("/calendars/days/check", params={"timezone": "Nowhere/At_All"}), 422)
    problem(admin.get("/calendars/days/check", params={"at": "2026-01-02T23:30:00"}), 422)


def test_a_calendar_is_changed_and_deleted_and_both_are_audited(admin: Any) -> None:
    make(admin)
    changed = done(admin.put("/calendars/office", json={"definition": {"weekdays": ["sun"]}}))
    assert changed["definition"] == {"weekdays": ["sun"]}
    schedule = {"name": "s", "task": "tests.add", "args": [1], "every": 60, "calendar": "office"}
    done(admin.post("/admin/scheduled-jobs", json=schedule), 201)
    assert "used by 's'" in problem(admin.delete("/calendars/office"), 422)
    done(admin.patch("/admin/scheduled-jobs/s", json={"calendar": None}))
    done(admin.delete("/calendars/office"))
    problem(admin.get("/calendars/office"), 404)
    changes = done(admin.get("/audit", params={"kind": "calendar"}))["changes"]
    assert [(each["verb"], each["actor"]) for each in reversed(changes)] == [
        ("create", "user:root"),
        ("update", "user:root"),
        ("delete", "user:root"),
    ]


def test_its_pages(web: Web, sql: Sql) -> None:
    page = web.browser(web.token("root", "admin"))
    assert "No calendars yet" in page.get("/console/calendars").text
    form = {"name": "office", "definition": '{"weekdays": ["sat"]', "do": "make"}
    answer = page.post("/console/new/calendar", data=form)
    assert "definition" in html(answer, 422).wrong
    answer = page.post("/console/new/calendar", data=form | {"definition": '{"x": 1}'})
    assert 'id="e-definition"' in answer.text
    made = page.post("/console/new/calendar", data=form | {"definition": '{"weekdays": ["sat"]}'})
    assert (made.status_code, made.headers["location"]) == (303, "/console/calendars/office")
    assert sql("SELECT origin, verb, kind FROM pgbeat.audit") == [("page", "create", "calendar")]
    assert "office" in page.get("/console/calendars").text
    asked = page.get("/console/calendars/office?check=yes&at=2026-01-03T12:00:00")
    assert "Saturday" in html(asked).words
    edit = {"do": "edit", "definition": '{"weekdays": ["sun"]}'}
    assert page.post("/console/calendars/office", data=edit).status_code == 303
    assert sql("SELECT definition FROM pgbeat.calendars") == [({"weekdays": ["sun"]},)]
    answer = page.post("/console/calendars/office", data={"do": "delete"})
    assert answer.headers["location"] == "/console/calendars"
    assert sql("SELECT count(*) FROM pgbeat.calendars") == [(0,)]
