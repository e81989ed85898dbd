"""`/webhooks`: made, changed, tried; their deliveries, and those asked for again."""

from typing import Any
from uuid import uuid4

from tests.support.command_line import Sql
from tests.support.rows import make_delivery, make_webhook
from tests.support.web import done, errors, problem

URL = "https://example.com/hook"


def make(admin: Any, name: str = "ops", **values: Any) -> Any:
    """A webhook of all events, unless told otherwise."""
    body = {"name": name, "url": URL, "events": ["all"], **values}
    return done(admin.post("/webhooks", json=body), 201)


def test_a_secret_is_shown_when_it_is_made(admin: Any, sql: Sql) -> None:
    made = make(admin)
    assert made["secret"] not in str(done(admin.get("/webhooks/ops")))
    changed = done(admin.patch("/webhooks/ops", json={"new_secret": True}))
    assert changed["secret"] not in (None, made["secret"])
    assert changed["previous_until"] is not None
    notes = str(sql("SELECT before, after FROM pgbeat.audit"))
    assert made["secret"] not in notes and changed["secret"] not in notes
    both = {"new_secret": True, "secret": made["secret"]}
    assert errors(admin.patch("/webhooks/ops", json=both)) == [("new_secret", "conflict")]
    assert errors(admin.patch("/webhooks/ops", json={})) == [("", "required")]


def test_deliveries_are_seen_and_asked_for_again(admin: Any, sql: Sql) -> None:
    hook = make_webhook(sql, "ops")
    make_webhook(sql, "other")
    for state in 3 * ["failed", "delivered"]:
        make_delivery(sql, hook, state, payload={"n": 1})
    found = done(admin.get("/webhooks/ops/deliveries?state=failed"))["deliveries"]
    assert [each["state"] for each in found] == 3 * ["failed"]
    assert found[0]["payload"] == {"n": 1}
    assert done(admin.get("/webhooks/other/deliveries"))["deliveries"] == []
    assert done(admin.get("/webhooks/ops"))["deliveries"] == {
        "pending": 0,
        "delivered": 3,
        "failed": 3,
    }
    one = found[0]["id"]
    path = f"/deliveries/{one}/redeliver"
    problem(admin.post(f"/webhooks/other{path}"), 404)
    assert done(admin.post(f"/webhooks/ops{path}"))["count"] == 1
    assert errors(admin.post(f"/webhooks/ops{path}")) == [("", "pending")]
    assert done(admin.post("/webhooks/ops/redeliver"))["count"] == 2
    assert done(admin.post("/webhooks/ops/redeliver"))["count"] == 0
    done(admin.post("/webhooks/ops/disable"))
    assert errors(admin.post("/webhooks/ops/redeliver")) == [("", "invalid_job")]
    problem(admin.post(f"/webhooks/ops/deliveries/{uuid4()}/redeliver"), 404)
