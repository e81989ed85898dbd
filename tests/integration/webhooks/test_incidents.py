"""Incidents: one alert for them, not for each failure, and one more when they are over."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from celery import Celery
from psycopg.types.json import Jsonb
from sqlalchemy import Connection

from pgbeat.beat.maintenance import freshness
from pgbeat.database import connections
from pgbeat.schedules import control as schedules_control
from pgbeat.webhooks import control, outbox
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks.http import post
from pgbeat.webhooks.incidents import model, recovery
from pgbeat.webhooks.incidents.model import FIRST, LONGEST, FailureEvent, Key
from pgbeat.webhooks.incidents.recovery import Recovery
from pgbeat.webhooks.outbox import DeliveryRoom, Outcome
from tests.support.command_line import Sql
from tests.support.databases import connected
from tests.support.processes import until
from tests.support.rows import (
    make_incident,
    make_job,
    make_schedule,
    make_tick,
    make_webhook,
    unit_on,
)
from tests.support.schedulers import Beat
from tests.support.threads import WAITS, waiting
from tests.support.webhook_receiver import Receiver

KEY = "0123456789abcdef0123456789ABCDEF"
Deliver = Callable[[], list[str]]


@pytest.fixture
def deliver(connection: Connection, receiver: Receiver) -> Deliver:
    """Does as the leading beat does; returns what the receiver got, in the order of names."""
    known = Recovery("default")

    def call() -> list[str]:
        before = len(receiver.received)
        known.look(connection)
        with connections.transaction(connection):
            attempts = outbox.claim(
                connection,
                origin=outbox.Origin("default", ""),
                worker="b",
                room=DeliveryRoom(100, 100, 100),
            )
        outcomes = [Outcome(each, post(*each.request(), private=True)) for each in attempts]
        with connections.transaction(connection):
            outbox.finish(connection, outcomes)
        return sorted(told(request.json) for request in receiver.received[before:])

    return call


def told(body: dict[str, Any]) -> str:
    """Returns the event, or the text of a message for people."""
    return str(body.get("type") or body.get("text") or body.get("event_action") or body.get("note"))


def hook(sql: Sql, receiver: Receiver, **values: Any) -> int:
    given: dict[str, Any] = {
        "format": "slack",
        "per_incident": True,
        "events": ["job.failed", "tick.failed"],
    }
    return make_webhook(sql, url=receiver.url("/hook"), **given | values)


def ends(sql: Sql, state: str, schedule_id: int | None = None, **columns: Any) -> str:
    if schedule_id is not None:
        columns |= {"schedule_id": schedule_id, "schedule": "s"}
    job_id = make_job(sql, "running", **columns)
    sql(
        "UPDATE pgbeat.jobs SET state = %s, finished_at = clock_timestamp(), error = 'oops' "
        "WHERE id = %s",
        state,
        job_id,
    )
    return job_id


def failing(sql: Sql, receiver: Receiver, deliver: Deliver, **values: Any) -> int:
    """Returns the id of a schedule whose failure a webhook with these values was told of."""
    hook(sql, receiver, **values)
    key = make_schedule(sql)
    ends(sql, "failed", key)
    assert deliver()
    return key


def pass_by(sql: Sql, length: str) -> None:
    """Makes incidents and jobs have been so much earlier."""
    sql(
        f"UPDATE pgbeat.incidents SET began_at = began_at - interval '{length}', "
        f"failed_at = failed_at - interval '{length}', made_at = made_at - interval '{length}', "
        f"next_alert_at = next_alert_at - interval '{length}'"
    )


def incidents(sql: Sql) -> list[tuple[Any, ...]]:
    return sql("SELECT kind, name, failures, alerts FROM pgbeat.incidents ORDER BY kind, name")


# -- one alert ---------------------------------------------------------------------------------


def test_the_first_failure_is_told_and_then_ever_more_rarely() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    incident, sent = model.new(Key(1, "schedule", "s"), at), []
    for minute in range(60 * 48):
        failure = FailureEvent("job.failed", at + timedelta(minutes=minute), None, True, True)
        incident, is_sent = incident.after(failure)
        if is_sent:
            sent.append(minute)
    assert sent[:7] == [0, 10, 30, 70, 150, 310, 630]
    assert {after - before for before, after in pairwise(sent[7:])} == {720}
    assert (incident.failures, incident.alerts) == (2880, len(sent))
    assert timedelta(minutes=10) == FIRST
    assert timedelta(hours=12) == LONGEST


def test_one_alert_for_an_incident_and_its_end(
    sql: Sql, receiver: Receiver, deliver: Deliver
) -> None:
    hook(sql, receiver)
    key = make_schedule(sql)
    for _ in range(3):
        ends(sql, "failed", key)
    assert deliver() == ["Schedule 's' failed"]
    assert sql("SELECT count(*) FROM pgbeat.deliveries") == [(1,)]
    ends(sql, "failed", key)
    assert deliver() == []
    assert incidents(sql) == [("schedule", "s", 4, 1)]
    pass_by(sql, "11 minutes")
    ends(sql, "failed", key)
    assert deliver() == ["Schedule 's' failed"]
    assert "Failures: 5 since 20" in receiver.received[-1].json["blocks"][0]["text"]["text"]
    ends(sql, "cancelled", key)
    assert deliver() == []
    ends(sql, "completed", key)
    assert deliver() == ["Schedule 's' recovered"]
    assert (incidents(sql), deliver()) == ([], [])
    ends(sql, "completed", key)
    ends(sql, "failed", key)
    assert deliver() == ["Schedule 's' failed"]


def test_a_failure_of_another_kind_is_told_at_once(
    sql: Sql, receiver: Receiver, deliver: Deliver
) -> None:
    hook(sql, receiver, events=["job.failed", "schedule.paused"])
    key = make_schedule(sql, pause_after_failures=2)
    ends(sql, "failed", key)
    assert deliver() == ["Schedule 's' failed"]
    ends(sql, "failed", key)
    assert deliver() == ["Schedule 's' was paused"]
    assert incidents(sql) == [("schedule", "s", 3, 2)]


def test_more_failures_than_are_taken_at_once(
    sql: Sql, receiver: Receiver, deliver: Deliver
) -> None:
    """Those that are left wait: they are not sent by mistake."""
    hook(sql, receiver)
    sql(
        "INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, outcome, error) "
        "SELECT %s, 's', now() + n * interval '1 second', 'failed', 'no' "
        "  FROM generate_series(1, 1100) n",
        make_schedule(sql),
    )
    assert deliver() == ["Schedule 's' could not be launched"]
    assert incidents(sql) == [("schedule", "s", 1000, 1)]
    assert deliver() == []
    assert incidents(sql) == [("schedule", "s", 1100, 1)]


def test_two_failures_at_once_are_one_incident(
    sql: Sql, receiver: Receiver, database: str, deliver: Deliver
) -> None:
    """Neither waits for the other, and they are told of once, whichever commits first."""
    hook(sql, receiver)
    key = make_schedule(sql)
    jobs = [make_job(sql, "running", schedule_id=key, schedule="s") for _ in range(2)]
    end = "UPDATE pgbeat.jobs SET state = 'failed', finished_at = clock_timestamp() WHERE id = %s"
    with psycopg.connect(database) as one, psycopg.connect(database) as two:
        for worker, job_id in zip((one, two), jobs, strict=True):
            worker.execute("SET lock_timeout = '1s'")
            worker.execute(end, [job_id])
        two.commit()
        assert deliver() == ["Schedule 's' failed"]
    assert deliver() == []
    assert incidents(sql) == [("schedule", "s", 2, 1)]


def test_two_beats_at_once_make_one_incident(
    sql: Sql, receiver: Receiver, database: str, connection: Connection, deliver: Deliver
) -> None:
    """One that has just lost the lead, and the next: the second sees what the first did."""
    hook(sql, receiver)
    key = make_schedule(sql)
    ends(sql, "failed", key)
    url = connection.engine.url
    with connections.engine(url, "old").connect() as old, psycopg.connect(database) as other:
        outbox.claim(
            old, origin=outbox.Origin("default", ""), worker="a", room=DeliveryRoom(9, 9, 9)
        )
        ends(sql, "failed", key)
        with waiting(lambda asked: other.execute(asked).fetchall(), deliver):
            old.commit()
    assert incidents(sql) == [("schedule", "s", 2, 1)]
    assert receiver.received == []  # the old one has it


@pytest.mark.parametrize("state", ["failed", "completed"])
def test_a_webhook_that_somebody_deletes_keeps_no_other_waiting(
    state: str, sql: Sql, receiver: Receiver, database: str, deliver: Deliver
) -> None:
    hook(sql, receiver)
    hook(sql, receiver, name="x")
    key = make_schedule(sql)
    ends(sql, "failed", key)
    if state == "completed":
        deliver()
        ends(sql, state, key)
    with ThreadPoolExecutor(1) as pool, connected(database) as own:
        with unit_on(own).transaction() as unit:
            webhooks.get(own, "w", namespace="default", for_update=True)
            got = pool.submit(deliver)
            until(lambda: got.done() or sql(WAITS))
            control.remove(unit, "w")
        assert got.result(30) == [
            "Schedule 's' failed" if state == "failed" else "Schedule 's' recovered"
        ]


def test_a_standard_webhook_gets_each_failure_and_the_end(
    sql: Sql, receiver: Receiver, deliver: Deliver
) -> None:
    hook(sql, receiver, format="standard", per_incident=False, events=["job.failed"])
    both = ["job.failed", "schedule.recovered"]
    hook(sql, receiver, name="x", format="standard", per_incident=False, events=both)
    only = ["schedule.recovered"]
    hook(sql, receiver, name="y", format="standard", per_incident=False, events=only)
    key = make_schedule(sql, owner="ops", labels={"team": "x"})
    for _ in range(2):
        ends(sql, "failed", key)
    assert deliver() == ["job.failed"] * 4
    assert "incident" not in receiver.received[0].json
    ends(sql, "completed", key)
    assert deliver() == ["schedule.recovered"] * 2
    data = receiver.received[-1].json["data"]
    assert (data["name"], data["owner"], data["labels"]) == ("s", "ops", {"team": "x"})
    assert (data["failures"], data["failed"]) == (2, ["job.failed"])
    assert data["failing_since"] < data["last_failed_at"] < data["last_completed_at"]


# -- what is well again ------------------------------------------------------------------------


def test_pagerduty_resolves_and_opsgenie_closes(
    sql: Sql, receiver: Receiver, deliver: Deliver
) -> None:
    hook(sql, receiver, name="o", format="opsgenie", secret="x" * 36)
    key = failing(sql, receiver, deliver, format="pagerduty", secret=KEY)
    ends(sql, "completed", key)
    deliver()
    said = [json.loads(request.body) for request in receiver.received]
    opened, resolved = (body for body in said if "routing_key" in body)
    assert resolved == {
        "routing_key": KEY,
        "event_action": "resolve",
        "dedup_key": opened["dedup_key"],
    }
    [alias] = [body["alias"] for body in said if "alias" in body]
    assert alias == "pgbeat:default:Schedule 's'"
    assert [request.path for request in receiver.received if request.path != "/hook"] == [
        "/hook/pgbeat%3Adefault%3ASchedule%20%27s%27/close?identifierType=alias"
    ]


def test_a_schedule_whose_decisions_no_longer_fail(
    app: Celery, beat: Beat, sql: Sql, receiver: Receiver
) -> None:
    """Through the scheduler: also if the next decision is not to launch it."""
    app.conf.pgbeat_webhook_private = True
    hook(sql, receiver)
    make_schedule(sql, due="0", condition_sql="SELECT 1/0", max_retries=9)
    scheduler = beat()

    def told_after_a_decision(*expected: str) -> None:
        sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 second'")
        assert scheduler.run_due() == 1

        def is_told() -> bool:
            scheduler.run_due()
            return [told(request.json) for request in receiver.received] == [*expected]

        until(is_told)

    failed, recovered = "Schedule 's' could not be launched", "Schedule 's' recovered"
    told_after_a_decision(failed)
    told_after_a_decision(failed)
    until(lambda: not scheduler.run_due() and incidents(sql) == [("schedule", "s", 2, 1)])
    sql("UPDATE pgbeat.schedules SET condition_sql = 'SELECT false'")
    told_after_a_decision(failed, recovered)


def test_jobs_of_the_same_decision_are_no_recovery(
    sql: Sql, receiver: Receiver, deliver: Deliver
) -> None:
    hook(sql, receiver)
    key = make_schedule(sql)
    made = {"created_at": "2026-01-01T00:00:00Z", "trigger": "timetable"}
    ends(sql, "failed", key, run_key="a", **made)
    assert deliver() == ["Schedule 's' failed"]
    ends(sql, "completed", key, run_key="b", **made)
    assert deliver() == []
    ends(sql, "completed", key)
    assert deliver() == ["Schedule 's' recovered"]


def test_well_between_two_failures(sql: Sql, receiver: Receiver, deliver: Deliver) -> None:
    key = failing(sql, receiver, deliver)
    ends(sql, "completed", key)
    ends(sql, "failed", key)
    assert deliver() == ["Schedule 's' recovered"]
    assert deliver() == ["Schedule 's' failed"]
    assert incidents(sql) == [("schedule", "s", 1, 1)]


@pytest.mark.parametrize(
    ("event", "off", "on"),
    [
        ("schedule.paused", schedules_control.pause, schedules_control.resume),
        ("schedule.disabled", schedules_control.disable, schedules_control.enable),
    ],
)
def test_out_of_service_it_is_not_well(
    event: str,
    off: Any,
    on: Any,
    sql: Sql,
    receiver: Receiver,
    deliver: Deliver,
    connection: Connection,
) -> None:
    hook(sql, receiver, events=[event, "schedule.recovered"], format="standard")
    key = make_schedule(sql)
    off(unit_on(connection), "s")
    assert deliver() == [event]
    ends(sql, "completed", key)
    assert deliver() == []
    on(unit_on(connection), "s")
    assert deliver() == ["schedule.recovered"]


def test_stale_and_failing_is_one_incident(
    sql: Sql, receiver: Receiver, deliver: Deliver, connection: Connection
) -> None:
    hook(sql, receiver, events=["job.failed", "schedule.stale"])
    key = make_schedule(sql, fresh_within="1 hour", created_at="2020-01-01", next_run="2100-01-01")
    sql("UPDATE pgbeat.schedules SET failures_from = NULL")
    freshness.look(connection, "default")
    ends(sql, "failed", key)
    assert sorted(deliver() + deliver()) == [
        "Schedule 's' failed",
        "Schedule 's' is stale: no job completed in time",
    ]
    ends(sql, "completed", key)
    assert deliver() == ["Schedule 's' recovered"]


def test_a_task_without_a_schedule(sql: Sql, receiver: Receiver, deliver: Deliver) -> None:
    """Of many jobs some fail: it is well when for a while none did."""
    hook(sql, receiver, format="standard", events=["job.failed"])
    ends(sql, "failed", task="t.a")
    ends(sql, "failed", task="t.b")
    assert deliver() == ["job.failed"] * 2
    last = ends(sql, "completed", task="t.a")
    assert deliver() == []
    pass_by(sql, "9 minutes")
    assert deliver() == []
    pass_by(sql, "2 minutes")
    assert deliver() == ["job.recovered"]
    data = receiver.received[-1].json["data"]
    assert (data["id"], data["task"], data["state"]) == (last, "t.a", "completed")
    assert incidents(sql) == [("task", "t.b", 1, 1)]


REASONS = {
    "deleted": ("DELETE FROM pgbeat.schedules", "the schedule was deleted"),
    "disabled": (
        "UPDATE pgbeat.schedules SET enabled = false, disabled_reason = 'no more' WHERE enabled",
        "the schedule was disabled: no more",
    ),
}


@pytest.mark.parametrize("why", REASONS)
def test_what_can_no_longer_fail_ends_its_incident(
    why: str, sql: Sql, receiver: Receiver, deliver: Deliver
) -> None:
    """And the reason is told: nobody need close the alert by hand."""
    hook(sql, receiver)
    hook(sql, receiver, name="p", format="pagerduty", secret=KEY)
    both = ["job.failed", "schedule.recovered"]
    hook(sql, receiver, name="x", format="standard", per_incident=False, events=both)
    ends(sql, "failed", make_schedule(sql))
    assert deliver() == ["Schedule 's' failed", "job.failed", "trigger"]
    statement, reason = REASONS[why]
    sql(statement)
    assert deliver() == ["Schedule 's': the incident is closed", "resolve", "schedule.recovered"]
    bodies = [request.json for request in receiver.received]
    [data] = [body["data"] for body in bodies if body.get("type") == "schedule.recovered"]
    assert (data["name"], data["reason"], data["failures"]) == ("s", reason, 1)
    [said] = [body["blocks"][0]["text"]["text"] for body in bodies if "closed" in told(body)]
    assert f"Reason: {reason}" in said
    assert (incidents(sql), deliver()) == ([], [])


def test_a_schedule_that_failures_disabled_is_not_well(
    sql: Sql, receiver: Receiver, deliver: Deliver
) -> None:
    hook(sql, receiver)
    key = make_schedule(sql, max_retries=2)
    make_tick(sql, key, "failed")
    assert deliver() == ["Schedule 's' could not be launched"]
    sql("UPDATE pgbeat.schedules SET enabled = false, retry_count = 2, last_failure = last_run")
    assert (deliver(), incidents(sql)) == ([], [("schedule", "s", 1, 1)])


def test_a_task_that_failed_long_ago(sql: Sql, receiver: Receiver, deliver: Deliver) -> None:
    hook(sql, receiver, format="pagerduty", secret=KEY)
    ends(sql, "failed", task="t")
    assert deliver() == ["trigger"]
    pass_by(sql, "29 days")
    assert deliver() == []
    pass_by(sql, "2 days")
    assert (deliver(), incidents(sql)) == (["resolve"], [])


def test_a_disabled_webhook_is_told_of_the_end_once_it_is_enabled(
    sql: Sql, receiver: Receiver, deliver: Deliver
) -> None:
    schedule = failing(sql, receiver, deliver)
    sql("UPDATE pgbeat.webhooks SET enabled = false")
    ends(sql, "completed", schedule)
    assert (deliver(), incidents(sql)) == ([], [("schedule", "s", 1, 1)])
    sql("UPDATE pgbeat.webhooks SET enabled = true")
    assert (deliver(), incidents(sql)) == (["Schedule 's' recovered"], [])
    ends(sql, "failed", schedule)
    deliver()
    sql("DELETE FROM pgbeat.webhooks")
    assert incidents(sql) == []


def test_a_webhook_that_is_disabled_before_its_receiver_took_the_end(
    sql: Sql, receiver: Receiver, deliver: Deliver, connection: Connection
) -> None:
    key = failing(sql, receiver, deliver)
    receiver.answers.append(503)
    ends(sql, "completed", key)
    assert (deliver(), incidents(sql)) == (["Schedule 's' recovered"], [])
    control.disable(unit_on(connection), "w")
    assert (deliver(), incidents(sql)) == ([], [("schedule", "s", 1, 1)])
    control.enable(unit_on(connection), "w")
    assert deliver() == ["Schedule 's' recovered"]
    assert (deliver(), incidents(sql)) == ([], [])


def test_an_end_that_is_refused_is_sent_again(
    sql: Sql, receiver: Receiver, deliver: Deliver
) -> None:
    """Its incident is open until then, as the receiver's is; another failure continues it."""
    key = failing(sql, receiver, deliver, format="pagerduty", secret=KEY)

    def refuse() -> None:
        receiver.answers += [503] * 4
        for _ in range(4):
            assert deliver() == ["resolve"]
            sql("UPDATE pgbeat.deliveries SET next_at = now() WHERE state = 'pending'")

    ends(sql, "completed", key)
    refuse()
    assert (deliver(), incidents(sql)) == ([], [("schedule", "s", 1, 1)])
    sql("UPDATE pgbeat.incidents SET end_at = now()")
    refuse()
    ends(sql, "failed", key)
    assert (deliver(), incidents(sql)) == (["trigger"], [("schedule", "s", 2, 2)])
    ends(sql, "completed", key)
    assert (deliver(), incidents(sql)) == (["resolve"], [])


