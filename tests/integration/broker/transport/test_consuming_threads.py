"""Several threads consume, acknowledge and wait."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from pgbeat.broker.transport.consuming import maintenance
from tests.support.command_line import Sql
from tests.support.kombu_connections import Connect, Inbox, publish
from tests.support.processes import until
from tests.support.threads import together


def test_acknowledged_by_other_threads(connection: Any, sql: Sql) -> None:
    """The returned credit is used at once, though only they know of it."""
    inbox = Inbox(connection, "q", prefetch=2)
    publish(connection, "q", *range(30))
    start, pool = time.monotonic(), ThreadPoolExecutor(2)
    for n in range(0, 30, 2):
        found = inbox.get(2, seconds=10)
        assert [m.payload for m in found] == [n, n + 1]
        for message in found:
            pool.submit(message.ack)
    pool.shutdown()
    assert time.monotonic() - start < 30
    assert until(lambda: sql("SELECT count(*) FROM kombu_message") == [(0,)])


def test_acknowledged_while_another_thread_waits(connection: Any) -> None:
    inbox = Inbox(connection, "q", prefetch=1)
    publish(connection, "q", 1, 2)
    (first,) = inbox.get()
    with ThreadPoolExecutor(1) as pool:
        arrived = pool.submit(inbox.get, seconds=20)
        until(lambda: connection.transport._is_waiting)
        start = time.monotonic()
        first.ack()
        assert [m.payload for m in arrived.result()] == [2]
    assert time.monotonic() - start < 5


def test_many_connections_and_threads_of_a_process(connect: Connect, sql: Sql) -> None:
    """Each thread has a connection and consumes two queues, one of them shared."""
    names = ["shared", *(f"own{n}" for n in range(4))]
    inboxes = [Inbox(connect(), "shared", f"own{n}", prefetch=3) for n in range(4)]
    got: list[list[Any]] = [[] for _ in inboxes]
    total = 40 * len(names)
    deadline = time.monotonic() + 30

    def consume(inbox: Inbox, mine: list[Any]) -> None:
        while sum(map(len, got)) < total and time.monotonic() < deadline:
            inbox.drain(1, 0.2)
            mine += inbox.bodies(len(inbox.messages))

    def produce(connection: Any, name: str) -> None:
        publish(connection, name, *[[name, n] for n in range(40)])

    together(
        [
            *(partial(consume, *each) for each in zip(inboxes, got, strict=True)),
            *(partial(produce, connect(), name) for name in names),
        ]
    )
    wanted = sorted([name, n] for name in names for n in range(40))
    assert sorted(m for mine in got for m in mine) == wanted
    for n, mine in enumerate(got):
        assert [m for m in mine if m[0] == f"own{n}"] == [[f"own{n}", k] for k in range(40)]
    assert until(lambda: sql("SELECT count(*) FROM kombu_message") == [(0,)])


def test_threads_that_wait_are_woken(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two connections of a process share a session: what one reads for the other it passes on."""
    # Otherwise each would find its messages when its maintenance is due, too.
    monkeypatch.setattr(maintenance, "_INTERVAL", 300)
    inboxes = [Inbox(connect(), f"q{n}") for n in range(2)]
    publisher = connect()
    answered = [threading.Semaphore(0) for _ in inboxes]
    rounds = 200

    def consume(n: int) -> None:
        for _ in range(rounds):
            inboxes[n].bodies(seconds=30)
            answered[n].release()

    with ThreadPoolExecutor(2) as pool:
        consumed = [pool.submit(consume, n) for n in range(2)]
        for round in range(rounds):
            for n in range(2):
                publish(publisher, f"q{n}", round)
            for n in range(2):
                assert answered[n].acquire(timeout=20), (consumed, round)
        for each in consumed:
            each.result()


def test_what_arrives_during_a_long_task_is_read(connection: Any, sql: Sql) -> None:
    """Over TCP the server would soon end the session, and with it the task's claim."""
    Inbox(connection, "q").all_there_is()
    notify = "pg_notify('pgbeat_broker', 'delayed ' || n)"
    sql(f"SELECT count({notify}) FROM generate_series(1, 50000) AS n")
    until(lambda: sql("SELECT pg_notification_queue_usage()") == [(0.0,)])
