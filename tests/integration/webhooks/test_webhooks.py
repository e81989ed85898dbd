"""Webhooks: what is told and to whom, written with what happened, delivered at least once."""

import threading
import uuid
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from celery import Celery
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings
from pgbeat.database import connections
from pgbeat.database.tables import EVENTS
from pgbeat.errors import AlreadyExists, InvalidJob, NotFound
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.web.api.jobs.job_models import FoundExecution, FoundJob
from pgbeat.web.api.schedules.schedule_models import FoundSchedule, FoundTick
from pgbeat.webhooks import control, deliverer, deliveries
from pgbeat.webhooks import model as webhooks
from pgbeat.webhooks import outbox as webhook_outbox
from pgbeat.webhooks.http import Reply, post
from pgbeat.webhooks.outbox import DeliveryAttempt, DeliveryRoom, Outcome
from pgbeat.webhooks.signing import new_secret
from tests.support.command_line import Sql
from tests.support.databases import sqlalchemy_url
from tests.support.problems import problems, raises
from tests.support.processes import Processes, until
from tests.support.rows import make_execution, make_job, make_schedule, make_tick
from tests.support.schedulers import Beat
from tests.support.threads import waiting
from tests.support.webhook_receiver import Receiver, Request, answering

Add = Callable[..., str]
OK, DOWN = Reply(200, None, 3.0), Reply(503, "it answered 503", 3.0)


@pytest.fixture
def app(app: Celery, database: str) -> Celery:
    """The app, on pgbeat's transport; its webhooks may go to 127.0.0.1."""
    app.conf.broker_url = f"pgbeat+{sqlalchemy_url(database)}"
    app.conf.pgbeat_webhook_private = True
    return app


@pytest.fixture
def add(connection: Connection, receiver: Receiver) -> Add:
    """Adds a webhook for the receiver, of all events; its secret."""

    def call(name: str = "w", namespace: str = "default", **given: Any) -> str:
        values = {"url": receiver.url(f"/{name}"), "events": EVENTS, **given}
        return control.add(unit(connection, namespace), name, **values)[1]

    return call


def unit(connection: Connection, namespace: str = "default", private: bool = True) -> UnitOfWork:
    url = make_url("postgresql:///x")
    settings = Settings(url, namespace=namespace, webhook_private=private)
    return UnitOfWork(connection, settings, Actor("me"))


def claim(
    connection: Connection,
    limit: int = 100,
    room: DeliveryRoom | None = None,
    namespace: str = "default",
) -> list[DeliveryAttempt]:
    """Begins attempts at what is due, as the leading beat does."""
    room = room or DeliveryRoom(limit, 100, 100)
    with connections.transaction(connection):
        return webhook_outbox.claim(
            connection, origin=webhook_outbox.Origin(namespace, ""), worker="b1", room=room
        )


def finish(connection: Connection, *outcomes: Outcome) -> Collection[uuid.UUID]:
    """Writes how attempts came out; those that are locked."""
    with connections.transaction(connection):
        return webhook_outbox.finish(connection, outcomes)


@pytest.fixture
def deliver(app: Celery, connection: Connection) -> Callable[[], int]:
    """Delivers what is due, one after the other; how many."""

    def call() -> int:
        private = Settings.load(app.conf).webhook_private
        attempts = claim(connection)
        outcomes = [
            Outcome(attempt, post(*attempt.request(), private=private)) for attempt in attempts
        ]
        if outcomes:
            assert finish(connection, *outcomes) == []
        return len(outcomes)

    return call


def happen(sql: Sql, times: int = 1, namespace: str = "default") -> None:
    """Ticks that fail."""
    name = f"s-{uuid.uuid4().hex[:6]}"
    key = make_schedule(sql, name, namespace=namespace)
    sql(
        "INSERT INTO pgbeat.ticks (schedule_id, schedule, due_at, outcome, error) "
        "SELECT %s, %s, now() + n * interval '1 second', 'failed', 'because ' || n "
        "  FROM generate_series(1, %s) n",
        key,
        name,
        times,
    )


def told(sql: Sql) -> list[tuple[str, str]]:
    """Who is told of what."""
    found = sql(
        "SELECT w.name, d.event FROM pgbeat.deliveries d JOIN pgbeat.webhooks w "
        "ON w.id = d.webhook_id ORDER BY d.created_at, 1, 2"
    )
    return [(name, event) for name, event in found]


def states(sql: Sql) -> list[tuple[str, int]]:
    """State and attempts of the deliveries, oldest first."""
    found = sql("SELECT state, attempts FROM pgbeat.deliveries ORDER BY created_at, id")
    return [(state, attempts) for state, attempts in found]


def hurry(sql: Sql) -> None:
    """What waits is due: instead of waiting for it, or for a lease to be over."""
    sql("UPDATE pgbeat.deliveries SET next_at = now() WHERE state = 'pending'")


# -- rows --------------------------------------------------------------------------------------


