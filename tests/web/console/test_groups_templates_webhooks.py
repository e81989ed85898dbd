"""The console's pages of groups, templates and webhooks."""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from tests.support.command_line import Sql
from tests.support.pages import EVIL, Page, after, html, words_of
from tests.support.web import Web, done, opened
from tests.support.webhook_receiver import Receiver
from tests.web.console.test_forms import noted


@pytest.fixture
def web(app: Celery) -> Iterator[Web]:
    """Webhooks may go to this machine."""
    with opened(app, webhook_private=True) as found:
        yield found


# -- groups --------------------------------------------------------------------------------------


def make_group(client: Any, count: int = 2, **values: Any) -> str:
    """A group of the client's; its id."""
    body = {"jobs": [{"task": "tests.add", "args": [1]}] * count, **values}
    return str(done(client.post("/groups", json=body), 201)["id"])


def test_groups_are_listed_and_their_jobs_shown(web: Web, page: Any, user: Any, sql: Sql) -> None:
    assert "There is no group yet" in html(page.get("/console/groups"))
    mine = make_group(web.user, name="sales", mode="sequential", on_failure="skip_remaining")
    make_group(web.other)
    sql("UPDATE pgbeat.jobs SET state = 'running', started_at = now()"
        " WHERE group_id = %s AND group_position = 0", mine)  # fmt: skip
    sql("UPDATE pgbeat.jobs SET state = 'failed', error = 'ValueError: no', finished_at = now()"
        " WHERE group_id = %s AND group_position = 0", mine)  # fmt: skip
    text = html(page.get("/console/groups"))
    assert len(text.rows) == 2
    assert '<progress max="2" value="1" aria-label="jobs that have ended">' in text
    assert "1 of 2, 1 failed" in text.words
    assert len(html(user.get("/console/groups")).rows) == 1
    assert len(html(page.get("/console/groups?by=user:bob")).rows) == 1
    assert "There is no such group" in html(page.get("/console/groups?state=cancelled"))
    said = html(user.get(f"/console/groups/{mine}")).words
    assert "2 jobs, one after the other; once one has failed, the rest is skipped." in said
    assert "1. tests.add failed ValueError: no" in said
    assert "2. tests.add pending blocked by its group" in said
    jobs = html(page.get("/console/jobs", params={"group": mine}))
    assert len(jobs.rows) == 2
    job_id = sql("SELECT id FROM pgbeat.jobs WHERE group_id = %s", mine)[0][0]
    assert f'href="/console/groups/{mine}"' in html(page.get(f"/console/jobs/{job_id}"))


def test_groups_are_paged(web: Web, page: Any, sql: Sql) -> None:
    for number in range(30):
        sql("INSERT INTO pgbeat.groups (name, job_source, created_by, created_at)"
            " VALUES (%s, 'user_api', 'user:root', now() - %s * interval '1 s')",
            f"g{number:02}", number)  # fmt: skip
    text = html(page.get("/console/groups"))
    second = html(page.get(text.next))
    found = re.findall(r"\bg\d\d\b", text.words + second.words)
    assert found == [f"g{number:02}" for number in range(30)]


def test_a_group_is_cancelled(web: Web, user: Any, sql: Sql) -> None:
    group = make_group(web.user)
    path = f"/console/groups/{group}"
    assert html(user.post(path, data={"do": "fly"}), 422)
    said = after(user, user.post(path, data={"do": "cancel"})).words
    assert "The group was cancelled: 2 jobs ended now." in said
    assert 'value="cancel"' not in html(user.get(path))
    assert sql("SELECT state FROM pgbeat.groups") == [("cancelled",)]
    assert noted(sql)[-1][:4] == ("user:alice", "page", "cancel", "group")


def test_others_groups_are_not_there(web: Web, user: Any, sql: Sql) -> None:
    group = make_group(web.other)
    path = f"/console/groups/{group}"
    assert html(user.get(path), 404)
    assert html(user.post(path, data={"do": "cancel"}), 404)
    assert html(user.get("/console/groups/nothing"), 404)
    assert sql("SELECT state FROM pgbeat.groups") == [("running",)]


def test_a_large_group_shows_what_failed(web: Web, page: Any, sql: Sql) -> None:
    group = make_group(web.user, 110)
    sql("UPDATE pgbeat.jobs SET state = 'running', started_at = now() WHERE group_position = 105")
    sql("UPDATE pgbeat.jobs SET state = 'failed', error = 'ValueError: far', finished_at = now()"
        " WHERE group_position = 105")  # fmt: skip
    said = html(page.get(f"/console/groups/{group}")).words
    assert "ValueError: far" in said
    assert "The first 100; all of them" in said


