"""Delayed messages are promoted when they are due, and expired ones are deleted."""

from functools import partial
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from pgbeat.broker import discards, messages
from pgbeat.broker.messages import Message
from pgbeat.broker.transport.consuming import consumers
from tests.support.broker_sessions import Sessions, depths, later, payloads, put, rows, state
from tests.support.command_line import Sql
from tests.support.rows import make_job
from tests.support.threads import together


def test_no_maintenance_is_due_without_messages(connection: Connection) -> None:
    assert consumers.due_maintenance(connection) == ([], None, False, 0)


def test_delayed_messages_are_promoted_when_due(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "later", available_at=later(connection, "1 hour"))
    due = consumers.due_maintenance(connection).next_due
    assert due is not None
    assert due == pytest.approx(3600, abs=30)
    assert consumers.promote(connection) == 0
    for name, ago in (("third", "1 second"), ("first", "3 seconds"), ("second", "2 seconds")):
        put(connection, "q", name, available_at=later(connection, "1 hour"), ttl=60_000)
        connection.execute(
            text(
                "UPDATE kombu_message SET available_at = now() - CAST(:ago AS interval) "
                "WHERE payload = :name"
            ),
            {"ago": ago, "name": name},
        )
    put(connection, "q", "waits already")
    due = consumers.due_maintenance(connection).next_due
    assert due is not None
    assert due <= -3
    assert consumers.promote(connection, limit=2) == 2
    assert consumers.promote(connection, limit=2) == 1
    assert consumers.promote(connection, limit=2) == 0
    # They queue up, the longest due first.
    found = opened.consumer().claim("q")
    assert payloads(found) == ["waits already", "first", "second", "third"]
    assert rows(
        connection, "SELECT payload FROM kombu_message WHERE available_at IS NOT NULL OR visible"
    ) == [("later",)]


def test_due_messages_of_ended_jobs_are_dropped(connection: Connection, sql: Sql) -> None:
    """A task asked for Celery's retry when its job was cancelled, or before its process died."""
    for name in ("scheduled", "running", "failed", "completed", "cancelled", "skipped"):
        job_id = make_job(sql, name)
        put(connection, "q", name, available_at=later(connection, "1 hour"), job_id=job_id)
    job_id = make_job(sql, "failed", retried_by=str(uuid4()))
    put(connection, "q", "retried", available_at=later(connection, "1 hour"), job_id=job_id)
    sql("UPDATE kombu_message SET available_at = now()")
    assert consumers.promote(connection) == 7
    assert set(state(connection)) == {"scheduled", "running", "failed"}


def test_no_message_is_promoted_twice(opened: Sessions, connection: Connection) -> None:
    count = 400
    soon = later(connection, "1 hour")
    messages.put(connection, [Message("q", str(n), available_at=soon) for n in range(count)])
    connection.execute(text("UPDATE kombu_message SET available_at = now() - interval '1 second'"))

    def promote_all(mine: Connection) -> int:
        return sum(iter(partial(consumers.promote, mine, limit=9), 0))

    promoted = sum(together([partial(promote_all, opened.open()) for _ in range(3)]))
    assert promoted + consumers.promote(connection) == count
    assert depths(connection) == {"q": count}


def test_expired_messages_are_deleted(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "claimed", "waiting", ttl=60_000)
    put(connection, "q", "lives", ttl=3_600_000)
    put(connection, "q", "for ever")
    put(connection, "q", "delayed", ttl=60_000, available_at=later(connection, "1 hour"))
    consumer = opened.consumer()
    (claimed,) = consumer.claim("q", at_most=1)
    assert not consumers.due_maintenance(connection).has_expired
    connection.execute(
        text("UPDATE kombu_message SET expires_at = expires_at - interval '2 minutes'")
    )
    assert consumers.due_maintenance(connection).has_expired
    discards.expire(connection)
    assert set(state(connection)) == {"claimed", "lives", "for ever", "delayed"}
    assert not consumers.due_maintenance(connection).has_expired
    assert consumer.ack(claimed.id) == 1