def test_every_mistake_is_told(connection: Connection) -> None:
    with pytest.raises(InvalidJob) as caught:
        control.add(
            unit(connection, private=False),
            "a/b",
            "ftp://10.0.0.1/",
            ["job.fail", "x"],
            secret="hunter2",
        )
    assert problems(caught.value) == [
        ("name", "malformed"),
        ("url", "malformed"),
        ("url", "malformed"),
        ("events", "unknown"),
        ("events", "unknown"),
        ("secret", "malformed"),
    ]
    assert "hunter2" not in str(caught.value)
    with raises(InvalidJob, ("events", "required")):
        control.add(unit(connection), "a", "https://example.com/", [])


def test_names(connection: Connection, add: Add) -> None:
    add("pager")
    with pytest.raises(AlreadyExists):
        add("pager")
    add("pager", namespace="other")
    with pytest.raises(NotFound, match="'pager'"):
        webhooks.get(connection, "page")
    assert [row.name for row in webhooks.listing(connection)] == ["pager"]
    control.remove(unit(connection), "pager")
    assert webhooks.listing(connection) == []
    assert len(webhooks.listing(connection, namespace="other")) == 1


def test_no_row_that_is_handed_out_has_the_secret(
    connection: Connection, add: Add, sql: Sql
) -> None:
    secret = add()
    assert sql("SELECT secret FROM pgbeat.webhooks") == [(secret,)]
    row = webhooks.get(connection, "w")
    assert row.secret_hint == f"whsec_…{secret[-4:]}"
    happen(sql)
    [(key,)] = sql("SELECT id FROM pgbeat.deliveries")
    (attempt,) = claim(connection)
    assert (attempt.id, attempt.secrets) == (key, (secret,))
    for thing in (row, attempt, webhooks.listing(connection), deliveries.listing(connection, 1)):
        assert secret not in repr(thing)


def test_a_change_of_secrets(connection: Connection, add: Add, sql: Sql) -> None:
    old, new = add(), new_secret()
    [(webhook_id,)] = sql("SELECT id FROM pgbeat.webhooks")
    changed = control.edit(unit(connection), "w", secret=new)
    assert changed.previous_until is not None
    assert changed.previous_until - connections.now(connection) > timedelta(hours=23)
    assert webhook_outbox.secrets(connection, webhook_id) == (new, old)
    sql("UPDATE pgbeat.webhooks SET previous_until = now() - interval '1 second'")
    assert webhook_outbox.secrets(connection, webhook_id) == (new,)
    kept = control.edit(unit(connection), "w", events=["tick.failed", "job.failed"])
    assert kept.events == ["job.failed", "tick.failed"]
    assert webhook_outbox.secrets(connection, webhook_id) == (new,)
    with raises(InvalidJob, ("secret", "out_of_range")):
        control.edit(unit(connection), "w", secret="whsec_YWJj")


# -- what is told ------------------------------------------------------------------------------


def new_job(sql: Sql, **columns: Any) -> str:
    """A job that runs, with one execution."""
    job_id = make_job(sql, "running", **{"task": "tests.add", **columns})
    make_execution(sql, job_id)
    return job_id


@pytest.mark.parametrize(
    ("state", "events"),
    [
        ("completed", ["job.run.completed"]),
        ("skipped", ["job.run.skipped"]),
        ("failed", ["job.failed", "job.run.failed"]),
        ("cancelled", []),
    ],
)
def test_what_is_told_of_a_job(state: str, events: list[str], add: Add, sql: Sql) -> None:
    add()
    job_id = new_job(sql)
    assert told(sql) == []
    sql(
        "WITH e AS (UPDATE pgbeat.executions SET state = %s, finished_at = now(), "
        "    duration_ms = 12.5, error = 'oops', "
        '    metadata = \'{"items": 3, "artifacts": ["a"]}\') '
        "UPDATE pgbeat.jobs SET state = %s, finished_at = now(), error = 'oops'",
        state,
        state,
    )
    assert sorted(event for _, event in told(sql)) == events
    for event, payload in sql("SELECT event, payload FROM pgbeat.deliveries"):
        assert payload["type"] == event
        assert payload["timestamp"].endswith("Z")
        data = payload["data"]
        job = data if event == "job.failed" else data["job"]
        assert (job["id"], job["task"], job["created_by"]) == (job_id, "tests.add", "user:alice")
        if event == "job.failed":
            assert (data["state"], data["error"]) == ("failed", "oops")
        else:
            assert (data["state"], data["number"], data["duration_ms"]) == (state, 1, 13)
            assert (data["job_id"], data["error"]) == (job_id, "oops")
            assert (data["metadata"], data["artifacts"]) == ({"items": 3}, ["a"])


