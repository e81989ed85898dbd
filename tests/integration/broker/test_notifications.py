"""Waiting consumers are notified of new, requeued and due messages."""

import concurrent.futures
import select
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, text

from pgbeat.broker import dead_letters, discards, messages, queues
from pgbeat.broker.messages import Message
from pgbeat.broker.transport.consuming import consumers
from pgbeat.database import channels
from tests.support.broker_sessions import Claimant, Sessions, dead, later, payloads, put
from tests.support.processes import until


def notified(consumer: Claimant, publisher: Connection) -> list[str]:
    """Returns its notifications until now: they come in the order of commits, this one last."""
    publisher.execute(text(f"SELECT pg_notify('{channels.BROKER}', 'the last')"))
    heard: list[str] = []

    def all_of_it() -> bool:
        heard.extend(consumer.heard())
        return "the last" in heard

    until(all_of_it)
    return [payload for payload in heard if payload not in ("the last", "bindings")]


@pytest.fixture
def waiter(opened: Sessions, connection: Connection) -> Claimant:
    """A consumer that listens to the queues `q` and `r`, and does not wait yet."""
    messages.declare(connection, ["q", "r"])
    consumer = opened.consumer()
    consumer.listen("q", "r")
    consumer.listen()
    return consumer


def test_only_waiting_consumers_are_notified(waiter: Claimant, connection: Connection) -> None:
    put(connection, "q", "busy")
    assert notified(waiter, connection) == []
    assert waiter.waits("q") == {"q"}
    put(connection, "r", "another's")
    assert notified(waiter, connection) == []
    put(connection, "q", "1")
    assert notified(waiter, connection) == [""]
    put(connection, "q", "2", "3", "4")  # as one
    messages.put(connection, [Message("q", "5"), Message("q", "6")])
    assert notified(waiter, connection) == ["", ""]
    waiter.leaves("q")
    put(connection, "q", "busy again")
    assert notified(waiter, connection) == []


def test_a_consumer_that_waits_twice_leaves_twice(waiter: Claimant, connection: Connection) -> None:
    for _ in range(2):
        assert waiter.waits("q", "r") == {"q", "r"}
    waiter.leaves("q", "r")
    put(connection, "q", "m")
    assert notified(waiter, connection) == [""]
    waiter.leaves("q", "r")
    put(connection, "q", "m")
    assert notified(waiter, connection) == []


def test_all_waiting_consumers_are_notified(
    opened: Sessions, waiter: Claimant, connection: Connection
) -> None:
    other = opened.consumer()
    other.listen("q")
    other.listen()
    assert (waiter.waits("q"), other.waits("q")) == ({"q"}, {"q"})
    put(connection, "q", "m")
    assert (notified(waiter, connection), notified(other, connection)) == ([""], [""])
    other.die(connection)
    put(connection, "q", "m")
    assert notified(waiter, connection) == [""]
    waiter.leaves("q")
    put(connection, "q", "m")
    assert notified(waiter, connection) == []


def test_a_consumer_can_not_wait_during_a_publish(opened: Sessions, waiter: Claimant) -> None:
    """The uncommitted message can't be claimed, and its publisher won't notify the consumer."""
    publisher = opened.open()
    publisher.execute(text("BEGIN"))
    put(publisher, "q", "m")
    assert waiter.waits("q", "r") == {"r"}
    publisher.execute(text("COMMIT"))
    assert waiter.waits("q") == {"q"}
    assert payloads(waiter.claim("q")) == ["m"]
    # After a rollback too.
    waiter.leaves("q")
    publisher.execute(text("BEGIN"))
    put(publisher, "q", "m")
    assert waiter.waits("q") == set()
    publisher.execute(text("ROLLBACK"))
    assert waiter.waits("q") == {"q"}


def test_a_waiting_consumer_is_notified_by_the_commit(
    opened: Sessions, waiter: Claimant, connection: Connection
) -> None:
    assert waiter.waits("q") == {"q"}
    publisher = opened.open()
    publisher.execute(text("BEGIN"))
    put(publisher, "q", "m")
    assert notified(waiter, connection) == []
    publisher.execute(text("COMMIT"))
    assert notified(waiter, connection) == [""]
    publisher.execute(text("BEGIN"))
    put(publisher, "q", "m")
    publisher.execute(text("ROLLBACK"))
    assert notified(waiter, connection) == []


