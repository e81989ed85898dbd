"""`/queues` and `/dead`: messages looked at, held, purged, put back."""

import json
from typing import Any

from tests.support.command_line import Sql
from tests.support.jobs import make_app
from tests.support.rows import make_dead_letter
from tests.support.web import Web, done, errors, opened, problem
from tests.web.api.made_jobs import audited, make


def test_a_long_queue_is_purged_in_parts(admin: Any, sql: Sql) -> None:
    """Each is a short transaction with its own entry in the audit log."""
    sql("""INSERT INTO kombu_message (visible, payload, queue_id)
           SELECT true, '{}', id FROM kombu_queue, generate_series(1, 20005)""")
    purged = done(admin.post("/queues/celery/purge"))
    assert (purged["deleted"], purged["queue"]["waiting"]) == (20_005, 0)
    changes = done(admin.get("/audit?kind=queue"))["changes"]
    assert [each["after"]["deleted"] for each in changes] == [5, 10_000, 10_000]


def test_a_queue_with_a_slash(admin: Any) -> None:
    make(admin, queue="a/b")
    assert done(admin.post("/queues/a%2Fb/pause"))["queue"]["name"] == "a/b"


def test_internal_queues_are_shown_when_asked_for(web: Web, admin: Any, sql: Sql) -> None:
    make(web.user)
    sql("INSERT INTO kombu_queue (name, auto_delete) VALUES ('reply', true)")
    assert len(done(admin.get("/queues"))["queues"]) == 1
    names = [each["name"] for each in done(admin.get("/queues?internal=true"))["queues"]]
    assert names == ["celery", "reply"]


def test_queues_of_another_broker_are_not_known(database: str) -> None:
    with opened(make_app(database, "redis://127.0.0.1:1/0")) as web:
        for path in ("/queues", "/dead"):
            problem(web.admin.get(path), 404)


# -- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_are_seen(web: Web, admin: Any, sql: Sql) -> None:
    make(web.user)
    payload = json.dumps({"headers": {"task": "jobs.add", "id": "abc"}, "secret": "s"})
    days = (f"2026-01-0{day}" for day in (3, 2, 1))
    ids = [make_dead_letter(sql, payload=payload, died_at=day) for day in days]
    listed = done(admin.get("/dead"))["dead"]
    assert [each["id"] for each in listed] == ids
    assert "payload" not in listed[0]
    assert json.loads(done(admin.get(f"/dead/{ids[0]}"))["payload"])["secret"] == "s"
    assert done(admin.get("/dead?queue=celery"))["dead"] == listed
    problem(admin.get("/dead?queue=other"), 404)
    problem(admin.get("/dead/99999"), 404)


def test_a_bad_choice_changes_nothing(web: Web, admin: Any, sql: Sql) -> None:
    make(web.user)
    one = make_dead_letter(sql)
    for body, status, expected in (
        ({}, 422, ("ids", "required")),
        ({"all": False}, 422, ("ids", "required")),
        ({"ids": [one], "all": True}, 422, ("all", "conflict")),
        ({"ids": []}, 422, ("ids", "too_short")),
        ({"ids": [one, 99999]}, 404, ("", "not_found")),
        ({"ids": [True]}, 422, ("ids[0]", "malformed")),
        ({"ids": ["1"]}, 422, ("ids[0]", "malformed")),
        ({"ids": [0]}, 422, ("ids[0]", "out_of_range")),
        ({"ids": [2**63]}, 422, ("ids[0]", "out_of_range")),
        ({"queue": "celer"}, 404, ("", "not_found")),
        ({"queue": "\0"}, 422, ("", "invalid")),
        ({"al": True}, 422, ("al", "unknown_field")),
        ([], 422, ("", "malformed")),
        (None, 422, ("", "required")),
    ):
        for verb in ("requeue", "drop"):
            assert errors(admin.post(f"/dead/{verb}", json=body), status) == [expected], body
    for older_than in (-1, 1e300, "soon", True):
        problem(admin.post("/dead/drop", json={"older_than": older_than}), 422)
    problem(admin.post("/dead/requeue", json={"older_than": 1}), 422)
    assert sql("SELECT id FROM kombu_message_dead") == [(one,)]
    assert audited(admin, "dead letter") == []
