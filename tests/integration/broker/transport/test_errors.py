"""Statements of a consumer that fail: its session ends, and nothing is lost, stuck or run twice."""

import random
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kombu.exceptions import OperationalError

from pgbeat.broker import queues
from pgbeat.errors import SchemaError
from tests.support.command_line import Sql
from tests.support.kombu_connections import (
    Connect,
    Inbox,
    Loop,
    connections,
    publish,
    terminate_others,
)
from tests.support.pgbouncer import needs_pgbouncer, pooler
from tests.support.processes import until
from tests.support.threads import repeating, together
from tests.support.transport_workers import TransportWorkers

#: Errors that a statement may end with: cancelled, to be repeated, not allowed, the server's own.
STATES = ["57014", "40001", "42501", "XX000"]
_FAILS = """
    CREATE TABLE failing (state text);
    INSERT INTO failing VALUES ('{state}');
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        found text := (SELECT state FROM public.failing);
    BEGIN
        IF found IS NOT NULL THEN
            RAISE 'it failed' USING ERRCODE = found;
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER fail AFTER {what} ON kombu_message FOR EACH STATEMENT EXECUTE FUNCTION fail();
"""


def fail(sql: Sql, state: str, what: str) -> None:
    """Has statements fail that do this to messages."""
    sql(_FAILS.format(state=state, what=what))


def recover(sql: Sql) -> None:
    """Lets them succeed again."""
    sql("DELETE FROM failing")


def again(connection: Any) -> Any:
    """A new session's inbox, as kombu and Celery make one after an error of the connection."""
    connection.close()
    connection.connect()
    return Inbox(connection, "q")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("drives", ["thread", "loop"])
def test_a_claim_that_fails(connect: Connect, sql: Sql, state: str, drives: str) -> None:
    connection = connect()
    inbox = Inbox(connection, "q")
    fail(sql, state, "UPDATE")
    publish(connect(), "q", "m")
    loop = Loop(connection) if drives == "loop" else None
    with pytest.raises(connection.connection_errors):
        if loop is None:
            connection.drain_events(timeout=20)
        else:
            loop.until(lambda: inbox.messages, 20)
    if loop is not None:
        loop.close()
    recover(sql)
    assert again(connection).bodies() == ["m"]
    until(lambda: sql("SELECT count(*) FROM kombu_message") == [(0,)])


@pytest.mark.parametrize("state", STATES)
def test_an_acknowledgement_that_fails(connect: Connect, sql: Sql, state: str) -> None:
    """The message comes back, rather than stay claimed for as long as the process lives."""
    connection = connect()
    inbox = Inbox(connection, "q")
    publish(connection, "q", "m")
    (message,) = inbox.get()
    fail(sql, state, "DELETE")
    with pytest.raises(connection.connection_errors):
        message.ack()
    recover(sql)
    found = again(connection)
    assert found.bodies() == ["m"]
    until(lambda: sql("SELECT count(*) FROM kombu_message") == [(0,)])


def test_a_channel_that_fails_to_close_is_closed(connect: Connect, sql: Sql) -> None:
    """Its connection has no channel left that would claim messages in vain."""
    connection = connect()
    inbox = Inbox(connection, "q", prefetch=1)
    publish(connection, "q", "m")
    inbox.get()
    transport = connection.transport
    fail(sql, "42501", "UPDATE")
    with pytest.raises(connection.connection_errors):
        inbox.channel.close()
    assert inbox.channel not in transport.channels
    assert inbox.channel.closed
    recover(sql)
    assert again(connection).bodies() == ["m"]


@pytest.mark.parametrize(
    ("take", "give_back"),
    [
        ("ALTER TABLE kombu_queue RENAME TO away", "ALTER TABLE away RENAME TO kombu_queue"),
        ("ALTER SCHEMA pgbeat RENAME TO away", "ALTER SCHEMA away RENAME TO pgbeat"),
        (
            "ALTER TABLE pgbeat.consumers RENAME TO away",
            "ALTER TABLE pgbeat.away RENAME TO consumers",
        ),
    ],
)
def test_a_session_is_tried_again_until_the_schema_is_whole(
    connect: Connect, sql: Sql, take: str, give_back: str
) -> None:
    connection = connect()
    Inbox(connection, "q")
    fail(sql, "42501", "UPDATE")
    publish(connect(), "q", "m")
    with pytest.raises(connection.connection_errors):
        connection.drain_events(timeout=20)
    sql(take)
    recover(sql)
    with pytest.raises(SchemaError):
        again(connection)
    sql(give_back)
    assert again(connection).bodies() == ["m"]


def test_what_a_lost_session_had_claimed_is_not_delivered(connect: Connect, sql: Sql) -> None:
    """Others have it by then."""
    connection, other = connect(), connect()
    inbox = Inbox(connection, "q", prefetch=3)
    publish(connection, "q", 1, 2, 3)
    inbox.get(1)
    until(lambda: sql("SELECT count(*) FROM kombu_message WHERE claimed_by IS NOT NULL") == [(3,)])
    terminate_others(sql)
    assert not connection.transport.verify_connection(connection)
    with pytest.raises(connection.connection_errors):
        inbox.get(2)
    assert inbox.messages == []
    assert sorted(Inbox(other, "q").bodies(3)) == [1, 2, 3]