def test_events_have_the_names_of_the_api(add: Add, sql: Sql) -> None:
    add()
    new_job(sql)
    sql("UPDATE pgbeat.executions SET state = 'failed', finished_at = now()")
    sql("UPDATE pgbeat.jobs SET state = 'failed', finished_at = now()")
    key = make_schedule(sql)
    sql("UPDATE pgbeat.schedules SET enabled = false, disabled_reason = 'no'")
    make_tick(sql, key, "failed")
    tick = {*FoundTick.model_fields, "task"}
    names: dict[str, set[str]] = {
        "job.failed": set(FoundJob.model_fields),
        "job.run.failed": {*FoundExecution.model_fields, "job"},
        "schedule.disabled": set(FoundSchedule.model_fields),
        "tick.failed": tick,
    }
    sent: dict[str, Any] = dict(sql("SELECT event, payload -> 'data' FROM pgbeat.deliveries"))
    assert sent.keys() == names.keys()
    for event, data in sent.items():
        assert data.keys() <= names[event], event
    assert sent["job.run.failed"]["job"].keys() <= set(FoundJob.model_fields)


def test_what_is_told_of_a_task_that_nobody_made_a_job_for(
    connection: Connection, add: Add, sql: Sql
) -> None:
    """It is told of once, from its beginning to its end."""
    add()
    job_id, run_id = str(uuid.uuid4()), str(uuid.uuid4())
    job = {"task": "t", "job_source": "system", "created_by": "celery"}
    run = ExecutionRecord(run_id, job_id, True, "failed", "failed", worker="w", job=job)
    executions.record(connection, [run])
    assert sorted(event for _, event in told(sql)) == ["job.failed", "job.run.failed"]


def test_a_failure_that_is_tried_again_is_none_of_the_job(add: Add, sql: Sql) -> None:
    add()
    new_job(sql, max_attempts=3)
    sql(
        "WITH e AS (UPDATE pgbeat.executions SET state = 'failed', finished_at = now()) "
        "UPDATE pgbeat.jobs SET state = 'failed', finished_at = now(), retried_by = %s",
        str(uuid.uuid4()),
    )
    assert told(sql) == [("w", "job.run.failed")]


def test_only_who_wants_it_is_told(connection: Connection, add: Add, sql: Sql) -> None:
    add("ticks", events=["tick.failed"])
    add("jobs", events=["job.failed"])
    add("elsewhere", namespace="other")
    add("off")
    control.disable(unit(connection), "off")
    happen(sql)
    assert told(sql) == [("ticks", "tick.failed")]
    happen(sql, namespace="other")
    assert told(sql) == [("ticks", "tick.failed"), ("elsewhere", "tick.failed")]


def test_what_is_rolled_back_was_never_told(database: str, add: Add, sql: Sql) -> None:
    add()
    new_job(sql)
    with psycopg.connect(database) as other:
        other.execute("UPDATE pgbeat.executions SET state = 'failed', finished_at = now()")
        other.execute("UPDATE pgbeat.jobs SET state = 'failed', finished_at = now()")
        seen = other.execute("SELECT count(*) FROM pgbeat.deliveries").fetchone()
        assert seen == (2,)
        other.rollback()
    assert told(sql) == []


def test_a_webhook_that_is_deleted_meanwhile_fails_nothing(
    database: str, add: Add, sql: Sql
) -> None:
    add()
    with psycopg.connect(database) as other, psycopg.connect(database, autocommit=True) as watch:
        other.execute("DELETE FROM pgbeat.webhooks")
        with waiting(lambda asked: watch.execute(asked).fetchall(), lambda: happen(sql)):
            other.commit()
    assert sql("SELECT outcome FROM pgbeat.ticks") == [("failed",)]
    assert told(sql) == []


# -- through the scheduler ---------------------------------------------------------------------


def test_failed_ticks_and_the_schedule_that_they_disable(
    beat: Beat, add: Add, sql: Sql, receiver: Receiver
) -> None:
    secret = add(events=["tick.failed", "schedule.disabled"])
    make_schedule(sql, "broken", due="0", condition_sql="SELECT 1/0", max_retries=2)
    scheduler = beat()
    for _ in range(2):
        sql("UPDATE pgbeat.schedules SET next_run = now() - interval '1 second'")
        assert scheduler.run_due() == 1
    until(lambda: scheduler.run_due() == 0 and states(sql) == [("delivered", 1)] * 3)
    assert [request.is_signed_with(secret) for request in receiver.received] == [True] * 3
    by_type: dict[str, list[Any]] = {}
    for request in receiver.received:
        by_type.setdefault(request.json["type"], []).append(request.json["data"])
    assert [(each["schedule"], each["error"]) for each in by_type["tick.failed"]] == [
        ("broken", "DivisionByZero: division by zero")
    ] * 2
    (disabled,) = by_type["schedule.disabled"]
    assert disabled["name"] == "broken"
    assert disabled["disabled_reason"].startswith("failed 2 times in a row")
    assert states(sql) == [("delivered", 1)] * 3


