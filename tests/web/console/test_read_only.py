"""The console of a viewer: every page, and no button that would be refused."""

from typing import Any

import pytest

from pgbeat.access.actors import Actor
from pgbeat.errors import Forbidden
from tests.support.command_line import Sql
from tests.support.pages import Page, html
from tests.support.web import Web
from tests.web.console.shown_pages import shown_pages


def offers_a_change(page: Page) -> list[str]:
    """Returns forms and links of the page that a viewer would be refused."""
    forms = [form.get("action") for form in page.all("form[method=post]")]
    links = [link.get("href") for link in page.all("a[href]")]
    return [each for each in forms if each != "/logout"] + [
        link for link in links if "/console/new/" in link or "/console/backfill/" in link
    ]


def test_a_viewer_sees_all_and_is_offered_no_change(page: Any, viewer: Any, sql: Sql) -> None:
    empty = ("schedules", "calendars", "jobs", "groups", "templates", "lanes")
    for path in empty:
        assert offers_a_change(html(viewer.get(f"/console/{path}"))) == [], path
    offered = 0
    for path in shown_pages(sql):
        if path.startswith(("new/", "backfill/", "webhooks")):
            continue  # they are for administrators
        assert offers_a_change(html(viewer.get(f"/console/{path}"))) == [], path
        offered += bool(offers_a_change(html(page.get(f"/console/{path}"))))
    assert offered > 11
    assert viewer.get("/").headers["location"] == "/console/overview"
    assert html(viewer.get("/console/jobs")).one(".who small").text == "read-only"


def test_a_viewer_watches_all(viewer: Any) -> None:
    assert viewer.head("/console/changes", params={"of": "schedules"}).status_code == 200


def test_no_change_passes_a_unit_of_work(web: Web) -> None:
    """Behind the routes is a second lock."""
    actor = Actor("user:vera", is_viewer=True, is_read_only=True)
    with pytest.raises(Forbidden) as caught, web.app.state.pgbeat.unit(actor):
        pass
    assert caught.value.code == "read_only"