def test_a_group_is_made(user: Any, sql: Sql) -> None:
    form = html(user.get("/console/new/group")).fields
    jobs = 'tests.add\r\n\r\n  {"task": "tests.add", "args": [1], "max_attempts": 5}'
    form |= {"name": "g", "mode": "sequential", "jobs": jobs}
    assert "The group was created." in after(user, user.post("/console/new/group", data=form))
    found = sql("SELECT args, max_attempts, created_by FROM pgbeat.jobs ORDER BY group_position")
    assert found == [([], 3, "user:alice"), ([1], 5, "user:alice")]


WRONG_GROUPS: list[tuple[str, str]] = [
    ("", "which jobs?"),
    ("tests.add\n{", "line 2: invalid JSON"),
    ('tests.add\n{"tusk": "tests.add"}', "number 2: there is no field 'tusk'"),
    ("tests.add\ntests.ad", "tests.ad"),
    ('{"template": "nowhere"}', "nowhere"),
]


def test_a_group_that_is_wrong_is_not_made(user: Any, sql: Sql) -> None:
    for jobs, said in WRONG_GROUPS:
        form = {"mode": "parallel", "on_failure": "stop", "jobs": jobs}
        text = html(user.post("/console/new/group", data=form), 422)
        assert said in text.wrong["jobs"]
        assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]
        assert noted(sql) == []


# -- templates -----------------------------------------------------------------------------------


def test_a_template_is_made_changed_and_deleted(page: Any, sql: Sql) -> None:
    assert "There is no template yet" in html(page.get("/console/templates"))
    sql("INSERT INTO pgbeat.lanes (name) VALUES ('gpu')")
    form = html(page.get("/console/new/template")).fields
    form |= {"name": "t", "task": "tests.add", "args": "[1]", "description": "Adds",
             "job_policy.lane": "gpu", "job_policy.max_attempts": "5",
             "job_policy.unique": "yes"}  # fmt: skip
    assert "was created" in after(page, page.post("/console/new/template", data=form))
    text = html(page.get("/console/templates/t"))
    assert "Runs tests.add Arguments [1] Lane gpu Attempts 5" in text.words
    assert "t Adds tests.add [1] gpu" in html(page.get("/console/templates")).words
    edit = text.edit
    assert "Nothing was changed" in after(page, page.post("/console/templates/t", data=edit))
    # What another changed meanwhile stays.
    sql("UPDATE pgbeat.templates SET description = 'Adds well'")
    edit |= {"args": "[2]", "job_policy.unique": "", "job_policy.retry_cap": "2 h"}
    assert "was changed" in after(page, page.post("/console/templates/t", data=edit))
    assert sql("SELECT args, description, job_policy FROM pgbeat.templates") == [
        ([2], "Adds well", {"lane": "gpu", "max_attempts": 5, "retry_cap": "2 h"})
    ]
    sql("INSERT INTO pgbeat.schedules (name, task, cron, job_policy)"
        " VALUES ('s', 'tests.add', '@daily', '{\"template\": \"t\"}')")  # fmt: skip
    text = html(page.get("/console/templates/t"))
    assert 'href="/console/schedules/s"' in text
    refused = html(page.post("/console/templates/t", data={"do": "delete"}), 422).words
    assert "is used by 's'" in refused
    sql("DELETE FROM pgbeat.schedules")
    assert "deleted" in after(page, page.post("/console/templates/t", data={"do": "delete"}))
    assert sql("SELECT count(*) FROM pgbeat.templates") == [(0,)]
    assert noted(sql) == [
        ("user:root", "page", verb, "template", "t") for verb in ("create", "update", "delete")
    ]
    assert html(page.get("/console/templates/t"), 404)
    assert html(page.post("/console/templates/t", data=edit), 404)


WRONG_TEMPLATES: list[tuple[str, str, str]] = [
    ("name", "", "the name is missing"),
    ("name", "a/b", "no slash"),
    ("name", "taken", "already"),
    ("task", "", "the task is missing"),
    ("task", "tests.ad", "tests.add"),
    ("kwargs", "{", "invalid JSON"),
    ("args", "{}", "list"),
    ("options", '{"countdown": 1}', "countdown"),
    ("job_policy.lane", "nowhere", "no lane"),
    ("job_policy.retry_cap", "soon", "length of time"),
    ("job_policy.priority", "-1", "0 to 255"),
]