def test_a_schedule_that_is_done_is_not_disabled(beat: Beat, add: Add, sql: Sql) -> None:
    add()
    make_schedule(sql, "once", once_at=datetime.now(UTC) - timedelta(seconds=1))
    scheduler = beat()
    until(
        lambda: scheduler.run_due() >= 0 and sql("SELECT 1 FROM pgbeat.schedules WHERE NOT enabled")
    )
    assert "schedule.disabled" not in [event for _, event in told(sql)]
    sql("UPDATE pgbeat.schedules SET enabled = true, disabled_reason = NULL")
    sql("UPDATE pgbeat.schedules SET enabled = false, disabled_reason = 'I say so'")
    assert [event for _, event in told(sql)].count("schedule.disabled") == 1


def test_another_namespace_s_are_left_to_its_beat(
    beat: Beat, app: Celery, add: Add, sql: Sql, receiver: Receiver
) -> None:
    add()
    add("elsewhere", namespace="other")
    happen(sql)
    happen(sql, namespace="other")
    first = beat()
    until(lambda: first.run_due() == 0 and ("delivered", 1) in states(sql))
    assert sorted(states(sql)) == [("delivered", 1), ("pending", 0)]
    app.conf.pgbeat_namespace = "other"
    second = beat()
    until(lambda: second.run_due() == 0 and states(sql) == [("delivered", 1)] * 2)
    assert sorted(request.path for request in receiver.received) == ["/elsewhere", "/w"]


# -- the outbox --------------------------------------------------------------------------------


def test_nothing_is_begun_twice_until_its_lease_is_over(
    connection: Connection, add: Add, sql: Sql
) -> None:
    add()
    happen(sql)
    assert (len(claim(connection)), len(claim(connection))) == (1, 0)
    [(seconds,)] = sql("SELECT extract(epoch FROM pgbeat.next_delivery('default') - now())")
    assert 30 < seconds <= 60
    hurry(sql)
    assert (len(claim(connection)), len(claim(connection))) == (1, 0)
    assert states(sql) == [("pending", 2)]


def test_where_not_all_can_be_had_each_webhook_has_its_share(
    connection: Connection, add: Add, sql: Sql
) -> None:
    """Also one that has fewer under way, and whose events came last."""
    add("first", events=["tick.failed"])
    happen(sql, 20)
    assert len(claim(connection, 4)) == 4
    add("second", events=["tick.failed"])
    happen(sql, 20)
    assert [attempt.webhook for attempt in claim(connection, 4)] == ["second"] * 4
    found = [attempt.webhook for attempt in claim(connection, 4)]
    assert sorted(found) == ["first"] * 2 + ["second"] * 2


def test_webhooks_of_one_host_share_its_limit(connection: Connection, add: Add, sql: Sql) -> None:
    add("a", url="http://one.example/a")
    add("b", url="http://ONE.example?b")
    add("c", url="http://two.example/c")
    happen(sql, 8)
    found = claim(connection, room=DeliveryRoom(20, 20, 6))
    assert sorted(attempt.webhook for attempt in found) == ["a"] * 3 + ["b"] * 3 + ["c"] * 6
    finish(connection, Outcome(found[0], OK))
    (again,) = claim(connection, room=DeliveryRoom(20, 20, 6))
    assert again.url.split("/")[2].lower() == found[0].url.split("/")[2].lower()


def test_when_it_is_crowded_webhooks_with_none_under_way_still_have_one(
    connection: Connection, add: Add, sql: Sql
) -> None:
    add("first", events=["tick.failed"])
    happen(sql, 20)
    assert len(claim(connection, room=DeliveryRoom(6, 4, 100))) == 4
    add("second", events=["tick.failed"])
    happen(sql, 20)
    assert [each.webhook for each in claim(connection, room=DeliveryRoom(2, 0, 100))] == ["second"]
    assert claim(connection, room=DeliveryRoom(1, -1, 100)) == []


def test_a_receiver_that_is_down_has_one_attempt_at_a_time(
    connection: Connection, add: Add, sql: Sql
) -> None:
    add()
    add("other")
    happen(sql, 40)
    under_way: dict[str, list[DeliveryAttempt]] = {"w": [], "other": []}

    def begin() -> tuple[int, int]:
        for attempt in claim(connection):
            under_way[attempt.webhook].append(attempt)
        return len(under_way["w"]), len(under_way["other"])

    def end(name: str, answer: Reply) -> None:
        finish(connection, Outcome(under_way[name].pop(), answer))

    def due() -> bool:
        [(is_due,)] = sql("SELECT pgbeat.next_delivery('default') <= now()")
        return bool(is_due)

    assert begin() == (8, 8)
    assert not due()  # though more wait: all slots are taken
    assert begin() == (8, 8)
    end("other", OK)
    assert due()
    end("w", DOWN)
    assert begin() == (7, 8)
    for expected in (6, 5, 4, 3, 2, 1, 1, 1):
        end("w", DOWN)
        assert begin() == (expected, 8)
    for expected in (2, 4, 8, 8):
        end("w", OK)
        assert begin() == (expected, 8)


# -- attempts ----------------------------------------------------------------------------------


def begun(connection: Connection, sql: Sql) -> DeliveryAttempt:
    """The next attempt at the only delivery, whether it is due or not."""
    hurry(sql)
    (attempt,) = claim(connection)
    return attempt


