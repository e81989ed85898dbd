"""Exchanges and queues across processes: direct, topic, fanout, exclusive, auto-delete, expiry."""

import warnings
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from kombu.exceptions import ChannelError
from kombu.pidbox import Mailbox
from kombu.transport.virtual.base import UndeliverableWarning

from tests.support.child_process import Child
from tests.support.command_line import Sql
from tests.support.kombu_connections import Connect, Inbox, publish
from tests.support.processes import until


@pytest.fixture
def child(connection: Any) -> Iterator[Child]:
    """Another process, connected."""
    with Child.lent() as child:
        child.do(
            "connection = kombu.Connection(url, transport_options={'polling_interval': 600})",
            url=connection.as_uri(include_password=True),
        )
        yield child


def send(connection: Any, exchange: Any, *keys: str, **properties: Any) -> None:
    """Publishes a message for each key, the key in it."""
    with connection.channel() as channel:
        producer = kombu.Producer(channel, serializer="json")
        for key in keys:
            producer.publish({"key": key}, exchange=exchange, routing_key=key, **properties)


def keys(messages: list[Any]) -> list[str]:
    return [message["key"] for message in messages]


def names(sql: Sql) -> list[str]:
    return [
        name for (name,) in sql("SELECT name FROM kombu_queue WHERE name <> 'celery' ORDER BY 1")
    ]


def bound(child: Child, name: str, exchange: str, type: str, *routing_keys: str) -> None:
    """Makes an inbox in the child, for a queue with these bindings."""
    child.do(
        f"{name} = Inbox(connection, kombu.Queue('{name}', [kombu.binding(kombu.Exchange("
        "exchange, type=type), routing_key=key) for key in keys]))",
        exchange=exchange,
        type=type,
        keys=routing_keys,
    )


def test_each_type_reaches_queues_of_two_processes(connection: Any, child: Child) -> None:
    direct, topic, fanout = (
        kombu.Exchange(name, type=name) for name in ("direct", "topic", "fanout")
    )
    bound(child, "child_direct", "direct", "direct", "a", "b")
    bound(child, "child_topic", "topic", "topic", "*.b.#", "x")
    bound(child, "child_fanout", "fanout", "fanout", "")
    own = {
        "direct": Inbox(connection, kombu.Queue("direct", direct, routing_key="a")),
        "topic": Inbox(connection, kombu.Queue("topic", topic, routing_key="#")),
        "fanout": Inbox(connection, kombu.Queue("fanout", fanout)),
    }
    for _ in range(2):
        send(connection, direct, "a", "b", "c")
        send(connection, topic, "a.b", "b", "a.b.c.d", "x", "b.a")
        send(connection, fanout, "1", "2")
        assert keys(own["direct"].bodies(1)) == ["a"]
        assert keys(own["topic"].bodies(5)) == ["a.b", "b", "a.b.c.d", "x", "b.a"]
        assert keys(own["fanout"].bodies(2)) == ["1", "2"]
        assert keys(child.do("child_direct.bodies(2)")) == ["a", "b"]
        assert keys(child.do("child_topic.bodies(3)")) == ["a.b", "a.b.c.d", "x"]
        assert keys(child.do("child_fanout.bodies(2)")) == ["1", "2"]
    left = [m for inbox in own.values() for m in inbox.all_there_is()]
    assert left + child.do("child_direct.all_there_is() + child_topic.all_there_is()") == []


def test_a_message_says_where_it_came_from(connection: Any) -> None:
    exchange = kombu.Exchange("x", type="topic")
    inbox = Inbox(connection, kombu.Queue("q", exchange, routing_key="a.*"))
    send(connection, exchange, "a.b", priority=4)
    (message,) = inbox.get()
    info = message.delivery_info
    assert (info["exchange"], info["routing_key"]) == ("x", "a.b")
    assert message.properties["priority"] == 4


