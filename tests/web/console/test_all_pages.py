"""What all pages of groups, templates and webhooks have in common."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.pages import after, html, words_of
from tests.support.rows import (
    make_delivery,
    make_job,
    make_lane,
    make_schedule,
    make_template,
    make_tick,
    make_webhook,
)
from tests.support.web import Web
from tests.web.console.shown_pages import shown_pages
from tests.web.console.test_groups import make_group


def test_navigation_has_tabs_for_what_is_rare(page: Any, user: Any) -> None:
    text = html(page.get("/console/webhooks"))
    main = text.one("nav[aria-label=Main]")
    assert words_of(main) == "Overview Schedules Jobs Lanes Queues Workers System"
    assert [each.text for each in main.cssselect("[aria-current=true]")] == ["System"]
    tabs = text.all("nav.tabs[aria-label=System] a")
    assert [(each.get("href"), each.get("aria-current")) for each in tabs] == [
        ("/console/beats", None),
        ("/console/webhooks", "page"),
        ("/console/audit", None),
    ]
    text = html(user.get("/console/jobs"))
    assert words_of(text.one("nav[aria-label=Main]")) == "Jobs"
    assert 'class="tabs"' not in html(page.get("/console/lanes"))


def test_no_list_asks_more_for_more_rows(web: Web, page: Any, sql: Sql) -> None:
    first = make_group(web.user)
    of_pages = ["schedules", "jobs", "lanes", "audit", "queues", "groups", "templates", "webhooks"]
    paths = [f"/console/{each}" for each in (*of_pages, "webhooks/h0", f"groups/{first}")]
    paths += ["/admin/scheduled-jobs", "/jobs", "/lanes", "/audit", "/queues", "/groups"]

    def fill(*numbers: int) -> None:
        for n in numbers:
            make_group(web.user)
            key = make_schedule(sql, f"s{n}")
            job = make_job(sql, "running", schedule=f"s{n}", schedule_id=key)
            make_tick(sql, key, "launched", schedule=f"s{n}", job_id=job)
            make_lane(sql, f"l{n}")
            make_template(sql, f"t{n}")
            make_delivery(sql, make_webhook(sql, f"h{n}"), "failed")

    fill(0)
    html(page.get("/console/groups"))  # notes that the token is used
    few = web.statements(page, paths)
    fill(*range(1, 13))
    assert web.statements(page, paths) == few
    assert max(few.values()) <= 15


def test_links_and_forms_keep_to_where_it_is_mounted(web: Web, sql: Sql) -> None:
    token = web.token("root", "admin")
    headers = {"Sec-Fetch-Site": "same-origin", "Authorization": f"Bearer {token}"}
    mounted = web.client(headers=headers, root_path="/ops")
    for path in shown_pages(sql):
        text = html(mounted.get(f"/ops/console/{path}"))
        for link in text.tree.xpath("//@href | //@action | //@src"):
            assert link.startswith("/ops/") or link[:1] != "/", (path, link)
    form = {"name": "n", "kind": "cron", "timetable": "@daily", "task": "tests.add"}
    answer = mounted.post("/ops/console/new/schedule", data=form)
    assert answer.headers["location"] == "/ops/console/schedules/n"


def test_every_page_refuses_a_verb_that_it_does_not_have(page: Any, sql: Sql) -> None:
    paths = shown_pages(sql)
    before = sql("SELECT id FROM pgbeat.audit")
    found = {path: page.post(f"/console/{path}", data={"do": "dance"}) for path in paths}
    refused = [path for path, answer in found.items() if answer.status_code == 422]
    assert {answer.status_code for answer in found.values()} == {405, 422}, found
    assert len(refused) > 15
    assert page.post("/console/schedules/none", data={"do": "trigger"}).status_code == 404
    assert sql("SELECT id FROM pgbeat.audit") == before


def test_a_form_that_is_posted_as_it_is_changes_nothing(page: Any, sql: Sql) -> None:
    shown_pages(sql)
    before = sql("SELECT id FROM pgbeat.audit")
    for path in ("schedules/s", "lanes/lane", "templates/t", "webhooks/h"):
        form = html(page.get(f"/console/{path}")).edit
        answer = page.post(f"/console/{path}", data=form)
        assert "Nothing was changed." in after(page, answer).words, path
    assert sql("SELECT id FROM pgbeat.audit") == before
