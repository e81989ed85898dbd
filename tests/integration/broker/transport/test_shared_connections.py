"""Processes and threads share, inherit and close connections."""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import kombu
import psycopg
import pytest
from kombu import pools

from tests.support.command_line import Sql
from tests.support.kombu_connections import Connect, Inbox, others, publish
from tests.support.processes import until
from tests.support.threads import repeating


def publish_in_child(connection: Any, body: Any) -> None:
    publish(connection, "q", body)
    Inbox(connection, "own").all_there_is()


def test_a_forked_process_has_connections_of_its_own(connection: Any, sql: Sql) -> None:
    """With the very objects of its parent's; which goes on as if there had been no fork."""
    inbox = Inbox(connection, "q", prefetch=1)
    publish(connection, "q", "held", "next")
    (held,) = inbox.get()
    for round in range(2):
        process = get_context("fork").Process(
            target=publish_in_child, args=(connection, f"child {round}")
        )
        process.start()
        process.join(30)
        assert process.exitcode == 0
    assert sql("SELECT count(*) FROM kombu_message WHERE claimed_by IS NOT NULL") == [(1,)]
    held.ack()
    assert [inbox.bodies()[0] for _ in range(3)] == ["next", "child 0", "child 1"]
    publish(connection, "q", "parent")
    assert inbox.bodies() == ["parent"]


def test_a_fork_while_another_thread_publishes(connection: Any) -> None:
    """Whatever locks the other thread holds in that instant: the child has none of them."""
    with repeating(lambda: publish(connection, "busy", 1)):
        for n in range(4):
            process = get_context("fork").Process(target=publish, args=(connection, "q", n))
            process.start()
            process.join(30)
            assert process.exitcode == 0
    assert Inbox(connection, "q").bodies(4) == [0, 1, 2, 3]


def test_at_most_two_connections_a_process(connect: Connect, database: str) -> None:
    """However many connections of kombu's, channels, consumers, pools and threads there are."""
    counts: set[int] = set()
    watcher = psycopg.connect(database, autocommit=True)

    def count() -> None:
        cursor = watcher.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name LIKE 'pgbeat%'"
        )
        counts.update(number for (number,) in cursor)

    with closing(watcher), repeating(count), ThreadPoolExecutor(4) as pool:
        inboxes = [Inbox(connect(), f"q{n}", kombu.Queue(exclusive=True)) for n in range(4)]
        published = [pool.submit(publish, connect(), f"q{n}", *range(10)) for n in range(4)]
        for inbox in inboxes:
            assert inbox.bodies(10) == list(range(10))
        for each in published:
            each.result()
        with pools.Connections(3)[connect()].acquire() as pooled:
            publish(pooled, "q0", "pooled")
        assert inboxes[0].bodies() == ["pooled"]
    assert max(counts) == 2


def test_nothing_is_left_open(connect: Connect, sql: Sql) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    rounds = 10  # more than other threads of this process may open meanwhile
    for _ in range(rounds):
        held = [connect() for _ in range(3)]
        inboxes = [Inbox(connection, "q") for connection in held]
        publish(held[0], "q", "m")
        del inboxes
        for connection in held:
            connection.release()
        until(lambda: others(sql) == [])
        assert sql("SELECT count(*) FROM pgbeat.consumers") == [(0,)]
    if before:
        assert len(os.listdir("/proc/self/fd")) < before + rounds


def test_a_process_with_many_open_files(connection: Any) -> None:
    """Numbers above 1023 are too high for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000 and hard != resource.RLIM_INFINITY:
        pytest.skip("this process may not open 2000 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            opened.callback(os.close, os.dup(0))
        inbox = Inbox(connection, "q")
        for n in range(2):
            publish(connection, "q", n)
            assert inbox.bodies() == [n]
        connection.close()


def test_a_consumer_reads_no_more_than_it_gets(connection: Any, sql: Sql) -> None:
    """Nor does the server, in a table that it knows nothing of yet."""
    sql("ALTER TABLE kombu_message SET (autovacuum_enabled = off)")
    inbox = Inbox(connection, "q", prefetch=10)
    sql(
        "INSERT INTO kombu_message (payload, queue_id) SELECT %s, id FROM kombu_queue, "
        "generate_series(1, 20000) WHERE name = 'q'",
        '{"body": "1", "headers": {}, "properties": {}, "content-type": "application/json", '
        '"content-encoding": "utf-8"}',
    )
    for _ in range(5):
        inbox.bodies(10)
    inbox.cancel()
    connection.close()  # its sessions' counts are there when they have ended
    until(lambda: others(sql) == [])
    read = (
        "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'kombu_message_ready'"
    )
    scanned = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'kombu_message'"
    assert 50 <= sql(read)[0][0] < 5000
    assert sql(scanned)[0][0] < 20_000
