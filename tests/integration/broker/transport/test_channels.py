"""Channels of a process that acknowledge share a session, and each gets all of its messages."""

import select
import time
from typing import Any

import pytest
from sqlalchemy import text

from pgbeat.broker.transport.consuming import claims
from tests.support.broker_sessions import Sessions
from tests.support.command_line import Sql
from tests.support.kombu_connections import Connect, Inbox, publish


@pytest.fixture
def inboxes(connection: Any, monkeypatch: pytest.MonkeyPatch) -> list[Inbox]:
    """Two channels that have claimed messages, each of its own queue."""
    # As where claims from the start cost more: one is not over before the next is due.
    monkeypatch.setattr(claims, "_DEEP_SHARE", 0.005)
    inboxes = [Inbox(connection, name, prefetch=10) for name in ("one", "two")]
    for name in ("one", "two"):
        publish(connection, name, 1, 2)
    for inbox in inboxes:
        assert inbox.bodies(2) == [1, 2]
    return inboxes


def test_idle_channels_claim_nothing(inboxes: list[Inbox]) -> None:
    session = inboxes[0].channel.session
    end, steps = time.monotonic() + 1, 0
    while (left := end - time.monotonic()) > 0:
        while session.step():
            steps += 1
        select.select([session.prepared], [], [], min(session.until_next(), left))
    assert steps < 12


def test_each_channel_gets_what_is_committed_late(
    inboxes: list[Inbox], connect: Connect, opened: Sessions
) -> None:
    publisher, late = connect(), opened.open()
    Inbox(publisher, "spare").cancel()
    publish(publisher, "spare", "late")
    late.execute(text("BEGIN"))
    late.execute(
        text(
            "INSERT INTO kombu_message (payload, queue_id) SELECT m.payload, q.id "
            "FROM kombu_message m JOIN kombu_queue s ON s.id = m.queue_id AND s.name = 'spare', "
            "kombu_queue q WHERE q.name IN ('one', 'two')"
        )
    )
    for name, inbox in zip(("one", "two"), inboxes, strict=True):
        publish(publisher, name, "next")
        assert inbox.bodies() == ["next"]
    late.execute(text("COMMIT"))
    for inbox in inboxes:
        assert inbox.bodies(seconds=5) == ["late"]


def test_a_process_that_consumes_no_more_is_not_notified(connection: Any, sql: Sql) -> None:
    """Such as a web process that has asked workers once, and may never read its session again."""
    inbox = Inbox(connection, "q")
    for n in range(2):
        publish(connection, "q", n)
        assert inbox.bodies() == [n]
        assert inbox.all_there_is() == []  # it waits for more
        inbox.cancel()
        assert sql("SELECT count(*) FROM pg_locks WHERE classid = 1885823594") == [(0,)]
        publish(connection, "q", n)
        sql("NOTIFY pgbeat_broker, 'delayed'")
        prepared = inbox.channel.session.prepared
        prepared.command("SELECT 1")
        assert prepared.notifications() == []
        inbox.consumer.consume()
        assert inbox.bodies() == [n]