def test_a_template_that_is_wrong_is_not_made(web: Web, page: Any, sql: Sql) -> None:
    done(web.admin.put("/templates/taken", json={"task": "tests.add"}), 201)
    for field, value, said in WRONG_TEMPLATES:
        form = {"name": "t", "task": "tests.add", field: value}
        answer = page.post("/console/new/template", data=form)
        assert answer.status_code == (409 if value == "taken" else 422)
        assert said in Page(answer.text).wrong[field.replace(".", "-")]
        if field != "name":
            edit = html(page.get("/console/templates/taken")).edit | {field: value}
            text = html(page.post("/console/templates/taken", data=edit), 422)
            assert said in text.wrong[field.replace(".", "-")]
            assert '<details class="edit" id="edit" open>' in text
        assert sql("SELECT name, task, job_policy FROM pgbeat.templates") == [
            ("taken", "tests.add", {})
        ]
        assert len(noted(sql)) == 1


def test_a_user_sees_templates_and_changes_none(web: Web, user: Any, sql: Sql) -> None:
    done(web.admin.put("/templates/t", json={"task": "tests.add"}), 201)
    text = html(user.get("/console/templates/t"))
    assert 'id="edit"' not in text
    assert 'value="delete"' not in text
    assert "New template" not in html(user.get("/console/templates"))
    assert user.post("/console/templates/t", data={"do": "delete"}).status_code == 403
    assert user.get("/console/new/template").status_code == 403
    form = {"name": "u", "task": "tests.add"}
    assert user.post("/console/new/template", data=form).status_code == 403
    assert sql("SELECT name FROM pgbeat.templates") == [("t",)]


# -- webhooks ------------------------------------------------------------------------------------

HOOK = {"name": "ops", "url": "https://example.com/hook", "event:job.failed": "yes"}


def test_a_webhook_is_made_and_its_secret_shown_once(page: Any, sql: Sql) -> None:
    assert "There is no webhook yet" in html(page.get("/console/webhooks"))
    form = html(page.get("/console/new/webhook")).fields
    assert "event:job.failed" in form
    text = html(page.post("/console/new/webhook", data=HOOK), 201)
    [(secret,)] = sql("SELECT secret FROM pgbeat.webhooks")
    assert f"<pre>{secret}</pre>" in text
    assert "data-live" not in text
    for path in ("/console/webhooks/ops", "/console/webhooks", "/console/audit"):
        assert secret not in html(page.get(path))
    assert secret not in str(sql("SELECT before, after FROM pgbeat.audit"))
    text = html(page.post("/console/webhooks/ops", data={"do": "secret"}))
    [(newer,)] = sql("SELECT secret FROM pgbeat.webhooks")
    assert newer != secret
    assert f"<pre>{newer}</pre>" in text
    assert [each[2] for each in noted(sql)] == ["create", "update"]


def test_a_webhook_is_changed_switched_and_deleted(page: Any, sql: Sql) -> None:
    page.post("/console/new/webhook", data=HOOK)
    path = "/console/webhooks/ops"
    edit = html(page.get(path)).edit
    assert "Nothing was changed" in after(page, page.post(path, data=edit))
    edit |= {"url": "https://example.com/other", "event:tick.failed": "yes"}
    assert "was changed" in after(page, page.post(path, data=edit))
    found = sql("SELECT url, events FROM pgbeat.webhooks")
    assert found == [("https://example.com/other", ["job.failed", "tick.failed"])]
    said = after(page, page.post(path, data={"do": "disable", "reason": "moving"})).words
    assert "ops disabled disabled by user:root: moving" in said
    assert "enabled" in after(page, page.post(path, data={"do": "enable"}))
    assert "deleted" in after(page, page.post(path, data={"do": "delete"}))
    assert sql("SELECT count(*) FROM pgbeat.webhooks") == [(0,)]
    verbs = ["create", "update", "disable", "enable", "delete"]
    assert noted(sql) == [("user:root", "page", verb, "webhook", "ops") for verb in verbs]
    assert html(page.post(path, data={"do": "enable"}), 404)


WRONG_WEBHOOKS: list[tuple[dict[str, str], str, str]] = [
    ({"name": ""}, "name", "the name is missing"),
    ({"name": "a/b"}, "name", "no slash"),
    ({"name": "taken"}, "name", "already"),
    ({"url": ""}, "url", "the url is missing"),
    ({"url": "ftp://example.com"}, "url", "http"),
    ({"url": "https://user:pass@example.com"}, "url", ""),
    ({"event:job.failed": ""}, "events", "one or more"),
]


