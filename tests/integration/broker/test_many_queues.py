"""Thousands of queues: few locks, few statements, no work while idle."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from pgbeat.broker import messages
from pgbeat.broker.messages import Message
from pgbeat.broker.transport.declarations import WorkerConsumer
from tests.support.broker_sessions import Claimant, Sessions, put
from tests.support.command_line import Sql
from tests.support.kombu_connections import Connect, kombu, publish
from tests.support.processes import until

#: How many locks of a kind queues share.
SLOTS = 64


def declare(connection: Connection, count: int) -> list[str]:
    """So many queues."""
    names = [f"queue {n}" for n in range(count)]
    messages.declare(connection, names)
    return names


def locks(connection: Connection) -> list[int]:
    """The advisory locks of each session that has any."""
    statement = text(
        "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
        "WHERE locktype = 'advisory' AND d.datname = current_database() GROUP BY pid"
    )
    return [int(count) for count in connection.scalars(statement)]


@contextmanager
def statements(broker: Any) -> Iterator[list[str]]:
    """The statements that a process's broker sends by SQLAlchemy."""
    found: list[str] = []

    def note(_: Any, __: Any, statement: str, *rest: Any) -> None:
        found.append(statement)

    event.listen(broker._engine, "before_cursor_execute", note)
    yield found
    event.remove(broker._engine, "before_cursor_execute", note)


def idle(connection: Any) -> Any:
    """Steps until every queue is awaited; the connection's session."""
    session = connection.transport._session

    def is_idle() -> bool:
        return not session.step() and session._plan.states.all_awaited

    until(is_idle)
    return session


def test_an_idle_consumer_of_many_queues(connection: Connection, connect: Connect) -> None:
    names = declare(connection, 500)
    ours, got = connect(), list[Any]()
    consumer = kombu.Consumer(
        ours.channel(),
        [kombu.Queue(name, no_declare=True) for name in names],
        on_message=got.append,
        auto_declare=False,
        accept=["json"],
    )
    ours.transport.open_session()
    with statements(ours.transport.broker) as seen:
        consumer.consume()
    assert len(seen) <= 2, seen
    idle(ours)
    (count,) = locks(connection)
    assert count <= SLOTS + 1
    for name in (names[0], names[250], names[-1]):
        publish(connect(), name, name)
        ours.drain_events(timeout=20)
        assert got.pop().payload == name
    # Consumed no more, its locks are free again; the others are awaited still.
    for name in names[:-1]:
        consumer.cancel_by_queue(name)
    idle(ours)
    assert locks(connection) == [2]
    publish(connect(), names[-1], "last")
    ours.drain_events(timeout=20)
    assert got.pop().payload == "last"


def test_a_declaration_costs_one_statement_each(connect: Connect) -> None:
    """The first, too; another one changes nothing."""
    connection = connect()
    queue = kombu.Queue("q", kombu.Exchange("x"), routing_key="k", max_priority=5, message_ttl=60)(
        connection.default_channel
    )
    for _ in range(2):
        with statements(connection.transport.broker) as seen:
            queue.declare()
        assert len([each for each in seen if "kombu_" in each]) == len(seen) == 3, seen
    with statements(connection.transport.broker) as seen:
        kombu.Queue("q", max_priority=4)(connection.default_channel).queue_declare()
    assert any("UPDATE" in statement for statement in seen)


def bound(name: str, **options: Any) -> Any:
    """A queue as `worker -Q` makes it."""
    return kombu.Queue(name, kombu.Exchange(name), routing_key=name, **options)


