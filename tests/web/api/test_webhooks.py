"""`/webhooks`: made, changed, tried; their deliveries, and those asked for again."""

from typing import Any

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


def test_deliveries_are_those_of_the_webhook_and_state(admin: Any, sql: Sql) -> None:
    hook = make_webhook(sql, "ops")
    make_webhook(sql, "other")
    for state in ("failed", "delivered"):
        make_delivery(sql, hook, state)
    [failed] = done(admin.get("/webhooks/ops/deliveries?state=failed"))["deliveries"]
    assert failed["state"] == "failed"
    assert done(admin.get("/webhooks/other/deliveries"))["deliveries"] == []
    problem(admin.post(f"/webhooks/other/deliveries/{failed['id']}/redeliver"), 404)