def test_a_webhook_that_is_wrong_is_not_made(page: Any, sql: Sql) -> None:
    page.post("/console/new/webhook", data=HOOK | {"name": "taken"})
    before = sql("SELECT * FROM pgbeat.webhooks"), noted(sql)
    for given, field, said in WRONG_WEBHOOKS:
        answer = page.post("/console/new/webhook", data=HOOK | given)
        assert answer.status_code in (409, 422)
        assert said in Page(answer.text).wrong[field]
        if field != "name":
            path = "/console/webhooks/taken"
            edit = html(page.get(path)).edit | given
            answer = page.post(path, data=edit)
            assert answer.status_code == 422
            assert Page(answer.text).wrong[field]
        assert (sql("SELECT * FROM pgbeat.webhooks"), noted(sql)) == before


def test_a_webhook_is_tried(page: Any, sql: Sql) -> None:
    with closing(Receiver()) as receiver:
        page.post("/console/new/webhook", data=HOOK | {"url": receiver.url()})
        said = after(page, page.post("/console/webhooks/ops", data={"do": "test"})).words
        assert "The receiver accepted the test: status 200, in" in said
        receiver.answers.append(500)
        text = after(page, page.post("/console/webhooks/ops", data={"do": "test"}))
        assert "The receiver did not accept the test: " in words_of(text.one(".said.bad"))
        assert [each.json["type"] for each in receiver.received] == ["webhook.test"] * 2
    assert [each[2] for each in noted(sql)] == ["create", "test", "test"]


def deliver(sql: Sql, state: str, log: str = "[]", payload: str = "{}") -> str:
    """A delivery of all webhooks."""
    [(delivery,), *_] = sql(
        """INSERT INTO pgbeat.deliveries (webhook_id, event, payload, state, log, finished_at,
                                          next_at)
           SELECT id, 'job.failed', %s, %s, %s,
                  CASE WHEN %s <> 'pending' THEN now() END,
                  CASE WHEN %s = 'pending' THEN now() END FROM pgbeat.webhooks RETURNING id""",
        payload, state, log, state, state,
    )  # fmt: skip
    return str(delivery)


def test_deliveries_are_shown_and_made_again(page: Any, sql: Sql) -> None:
    page.post("/console/new/webhook", data=HOOK)
    path = "/console/webhooks/ops"
    assert "There is none yet" in html(page.get(path))
    gone = deliver(sql, "delivered", '[{"at": "2026-01-01T00:00:00+00:00", "status": 204}]')
    lost = deliver(sql, "failed", '[{"at": "2026-01-01T00:00:00+00:00", "error": "refused"}]')
    deliver(sql, "pending")
    said = html(page.get("/console/webhooks")).words
    assert "ops https://example.com/hook active pending job.failed" in said
    assert re.search(r"ago 1 1 job\.failed", said)
    said = html(page.get(path)).words
    assert "2026-01-01 00:00:00 answered 204" in said
    assert "2026-01-01 00:00:00 refused" in said
    failed = html(page.get(path, params={"state": "failed"}))
    assert [each.get("value") for each in failed.all("[name=id]")] == [lost]
    said = after(page, page.post(path, data={"do": "redeliver", "id": gone}))
    assert "1 delivery is tried again." in said
    said = after(page, page.post(path, data={"do": "redeliver-all"}))
    assert "1 delivery is tried again." in said
    assert sql("SELECT DISTINCT state FROM pgbeat.deliveries") == [("pending",)]
    assert "pending" in html(page.post(path, data={"do": "redeliver", "id": lost}), 422)
    for wrong in ("x", str(uuid4())):
        assert html(page.post(path, data={"do": "redeliver", "id": wrong}), 404)
    assert [each[2] for each in noted(sql)] == ["create", "redeliver", "redeliver"]


def test_deliveries_are_paged(page: Any, sql: Sql) -> None:
    page.post("/console/new/webhook", data=HOOK)
    for _ in range(30):
        deliver(sql, "failed")
    text = html(page.get("/console/webhooks/ops?state=failed"))
    second = html(page.get(text.next))
    found = [*[each.get("value") for each in text.all("[name=id]")],
             *[each.get("value") for each in second.all("[name=id]")]]  # fmt: skip
    assert len(found) == len(set(found)) == 30


# -- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/console/webhooks", "/console/webhooks/h", "/console/new/webhook", "/console/new/schedule",
     "/console/new/template", "/console/backfill/s"],
)  # fmt: skip
def test_pages_of_administrators(web: Web, user: Any, path: str) -> None:
    assert web.nobody.get(path).status_code == 303
    assert user.get(path).status_code == 403
    if path != "/console/webhooks":
        assert user.post(path, data={"do": "delete"}).status_code == 403


