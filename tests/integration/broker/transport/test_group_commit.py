"""Threads that publish at once share commits; each gets its own result or error."""

import json
import os
import signal
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from pgbeat.broker.messages import Message
from pgbeat.broker.transport.broker import Broker
from tests.support.command_line import Sql
from tests.support.kombu_connections import Connect, publish
from tests.support.processes import shell, until
from tests.support.threads import together
from tests.support.transport_workers import transport_url

TRIGGER = """
    CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {0}; RETURN NEW; END $$;
    CREATE TRIGGER meddle BEFORE INSERT ON kombu_message FOR EACH ROW EXECUTE FUNCTION meddle()
"""
REFUSE = TRIGGER.format("IF NEW.payload LIKE 'refused%' THEN RAISE check_violation; END IF")
LOSE = TRIGGER.format(
    "IF NEW.payload = 'lost' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF"
)
NOTE_COMMIT = TRIGGER.format(
    "NEW.payload := NEW.payload || ' ' || current_setting('synchronous_commit')"
)
BLOCKED = """
    SELECT FROM pg_stat_activity
     WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@pytest.fixture
def broker(connection: Any) -> Broker:
    """The process's broker, connected, with a queue."""
    publish(connection, "q", "first")
    connection.default_channel.queue_purge("q")
    found: Broker = connection.transport.broker
    return found


@contextmanager
def locked(database: str) -> Iterator[None]:
    """Has all who write messages wait for the block's end."""
    with psycopg.connect(database) as locker:
        locker.execute("LOCK TABLE kombu_message IN SHARE MODE")
        yield


def waiting(broker: Broker, count: int) -> None:
    """Waits until so many threads wait for another one's commit."""
    until(lambda: len(broker._group._waiting) == count)


def in_turn(broker: Broker, database: str, calls: Sequence[Callable[[], int]]) -> list[Any]:
    """Makes calls in threads, the second and the next ones during the first; their outcomes."""
    made = []
    with ThreadPoolExecutor(len(calls)) as pool, locked(database):
        for index, call in enumerate(calls):
            made.append(pool.submit(call))
            until(lambda: broker._group._leader is not None)
            waiting(broker, index)
    return [each.exception() or each.result() for each in made]


def grouped(broker: Broker, database: str, *messages: Message) -> list[Any]:
    """Publishes each message in a thread: the first one alone, the others together."""
    return in_turn(broker, database, [partial(broker.publish, message) for message in messages])


def written(sql: Sql) -> list[tuple[str, str]]:
    """The payloads in the order of their ids, each with its transaction."""
    return sql("SELECT payload, xmin::text FROM kombu_message ORDER BY id")


def test_those_that_come_meanwhile_share_a_transaction(
    broker: Broker, database: str, sql: Sql
) -> None:
    messages = [Message("q", f'"{n}"') for n in range(6)]
    assert grouped(broker, database, *messages) == [1] * 6
    payloads, transactions = zip(*written(sql), strict=True)
    assert payloads == tuple(message.payload for message in messages)
    assert len(set(transactions[1:])) == 1 and transactions[0] not in transactions[1:]


def test_all_columns_are_those_of_a_single_message(broker: Broker, database: str, sql: Sql) -> None:
    sql("UPDATE kombu_queue SET max_priority = 5, message_ttl = 100000")
    message = Message(
        "q",
        'it\'s "quoted" \\ é',
        9,
        "2035-01-01T00:00:00+02:00",
        5000,
        job_id="00000000-0000-0000-0000-000000000001",
    )
    assert grouped(broker, database, message, message, message) == [1] * 3
    columns = "payload, visible, priority, available_at, expires_at, queue_id, job_id, timestamp"
    assert sql(f"SELECT count(*) FROM (SELECT DISTINCT {columns} FROM kombu_message) AS d") == [
        (1,)
    ]


def test_a_message_that_is_refused_fails_its_own_call(
    broker: Broker, database: str, sql: Sql
) -> None:
    sql(REFUSE)
    texts = ["a", "b", "refused", "c", "refused too"]
    outcomes = grouped(broker, database, *(Message("q", text) for text in texts))
    assert [each if isinstance(each, int) else type(each) for each in outcomes] == [
        1,
        1,
        psycopg.errors.CheckViolation,
        1,
        psycopg.errors.CheckViolation,
    ]
    assert outcomes[2] is not outcomes[4]
    assert sorted(payload for payload, _ in written(sql)) == ["a", "b", "c"]


