"""`/webhooks`: made, changed, tried; their deliveries, and those asked for again."""

from typing import Any
from uuid import uuid4

from celery import Celery

from pgbeat.database.tables import EVENTS
from tests.support.command_line import Sql
from tests.support.web import done, errors, opened, problem
from tests.support.webhook_receiver import Receiver
from tests.web.api.made_jobs import audited

URL = "https://example.com/hook"
SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # of the specification's example


def make(admin: Any, name: str = "ops", **values: Any) -> Any:
    """A webhook of all events, unless told otherwise."""
    body = {"name": name, "url": URL, "events": ["all"], **values}
    return done(admin.post("/webhooks", json=body), 201)


def test_a_webhook_is_made_changed_and_deleted(admin: Any, sql: Sql) -> None:
    made = make(admin, events=["job.failed"])
    assert made["secret"].startswith("whsec_")
    wanted = {
        "name": "ops",
        "url": URL,
        "events": ["job.failed"],
        "enabled": True,
        "is_failing": False,
        "created_by": "user:root",
    }
    found = done(admin.get("/webhooks/ops"))
    assert found.items() >= wanted.items()
    assert found["deliveries"] == {"pending": 0, "delivered": 0, "failed": 0}
    assert made["secret"] not in str(found)
    assert done(admin.get("/webhooks"))["webhooks"] == [found]
    changed = done(admin.patch("/webhooks/ops", json={"events": ["all"]}))
    assert (len(changed["events"]), changed["secret"]) == (len(EVENTS), None)
    changed = done(admin.patch("/webhooks/ops", json={"new_secret": True}))
    assert changed["secret"] not in (None, made["secret"])
    assert changed["previous_until"] is not None
    assert done(admin.delete("/webhooks/ops"))["message"] == "Webhook 'ops' deleted"
    assert done(admin.get("/webhooks"))["webhooks"] == []
    verbs = [verb for verb, _, _ in audited(admin, "webhook")]
    assert verbs == ["create", "update", "update", "delete"]

    notes = str(sql("SELECT before, after FROM pgbeat.audit"))
    assert made["secret"] not in notes
    assert changed["secret"] not in notes


def test_a_webhook_is_disabled_and_enabled(admin: Any, sql: Sql) -> None:
    make(admin)
    done(admin.post("/webhooks/ops/disable", json={"reason": "moving"}))
    found = done(admin.get("/webhooks/ops"))
    assert found["enabled"] is False
    assert found["disabled_reason"] == "disabled by user:root: moving"
    done(admin.post("/webhooks/ops/disable"))  # again is nothing
    for _ in range(2):
        assert done(admin.post("/webhooks/ops/enable"))["message"] == "Webhook 'ops' enabled"
    assert done(admin.get("/webhooks/ops"))["enabled"] is True
    verbs = [verb for verb, _, _ in audited(admin, "webhook")]
    assert verbs == ["create", "disable", "enable"]


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
    for query in ("state=odd", "limit=0", "after=x"):
        problem(admin.get(f"/webhooks/ops/deliveries?{query}"), 422)
    problem(admin.post("/webhooks/ops/deliveries/x/redeliver"), 422)
    problem(admin.post(f"/webhooks/ops/deliveries/{uuid4()}/redeliver"), 404)


BAD: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"url": "ftp://example.com"}, ("url", "malformed")),
    ({"url": "https://user:pw@example.com/"}, ("url", "malformed")),
    ({"url": "not a url"}, ("url", "malformed")),
    ({"url": "https://example.com/\r\nX-Evil: 1"}, ("url", "malformed")),
    ({"url": "https://e.com/" + "x" * 2000}, ("url", "too_long")),
    ({"events": []}, ("events", "required")),
    ({"events": ["job.faild"]}, ("events", "unknown")),
    ({"events": "all"}, ("events", "malformed")),
    ({"secret": "short"}, ("secret", "malformed")),
    ({"evnts": ["all"]}, ("evnts", "unknown_field")),
]


def test_a_bad_webhook_is_refused(admin: Any, sql: Sql) -> None:
    base = {"name": "bad", "url": URL, "events": ["all"]}
    for change, expected in BAD:
        assert errors(admin.post("/webhooks", json=base | change)) == [expected], change
    for name in ("", " a", "a/b", "x" * 201, "a\n", "a\0"):
        problem(admin.post("/webhooks", json=base | {"name": name}), 422)
    assert sql("SELECT 1 FROM pgbeat.webhooks") == []
    make(admin, secret=SECRET)
    assert errors(admin.post("/webhooks", json=base | {"name": "ops"}), 409) == [
        ("", "already_exists")
    ]
    before = sql("SELECT * FROM pgbeat.webhooks")
    for change, expected in BAD:
        assert errors(admin.patch("/webhooks/ops", json=change)) == [expected], change
    for change, expected in (
        ({}, ("", "required")),
        ({"new_secret": True, "secret": SECRET}, ("new_secret", "conflict")),
        ({"name": "other"}, ("name", "unknown_field")),
    ):
        assert errors(admin.patch("/webhooks/ops", json=change)) == [expected]
    problem(admin.post("/webhooks/ops/disable", json={"reson": "x"}), 422)
    assert sql("SELECT * FROM pgbeat.webhooks") == before
    assert [verb for verb, _, _ in audited(admin, "webhook")] == ["create"]


def test_private_addresses_are_refused_unless_allowed(app: Celery, sql: Sql) -> None:
    with opened(app, webhook_private=False) as web:
        body = {"name": "in", "url": "http://127.0.0.1:9/x", "events": ["all"]}
        assert errors(web.admin.post("/webhooks", json=body)) == [("url", "malformed")]
    assert sql("SELECT 1 FROM pgbeat.webhooks") == []


def test_what_is_not_there_names_the_near_one(admin: Any, sql: Sql) -> None:
    make(admin)
    for method, path in (
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/enable"),
        ("POST", "/disable"),
        ("POST", "/test"),
        ("POST", "/redeliver"),
        ("GET", "/deliveries"),
        ("POST", f"/deliveries/{uuid4()}/redeliver"),
    ):
        body = {"events": ["all"]} if method == "PATCH" else None
        said = problem(admin.request(method, f"/webhooks/opss{path}", json=body), 404)
        assert said.startswith("there is no webhook 'opss'; did you mean 'ops'? `pgbeat webhooks ")