def test_navigation_has_tabs_for_what_is_rare(page: Any, user: Any) -> None:
    text = html(page.get("/console/webhooks"))
    main = text.one("nav[aria-label=Main]")
    assert words_of(main) == "Schedules Jobs Lanes Queues System"
    assert [each.text for each in main.cssselect("[aria-current=true]")] == ["System"]
    tabs = text.all("nav.tabs[aria-label=System] a")
    assert [(each.get("href"), each.get("aria-current")) for each in tabs] == [
        ("/console/beats", None), ("/console/webhooks", "page"),
        ("/console/audit", None),
    ]  # fmt: skip
    text = html(user.get("/console/jobs"))
    assert words_of(text.one("nav[aria-label=Main]")) == "Jobs"
    assert 'class="tabs"' not in html(page.get("/console/lanes"))


def test_no_list_asks_more_for_more_rows(web: Web, page: Any, sql: Sql) -> None:
    def statements(path: str) -> int:
        with web.counted() as sent:
            html(page.get(path))
        return len(sent)

    paths = ["/console/groups", "/console/templates", "/console/webhooks", "/console/webhooks/h0"]
    first = make_group(web.user)
    paths.append(f"/console/groups/{first}")

    def fill(count: int) -> None:
        for number in range(count):
            make_group(web.user)
            sql("INSERT INTO pgbeat.templates (name, task) VALUES (%s, 'tests.add')"
                " ON CONFLICT DO NOTHING", f"t{number}")  # fmt: skip
            sql("INSERT INTO pgbeat.webhooks (name, url, secret, events) VALUES (%s, 'https://a.b',"
                " 'whsec_' || repeat('a', 40), '{job.failed}') ON CONFLICT DO NOTHING",
                f"h{number}")  # fmt: skip
        deliver(sql, "failed")

    fill(1)
    html(page.get("/console/groups"))  # notes that the token is used
    few = {path: statements(path) for path in paths}
    fill(8)
    assert {path: statements(path) for path in paths} == few
    assert max(few.values()) <= 12


def test_what_others_write_is_text(web: Web, page: Any, sql: Sql) -> None:
    name = EVIL.replace("/", "|")
    sql("INSERT INTO pgbeat.templates (name, task, description, kwargs, queue, created_by)"
        " VALUES ('t', %s, %s, '{\"<script>\": 1}', %s, %s)", EVIL, EVIL, EVIL, EVIL)  # fmt: skip
    sql("INSERT INTO pgbeat.webhooks (name, url, secret, events, enabled, disabled_reason,"
        " created_by) VALUES ('h', 'https://a.b/<script>', 'whsec_' || repeat('a', 40),"
        " '{job.failed}', false, %s, %s)", EVIL, EVIL)  # fmt: skip
    deliver(sql, "failed", '[{"at": "<script>", "error": "<script>alert(1)"}]',
            '{"a": "<script>alert(1)"}')  # fmt: skip
    group = make_group(web.user, name="g")
    sql("UPDATE pgbeat.groups SET name = %s", EVIL)
    sql("UPDATE pgbeat.jobs SET task = %s, error = %s, state = 'cancelled', finished_at = now()",
        EVIL, EVIL)  # fmt: skip
    sql("INSERT INTO pgbeat.lanes (name) VALUES (%s)", name)
    for path in ("templates", "templates/t", "webhooks", "webhooks/h", "groups",
                 f"groups/{group}", "new/job?template=t", "new/schedule?task=<script>alert(1)",
                 "new/template"):  # fmt: skip
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
    for path in ("groups", f"groups/{group}", "templates", "templates/t", "webhooks",
                 "webhooks/ops", "new/schedule", "new/job", "new/group", "new/template",
                 "new/webhook"):  # fmt: skip
        text = html(mounted.get(f"/ops/console/{path}"))
        for link in text.tree.xpath("//@href | //@action | //@src"):
            assert link.startswith(("/ops/", "#")), (path, link)
    form = {"name": "s", "kind": "cron", "timetable": "@daily", "task": "tests.add"}
    answer = mounted.post("/ops/console/new/schedule", data=form)
    assert answer.headers["location"] == "/ops/console/schedules/s"


def page_token(page: Any) -> str:
    """What a browser shows, for who is none."""
    return f"Bearer {page.cookies['pgbeat_token']}"
