"""Threads that share a process's consumer, and forks that Python's hooks don't see."""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy import text

from pgbeat.config import postgres_url
from pgbeat.database import forks
from pgbeat.database.kept import kept
from tests.support.command_line import Sql
from tests.support.kombu_connections import Connect, Inbox, kombu, publish, terminate_others
from tests.support.processes import until
from tests.support.threads import repeating


def test_a_consumer_is_cancelled_while_another_thread_claims(connect: Connect, sql: Sql) -> None:
    """A message claimed for an ended consumer would stay claimed as long as the process lives."""
    ours, inbox = connect(), Inbox(connect(), "other")

    def drain() -> None:
        inbox.drain(1, 0.01)
        inbox.bodies(len(inbox.messages))

    with repeating(drain):
        publish(ours, "q", *range(40))
        channel = ours.channel()
        consumer = kombu.Consumer(channel, [kombu.Queue("q")], on_message=print, accept=["json"])
        consumer.qos(prefetch_count=3)
        for n in range(150):
            publish(ours, "other", n)  # wakes the other thread
            consumer.consume()
            consumer.cancel()
            assert not channel._buffer and not channel._reserved
    where = "queue_id = (SELECT id FROM kombu_queue WHERE name = 'q')"
    assert sql(f"SELECT count(*), count(claimed_by) FROM kombu_message WHERE {where}") == [(40, 0)]


def test_a_session_outlives_a_connection_that_another_thread_closes(connect: Connect) -> None:
    """The last one of the process until then, in the moment in which the next one connects."""
    last = connect()
    last.connect()
    broker = last.transport.broker
    with ThreadPoolExecutor(1) as pool, broker.work():
        closed = pool.submit(last.release)
        until(lambda: broker.users == 0)
        inbox = Inbox(connect(), "q")
    closed.result()
    publish(inbox.connection, "q", "m")
    assert inbox.bodies() == ["m"]


def fork_unseen() -> int:
    """Forks as uWSGI does: the interpreter doesn't know, and calls no hooks."""
    return int(ctypes.PyDLL(None).fork())


def in_child(work: Callable[[], None]) -> None:
    """Does it in a child of the kind; fails if that does."""
    pid = fork_unseen()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def poolers(database: str) -> int:
    """The sessions of this process's own transport."""
    with psycopg.connect(database) as watcher:
        cursor = watcher.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name LIKE 'pgbeat transport%%:' || %s",
            [os.getpid()],
        )
        return int((cursor.fetchone() or [0])[0])


def test_connections_that_are_kept_are_not_inherited(database: str) -> None:
    url = postgres_url(database)
    pid = text("SELECT pg_backend_pid()")
    with kept(url, "tests") as connection:
        ours = connection.scalar(pid)

    def work() -> None:
        with kept(url, "tests") as connection:
            assert connection.scalar(pid) != ours

    in_child(work)
    with kept(url, "tests") as connection:
        assert connection.scalar(pid) == ours


def test_a_fork_that_calls_no_hooks(connect: Connect, sql: Sql, database: str) -> None:
    """The child opens connections of its own, and leaves the parent's sockets alone."""
    connection = connect()
    inbox = Inbox(connection, "q", prefetch=1)
    publish(connection, "q", "held", "next")
    (held,) = inbox.get()

    def work() -> None:
        publish(connection, "q", "child")
        assert poolers(database) == 1
        with connection.clone(transport_options=connection.transport_options) as own:
            publish(own, "q", "child")

    for _ in range(2):
        in_child(work)
    assert sql("SELECT count(*) FROM kombu_message WHERE claimed_by IS NOT NULL") == [(1,)]
    held.ack()
    assert [inbox.bodies()[0] for _ in range(5)] == ["next", *["child"] * 4]
    publish(connection, "q", "parent")
    assert inbox.bodies() == ["parent"]


def test_a_fork_while_the_session_is_lost(connect: Connect, sql: Sql) -> None:
    """As of a worker's next process while the server is restarted."""
    connection = connect()
    inbox = Inbox(connection, "q")
    terminate_others(sql)
    with pytest.raises(connection.connection_errors):
        inbox.get()
    in_child(forks.check_process)


def test_a_fork_that_calls_no_hooks_ends_with_its_parent(connect: Connect, sql: Sql) -> None:
    """A child that used a connection keeps no session of its parent's alive."""
    connection = connect()
    Inbox(connection, "q")
    [(consumer,)] = sql("SELECT id FROM pgbeat.consumers")
    ready, go_on = os.pipe(), os.pipe()
    pid = fork_unseen()
    if pid == 0:
        try:
            publish(connection, "q", "child")
            os.write(ready[1], b"\0")
            os.read(go_on[0], 1)
        finally:
            os._exit(0)
    try:
        os.read(ready[0], 1)
        connection.transport._session.prepared.pgconn.finish()  # as if the parent were gone
        until(lambda: (consumer,) in sql("SELECT pgbeat.dead_consumers()"))
    finally:
        os.write(go_on[1], b"\0")
        os.waitpid(pid, 0)
        for end in (*ready, *go_on):
            os.close(end)