def end(connection: Connection, attempt: DeliveryAttempt, answer: Reply) -> str:
    """Finishes an attempt; the delivery's state."""
    assert finish(connection, Outcome(attempt, answer)) == []
    query = text("SELECT state FROM pgbeat.deliveries WHERE id = :id")
    return str(connection.scalar(query, {"id": attempt.id}))


def test_three_retries_then_it_failed(connection: Connection, add: Add, sql: Sql) -> None:
    add()
    happen(sql)
    for delay in (5, 15, 45):
        assert end(connection, begun(connection, sql), DOWN) == "pending"
        [(seconds,)] = sql("SELECT extract(epoch FROM next_at - now()) FROM pgbeat.deliveries")
        assert delay - 3 < seconds <= delay
    assert end(connection, begun(connection, sql), DOWN) == "failed"
    assert sql("SELECT state, attempts, next_at, sent_at FROM pgbeat.deliveries") == [
        ("failed", 4, None, None)
    ]
    (row,) = deliveries.listing(connection, 1)
    assert [(entry["status"], entry["error"], entry["ms"]) for entry in row.log] == [
        (503, "it answered 503", 3.0)
    ] * 4


@pytest.mark.parametrize(("wanted", "seconds"), [(2.0, 5), (100.0, 100), (1e9, 3600)])
def test_a_receiver_may_ask_for_more_time(
    wanted: float, seconds: int, connection: Connection, add: Add, sql: Sql
) -> None:
    add()
    happen(sql)
    end(connection, begun(connection, sql), DOWN._replace(retry_after=wanted))
    [(found,)] = sql("SELECT extract(epoch FROM next_at - now()) FROM pgbeat.deliveries")
    assert seconds - 3 < found <= seconds


def test_many_outcomes_in_one_transaction(connection: Connection, add: Add, sql: Sql) -> None:
    """Each goes to its own delivery and webhook; those of rows that are locked are left."""
    add("good", events=["tick.failed"])
    add("bad", events=["tick.failed"])
    happen(sql, 3)
    attempts = claim(connection)
    assert len(attempts) == 6
    locked = attempts[0].id
    outcomes = [Outcome(a, OK if a.webhook == "good" else DOWN) for a in attempts]
    with psycopg.connect(sql_dsn(connection)) as other:
        other.execute("SELECT FROM pgbeat.deliveries WHERE id = %s FOR UPDATE", [locked])
        other.execute("SELECT FROM pgbeat.webhooks FOR UPDATE")
        assert list(finish(connection, *outcomes)) == [locked]
        assert sorted(states(sql)).count(("pending", 1)) in (3, 4)
    assert finish(connection, outcomes[0]) == []
    found = sql(
        "SELECT w.name, d.state, d.log -> 0 ->> 'status', count(*) FROM pgbeat.deliveries d "
        "JOIN pgbeat.webhooks w ON w.id = webhook_id GROUP BY 1, 2, 3 ORDER BY 1"
    )
    assert found == [("bad", "pending", "503", 3), ("good", "delivered", "200", 3)]


def test_a_webhook_to_be_disabled_that_is_locked_holds_nothing_up(
    connection: Connection, add: Add, sql: Sql
) -> None:
    add("gone", events=["tick.failed"])
    add("good", events=["tick.failed"])
    happen(sql)
    attempts = {attempt.webhook: attempt for attempt in claim(connection)}
    gone = Outcome(attempts["gone"], Reply(410, "it answered 410 Gone", 3.0))
    with psycopg.connect(sql_dsn(connection)) as other:
        other.execute("SELECT FROM pgbeat.webhooks WHERE name = 'gone' FOR UPDATE")
        assert finish(connection, gone, Outcome(attempts["good"], OK)) == [attempts["gone"].id]
        assert sorted(states(sql)) == [("delivered", 1), ("pending", 1)]
    assert finish(connection, gone) == []
    assert sorted(states(sql)) == [("delivered", 1), ("failed", 1)]
    assert not webhooks.get(connection, "gone").enabled


def sql_dsn(connection: Connection) -> str:
    """The connection's DSN, for psycopg."""
    url = connection.engine.url.set(drivername="postgresql")
    return url.render_as_string(hide_password=False)


def test_what_is_locked_is_begun_later(
    connection: Connection, database: str, add: Add, sql: Sql
) -> None:
    add()
    happen(sql, 2)
    [(key,), _] = sql("SELECT id FROM pgbeat.deliveries ORDER BY created_at, id")
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM pgbeat.deliveries WHERE id = %s FOR UPDATE", [key])
        assert [attempt.id == key for attempt in claim(connection)] == [False]
    assert [attempt.id for attempt in claim(connection)] == [key]


