"""The console's pages of webhooks."""

import re
from contextlib import closing
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb

from tests.support.command_line import Sql
from tests.support.pages import after, html, words_of
from tests.support.rows import make_delivery, make_incident, make_webhook
from tests.support.webhook_receiver import Receiver

HOOK = {"name": "ops", "url": "https://example.com/hook", "event:job.failed": "yes"}


def test_a_webhook_is_made_and_its_secret_shown_once(page: Any, sql: Sql) -> None:
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


def test_open_incidents_are_shown(page: Any, sql: Sql) -> None:
    hook = make_webhook(sql, "ops")
    assert "Open incidents" not in html(page.get("/console/webhooks/ops"))
    make_incident(sql, hook, "<nightly>", failures=1200, alerts=3)
    assert html(page.get("/console/webhooks")).all("a.bad[href$='/webhooks/ops#incidents']")
    shown = html(page.get("/console/webhooks/ops"))
    assert re.search(r"schedule <nightly> .* 1,200 3 ", shown.words)
    left = "without telling its receiver of the end of 1 incident"
    assert shown.words.count(left) == 1
    moved = shown.fields | {"do": "edit", "url": "https://example.com/other"}
    for form in (moved, {"do": "delete"}):
        assert left in after(page, page.post("/console/webhooks/ops", data=form)).words


def test_a_webhook_is_tried(page: Any, sql: Sql) -> None:
    with closing(Receiver()) as receiver:
        page.post("/console/new/webhook", data=HOOK | {"url": receiver.url()})
        said = after(page, page.post("/console/webhooks/ops", data={"do": "test"})).words
        assert "The receiver accepted the test: status 200, in" in said
        receiver.answers.append(500)
        text = after(page, page.post("/console/webhooks/ops", data={"do": "test"}))
        assert "The receiver did not accept the test: " in words_of(text.one(".said.bad"))
        assert [each.json["type"] for each in receiver.received] == ["webhook.test"] * 2


def test_deliveries_are_shown_and_made_again(page: Any, sql: Sql) -> None:
    hook, path = make_webhook(sql, "ops", url=HOOK["url"]), "/console/webhooks/ops"
    assert "No deliveries yet" in html(page.get(path))
    at = {"at": "2026-01-01T00:00:00+00:00"}
    gone = make_delivery(sql, hook, "delivered", log=Jsonb([at | {"status": 204}]))
    lost = make_delivery(sql, hook, "failed", log=Jsonb([at | {"error": "refused"}]))
    make_delivery(sql, hook)
    said = html(page.get("/console/webhooks")).words
    assert "ops https://example.com/hook active pending job.failed" in said
    assert re.search(r"(ago|now) 0 1 1 job\.failed", said)
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