def test_queues_that_are_missing_are_created(broker: Broker, database: str, sql: Sql) -> None:
    names = ["q", "q", "new", "newer", "new"]
    assert grouped(broker, database, *(Message(name, name) for name in names)) == [1] * 5
    found = sql(
        "SELECT q.name, count(*) FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id "
        "GROUP BY 1 ORDER BY 1"
    )
    assert found == [("new", 2), ("newer", 1), ("q", 2)]


def test_a_lost_connection_fails_every_call(broker: Broker, database: str, sql: Sql) -> None:
    """Each message may have been committed. The next one gets a new connection."""
    sql(LOSE)
    texts = ["first", "a", "lost", "b"]
    first, *others = grouped(broker, database, *(Message("q", text) for text in texts))
    assert first == 1 and all(isinstance(each, psycopg.OperationalError) for each in others)
    assert len(set(map(id, others))) == 3
    assert broker.publish(Message("q", "next")) == 1
    assert [payload for payload, _ in written(sql)] == ["first", "next"]


def test_messages_that_need_not_wait_for_the_disk_do_not(
    broker: Broker, database: str, sql: Sql
) -> None:
    sql(NOTE_COMMIT)
    calls = [partial(broker.publish, Message("q", str(n)), transient=n > 2) for n in range(5)]
    assert in_turn(broker, database, calls) == [1] * 5
    found = sql("SELECT payload, xmin::text FROM kombu_message ORDER BY payload")
    assert [payload for payload, _ in found] == ["0 on", "1 on", "2 on", "3 off", "4 off"]
    assert found[1][1] == found[2][1] != found[3][1] == found[4][1]


def test_each_thread_keeps_its_order(connect: Connect, sql: Sql) -> None:
    connection = connect()

    def run(thread: int) -> None:
        publish(connection, f"q{thread % 2}", *([thread, n] for n in range(50)))

    together([partial(run, thread) for thread in range(8)])
    found = [
        json.loads(b64decode(json.loads(payload)["body"]))
        for (payload,) in sql("SELECT payload FROM kombu_message ORDER BY id")
    ]
    for thread in range(8):
        assert [n for each, n in found if each == thread] == list(range(50))
    assert sql("SELECT count(DISTINCT xmin::text) < 300 FROM kombu_message") == [(True,)]


GREEN = """
import sys
{patch}
import kombu, pgbeat
from kombu.pools import producers
connection = kombu.Connection(sys.argv[1])
pool = producers[connection]

def publish(number):
    with pool.acquire(block=True) as producer:
        producer.publish(number, routing_key="q", serializer="json")

publish(0)
{spawn}
"""
GEVENT = GREEN.format(
    patch="import gevent.monkey; gevent.monkey.patch_all()",
    spawn="gevent.joinall([gevent.spawn(publish, n) for n in range(1, 200)], raise_error=True)",
)
EVENTLET = GREEN.format(
    patch="import eventlet; eventlet.monkey_patch()",
    spawn="list(eventlet.GreenPool().imap(publish, range(1, 200)))",
)


@pytest.mark.parametrize("code", [GEVENT, EVENTLET], ids=["gevent", "eventlet"])
def test_greenlets_share_transactions(database: str, sql: Sql, code: str) -> None:
    done = shell(sys.executable, "-W", "ignore", "-c", code, transport_url(database))
    assert done.returncode == 0, done.stderr
    [(messages, transactions)] = sql(
        "SELECT count(*), count(DISTINCT xmin::text) FROM kombu_message"
    )
    assert messages == 200 and transactions < 150


def test_an_exception_in_the_midst_of_a_statement(broker: Broker, database: str, sql: Sql) -> None:
    """Such as a soft time limit: the connection, which still has an answer to give, is replaced."""

    class Limit(Exception):
        """What the handler raises."""

    def interrupt(*args: object) -> None:
        raise Limit

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with locked(database), ThreadPoolExecutor(1) as pool:

            def kill() -> None:
                until(lambda: sql(BLOCKED))
                os.kill(os.getpid(), signal.SIGUSR1)

            killed = pool.submit(kill)
            with pytest.raises(Limit):
                broker.publish(Message("q", "interrupted"))
            killed.result()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert broker.publish(Message("q", "next")) == 1
    assert [payload for payload, _ in written(sql)][-1] == "next"