def test_consumers_of_a_queue_share_a_fanouts_messages(connection: Any, child: Child) -> None:
    exchange = kombu.Exchange("x", type="fanout")
    bound(child, "shared", "x", "fanout", "")
    inbox = Inbox(connection, kombu.Queue("shared", exchange), prefetch=5)
    send(connection, exchange, *map(str, range(20)))
    got: list[str] = []

    def all_are_there() -> bool:
        inbox.drain(1, 0.05)
        got.extend(keys(inbox.bodies(len(inbox.messages))))
        got.extend(keys(child.do("shared.all_there_is()")))
        return len(got) >= 20

    until(all_are_there)
    assert sorted(got, key=int) == list(map(str, range(20)))


def test_unbinding_and_deleting(connection: Any) -> None:
    exchange = kombu.Exchange("x", type="direct")(connection.channel())
    inbox = Inbox(connection, kombu.Queue("q", exchange, routing_key="a"))
    queue = inbox.consumer.queues[0]
    queue.bind_to(exchange, routing_key="b")
    send(connection, exchange, "a", "b")
    assert keys(inbox.bodies(2)) == ["a", "b"]
    queue.unbind_from(exchange, routing_key="a")
    send(connection, exchange, "a", "b")
    assert keys(inbox.bodies(1)) == ["b"]
    exchange.delete(if_unused=True)
    send(connection, exchange, "b")
    assert keys(inbox.bodies(1)) == ["b"]
    exchange.delete()
    send(connection, exchange, "b")
    assert inbox.all_there_is() == []
    exchange.declare()
    send(connection, exchange, "b")  # its bindings went with it
    assert inbox.all_there_is() == []


def test_an_exchange_keeps_its_type(connection: Any, connect: Connect) -> None:
    channel = connection.channel()
    channel.exchange_declare("x", "topic")
    with pytest.raises(ChannelError, match=r"'x' is of type topic, not fanout"):
        connect().channel().exchange_declare("x", "fanout")
    with pytest.raises(ChannelError, match="unknown exchange type 'headers'"):
        channel.exchange_declare("y", "headers")
    send(connection, "x", "k")  # the channel is none the worse


def test_an_exchanges_type_is_looked_up(connection: Any, connect: Connect) -> None:
    """A queue bound by another connection to an exchange that it only knows by name."""
    connection.channel().exchange_declare("x", "topic")
    channel = connect().channel()
    channel.queue_declare("q")
    channel.queue_bind("q", "x", "a.#")
    send(connect(), "x", "a.b.c")
    assert keys(Inbox(connection, "q").bodies()) == ["a.b.c"]


@pytest.mark.parametrize(("type", "key"), [("topic", "a.#"), ("fanout", ""), ("direct", "a.b")])
def test_the_exchanges_of_amqp_itself(connection: Any, type: str, key: str) -> None:
    """kombu declares none of them."""
    exchange = kombu.Exchange(f"amq.{type}", type=type)
    inbox = Inbox(connection, kombu.Queue("q", exchange, routing_key=key))
    send(connection, exchange, "a.b")
    assert keys(inbox.bodies()) == ["a.b"]


def test_unroutable_messages(connection: Any, connect: Connect, sql: Sql) -> None:
    """They are dropped or, where there is a queue for them, put there, with a warning."""
    exchange = kombu.Exchange("x", type="direct")
    for one in (connection, careful := connect(deadletter_queue="lost")):
        exchange(one.channel()).declare()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        send(connection, exchange, "a")
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]
    for n in range(3):
        with pytest.warns(UndeliverableWarning):
            send(careful, exchange, str(n))
    assert keys(Inbox(connection, "lost").bodies(3)) == ["0", "1", "2"]


