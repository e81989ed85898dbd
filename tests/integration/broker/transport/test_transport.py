"""The transport through kombu: publish, deliver, acknowledge, requeue, expire and delay."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import kombu
import psycopg
import pytest
from kombu.exceptions import ChannelError

from tests.support.child_process import Child
from tests.support.command_line import Sql
from tests.support.kombu_connections import Connect, Inbox, publish
from tests.support.processes import until


def count(sql: Sql, condition: str = "true") -> int:
    """Messages in the table."""
    return int(sql(f"SELECT count(*) FROM kombu_message WHERE {condition}")[0][0])


# -- delivered ------------------------------------------------------------------------------------


def test_a_message_arrives_as_it_was_sent(connection: Any, sql: Sql) -> None:
    inbox = Inbox(connection, "q")
    body = {"text": 'ü "漢" \\ \x00 🐘', "numbers": [1, 2.5, None, True]}
    producer = kombu.Producer(connection, serializer="json")
    producer.publish(
        body,
        routing_key="q",
        headers={"one": 1, "none": None},
        correlation_id="c",
        reply_to="r",
        priority=3,
        expiration=60,
        compression="zlib",
        app_id="tests",
    )
    (message,) = inbox.get()
    assert message.payload == body
    assert (message.headers["one"], message.headers["none"]) == (1, None)
    assert "redelivered" not in message.headers
    properties = message.properties
    assert (properties["correlation_id"], properties["reply_to"]) == ("c", "r")
    assert (properties["priority"], properties["app_id"]) == (3, "tests")
    info = message.delivery_info
    assert (info["exchange"], info["routing_key"], info["redelivered"]) == ("", "q", False)
    message.ack()
    assert count(sql) == 0


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_draining_ends_in_time(connection: Any, seconds: float) -> None:
    for consuming in (False, True):
        if consuming:
            Inbox(connection, "q")
        connection.ensure_connection()
        start = time.monotonic()
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=seconds)
        assert seconds <= time.monotonic() - start < seconds + 5


def test_each_call_delivers_one_message(connection: Any) -> None:
    inbox = Inbox(connection, "q")
    publish(connection, "q", *range(10))
    for n in range(1, 11):
        connection.drain_events(timeout=5)
        assert len(inbox.messages) == n
    assert inbox.bodies(10) == list(range(10))


def test_a_waiting_consumer_is_woken_by_another_process(connect: Connect, child: Child) -> None:
    """Again and again, with acknowledgements in between, without polling."""
    inbox = Inbox(connect(), "q")
    child.do("connection = kombu.Connection(url)", url=transport_url_of(connect))
    for n in range(20):
        with pytest.raises(TimeoutError):
            inbox.connection.drain_events(timeout=0)
        child.start("publish(connection, 'q', n)", n=n)
        assert inbox.bodies(seconds=10) == [n]
        child.finish()


def transport_url_of(connect: Connect) -> str:
    """The URL that connections are opened with."""
    return str(connect().as_uri(include_password=True))


def test_notifications_during_other_work_are_not_missed(connection: Any) -> None:
    """The notification comes with the answer to an acknowledgement, for which no thread waits."""
    inbox = Inbox(connection, "q", prefetch=10)
    publish(connection, "q", "first")
    (first,) = inbox.get()
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.01)
    publish(connection, "q", "second")
    first.ack()
    (second,) = inbox.get(seconds=3)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.01)
    publish(connection, "q", "third")
    second.reject()
    assert inbox.bodies(seconds=3) == ["third"]


def test_taken_without_acknowledgement(connection: Any, sql: Sql) -> None:
    publish(connection, "q", *range(20))
    inbox = Inbox(connection, "q", no_ack=True)
    assert inbox.bodies(20) == list(range(20))
    assert count(sql) == 0
    publish(connection, "q", "one more")
    assert inbox.bodies() == ["one more"]
    assert [m.acknowledged for m in inbox.messages] == []


def test_consumers_of_one_queue_take_turns(connection: Any) -> None:
    inboxes = [Inbox(connection, "q", prefetch=10) for _ in range(2)]
    publish(connection, "q", *range(20))
    for _ in range(20):
        connection.drain_events(timeout=5)
    assert sorted(m.payload for i in inboxes for m in i.messages) == list(range(20))
    assert [len(inbox.messages) for inbox in inboxes] == [10, 10]


def test_no_queue_starves(connection: Any) -> None:
    """Two full queues, one consumer with little prefetch: both are served."""
    for queue in ("a", "b"):
        publish(connection, queue, *[queue] * 40)
    inbox = Inbox(connection, "a", "b", prefetch=1)
    got = [inbox.bodies()[0] for _ in range(30)]
    assert {"a", "b"} == set(got)


def test_a_slow_claim_starves_no_queue(connection: Any, database: str) -> None:
    """The next claims go on where it ended; other queues and priorities still have their turn."""
    for queue in ("a", "b"):
        publish(connection, queue, *[queue] * 30)
    inbox = Inbox(connection, "a", "b", prefetch=1)
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(database) as slow:
            slow.execute("LOCK TABLE kombu_message")
            got = pool.submit(inbox.get)
            slow.execute("SELECT pg_sleep(0.3)")
        (first,) = got.result()
    publish(connection, "b", "urgent", priority=5)
    first.ack()
    bodies = [inbox.bodies()[0] for _ in range(30)]
    assert {"a", "b", "urgent"} == set(bodies)
    assert bodies.index("urgent") < bodies.index("b")


def test_an_invalid_message_is_a_dead_letter(connection: Any, sql: Sql) -> None:
    """It does no harm, and the next message is delivered."""
    inbox = Inbox(connection, "q")
    deep = "[" * 2000 + "]" * 2000
    for payload in ("no JSON", "[]", '"text"', "{}", deep):
        sql(
            "INSERT INTO kombu_message (payload, queue_id) "
            "SELECT %s, id FROM kombu_queue WHERE name = 'q'",
            payload,
        )
    publish(connection, "q", "good")
    assert [m.payload for m in inbox.get(1)] == ["good"]
    dead = {payload for (payload,) in sql("SELECT payload FROM kombu_message_dead")}
    assert dead == {"no JSON", "[]", '"text"', "{}", deep}


def test_headers_may_hold_more_than_json_knows(connection: Any) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    publish(connection, "q", "m", headers={"at": at, "price": Decimal("1.5")})
    [message] = Inbox(connection, "q").get(1)
    assert message.headers["at"] == at
    assert message.headers["price"] == Decimal("1.5")


# -- got ------------------------------------------------------------------------------------------


def test_basic_get(connection: Any, sql: Sql) -> None:
    queue = kombu.Queue("q")(connection.channel())
    queue.declare()
    assert queue.get() is None
    publish(connection, "q", 1, 2, 3)
    one, two = queue.get(), queue.get(no_ack=True)
    assert (one.payload, two.payload) == (1, 2)
    assert count(sql) == 2
    assert count(sql, "visible") == 1
    one.ack()
    assert [m.payload for m in iter(queue.get, None)] == [3]
    assert until(lambda: count(sql) == 1)
    assert count(sql, "visible") == 0


def test_simple_queues(connection: Any) -> None:
    with connection.SimpleQueue("simple") as simple:
        for n in range(3):
            simple.put({"n": n})
        assert simple.qsize() == 3
        message = simple.get(block=True, timeout=5)
        assert message.payload == {"n": 0}
        message.ack()
        assert simple.get_nowait().payload == {"n": 1}
        assert simple.clear() == 1
        with pytest.raises(simple.Empty):
            simple.get(block=True, timeout=0.01)
        with pytest.raises(simple.Empty):
            simple.get_nowait()


# -- declared -------------------------------------------------------------------------------------


def test_passive_declaration(connection: Any, connect: Connect) -> None:
    """It finds a queue without creating it."""
    channel = connection.channel()
    for _ in range(2):
        with pytest.raises(ChannelError, match=r"NOT_FOUND.*'q'"):
            channel.queue_declare("q", passive=True)
    with pytest.raises(ChannelError, match=r"NOT_FOUND.*'x'"):
        channel.exchange_declare("x", passive=True)
    channel.queue_declare("q")
    channel.exchange_declare("x", "topic")
    publish(connection, "q", 1, 2)
    Inbox(connection, "q", prefetch=1)
    other = connect().channel()
    assert tuple(other.queue_declare("q", passive=True)) == ("q", 2, 1)
    other.exchange_declare("x", "topic", passive=True)


def test_a_queue_without_a_name_gets_one(connection: Any) -> None:
    channel = connection.channel()
    made = [channel.queue_declare("").queue for _ in range(2)]
    assert made[0] != made[1]
    assert all(channel.queue_declare(name, passive=True).queue == name for name in made)


def test_size_purge_and_delete(connection: Any, sql: Sql) -> None:
    channel = connection.channel()
    queue = kombu.Queue("q", kombu.Exchange("x"), routing_key="k")(channel)
    queue.declare()
    publish(connection, "q", *range(5))
    inbox = Inbox(connection, "q", prefetch=2)
    inbox.get(2)
    assert channel._size("q") == 3
    assert queue.purge() == 3
    assert queue.purge() == 0
    assert channel.queue_purge("none") == 0
    channel.queue_delete("q", if_unused=True)
    channel.queue_delete("q", if_empty=True)
    assert channel._has_queue("q")
    assert queue.delete() == 0
    assert not channel._has_queue("q")
    assert count(sql, "visible") == 0
    assert sql("SELECT count(*) FROM kombu_queue_binding WHERE exchange = 'x'") == [(0,)]


@pytest.mark.parametrize("name", ["x" * 200, "ü" * 200, "a \"b\" 'c' %s {d} \\"])
def test_long_and_odd_names(connection: Any, name: str) -> None:
    publish(connection, name, "m")
    exchange = kombu.Exchange(name, type="topic")
    inbox = Inbox(connection, kombu.Queue(name, exchange, routing_key=f"{name}.*"))
    kombu.Producer(connection, exchange).publish({"n": 1}, routing_key=f"{name}.1")
    assert inbox.bodies(2) == ["m", {"n": 1}]


def test_a_name_that_is_too_long(connection: Any) -> None:
    with pytest.raises(ChannelError, match=r"1 to 200 characters.*has 201"):
        connection.channel().queue_declare("x" * 201)
    with pytest.raises((ChannelError, ValueError), match=r"1 to 200 characters.*has 201"):
        publish(connection, "x" * 201, "m")
    publish(connection, "q", "m")  # and no harm was done
    assert Inbox(connection, "q").bodies() == ["m"]


def test_a_name_with_nul_is_no_other_one(connection: Any) -> None:
    exchange = kombu.Exchange("x", type="direct")
    inbox = Inbox(connection, kombu.Queue("q", exchange, routing_key="k"))
    for properties in ({"routing_key": "q\0r"}, {"exchange": "x", "routing_key": "k\0l"}):
        with pytest.raises(ValueError, match="has NUL"):
            kombu.Producer(connection).publish({"n": 1}, **properties)
    assert inbox.all_there_is() == []


# -- requeued -------------------------------------------------------------------------------------


def test_rejected_and_requeued(connection: Any, sql: Sql) -> None:
    inbox = Inbox(connection, "q")
    publish(connection, "q", "m")
    for again in range(3):
        (message,) = inbox.get()
        assert message.delivery_info["redelivered"] is (again > 0)
        assert message.headers.get("redelivered", False) is (again > 0)
        assert message.headers.get("x-delivery-count", 0) == again
        message.requeue()
    (message,) = inbox.get()
    message.reject()
    assert until(lambda: count(sql) == 0)
    assert sql("SELECT queue, reason, deliveries FROM kombu_message_dead") == [("q", "rejected", 4)]


def test_a_poisonous_message_ends_as_a_dead_letter(connect: Connect, sql: Sql) -> None:
    inbox = Inbox(connect(delivery_limit=3), "q")
    publish(inbox.connection, "q", "poison")
    for _ in range(3):
        inbox.get()[0].requeue()
    publish(inbox.connection, "q", "next")
    assert inbox.bodies() == ["next"]
    assert sql("SELECT reason FROM kombu_message_dead") == [
        ("delivered 3 times, the last time rejected",)
    ]


def test_a_message_that_ends_its_consumers_by_an_error_is_poisonous(
    connect: Connect, sql: Sql
) -> None:
    """Other messages that such a consumer has are not counted."""
    with connect() as connection:
        publish(connection, "q", "poison", "good")
    for _ in range(3):
        with connect(delivery_limit=3) as connection:
            inbox = Inbox(connection, "q", prefetch=2)
            inbox.consumer.on_message = lambda message: [].index(message.payload)
            with pytest.raises(ValueError, match="poison"):
                inbox.get(2)
    assert sql("SELECT reason FROM kombu_message_dead") == [
        ("delivered 3 times, the last time rejected",)
    ]
    assert sql("SELECT visible, deliveries FROM kombu_message") == [(True, 0)]


@pytest.mark.parametrize("way", ["connection", "channel", "recover"])
def test_unacknowledged_messages_are_requeued(connect: Connect, way: str, sql: Sql) -> None:
    inbox = Inbox(connect(), "q", prefetch=2)
    publish(inbox.connection, "q", "1", "2", "3")
    inbox.get(2)
    if way == "connection":
        inbox.connection.close()
    elif way == "channel":
        inbox.channel.close()
    else:
        inbox.consumer.recover(requeue=True)
        inbox.cancel()
    assert count(sql, "visible") == 3
    again = Inbox(connect(), "q").get(3)
    assert [m.payload for m in again] == ["1", "2", "3"]
    assert [m.delivery_info["redelivered"] for m in again] == [True, True, False]


def test_undelivered_claims_are_requeued_on_cancel(
    connection: Any, connect: Connect, sql: Sql
) -> None:
    publish(connection, "q", *range(10))
    inbox = Inbox(connection, "q", prefetch=10)
    (first,) = inbox.get()
    inbox.cancel()
    assert count(sql, "visible") == 9
    assert Inbox(connect(), "q").bodies(9) == list(range(1, 10))
    first.ack()  # may still be
    assert count(sql) == 0


def test_a_killed_process_loses_its_claims(connect: Connect, child: Child, sql: Sql) -> None:
    """A waiting consumer gets them within seconds, without polling, even as the sole survivor."""
    survivor = Inbox(connect(), "q", "other", prefetch=5)
    victim = "inbox = Inbox(kombu.Connection(url), 'q', prefetch=5)"
    survivor.cancel()
    child.do(victim, url=transport_url_of(connect))
    publish(survivor.connection, "q", *range(5))
    assert child.do("[m.payload for m in inbox.get(5)]") == list(range(5))
    survivor.consumer.consume()
    publish(survivor.connection, "other", "waits now")
    assert survivor.bodies() == ["waits now"]
    start = time.monotonic()
    child.kill()
    found = survivor.get(5, seconds=15)
    assert [m.payload for m in found] == list(range(5))
    assert all(m.delivery_info["redelivered"] for m in found)
    assert time.monotonic() - start < 10
    assert sql("SELECT count(*) FROM pgbeat.consumers") == [(1,)]


# -- expired and delayed --------------------------------------------------------------------------


def test_messages_expire(connection: Any, sql: Sql) -> None:
    queue = kombu.Queue("short", message_ttl=0.05)
    queue(connection.channel()).declare()
    publish(connection, "short", "by the queue")
    publish(connection, "q", "by itself", expiration=0.05)
    publish(connection, "q", "lives", expiration=600)
    publish(connection, "q", "for ever")
    until(lambda: count(sql, "expires_at <= clock_timestamp()") == 2, 5)
    inbox = Inbox(connection, "q", "short")
    assert inbox.bodies(2) == ["lives", "for ever"]
    assert inbox.all_there_is() == []

    def swept() -> bool:
        inbox.drain(1, 0.1)
        return count(sql) == 0

    until(swept)  # a consumer sees to it


def test_an_eta_is_kept_in_the_table(connection: Any, sql: Sql) -> None:
    """It takes no prefetch, and comes when it is due, not earlier."""
    inbox = Inbox(connection, "q", prefetch=1)
    (now,) = sql("SELECT extract(epoch FROM clock_timestamp())::float8")[0]
    ((eta,),) = sql("SELECT (clock_timestamp() + interval '0.6 s')::text")
    publish(connection, "q", "later", headers={"eta": eta})
    publish(connection, "q", "now")
    assert inbox.bodies() == ["now"]
    (later,) = inbox.get(seconds=10)
    ((then,),) = sql("SELECT extract(epoch FROM clock_timestamp())::float8")
    assert 0.6 <= float(then) - float(now) < 5
    # A worker whose clock is behind would hold it for as long.
    assert (later.payload, later.headers["eta"]) == ("later", None)
    later.requeue()
    assert inbox.get()[0].headers["eta"] is None


def test_an_eta_to_come_is_left_to_the_worker(connection: Any, sql: Sql) -> None:
    """As that of a message which the stock transport has published."""
    eta = "2100-01-01T00:00:00+00:00"
    publish(connection, "q", "later", headers={"eta": eta})
    sql("UPDATE kombu_message SET visible = true, available_at = NULL")
    assert Inbox(connection, "q").get()[0].headers["eta"] == eta
