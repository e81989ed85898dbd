"""What all pages of groups, templates and webhooks have in common."""

from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.pages import EVIL, html, words_of
from tests.support.web import Web, done
from tests.web.console.test_forms import noted
from tests.web.console.test_groups import make_group
from tests.web.console.test_webhooks import HOOK, deliver


@pytest.mark.parametrize(
    "path",
    [
        "/console/webhooks",
        "/console/webhooks/h",
        "/console/new/webhook",
        "/console/new/schedule",
        "/console/new/template",
        "/console/backfill/s",
    ],
)
def test_pages_of_administrators(web: Web, user: Any, path: str) -> None:
    assert web.nobody.get(path).status_code == 303
    assert user.get(path).status_code == 403
    if path != "/console/webhooks":
        assert user.post(path, data={"do": "delete"}).status_code == 403


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
    paths = ["/console/groups", "/console/templates", "/console/webhooks", "/console/webhooks/h0"]
    first = make_group(web.user)
    paths.append(f"/console/groups/{first}")

    def fill(count: int) -> None:
        for number in range(count):
            make_group(web.user)
            sql(
                "INSERT INTO pgbeat.templates (name, task) VALUES (%s, 'tests.add')"
                " ON CONFLICT DO NOTHING",
                f"t{number}",
            )
            sql(
                "INSERT INTO pgbeat.webhooks (name, url, secret, events) VALUES (%s, 'https://a.b',"
                " 'whsec_' || repeat('a', 40), '{job.failed}') ON CONFLICT DO NOTHING",
                f"h{number}",
            )
        deliver(sql, "failed")

    fill(1)
    html(page.get("/console/groups"))  # notes that the token is used
    few = web.statements(page, paths)
    fill(8)
    assert web.statements(page, paths) == few
    assert max(few.values()) <= 12


def test_what_others_write_is_text(web: Web, page: Any, sql: Sql) -> None:
    name = EVIL.replace("/", "|")
    sql(
        "INSERT INTO pgbeat.templates (name, task, description, kwargs, queue, created_by)"
        " VALUES ('t', %s, %s, '{\"<script>\": 1}', %s, %s)",
        EVIL,
        EVIL,
        EVIL,
        EVIL,
    )
    sql(
        "INSERT INTO pgbeat.webhooks (name, url, secret, events, enabled, disabled_reason,"
        " created_by) VALUES ('h', 'https://a.b/<script>', 'whsec_' || repeat('a', 40),"
        " '{job.failed}', false, %s, %s)",
        EVIL,
        EVIL,
    )
    deliver(
        sql,
        "failed",
        '[{"at": "<script>", "error": "<script>alert(1)"}]',
        '{"a": "<script>alert(1)"}',
    )
    group = make_group(web.user, name="g")
    sql("UPDATE pgbeat.groups SET name = %s", EVIL)
    sql(
        "UPDATE pgbeat.jobs SET task = %s, error = %s, state = 'cancelled', finished_at = now()",
        EVIL,
        EVIL,
    )
    sql("INSERT INTO pgbeat.lanes (name) VALUES (%s)", name)
    for path in (
        "templates",
        "templates/t",
        "webhooks",
        "webhooks/h",
        "groups",
        f"groups/{group}",
        "new/job?template=t",
        "new/schedule?task=<script>alert(1)",
        "new/template",
    ):
        text = html(page.get(f"/console/{path}"))
        assert "&lt;script&gt;" in text, path
        assert len(text.all("script")) == 1, path
        assert text.has_no_script_inside(), path


def test_another_site_changes_nothing(web: Web, page: Any, sql: Sql) -> None:
    page.post("/console/new/webhook", data=HOOK)
    done(web.admin.put("/templates/t", json={"task": "tests.add"}), 201)
    group = make_group(web.user)
    before = noted(sql)
    crossed = web.browser(web.token("root", "admin"), **{"Sec-Fetch-Site": "cross-site"})
    for path, form in {
        "webhooks/ops": {"do": "delete"},
        "templates/t": {"do": "delete"},
        f"groups/{group}": {"do": "cancel"},
        "new/webhook": HOOK | {"name": "other"},
        "new/template": {"name": "u", "task": "tests.add"},
        "new/group": {"mode": "parallel", "on_failure": "stop", "jobs": "tests.add"},
    }.items():
        assert crossed.post(f"/console/{path}", data=form).status_code == 403, path
    assert noted(sql) == before


def test_links_and_forms_keep_to_where_it_is_mounted(web: Web, page: Any, sql: Sql) -> None:
    page.post("/console/new/webhook", data=HOOK)
    done(web.admin.put("/templates/t", json={"task": "tests.add"}), 201)
    group = make_group(web.user)
    mounted = web.client(
        headers={"Sec-Fetch-Site": "same-origin", "Authorization": page_token(page)},
        root_path="/ops",
    )
    for path in (
        "groups",
        f"groups/{group}",
        "templates",
        "templates/t",
        "webhooks",
        "webhooks/ops",
        "new/schedule",
        "new/job",
        "new/group",
        "new/template",
        "new/webhook",
    ):
        text = html(mounted.get(f"/ops/console/{path}"))
        for link in text.tree.xpath("//@href | //@action | //@src"):
            assert link.startswith(("/ops/", "#")), (path, link)
    form = {"name": "s", "kind": "cron", "timetable": "@daily", "task": "tests.add"}
    answer = mounted.post("/ops/console/new/schedule", data=form)
    assert answer.headers["location"] == "/ops/console/schedules/s"


def page_token(page: Any) -> str:
    """What a browser shows, for who is none."""
    return f"Bearer {page.cookies['pgbeat_token']}"
