"""The share of maintenance that each consumer does for all."""

import random
import select
import time
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from pgbeat.broker.transport.consuming import consumers
from pgbeat.broker.transport.consuming.maintenance import BrokerMaintenance, MadeAvailable
from pgbeat.broker.transport.consuming.session import Session
from pgbeat.broker.transport.options import Options
from pgbeat.database import connections
from tests.support.broker_sessions import Sessions, later, payloads, put
from tests.support.kombu_connections import Connect


def test_one_does_it_at_a_time(opened: Sessions) -> None:
    """The second must not lock the rows, which would hide them from notified consumers."""
    watcher, one = opened.open(), opened.consumer()
    put(watcher, "q", "its", "delayed")
    assert payloads(one.claim("q", at_most=1)) == ["its"]
    watcher.execute(
        text(
            "UPDATE kombu_message SET visible = false, available_at = now() "
            "WHERE payload = 'delayed'"
        )
    )
    one.die(watcher)
    maintenance = BrokerMaintenance(opened.open(), Options(), 0)
    with connections.transaction(watcher):
        assert consumers.try_maintenance_lock(watcher)
        assert maintenance.run(time.monotonic()) == MadeAvailable()
        assert maintenance.next_at - time.monotonic() < 0.1
        assert payloads(opened.consumer().claim("q")) == []
    assert maintenance.run(time.monotonic()) == MadeAvailable(requeued=True, promoted=True)
    assert sorted(payloads(opened.consumer().claim("q"))) == ["delayed", "its"]


def test_when_to_look_again(opened: Sessions) -> None:
    """Sooner where something is due sooner, or where few share the work."""
    random.seed(1)  # no time to prune comes first
    connection = opened.open()
    maintenance = BrokerMaintenance(connection, Options(), 1)
    began = time.monotonic()
    maintenance.run(began)
    assert began + 0.5 < maintenance.next_at < time.monotonic() + 1
    put(connection, "q", "soon", available_at=later(connection, "0.3 seconds"))
    maintenance.run(time.monotonic())
    assert maintenance.next_at - time.monotonic() < 0.4


def test_how_often_to_look_where_most_consumers_do_not(opened: Sessions) -> None:
    """A message that was promoted late tells that they run tasks, or have nothing to consume."""
    random.seed(1)
    connection = opened.open()
    for _ in range(200):
        consumers.register(connection, "busy", lease=600)
    maintenance = BrokerMaintenance(connection, Options(), 0)
    maintenance.run(time.monotonic())
    assert maintenance.next_at - time.monotonic() > 10
    put(connection, "q", "m", available_at=later(connection, "0.01 seconds"))
    connection.execute(text("UPDATE kombu_message SET available_at = now() - interval '4 s'"))
    assert maintenance.run(time.monotonic()).promoted
    maintenance.run(time.monotonic())
    assert maintenance.next_at - time.monotonic() < 2


def flow(watcher: Connection, sessions: Sequence[Session], seconds: float) -> None:
    """Drives the sessions, while every 20 ms a message is put that is due 0.3 seconds later."""
    put_at = time.monotonic()
    end = put_at + seconds
    while (now := time.monotonic()) < end:
        if now >= put_at:
            due = later(watcher, "0.3 seconds")
            put(watcher, "q", due, available_at=due)
            put_at = now + 0.02
        for session in sessions:
            while session.step():
                pass
        next_at = min(put_at - time.monotonic(), *(session.until_next() for session in sessions))
        sockets = [session.prepared.fileno() for session in sessions]
        select.select(sockets, [], [], max(0.0, next_at))


@pytest.mark.parametrize("idle", [20, 2])
def test_due_messages_do_not_make_every_consumer_look(
    connect: Connect, opened: Sessions, idle: int
) -> None:
    """Nor are they late while most consumers run tasks and do no maintenance."""
    watcher, broker = opened.open(), connect().channel().broker
    sessions = [Session(broker, opened.open()) for _ in range(20)]
    flow(watcher, sessions[:idle], 1.5)
    began = later(watcher, "0 seconds")
    runs: list[str] = []

    def note(_: Any, __: Any, statement: str, *rest: Any) -> None:
        if "dead_consumers" in statement:
            runs.append(statement)

    event.listen(watcher.engine, "before_cursor_execute", note)
    flow(watcher, sessions[:idle], 1.5)
    assert 0 < len(runs) < 100
    lateness = text(
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract("
        "epoch FROM enqueued_at - CAST(payload AS timestamptz))) FROM kombu_message "
        "WHERE visible AND CAST(payload AS timestamptz) > CAST(:began AS timestamptz)"
    )
    assert watcher.scalar(lateness, {"began": began}) < 0.15


def test_claims_of_unknown_consumers_are_swept_up(opened: Sessions) -> None:
    watcher, lost = opened.open(), opened.consumer()
    put(watcher, "q", "m")
    lost.claim("q")
    watcher.execute(text("DELETE FROM pgbeat.consumers"))
    maintenance = BrokerMaintenance(opened.open(), Options(), 0)
    now = time.monotonic()
    assert maintenance.run(now + 30).requeued
    assert not maintenance.run(now + 30).requeued
    assert payloads(opened.consumer().claim("q")) == ["m"]