def test_an_alert_and_its_end_go_in_turn(sql: Sql, receiver: Receiver, deliver: Deliver) -> None:
    """An alert that is tried again after the end would stay open; a late end would close the next.

    Others of the webhook don't wait, nor is beat woken for what does.
    """
    hook(sql, receiver, format="pagerduty", secret=KEY)
    key = make_schedule(sql)

    def try_again_in(minutes: int) -> None:
        sql(
            "UPDATE pgbeat.deliveries SET next_at = now() + %s * interval '1 minute' "
            "WHERE state = 'pending' AND attempts > 0",
            minutes,
        )

    receiver.answers.append(503)
    ends(sql, "failed", key)
    assert deliver() == ["trigger"]
    try_again_in(60)
    ends(sql, "completed", key)
    ends(sql, "failed", task="other")
    assert deliver() == ["trigger"]
    assert sql("SELECT pgbeat.next_delivery('default') > now()") == [(True,)]
    try_again_in(0)
    assert deliver() == ["trigger"]
    receiver.answers.append(503)
    assert deliver() == ["resolve"]
    try_again_in(60)
    ends(sql, "failed", key)
    assert deliver() == []
    try_again_in(0)
    assert (deliver(), deliver()) == (["resolve"], ["trigger"])
    keys = [request.json["dedup_key"] for request in receiver.received]
    assert keys.count("pgbeat:default:Schedule 's'") == 5