def test_an_event_without_receivers_is_not_written(
    connect: Connect, child: Child, sql: Sql
) -> None:
    """Nor is the server asked each time; a new receiver gets events within a second."""
    publisher = connect()
    exchange = kombu.Exchange("celeryev", type="topic")
    exchange(publisher.channel()).declare()
    send(publisher, exchange, *["worker.heartbeat"] * 20, delivery_mode=1)
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]
    assert sql("SELECT last_value, is_called FROM message_id_sequence") == [(1, False)]
    bound(child, "events", "celeryev", "topic", "#")
    for n in range(10**6):
        send(publisher, exchange, f"n.{n}", delivery_mode=1)
        if sql("SELECT count(*) FROM kombu_message") != [(0,)]:
            break
    assert keys(child.do("events.bodies(1, seconds=5)")) == [f"n.{n}"]
    send(publisher, exchange, "next", delivery_mode=1)
    assert keys(child.do("events.bodies(1)")) == ["next"]


def test_a_task_for_a_queue_just_bound_is_never_missed(connection: Any, child: Child) -> None:
    """The server is asked for each task: the other process has bound its queue."""
    exchange = kombu.Exchange("x", type="direct")
    exchange(connection.channel()).declare()
    for n in range(5):
        send(connection, exchange, f"k{n}", delivery_mode=1)  # as an event
        send(connection, exchange, f"k{n}")
        bound(child, f"q{n}", "x", "direct", f"k{n}")
        send(connection, exchange, f"k{n}")
        assert keys(child.do(f"q{n}.bodies(1)")) == [f"k{n}"]


def test_an_exclusive_queue(connection: Any, child: Child, sql: Sql) -> None:
    mine = kombu.Queue("mine", kombu.Exchange("x", type="fanout"), exclusive=True)
    child.do("inbox = Inbox(connection, kombu.Queue('mine', exclusive=True))")
    for queue in (mine, kombu.Queue("mine")):
        with pytest.raises(ChannelError, match=r"RESOURCE_LOCKED.*'mine'"):
            queue(connection.channel()).declare()
    publish(connection, "mine", "for the child")  # everybody may
    assert child.do("inbox.bodies()") == ["for the child"]
    child.do("connection.close()")
    assert names(sql) == []
    inbox = Inbox(connection, mine)
    send(connection, "x", "k")
    assert keys(inbox.bodies()) == ["k"]


def test_a_queue_of_all_outlives_who_declares_it_exclusive(
    connection: Any, connect: Connect
) -> None:
    """AMQP refuses that; here its messages stay all the same."""
    publish(connection, "shared", "m")
    with connect() as other:
        kombu.Queue("shared", exclusive=True)(other.channel()).declare()
    assert Inbox(connection, "shared").bodies() == ["m"]


def test_an_auto_delete_queue_goes_with_its_last_consumer(
    connection: Any, child: Child, sql: Sql
) -> None:
    queue = kombu.Queue("auto", kombu.Exchange("x", auto_delete=True), "k", auto_delete=True)
    one, two = Inbox(connection, queue), Inbox(connection, queue)
    child.do("inbox = Inbox(connection, kombu.Queue('auto', auto_delete=True))")
    one.cancel()
    two.channel.close()
    assert names(sql) == ["auto"]
    child.do("inbox.cancel()")
    assert names(sql) == []
    assert sql("SELECT count(*) FROM kombu_queue_exchange WHERE name = 'x'") == [(0,)]


def test_remote_control(connect: Connect, child: Child) -> None:
    """A broadcast of kombu's pidbox, and answers to a queue that is deleted afterwards."""
    child.do(
        "import kombu.pidbox\n"
        "box = kombu.pidbox.Mailbox('box', type='fanout')\n"
        "node = box.Node('child', None, connection.channel())\n"
        "node.handlers['ask'] = lambda state, **kwargs: {'asked': kwargs}\n"
        "node.listen(callback=node.handle_message)"
    )
    child.start("connection.drain_events(timeout=20)")
    mailbox = Mailbox("box", type="fanout")(connect())
    answers = mailbox.multi_call("ask", {"n": 1}, timeout=20, limit=1)
    child.finish()
    assert answers == [{"child": {"asked": {"n": 1}}}]