def test_an_outcome_that_comes_late(connection: Connection, add: Add, sql: Sql) -> None:
    """A beat was stopped for so long that another one tried too: a failure of the first says
    nothing any more, a success does.
    """
    add()
    happen(sql)
    first, second = begun(connection, sql), begun(connection, sql)
    assert end(connection, first, DOWN) == "pending"
    assert sql("SELECT state, attempts, sent_at IS NOT NULL FROM pgbeat.deliveries") == [
        ("pending", 2, True)
    ]
    assert end(connection, first, OK) == "delivered"
    assert end(connection, second, DOWN) == "delivered"
    assert states(sql) == [("delivered", 2)]
    (row,) = deliveries.listing(connection, 1)
    assert [entry.get("status") for entry in row.log] == [200, None]


def test_the_last_attempt_was_lost(connection: Connection, add: Add, sql: Sql) -> None:
    add()
    happen(sql)
    for _ in range(4):
        begun(connection, sql)
    hurry(sql)
    assert claim(connection) == []
    assert states(sql) == [("failed", 4)]
    (row,) = deliveries.listing(connection, 1)
    assert row.log[-1]["error"] == "nothing was heard of the last attempt: its beat was lost"
    assert sql("SELECT pgbeat.next_delivery('default')") == [(None,)]


def test_gone(
    deliver: Callable[[], int], connection: Connection, add: Add, sql: Sql, receiver: Receiver
) -> None:
    add()
    happen(sql, 3)
    sql("UPDATE pgbeat.webhooks SET slots = 1")
    receiver.answers.append(410)
    assert deliver() == 1
    row = webhooks.get(connection, "w")
    assert (row.enabled, row.disabled_reason) == (False, "its receiver answered 410 Gone")
    assert {state for state, _ in states(sql)} == {"failed"}
    assert len(receiver.received) == 1
    happen(sql)
    assert len(told(sql)) == 3
    assert control.enable(unit(connection), "w")[0].disabled_reason is None
    happen(sql)
    assert len(told(sql)) == 4


def test_a_webhook_disabled_by_plain_sql(connection: Connection, add: Add, sql: Sql) -> None:
    """What was under way or waits for it has failed, and beat doesn't go round for it."""
    add()
    happen(sql)
    sql("UPDATE pgbeat.webhooks SET enabled = false")
    assert claim(connection) == []
    assert states(sql) == [("failed", 0)]
    (row,) = deliveries.listing(connection, 1)
    assert row.log[-1]["error"] == "the webhook was disabled"


def test_no_lock_and_no_transaction_while_the_receiver_is_asked(
    deliver: Callable[[], int], database: str, add: Add, sql: Sql, receiver: Receiver
) -> None:
    add()
    happen(sql)
    receiver.answers.append(receiver.hang)
    worker = threading.Thread(target=deliver)
    worker.start()
    until(lambda: receiver.received)
    with psycopg.connect(database) as other:
        other.execute("SET lock_timeout = '100ms'")
        other.execute("SELECT FROM pgbeat.deliveries FOR UPDATE")
        other.execute("SELECT FROM pgbeat.webhooks FOR UPDATE")
        open_ones = other.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
        ).fetchone()
        assert open_ones == (0,)
    receiver.released.set()
    worker.join(60)
    assert [attempts for _, attempts in states(sql)] == [1]


def test_redirects_and_private_networks(
    app: Celery,
    deliver: Callable[[], int],
    add: Add,
    sql: Sql,
    receiver: Receiver,
    connection: Connection,
) -> None:
    add(url=f"http://localhost:{receiver.port}/")
    receiver.answers.append(answering(302, Location=receiver.url("/elsewhere")))
    happen(sql)
    deliver()
    app.conf.pgbeat_webhook_private = False
    hurry(sql)
    deliver()
    assert len(receiver.received) == 1
    (row,) = deliveries.listing(connection, 1)
    first, second = row.log
    assert first["status"] == 302 and "redirects are not followed" in first["error"]
    assert "status" not in second
    assert second["error"].startswith("localhost is ") and "a loopback address" in second["error"]


# -- asked for again ---------------------------------------------------------------------------


def test_redelivered_with_its_id_and_new_attempts(
    deliver: Callable[[], int], add: Add, sql: Sql, receiver: Receiver, connection: Connection
) -> None:
    add()
    happen(sql)
    for _ in range(4):
        end(connection, begun(connection, sql), DOWN)
    [(key,)] = sql("SELECT id FROM pgbeat.deliveries WHERE state = 'failed'")
    assert deliveries.redeliver(connection, [key], by="user:alice") == {"w": [key]}
    with raises(InvalidJob, ("", "pending")):
        deliveries.redeliver(connection, [key], by="user:alice")
    receiver.answers.append(500)
    for _ in range(2):
        hurry(sql)
        assert deliver() == 1
    assert states(sql) == [("delivered", 2)]
    assert deliveries.redeliver(connection, [key], by="user:alice") == {"w": [key]}
    assert deliver() == 1
    assert {request.id for request in receiver.received} == {str(key)}
    assert len(receiver.received) == 3
    (row,) = deliveries.listing(connection, 1)
    kinds = ["again" if "redelivered_by" in e else e.get("status") for e in row.log]
    assert kinds == [503, 503, 503, 503, "again", 500, 200, "again", 200]