def test_all_incidents_are_looked_at_in_turn(
    sql: Sql, receiver: Receiver, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_MOST", 2)
    key, other = hook(sql, receiver), hook(sql, receiver, name="o", namespace="other")
    for name in "abcde":
        make_schedule(sql, name)
        make_incident(sql, key, name)
    make_incident(sql, other, "z")
    sql("DELETE FROM pgbeat.schedules WHERE name IN ('b', 'e')")
    assert [len(deliver()) for _ in range(4)] == [1, 0, 1, 0]
    assert len(incidents(sql)) == 4


def test_a_job_that_ends_well_touches_no_incident(
    sql: Sql, receiver: Receiver, deliver: Deliver, database: str
) -> None:
    """Not even if one is open: what Postgres counted in the transaction of its end."""
    key = failing(sql, receiver, deliver)
    job_id = make_job(sql, "running", schedule_id=key, schedule="s")
    counted = (
        "SELECT relname, seq_scan + coalesce(idx_scan, 0) + n_tup_ins + n_tup_upd + n_tup_del "
        "FROM pg_stat_xact_user_tables WHERE relid = ANY (ARRAY["
        "'pgbeat.incidents'::regclass, 'pgbeat.deliveries'::regclass])"
    )
    for state, expected in (("completed", 0), ("failed", 1)):
        with psycopg.connect(database) as worker:
            worker.execute(
                "UPDATE pgbeat.jobs SET state = %s, finished_at = clock_timestamp() WHERE id = %s",
                [state, job_id],
            )
            count: dict[str, int] = dict(worker.execute(counted).fetchall())
            worker.rollback()
        assert count["incidents"] == 0
        assert count["deliveries"] == expected


# -- filters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, 4),
        ({"schedules": ["s"]}, 2),
        ({"schedules": ["night*", "?"]}, 2),
        ({"schedules": ["%", "_"]}, 0),
        ({"tasks": ["shop.*"]}, 1),
        ({"tasks": ["shop.*"], "schedules": ["s"]}, 0),
        ({"labels": {"team": "billing"}}, 2),
        ({"labels": {"team": "billing", "env": "prod"}}, 0),
        ({"labels": {"env": "test"}}, 1),
    ],
)
def test_filters(
    filters: dict[str, Any], expected: int, sql: Sql, receiver: Receiver, deliver: Deliver
) -> None:
    values = {name: Jsonb(v) if name == "labels" else v for name, v in filters.items()}
    hook(sql, receiver, format="standard", per_incident=False, **values)
    key = make_schedule(sql, labels={"team": "billing"})
    ends(sql, "failed", key, task="tests.add")
    make_tick(sql, key, "failed")
    ends(sql, "failed", task="shop.charge")
    ends(sql, "failed", task="other", labels={"env": "test"})
    assert len(deliver()) == expected