def serializable(sql: Sql) -> None:
    """Makes it the default of new sessions."""
    [(name,)] = sql("SELECT current_database()")
    sql(f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable')


def compete(dsn: str, rounds: int) -> list[Any]:
    """Publishes over two connections and consumes over two others; returns what was consumed."""
    got: list[Any] = []

    def consume(connection: Any) -> None:
        inbox = Inbox(connection, "q", prefetch=4)
        deadline = time.monotonic() + 60
        while len(got) < 2 * rounds and time.monotonic() < deadline:
            inbox.drain(1, 0.2)
            got.extend(inbox.bodies(len(inbox.messages)))

    def work(connection: Any, first: int) -> None:
        for n in range(rounds):
            publish(connection, "q", first + n)

    with connections(dsn) as connect:
        # The process has one broker for each set of options, and each of these needs its own.
        own = [connect(polling_interval=0.2 + n / 1000) for n in range(4)]
        together(
            [
                *(partial(consume, connection) for connection in own[:2]),
                *(partial(work, *each) for each in zip(own[2:], (0, rounds), strict=True)),
            ]
        )
    return got


def test_a_default_of_serializable_changes_nothing(database: str, sql: Sql) -> None:
    serializable(sql)
    assert sorted(compete(database, 40)) == list(range(80))
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]


@needs_pgbouncer
def test_a_default_of_serializable_behind_a_pooler(database: str, sql: Sql, tmp_path: Path) -> None:
    """The sessions are others' too: they keep their default."""
    serializable(sql)
    with pooler(database, tmp_path, default_pool_size=10) as bouncer:
        assert sorted(compete(bouncer.url, 20)) == list(range(40))
        for _ in range(20):
            with psycopg.connect(bouncer.url, autocommit=True) as any:
                cursor = any.execute("SHOW default_transaction_isolation")
                assert cursor.fetchone() == ("serializable",)
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_statements_of_busy_workers_are_cancelled(
    transport_workers: TransportWorkers, pool: str
) -> None:
    """At random, again and again: the workers live, and every task runs."""
    workers = [transport_workers.start("-P", pool, "-c", "4") for _ in range(2)]
    cancelled: list[int] = []

    def cancel() -> None:
        time.sleep(random.uniform(0, 0.1))  # noqa: S311
        cursor = admin.execute(
            "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND application_name LIKE 'pgbeat transport%' AND state = 'active'"
        )
        cancelled.extend(count for (count,) in cursor)

    sent: list[str] = []
    with psycopg.connect(transport_workers.database, autocommit=True) as admin, repeating(cancel):
        while len(sent) < 300:
            with suppress(OperationalError):
                sent.append(transport_workers.send("work", 0.02))
    print(f"{sum(cancelled)} statements were cancelled")
    until(lambda: {e.id for e in transport_workers.journal("ended")} >= set(sent), 90)
    transport_workers.await_empty(90)
    assert [worker.poll() for worker in workers] == [None, None]
    twice = [n for n in Counter(e.id for e in transport_workers.journal()).values() if n > 1]
    print(f"{len(twice)} tasks ran more than once")


@pytest.mark.slow
def test_workers_where_serializable_is_the_default(
    transport_workers: TransportWorkers, sql: Sql
) -> None:
    """Every task runs once."""
    serializable(sql)
    workers = [transport_workers.start("-c", "2") for _ in range(2)]
    sent = [transport_workers.send("work", 0.005) for _ in range(330)]
    until(lambda: len(transport_workers.journal("ended")) >= len(sent), 90)
    transport_workers.await_empty(60)
    assert sorted(e.id for e in transport_workers.journal()) == sorted(sent)
    assert [worker.poll() for worker in workers] == [None, None]
    assert not any("Traceback" in worker.output for worker in workers)


@pytest.mark.parametrize("kept", [{"auto_delete": True}, {"arguments": {"x-expires": 1000}}])
def test_a_queue_that_expired_before_it_was_consumed(
    connection: Any, sql: Sql, kept: dict[str, Any]
) -> None:
    """As while a pooler is paused: a worker connects and declares it again."""
    channel = connection.channel()
    channel.queue_declare("fleeting", **kept)
    sql("DELETE FROM kombu_queue WHERE name = 'fleeting'")
    with pytest.raises(connection.connection_errors, match="was deleted after"):
        channel.basic_consume("fleeting", no_ack=False, callback=print, consumer_tag="t")


@pytest.mark.parametrize("drives", ["thread", "loop"])
def test_a_queue_that_is_deleted_while_it_is_consumed(connect: Connect, drives: str) -> None:
    """As with RabbitMQ, its consumer connects again, and so consumes the next one of its name."""
    connection = connect()
    inbox = Inbox(connection, "q", "other")
    loop = Loop(connection) if drives == "loop" else None
    inbox.channel.queue_delete("q")
    with pytest.raises(connection.connection_errors, match="queue 'q' was deleted"):
        if loop is None:
            connection.drain_events(timeout=20)
        else:
            loop.until(lambda: inbox.messages, 20)
    if loop is not None:
        loop.close()
    publish(connect(), "q", "m")
    assert again(connection).bodies() == ["m"]


def test_a_queue_that_is_deleted_and_left(connection: Any) -> None:
    """Its consumer has ended before it noticed."""
    inbox, other = Inbox(connection, "q"), Inbox(connection, "other")
    inbox.channel.queue_delete("q")
    inbox.cancel()
    publish(connection, "other", "m")
    assert other.bodies() == ["m"]


def test_a_queue_that_is_deleted_before_it_is_consumed(connection: Any, sql: Sql) -> None:
    """Just after it was looked up."""
    channel = connection.channel()
    channel.queue_declare("q")
    found = channel.broker.ask(queues.use, ["q"])
    channel.queue_delete("q")
    with pytest.raises(connection.connection_errors, match=f"queue {found['q']} was deleted"):
        channel.session.subscribe(channel, [found["q"]])
    assert sql("SELECT count(*) FROM kombu_queue_consumer") == [(0,)]
