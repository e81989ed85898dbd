"""`/webhooks`: made, changed, tried; their deliveries, and those asked for again."""

from typing import Any
from uuid import uuid4

from tests.support.command_line import Sql
from tests.support.web import done, errors, problem
from tests.support.webhook_receiver import Receiver
from tests.web.api.made_jobs import audited

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


def test_a_test_event_goes_at_once(admin: Any) -> None:
    receiver = Receiver()
    try:
        made = make(admin, url=receiver.url())
        tried = done(admin.post("/webhooks/ops/test"))
        assert (tried["delivered"], tried["status"], tried["error"]) == (True, 200, None)
        [request] = receiver.received
        assert request.id == tried["id"]
        assert request.is_signed_with(made["secret"])
        assert request.json["type"] == "webhook.test"
        receiver.answers.append(500)
        tried = done(admin.post("/webhooks/ops/test"))
        assert (tried["delivered"], tried["status"]) == (False, 500)
        assert "it answered 500" in tried["error"]
    finally:
        receiver.close()
    verbs = [verb for verb, _, _ in audited(admin, "webhook")]
    assert verbs == ["create", "test", "test"]


def test_deliveries_are_seen_and_asked_for_again(admin: Any, sql: Sql) -> None:
    make(admin)
    make(admin, "other")
    sql(
        """INSERT INTO pgbeat.deliveries
                  (webhook_id, event, payload, state, finished_at, created_at, next_at)
           SELECT w.id, 'job.failed', '{"n": 1}', s.state, now(),
                  now() - n * interval '1 hour', NULL
             FROM pgbeat.webhooks w, generate_series(1, 3) n,
                  unnest('{failed,delivered}'::text[]) AS s (state)
            WHERE w.name = 'ops'"""
    )
    first = done(admin.get("/webhooks/ops/deliveries?limit=4"))
    second = done(
        admin.get("/webhooks/ops/deliveries", params={"limit": 4, "after": first["next"]})
    )
    ids = [each["id"] for each in first["deliveries"] + second["deliveries"]]
    assert (len(ids), len(set(ids)), second["next"]) == (6, 6, None)
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
    verbs = [verb for verb, _, _ in audited(admin, "webhook")]
    assert verbs == ["create", "create", "redeliver", "redeliver", "disable"]
    problem(admin.post(f"/webhooks/ops/deliveries/{uuid4()}/redeliver"), 404)
