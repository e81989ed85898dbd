"""`/calendars` and their pages: what each says of them."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.pages import after, html
from tests.support.rows import make_calendar, make_schedule
from tests.support.web import Web, done, errors, problem

WEEKEND: dict[str, Any] = {"weekdays": ["sat", "sun"], "timezone": "Europe/Oslo"}


def test_users_see_calendars_without_their_schedules(web: Web, admin: Any, sql: Sql) -> None:
    make_calendar(sql, **WEEKEND)
    make_schedule(sql, calendar="office")
    assert done(admin.get("/calendars/office"))["schedules"] == ["s"]
    [seen] = done(web.user.get("/calendars"))["calendars"]
    assert (seen["name"], seen["schedules"], seen["problem"]) == ("office", [], None)
    # 23:30 UTC on Friday is Saturday in Oslo.
    path, at = "/calendars/office/check", {"at": "2026-01-02T23:30:00Z"}
    found = done(web.user.get(path, params=at))
    assert (found["excluded"], found["reason"]) == (True, "calendar 'office': Saturday")
    make_calendar(sql, "days", weekdays=["sat"])
    for zone, excluded in (("UTC", False), ("Europe/Oslo", True)):
        asked = at | {"timezone": zone}
        assert done(admin.get("/calendars/days/check", params=asked))["excluded"] is excluded
    for wrong in ({"timezone": "Nowhere/At_All"}, {"at": "2026-01-02T23:30:00"}):
        problem(admin.get("/calendars/days/check", params=wrong), 422)


def test_a_time_at_the_ends_of_the_calendar(web: Web, sql: Sql) -> None:
    make_calendar(sql, holidays={"country": "NO"})
    page = web.browser(web.token("root", "admin"))
    for at in ("0001-01-02T00:00:00Z", "9999-12-29T00:00:00-14:00"):
        done(web.user.get("/calendars/office/check", params={"at": at}))
        html(page.get("/console/calendars/office", params={"check": "yes", "at": at}))
    for at in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-14:00"):
        answer = web.user.get("/calendars/office/check", params={"at": at})
        assert errors(answer) == [("at", "out_of_range")]


def test_a_bad_definition_is_refused(admin: Any, sql: Sql) -> None:
    for definition in ({"weekday": ["sat"]}, {"weekdays": ["funday"]}, {"dates": 5}):
        body = {"name": "c", "definition": definition}
        assert "calendar 'c'" in problem(admin.post("/calendars", json=body), 422)
    problem(admin.put("/calendars/c", json={"definition": []}), 422)
    assert sql("SELECT count(*) FROM pgbeat.calendars") == [(0,)]
    make_calendar(sql, "c", **WEEKEND)
    again = admin.post("/calendars", json={"name": "c", "definition": WEEKEND})
    assert errors(again, 409) == [("", "already_exists")]


def test_its_pages(web: Web) -> None:
    page = web.browser(web.token("root", "admin"))
    form = {"name": "office", "definition": '{"weekdays": ["sat"]'}
    for wrong in (form, form | {"definition": '{"x": 1}'}):
        assert "definition" in html(page.post("/console/new/calendar", data=wrong), 422).wrong
    good = form | {"definition": '{"weekdays": ["sat"]}'}
    after(page, page.post("/console/new/calendar", data=good))
    assert "office" in page.get("/console/calendars").text
    asked = page.get("/console/calendars/office?check=yes&at=2026-01-03T12:00:00")
    assert "Saturday" in html(asked).words
