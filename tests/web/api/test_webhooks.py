"""`/webhooks`: made, changed, tried; their deliveries, and those asked for again."""

from typing import Any

from tests.support.command_line import Sql
from tests.support.rows import make_delivery, make_incident, make_webhook
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


def test_a_deletion_says_which_alerts_stay_open(admin: Any, sql: Sql) -> None:
    """Their end is told to nobody."""
    for name, number in (("ops", 2), ("quiet", 0)):
        hook = make_webhook(sql, name)
        for incident in range(number):
            make_incident(sql, hook, str(incident))
        deleted = done(admin.delete(f"/webhooks/{name}"))
        assert deleted["open_incidents"] == number
        assert ("of the end of 2 incidents" in deleted["message"]) is bool(number)