def test_publishers_of_one_queue_do_not_wait_for_each_other(
    opened: Sessions, waiter: Claimant, connection: Connection
) -> None:
    connection.execute(text("SET lock_timeout = '10s'"))
    waiter.waits("q")
    first = opened.open()
    first.execute(text("BEGIN"))
    put(first, "q", "first")
    put(connection, "q", "second")
    assert payloads(waiter.claim("q")) == ["second"]
    first.execute(text("COMMIT"))
    assert payloads(waiter.claim("q")) == ["first"]


def test_requeued_messages_are_announced(
    opened: Sessions, waiter: Claimant, connection: Connection
) -> None:
    put(connection, "q", "1", "2")
    consumer = opened.consumer()
    one, _ = consumer.claim("q")
    waiter.waits("q")
    consumer.requeue([one.id])
    assert notified(waiter, connection) == ["again"]
    consumer.die(connection)
    consumers.release_dead(connection, dead(connection), limit=None)
    assert notified(waiter, connection) == ["again"]
    assert payloads(waiter.claim("q")) == ["1", "2"]


def test_due_messages_are_announced(waiter: Claimant, connection: Connection) -> None:
    waiter.waits("q")
    put(connection, "q", "much later", available_at=later(connection, "1 hour"))
    assert notified(waiter, connection) == []
    put(connection, "q", "soon", available_at=later(connection, "2 seconds"))
    assert notified(waiter, connection) == ["delayed"]
    connection.execute(text("UPDATE kombu_message SET available_at = now() WHERE payload = 'soon'"))
    assert consumers.promote(connection) == 1
    assert notified(waiter, connection) == [""]
    assert payloads(waiter.claim("q")) == ["soon"]


def test_requeued_dead_letters_are_announced(waiter: Claimant, connection: Connection) -> None:
    put(connection, "q", "m")
    (found,) = waiter.claim("q")
    waiter.reject([found.id])
    waiter.waits("q")
    assert dead_letters.requeue(connection) == 1
    assert notified(waiter, connection) == [""]


def test_unchanged_bindings_are_not_announced(opened: Sessions, connection: Connection) -> None:
    listener, consumer = opened.consumer(), opened.consumer()
    listener.listen()
    put(connection, "q", "m", ttl=0)
    consumer.leave()
    discards.expire(connection)
    queues.delete(connection, "q")
    connection.execute(text(f"SELECT pg_notify('{channels.BROKER}', 'the last')"))
    assert until(listener.heard) == ["the last"]


def test_no_wake_up_is_ever_lost(opened: Sessions, connection: Connection) -> None:
    """Each publisher awaits the claim of its last message; consumers that never poll make it."""
    rounds, pairs = 120, 3
    stop = threading.Event()
    claimed = [threading.Semaphore(0) for _ in range(pairs)]
    got: list[list[str]] = [[] for _ in range(pairs)]

    def consume(own: Claimant, pair: int) -> None:
        queue, awaited, hungry = f"q{pair}", False, True
        while not stop.is_set():
            if hungry:
                hungry = False
                if found := own.claim(queue, at_most=5):
                    got[pair] += payloads(found)
                    own.ack(*[d.id for d in found])
                    claimed[pair].release(len(found))
                    hungry = True
                    if awaited:
                        own.leaves(queue)
                        awaited = False
            elif not awaited:
                # Refused: a publisher is about to commit. Granted: earlier messages were not
                # announced.
                awaited, hungry = bool(own.waits(queue)), True
            else:
                hungry = wait(own)

    def wait(own: Claimant) -> bool:
        """Sleeps until a notification, or the end of the test."""
        while not stop.is_set():
            select.select([own.prepared], [], [], 0.1)
            own.prepared.poll()
            if own.prepared.notifications():
                return True
        return False

    def publish(own: Connection, pair: int) -> None:
        for n in range(rounds):
            put(own, f"q{pair}", str(n))
            assert claimed[pair].acquire(timeout=20), f"message {n} of q{pair} woke no consumer"

    messages.declare(connection, [f"q{pair}" for pair in range(pairs)])
    with ThreadPoolExecutor(3 * pairs) as pool:
        running = []
        for pair in range(pairs):
            for _ in range(2):
                own = opened.consumer()
                own.listen(f"q{pair}")
                running.append(pool.submit(consume, own, pair))
        publishers = [pool.submit(publish, opened.open(), pair) for pair in range(pairs)]
        concurrent.futures.wait(publishers)
        stop.set()
    for future in (*publishers, *running):
        future.result()
    assert got == [[str(n) for n in range(rounds)] for _ in range(pairs)]
