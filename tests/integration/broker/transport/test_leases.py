"""Consumers that live by a lease: one that was silent for too long ends, and loses nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection
from sqlalchemy import text

from pgbeat.broker.transport.consuming import consumers
from tests.support.broker_sessions import Sessions, depths, payloads, put
from tests.support.command_line import Sql
from tests.support.kombu_connections import Inbox, publish
from tests.support.pgbouncer import Pooler, needs_pgbouncer, pooler
from tests.support.processes import until
from tests.support.transport_workers import TransportWorkers

pytestmark = needs_pgbouncer

LEASE = {"lease": 3, "polling_interval": 0.2}


@pytest.fixture
def bouncer(database: str, tmp_path: Path) -> Iterator[Pooler]:
    """PgBouncer before the test's database."""
    with pooler(database, tmp_path) as found:
        yield found


def leased(bouncer: Pooler) -> Any:
    """A connection whose consumer lives by a lease of three seconds."""
    return Connection(f"pgbeat+{bouncer.url}", transport_options=LEASE)


def expire(sql: Sql) -> None:
    """Lets every lease run out."""
    sql("UPDATE pgbeat.consumers SET lease_until = now() - interval '1 s'")


def test_a_consumer_whose_lease_ran_out_ends_its_session(bouncer: Pooler, sql: Sql) -> None:
    """It ends without releasing itself; the next session starts over."""
    with leased(bouncer) as connection:
        inbox = Inbox(connection, "q", prefetch=2)
        publish(connection, "q", 1, 2, 3)
        inbox.get(2)
        [(before,)] = sql("SELECT id FROM pgbeat.consumers")
        expire(sql)
        with pytest.raises(connection.connection_errors):
            inbox.get(seconds=20)
        connection.close()
        connection.connect()
        again = Inbox(connection, "q", prefetch=3)
        found = again.get(3)
        assert sorted(message.payload for message in found) == [1, 2, 3]
        assert sql("SELECT id = %s FROM pgbeat.consumers", before) == [(False,)]
        for message in found:
            message.ack()
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]
    assert sql("SELECT count(*) FROM pgbeat.consumers") == [(0,)]


def test_a_queue_that_is_deleted_while_it_is_consumed(bouncer: Pooler) -> None:
    """Nobody can tell its consumer, who looks for it."""
    with leased(bouncer) as connection:
        inbox = Inbox(connection, "q")
        inbox.channel.queue_delete("q")
        with pytest.raises(connection.connection_errors, match="was deleted"):
            inbox.get(seconds=20)
        connection.close()
        connection.connect()
        publish(connection, "q", "m")
        assert Inbox(connection, "q").bodies() == ["m"]


@pytest.mark.slow
def test_a_paused_pooler(bouncer: Pooler, sql: Sql, opened: Sessions) -> None:
    """PAUSE … RESUME for longer than the lease, while another consumer releases the dead."""
    watcher = opened.open()
    with leased(bouncer) as connection:
        inbox = Inbox(connection, "q", prefetch=2)
        publish(connection, "q", *range(4))
        inbox.get(2)
        bouncer.command("PAUSE")
        until(lambda: consumers.due_maintenance(watcher).dead)
        consumers.release_dead(watcher, consumers.due_maintenance(watcher).dead, limit=20)
        assert sql("SELECT count(*) FROM kombu_message WHERE claimed_by IS NOT NULL") == [(0,)]
        bouncer.command("RESUME")
        with pytest.raises(connection.connection_errors):
            inbox.get(4, seconds=20)
        assert sql("SELECT count(*) FROM kombu_message WHERE claimed_by IS NOT NULL") == [(0,)]
        connection.close()
        connection.connect()
        assert sorted(Inbox(connection, "q").bodies(4)) == [0, 1, 2, 3]
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]


def test_a_session_that_failed_gives_its_lease_up(bouncer: Pooler, sql: Sql) -> None:
    """Its claims don't wait until the lease runs out."""
    options = {**LEASE, "lease": 600}
    with Connection(f"pgbeat+{bouncer.url}", transport_options=options) as connection:
        inbox = Inbox(connection, "q", prefetch=2)
        publish(connection, "q", 1)
        inbox.get()
        sql("ALTER TABLE kombu_message RENAME COLUMN redelivered TO gone")
        with pytest.raises(connection.connection_errors):
            inbox.get(seconds=20)
        sql("ALTER TABLE kombu_message RENAME COLUMN gone TO redelivered")
        until(lambda: sql("SELECT pgbeat.dead_consumers()"))
        connection.close()
        connection.connect()
        assert Inbox(connection, "q").bodies() == [1]


def test_claims_need_a_consumer_that_is_alive(opened: Sessions) -> None:
    connection = opened.open()
    put(connection, "q", "m")
    consumer = opened.consumer()
    connection.execute(text("DELETE FROM pgbeat.consumers"))
    assert consumer.claim("q") == []
    assert consumer.claim_on(("q", 0, 0)) == []
    assert depths(connection) == {"q": 1}
    leased = opened.consumer(lease=60)
    assert payloads(leased.claim("q")) == ["m"]
    leased.requeue([1])
    connection.execute(text("UPDATE pgbeat.consumers SET lease_until = now() - interval '1 s'"))
    assert leased.claim("q") == []
    assert leased.claim_on(("q", 0, 0)) == []


def test_a_claim_under_a_lease_waits_for_its_release(opened: Sessions) -> None:
    """Nothing is claimed by a consumer whose row is being deleted."""
    connection, other = opened.open(), opened.open()
    put(connection, "q", "m")
    leased = opened.consumer(lease=60)
    other.execute(text("BEGIN"))
    other.execute(text("DELETE FROM pgbeat.consumers"))
    leased.begin_claim("q")
    waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    until(lambda: connection.scalar(waits))
    other.execute(text("COMMIT"))
    assert leased.end_claim() == []
    assert depths(connection) == {"q": 1}


@pytest.mark.slow
def test_a_worker_outlives_its_pooler_and_is_replaced_by_its_namesake(
    bouncer: Pooler, database: str, tmp_path: Path, sql: Sql
) -> None:
    """Its own former consumer, or a killed worker's, has its queues no longer than the lease."""
    transport_workers = TransportWorkers(database, tmp_path)
    through = {"TESTS_BROKER": f"pgbeat+{bouncer.url}", "TESTS_DATABASE": bouncer.url}
    settings = {"broker_transport_options": LEASE}
    pool = ("-P", "threads", "-c", "1")
    try:
        worker = transport_workers.start(*pool, settings=settings, **through)
        [(before,)] = sql("SELECT id FROM pgbeat.consumers")
        bouncer.kill()
        until(lambda: sql("SELECT id FROM pgbeat.consumers WHERE id <> %s", before))
        transport_workers.await_started([transport_workers.send("note")])
        worker.kill_group()
        transport_workers.start(
            *pool, "-n", transport_workers.name(worker), settings=settings, **through
        )
        transport_workers.await_started([transport_workers.send("note")])
    finally:
        transport_workers.close()