def test_redeliver_all_that_failed(connection: Connection, add: Add, sql: Sql) -> None:
    add()
    add("other")
    happen(sql, 3)
    sql("UPDATE pgbeat.deliveries SET state = 'failed', next_at = NULL, finished_at = now()")
    call = deliveries.redeliver_failed
    assert call(connection, "w", by="user:alice", namespace="default") == 3
    assert call(connection, "w", by="user:alice", namespace="default") == 0
    assert deliveries.counts(connection) == {
        "w": {"pending": 3, "delivered": 0, "failed": 0},
        "other": {"pending": 0, "delivered": 0, "failed": 3},
    }
    control.disable(unit(connection), "other")
    with pytest.raises(InvalidJob, match="pgbeat webhooks enable"):
        call(connection, "other", by="user:alice", namespace="default")
    with pytest.raises(NotFound):
        deliveries.redeliver(connection, [uuid.uuid4()], by="user:alice")
    [(key,)] = sql(
        "SELECT d.id FROM pgbeat.deliveries d JOIN pgbeat.webhooks w "
        "ON w.id = webhook_id WHERE w.name = 'other' LIMIT 1"
    )
    with pytest.raises(NotFound):
        deliveries.redeliver(connection, [key], by="user:alice", namespace="elsewhere")


def test_pages_of_deliveries(connection: Connection, add: Add, sql: Sql) -> None:
    add()
    happen(sql, 7)
    sql("UPDATE pgbeat.deliveries SET created_at = created_at - random() * interval '1 hour'")
    whole = deliveries.listing(connection, 1)
    assert [row.created_at for row in whole] == sorted(
        (row.created_at for row in whole), reverse=True
    )
    pages: list[deliveries.Delivery] = []
    while page := deliveries.listing(
        connection, 1, limit=3, before=(pages[-1].created_at, pages[-1].id) if pages else None
    ):
        pages += page
    assert pages == whole
    assert deliveries.listing(connection, 1, state="failed") == []


def test_the_hot_statements_read_indexes(connection: Connection, add: Add, sql: Sql) -> None:
    add()
    add("other")
    sql(
        "INSERT INTO pgbeat.deliveries (webhook_id, event, payload, state, next_at, finished_at) "
        "SELECT 1 + n % 2, 'tick.failed', jsonb_build_object('data', repeat('x', 500)), "
        "       CASE WHEN is_open THEN 'pending' ELSE 'delivered' END, "
        "       CASE WHEN is_open THEN now() + interval '1 hour' END, "
        "       CASE WHEN NOT is_open THEN now() END "
        "  FROM (SELECT n, n % 100 = 0 AS is_open FROM generate_series(1, 20000) n) each"
    )
    sql("VACUUM ANALYZE pgbeat.deliveries")
    values = {
        "namespace": "default",
        "lease": 60.0,
        "limit": 64,
        "most": 4,
        "worker": "b",
        "shared": 64,
        "per_host": 64,
    }
    for statement in (webhook_outbox._CLAIM, webhook_outbox._GIVE_UP, deliveries._COUNTS):
        names = {name: values[name] for name in statement.compile().params}
        explained = text(f"EXPLAIN {statement.text}")
        plan = "\n".join(connection.execute(explained, names).scalars())
        assert "Seq Scan on deliveries" not in plan, plan


# -- with real processes -----------------------------------------------------------------------


def broken_schedule(sql: Sql) -> None:
    """A schedule whose next tick fails."""
    make_schedule(sql, "broken", due="0", condition_sql="SELECT 1/0")


def impatient(sql: Sql, condition: Callable[[], Any]) -> Any:
    """Waits for it, while retries are due at once: five seconds after a failure, not fifteen."""

    def look() -> Any:
        sql(
            "UPDATE pgbeat.deliveries SET next_at = now() WHERE state = 'pending' "
            "AND sent_at IS NULL AND next_at > now()"
        )
        sql("NOTIFY pgbeat_schedules, 'deliveries'")
        return condition()

    return until(look)


def received(receiver: Receiver, number: int) -> list[Request]:
    """All that came in, once it is so many."""
    until(lambda: len(receiver.received) >= number)
    return receiver.received


def test_a_receiver_that_fails_twice_and_then_accepts(
    processes: Processes, add: Add, sql: Sql, receiver: Receiver, connection: Connection
) -> None:
    """No worker runs."""
    secret = add(events=["tick.failed"])
    receiver.answers += [500, 503]
    beat = processes.beat(PGBEAT_WEBHOOK_PRIVATE="1")
    broken_schedule(sql)
    impatient(sql, lambda: states(sql) == [("delivered", 3)])
    first, *others = receiver.received
    assert len(others) == 2
    assert all(request.is_signed_with(secret) for request in receiver.received)
    assert {(request.id, request.body) for request in others} == {(first.id, first.body)}
    assert first.json["data"]["schedule"] == "broken"
    (row,) = deliveries.listing(connection, 1)
    assert str(row.id) == first.id
    assert [entry["status"] for entry in row.log] == [500, 503, 200]
    beat.says("delivered in")
    assert "Webhook 'w': tick.failed" in beat.output
    assert secret not in beat.output
    assert secret.removeprefix("whsec_") not in beat.output
    assert receiver.url("/w") not in beat.output


