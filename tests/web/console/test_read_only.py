"""The console of a viewer: every page, and no button that would be refused."""

from collections.abc import Callable
from typing import Any

import pytest

from pgbeat.access.actors import Actor
from pgbeat.errors import Forbidden
from tests.support.command_line import Sql
from tests.support.pages import Page, html
from tests.support.rows import make_lane
from tests.support.web import Web, done
from tests.web.console.test_groups import make_group


@pytest.fixture
def viewer(web: Web) -> Any:
    """Browses as vera, a viewer."""
    return web.browser(web.token("vera", "viewer"))


def offers_a_change(page: Page) -> list[str]:
    """Returns forms and links of the page that a viewer would be refused."""
    forms = [form.get("action") for form in page.all("form[method=post]")]
    links = [link.get("href") for link in page.all("a[href]")]
    return [each for each in forms if each != "/logout"] + [
        link for link in links if "/console/new/" in link or "/console/backfill/" in link
    ]


def test_a_viewer_sees_all_and_is_offered_no_change(
    web: Web, page: Any, viewer: Any, sql: Sql, schedule: Callable[..., int], job: Any
) -> None:
    schedule(name="s")
    group = make_group(web.user)
    sql("INSERT INTO pgbeat.templates (name, task) VALUES ('t', 'tests.add')")
    make_lane(sql, "l")
    done(web.admin.put("/calendars/c", json={"definition": {"weekdays": ["sat"]}}), 201)
    ended = job()
    waiting = job(state="pending", started_at=None, finished_at=None, lane="l")
    paths = [
        "schedules",
        "schedules/s",
        "calendars",
        "calendars/c",
        "jobs",
        f"jobs/{ended}",
        f"jobs/{waiting}",
        f"jobs/{waiting}/tree",
        "groups",
        f"groups/{group}",
        "templates",
        "templates/t",
        "lanes",
        "lanes/l",
        "queues",
        "beats",
        "audit",
    ]
    for path in paths:
        assert offers_a_change(html(viewer.get(f"/console/{path}"))) == [], path
    assert sum(bool(offers_a_change(html(page.get(f"/console/{path}")))) for path in paths) > 11
    assert viewer.get("/").headers["location"] == "/console/overview"
    assert html(viewer.get("/console/jobs")).one(".who small").text == "read-only"


def test_empty_pages_invite_a_viewer_to_nothing(viewer: Any) -> None:
    for path in ("schedules", "calendars", "jobs", "groups", "templates", "lanes"):
        assert offers_a_change(html(viewer.get(f"/console/{path}"))) == [], path


def test_a_viewer_watches_all(viewer: Any) -> None:
    assert viewer.head("/console/changes", params={"of": "schedules"}).status_code == 200


def test_no_change_passes_a_unit_of_work(web: Web) -> None:
    """Behind the routes is a second lock."""
    actor = Actor("user:vera", is_viewer=True, is_read_only=True)
    with pytest.raises(Forbidden) as caught, web.app.state.pgbeat.unit(actor):
        pass
    assert caught.value.code == "read_only"