def test_a_worker_finds_the_queues_that_exist_by_one_statement(connect: Connect) -> None:
    connection = connect()
    bound("first")(connection.default_channel).declare()  # the session looks for the tables once
    given = [bound(f"q{n}") for n in range(20)]
    given += [bound("urgent", max_priority=5), kombu.Queue("unbound"), bound("own", exclusive=True)]
    special = 1 + 3  # those without a binding, and those that only one process uses
    for fresh in (3 * 21, 0, 0):
        with statements(connection.transport.broker) as seen:
            WorkerConsumer(connection.channel(), given, accept=["json"])
        assert len([each for each in seen if "kombu_" in each]) == 1 + fresh + special, seen


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM kombu_queue WHERE name = 'q'",
        "DELETE FROM kombu_queue_binding",
        "DELETE FROM kombu_queue_exchange",
        "UPDATE kombu_queue_exchange SET type = 'topic'",
        "UPDATE kombu_queue SET max_priority = 4",
        "UPDATE kombu_queue SET expires = 60000",
        "UPDATE kombu_queue SET auto_delete = true",
    ],
)
def test_a_worker_declares_what_is_not_as_it_would_be(
    connect: Connect, sql: Sql, change: str
) -> None:
    connection, queue = connect(), bound("q", max_priority=5)
    WorkerConsumer(connection.channel(), [queue], accept=["json"])
    sql(change)
    assert connection.channel().already_declared([queue]) == set()
    if "topic" in change:
        with pytest.raises(connection.channel_errors, match="is of type topic"):
            WorkerConsumer(connection.channel(), [queue], accept=["json"])
        return
    WorkerConsumer(connection.channel(), [queue], accept=["json"])
    if "expires" not in change and "auto_delete" not in change:
        assert connection.channel().already_declared([queue]) == {"q"}


def test_a_consumer_of_a_queue_that_is_not_there(connect: Connect, sql: Sql) -> None:
    """It is an error even if the others exist."""
    connection = connect()
    queues = [kombu.Queue(name) for name in ("first", "gone", "last")]
    consumer = kombu.Consumer(connection.channel(), queues, on_message=print, accept=["json"])
    sql("DELETE FROM kombu_queue WHERE name = 'gone'")
    with pytest.raises(connection.channel_errors, match="no queue 'gone'"):
        consumer.consume()


def test_a_publisher_to_many_queues_takes_few_locks(
    opened: Sessions, connection: Connection
) -> None:
    names, publisher = declare(connection, 500), opened.open()
    publisher.execute(text("BEGIN"))
    messages.put(publisher, [Message(name, "m") for name in names])
    (count,) = locks(connection)
    assert count <= SLOTS
    publisher.execute(text("ROLLBACK"))


def test_queues_that_share_a_lock_are_left_one_by_one(
    opened: Sessions, connection: Connection
) -> None:
    names = declare(connection, SLOTS + 1)
    waiter = opened.consumer()
    first, last = names[0], names[-1]
    waiter.listen(first, last)
    assert waiter.waits(first, last) == {first, last}
    waiter.leaves(first)
    put(connection, last, "m")
    assert until(waiter.heard) == [""]
    waiter.leaves(last)
    put(connection, last, "m")
    assert waiter.heard() == []


@pytest.mark.slow
def test_ten_idle_consumers_of_four_thousand_queues(
    opened: Sessions, connection: Connection, connect: Connect
) -> None:
    """With Postgres' default of locks, which ten times four thousand would exceed."""
    names = declare(connection, 4000)
    got: list[Any] = []
    connections = []
    for n in range(10):
        ours = connect(polling_interval=600 + n)  # each is a process of its own to the broker
        channel = ours.channel()
        for name in names:
            channel.basic_consume(name, False, got.append, f"{n} {name}", nowait=True)
        channel.consume_pending()
        connections.append(ours)
    for ours in connections:
        idle(ours)
    assert max(locks(connection)) <= SLOTS + 1

    def is_delivered() -> bool:
        for ours in connections:
            until(lambda o=ours: not o.transport._session.step())  # type: ignore[misc]
            ours.transport._deliver_one()
        return bool(got)

    publisher: Claimant = opened.consumer()
    for name in (names[0], names[-1]):
        put(publisher.connection, name, '{"body": "", "properties": {}}')
        until(is_delivered)
        assert len(got) == 1
        got.clear()