def test_a_retry_is_made_in_time(
    beat: Beat, add: Add, sql: Sql, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that anybody tells the beat."""
    monkeypatch.setattr(webhook_outbox, "DELAYS", (0.2, 0.2, 0.2))
    add()
    receiver.answers += [500, 500]
    happen(sql)
    beat().run_due()
    until(lambda: states(sql) == [("delivered", 3)])


def test_a_webhook_that_takes_all_that_is_shared_keeps_no_other_waiting(
    beat: Beat, add: Add, sql: Sql, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliverer, "_REQUESTS", 5)
    monkeypatch.setattr(deliverer, "_SHARED", 4)
    add("hanging", events=["tick.failed"])
    receiver.by_path["/hanging"] = receiver.hang
    scheduler = beat()
    happen(sql, 20)
    until(lambda: scheduler.run_due() == 0 and len(receiver.received) == 4)
    add(events=["tick.failed"], url=f"http://localhost:{receiver.port}/w")
    happen(sql, 3)
    until(lambda: scheduler.run_due() == 0 and states(sql).count(("delivered", 1)) == 3, 5)
    receiver.by_path.clear()
    receiver.released.set()


@pytest.mark.slow
def test_the_beat_is_killed_in_the_middle(
    processes: Processes, add: Add, sql: Sql, receiver: Receiver
) -> None:
    secret = add(events=["tick.failed"])
    receiver.answers.append(receiver.hang)
    beat = processes.beat(PGBEAT_WEBHOOK_PRIVATE="1")
    broken_schedule(sql)
    received(receiver, 1)
    beat.kill_group()
    assert states(sql) == [("pending", 1)]
    processes.beat(PGBEAT_WEBHOOK_PRIVATE="1").says("This beat leads")
    hurry(sql)  # the lease is over
    sql("NOTIFY pgbeat_schedules, 'deliveries'")
    until(lambda: states(sql) == [("delivered", 2)])
    first, second = received(receiver, 2)
    assert (first.id, first.body) == (second.id, second.body)
    assert second.is_signed_with(secret)


@pytest.mark.slow
def test_a_beat_that_ends_waits_briefly_for_its_deliveries(
    processes: Processes, add: Add, sql: Sql, receiver: Receiver
) -> None:
    """One that comes out meanwhile is written, one that hangs is left to its lease."""
    add(events=["tick.failed"])
    add("hanging", events=["tick.failed"])
    slow = threading.Event()

    def answer_slowly(handler: Any) -> None:
        slow.wait(60)
        handler.answer(200)

    receiver.by_path |= {"/hanging": receiver.hang, "/w": answer_slowly}
    beat = processes.beat(PGBEAT_WEBHOOK_PRIVATE="1")
    happen(sql)
    received(receiver, 2)
    beat.terminate()
    beat.says("Waiting for 2 webhook deliveries", 10)
    slow.set()
    assert beat.wait(15) == 0
    assert sorted(states(sql)) == [("delivered", 1), ("pending", 1)]


@pytest.mark.slow
def test_a_receiver_that_hangs_keeps_no_job_and_no_other_webhook_waiting(
    processes: Processes, add: Add, sql: Sql, receiver: Receiver
) -> None:
    add("hanging", events=["tick.failed"])
    add(events=["tick.failed"])
    receiver.by_path["/hanging"] = receiver.hang
    processes.beat(app="tests.support.apps.webhooks", PGBEAT_WEBHOOK_PRIVATE="1").says(
        "This beat leads"
    )
    worker = processes.worker("-P", "prefork", "-c", "2", app="tests.support.apps.webhooks")
    worker.says("ready.")
    happen(sql, 50)
    until(lambda: [each.path for each in receiver.received].count("/hanging"))
    for number in range(20):
        make_schedule(sql, f"job {number}", due="0")
    completed = "SELECT count(*) FROM pgbeat.jobs WHERE state = 'completed'"
    until(lambda: sql(completed) == [(20,)], 8)  # a request gives up after ten seconds
    until(lambda: states(sql).count(("delivered", 1)) == 50, 8)
    assert sum(each.path == "/hanging" for each in receiver.received) <= webhooks.SLOTS


@pytest.mark.slow
def test_many_are_delivered_each_once_where_nothing_goes_wrong(
    processes: Processes, add: Add, sql: Sql, receiver: Receiver
) -> None:
    add(events=["tick.failed"])
    add("second", events=["tick.failed"])
    for _ in range(2):
        processes.beat(PGBEAT_WEBHOOK_PRIVATE="1")
    happen(sql, 200)
    until(lambda: set(states(sql)) == {("delivered", 1)}, 90)
    assert len(receiver.received) == 400
    assert len({request.id for request in receiver.received}) == 400
