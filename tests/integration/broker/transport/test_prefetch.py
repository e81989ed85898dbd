"""Prefetch: exactly as many messages as asked for, with an event loop and without."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import psycopg
import pytest

from tests.support.command_line import Sql
from tests.support.kombu_connections import Connect, Inbox, Loop, publish, terminate_others
from tests.support.processes import until


@pytest.fixture
def loop(connection: Any) -> Iterator[Loop]:
    loop = Loop(connection)
    yield loop
    loop.close()


@pytest.fixture
def claimed(sql: Sql) -> Callable[[], int]:
    """How many messages are claimed, the database says."""
    return lambda: int(sql("SELECT count(*) FROM kombu_message WHERE claimed_by IS NOT NULL")[0][0])


Claimed = Callable[[], int]


def left(sql: Sql) -> int:
    return int(sql("SELECT count(*) FROM kombu_message")[0][0])


def nothing_more(inbox: Inbox) -> bool:
    """Whether nothing comes, though the connection is looked after."""
    for _ in range(3):
        with pytest.raises(TimeoutError):
            inbox.connection.drain_events(timeout=0)
    return not inbox.messages


@pytest.mark.parametrize("prefetch", [1, 3])
def test_as_many_as_asked_for(connection: Any, claimed: Claimed, sql: Sql, prefetch: int) -> None:
    publish(connection, "q", *range(12))
    inbox = Inbox(connection, "q", prefetch=prefetch)
    held = inbox.get(prefetch)
    assert nothing_more(inbox)
    assert claimed() == prefetch
    got = [m.payload for m in held]
    while held:
        held.pop(0).ack()
        if len(got) < 12:
            held += inbox.get()
            got.append(held[-1].payload)
            assert nothing_more(inbox)
            assert claimed() == prefetch
    assert got == list(range(12))
    assert left(sql) == 0


def test_without_a_limit_as_many_as_there_are(connection: Any, claimed: Claimed) -> None:
    publish(connection, "q", *range(50))
    inbox = Inbox(connection, "q")
    assert [m.payload for m in inbox.get(50)] == list(range(50))
    assert claimed() == 50


def test_the_first_claim_of_a_blocking_consumer_is_small(connection: Any, claimed: Claimed) -> None:
    """A consumer that wants one message leaves the rest to the others."""
    publish(connection, "q", *range(50))
    Inbox(connection, "q").get(1)
    assert claimed() == 1


def test_no_more_at_once_than_a_batch(connect: Connect, claimed: Claimed) -> None:
    connection = connect(batch_size=5)
    publish(connection, "q", *range(30))
    inbox = Inbox(connection, "q")
    for n in range(1, 31):
        inbox.drain(n, 10)
        assert claimed() <= n + 5
    assert [m.payload for m in inbox.messages] == list(range(30))


def test_a_channels_queues_share_its_prefetch(connection: Any, claimed: Claimed) -> None:
    for queue in ("a", "b", "c"):
        publish(connection, queue, *range(5))
    inbox = Inbox(connection, "a", "b", "c", prefetch=4)
    inbox.get(4)
    assert nothing_more(inbox)
    assert claimed() == 4
    other = Inbox(connection, "a", "b", prefetch=2)
    other.get(2)
    assert nothing_more(other)
    assert claimed() == 6


def test_the_prefetch_may_change(connection: Any, claimed: Claimed) -> None:
    publish(connection, "q", *range(20))
    inbox = Inbox(connection, "q", prefetch=2)
    held = inbox.get(2)
    inbox.consumer.qos(prefetch_count=5)
    held += inbox.get(3)
    assert nothing_more(inbox)
    inbox.consumer.qos(prefetch_count=1)
    for expected in (4, 3, 2, 1):
        held.pop().ack()
        assert nothing_more(inbox)
        assert claimed() == expected
    held.pop().ack()
    assert inbox.bodies() == [5]


def test_consumers_share_what_there_is(connect: Connect, claimed: Claimed) -> None:
    inboxes = [Inbox(connect(), "q", prefetch=n) for n in (1, 2, 4)]
    publish(connect(), "q", *range(7))
    got = [m.payload for inbox, n in zip(inboxes, (1, 2, 4), strict=True) for m in inbox.get(n)]
    assert sorted(got) == list(range(7))
    assert claimed() == 7


def test_with_and_without_acknowledgement_on_one_channel(connection: Any, sql: Sql) -> None:
    """Two consumers of the same queue: every message arrives, and credit is not lost."""
    inbox = Inbox(connection, "q", prefetch=2)
    other = kombu.Consumer(
        inbox.channel,
        [kombu.Queue("q")],
        on_message=inbox.messages.append,
        accept=["json"],
        no_ack=True,
        tag_prefix="no-ack",
    )
    other.consume()
    publish(connection, "q", *range(20))
    got: list[Any] = []
    while len(got) < 20:
        (message,) = inbox.get(seconds=10)
        got.append(message.payload)
        message.ack()
    assert sorted(got) == list(range(20))
    assert until(lambda: left(sql) == 0)


def test_the_loop_has_as_many_as_asked_for(
    connection: Any, connect: Connect, loop: Loop, claimed: Claimed, sql: Sql
) -> None:
    inbox, publisher = Inbox(connection, "q", prefetch=4), connect()
    publish(publisher, "q", *range(16))
    got: list[Any] = []
    while len(got) < 16:
        loop.until(lambda: len(inbox.messages) == 4)
        loop.step()
        assert (len(inbox.messages), claimed()) == (4, 4)
        for message in inbox.messages[:2]:
            got.append(message.payload)
            message.ack()
        del inbox.messages[:2]
        if len(got) == 14:
            loop.until(lambda: claimed() == 2)
            got += [m.payload for m in inbox.messages]
            for message in inbox.messages:
                message.ack()
    assert got == list(range(16))
    loop.until(lambda: left(sql) == 0)


def test_the_loop_is_woken(connection: Any, connect: Connect, loop: Loop, sql: Sql) -> None:
    """Messages wake it again and again, without polling."""
    inbox, publisher = Inbox(connection, "q", prefetch=2), connect()
    for n in range(20):
        publish(publisher, "q", n)
        loop.until(lambda: inbox.messages, 5)
        assert inbox.bodies() == [n]
    loop.until(lambda: left(sql) == 0)


@pytest.mark.slow
def test_the_loop_uses_credit_from_other_threads_at_once(
    connection: Any, connect: Connect, loop: Loop
) -> None:
    """As in a pool of threads: the loop sleeps while another thread acknowledges."""
    inbox, publisher = Inbox(connection, "q", prefetch=1), connect()
    publish(publisher, "q", *range(9))
    waits: list[float] = []
    loop.until(lambda: inbox.messages)
    for n in range(1, 9):
        message, about_to_sleep = inbox.messages.pop(), threading.Event()

        def acknowledge(message: Any = message, awaited: threading.Event = about_to_sleep) -> None:
            assert awaited.wait(20)
            waits.append(-time.monotonic())
            message.ack()

        thread = threading.Thread(target=acknowledge)
        thread.start()
        loop.step()  # what there was to do is done
        loop.hub.call_soon(about_to_sleep.set)
        loop.until(lambda: inbox.messages)
        waits[-1] += time.monotonic()
        thread.join()
        assert inbox.messages[0].payload == n
    # The loop's own timer goes off every half a second.
    assert sorted(waits)[4] < 0.15, waits


def in_flight(connection: Any, inbox: Inbox, loop: Loop, publisher: Any, database: str) -> None:
    """Publishes, and brings the loop to where the claim is sent and its answer not read."""
    loop.step()
    session = connection.transport._session
    loop.until(lambda: len(session._plan.states) and session._plan.states.all_awaited)
    loop.until(lambda: session._request is None and not session._plan.states.claimable)
    publish(publisher, "q", *range(5))
    with psycopg.connect(database) as blocker:  # until it ends, there is no answer
        blocker.execute("LOCK TABLE kombu_message IN ACCESS EXCLUSIVE MODE")
        loop.until(lambda: session._request is not None)
    assert inbox.messages == []


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_claim_under_way_is_requeued(
    connection: Any,
    connect: Connect,
    loop: Loop,
    claimed: Claimed,
    sql: Sql,
    database: str,
    end: str,
) -> None:
    """The consumer is gone when the answer comes; the process and its other channels go on."""
    inbox, publisher = Inbox(connection, "q", prefetch=2), connect()
    keeps = Inbox(connection, "other", prefetch=1)
    in_flight(connection, inbox, loop, publisher, database)
    inbox.cancel() if end == "cancel" else inbox.channel.close()
    assert inbox.messages == []
    loop.until(lambda: claimed() == 0, 5)
    assert sql("SELECT count(*) FROM kombu_message WHERE visible") == [(5,)]
    publish(publisher, "other", "m")
    loop.until(lambda: keeps.messages)
    if end == "cancel":  # and the channel has its credit still
        inbox.consumer.consume()
        loop.until(lambda: len(inbox.messages) == 2, 5)
        assert sorted(m.payload for m in inbox.messages) == [0, 1]


def test_the_loop_notices_a_lost_connection(
    connection: Any, connect: Connect, loop: Loop, sql: Sql
) -> None:
    inbox = Inbox(connection, "q", prefetch=2)
    publish(connect(), "q", 1)
    loop.until(lambda: inbox.messages)
    terminate_others(sql)
    with pytest.raises(connection.connection_errors):
        loop.until(lambda: False)
    connection.close()
    (again,) = Inbox(connect(), "q").get()
    assert (again.payload, again.delivery_info["redelivered"]) == (1, True)
