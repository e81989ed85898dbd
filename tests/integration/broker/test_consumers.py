"""Consumers live, die and are released; messages are requeued; waiting consumers are notified."""

import concurrent.futures
import select
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from pgbeat.broker import consumers, dead_letters, discards, queues
from pgbeat.broker.messages import BrokerTables, Message
from pgbeat.database import channels
from tests.support.broker_sessions import (
    TABLES,
    Claimant,
    Sessions,
    dead,
    depths,
    filled,
    later,
    payloads,
    plans,
    put,
    rows,
)
from tests.support.command_line import Sql
from tests.support.processes import until
from tests.support.rows import make_job
from tests.support.threads import repeating, together


def state(connection: Connection) -> dict[str, tuple[Any, ...]]:
    """Each message: visible, claimed by, deliveries, redelivered."""
    found = rows(
        connection, "SELECT payload, visible, claimed_by, deliveries, redelivered FROM {message}"
    )
    return {payload: tuple(rest) for payload, *rest in found}


def reasons(connection: Connection) -> dict[str, tuple[str, str, int]]:
    """The dead letters: queue, reason, deliveries."""
    found = dead_letters.find(connection, TABLES)
    return {letter.payload: (letter.queue, letter.reason, letter.deliveries) for letter in found}


def registered(connection: Connection) -> set[int]:
    """The consumers that are known."""
    return set(connection.scalars(text("SELECT id FROM pgbeat.consumers")))


# -- alive ----------------------------------------------------------------------------------------


def test_a_consumer_lives_as_long_as_its_session(opened: Sessions, connection: Connection) -> None:
    one, other = opened.consumer(), opened.consumer()
    assert registered(connection) == {one.id, other.id}
    assert dead(connection) == []
    one.die(connection)
    assert dead(connection) == [one.id]
    due = consumers.due_maintenance(connection, TABLES)
    assert (due.dead, due.consumers) == ([one.id], 2)
    consumers.release_dead(connection, TABLES, [one.id], limit=None)
    assert registered(connection) == {other.id}
    assert consumers.due_maintenance(connection, TABLES).dead == []


def test_a_registering_consumer_is_not_dead(opened: Sessions, connection: Connection) -> None:
    watcher = opened.open()
    seen: list[list[int]] = []
    with repeating(lambda: seen.append(dead(watcher))):
        for _ in range(100):
            consumers.register(connection, TABLES, "tests")
        until(lambda: len(seen) > 20)
    assert [found for found in seen if found] == []


def test_a_lease_is_a_life_without_a_session(opened: Sessions, connection: Connection) -> None:
    passing = opened.open()
    leased = consumers.register(passing, TABLES, "tests", lease=60)
    passing.close()
    assert dead(connection) == []

    def let_it_run_out() -> None:
        connection.execute(
            text("UPDATE pgbeat.consumers SET lease_until = now() - interval '1 second'")
        )

    assert consumers.renew(connection, leased, 60)
    let_it_run_out()
    assert dead(connection) == [leased]
    assert not consumers.renew(connection, leased, 60)  # others may count it as dead already
    consumers.release_dead(connection, TABLES, dead(connection), limit=None)
    assert not consumers.renew(connection, leased, 60)
    assert registered(connection) == set()


def test_a_consumer_never_releases_itself(opened: Sessions, connection: Connection) -> None:
    one = opened.consumer(lease=60)
    connection.execute(
        text("UPDATE pgbeat.consumers SET lease_until = now() - interval '1 second'")
    )
    assert consumers.due_maintenance(one.connection, TABLES, one.id).dead == []
    assert consumers.due_maintenance(connection, TABLES).dead == [one.id]


def test_a_consumer_that_is_alive_again_is_not_released(
    opened: Sessions, connection: Connection
) -> None:
    """Between finding it dead and releasing it, or while its row is locked."""
    put(connection, "q", "1", "2")
    session, leased = opened.consumer(), opened.consumer(lease=60)
    session.claim("q", at_most=1)
    leased.claim("q")
    assert consumers.release_dead(connection, TABLES, [session.id, leased.id], limit=None) == 0
    assert registered(connection) == {session.id, leased.id}
    assert depths(connection) == {"q": 0}


def test_claims_of_unknown_consumers_are_released(opened: Sessions, connection: Connection) -> None:
    """As a consumer left them that claimed after it was deleted, or a table that was restored."""
    put(connection, "q", "1", "2", "3")
    lost, other = opened.consumer(), opened.consumer()
    lost.claim("q", at_most=1)
    other.claim("q", at_most=1)
    assert consumers.unknown(connection, TABLES) == []
    connection.execute(text("DELETE FROM pgbeat.consumers WHERE id = :id"), {"id": lost.id})
    assert consumers.unknown(connection, TABLES) == [lost.id]
    assert consumers.release_dead(connection, TABLES, [lost.id], limit=20) == 1
    assert state(connection)["1"] == (True, None, 1, True)
    assert state(connection)["2"] == (False, other.id, 1, False)
    assert consumers.unknown(connection, TABLES) == []


def test_subscribed_consumers_are_counted(opened: Sessions, connection: Connection) -> None:
    one, other = opened.consumer(), opened.consumer()
    queue = queues.declare(connection, TABLES, "q").id
    for consumer in (one, one, other):
        consumers.subscribe(consumer.connection, TABLES, consumer.id, [queue])
    assert queues.declare(connection, TABLES, "q").consumers == 2
    one.unsubscribe([queue])
    one.unsubscribe([queue])
    assert queues.declare(connection, TABLES, "q").consumers == 1
    other.die(connection)
    consumers.release_dead(connection, TABLES, [other.id], limit=None)
    assert queues.declare(connection, TABLES, "q").consumers == 0


# -- requeued -------------------------------------------------------------------------------------


def test_a_requeued_message_keeps_its_place(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "1", "2", "3", priority=2)
    one, other = opened.consumer(), opened.consumer()
    claimed = {d.payload.decode(): d.id for d in one.claim("q", at_most=2)}
    # Not by another, and not what was not claimed.
    other.requeue(list(claimed.values()), limit=None)
    assert payloads(other.claim("q", at_most=1)) == ["3"]
    one.requeue([claimed["2"]])
    put(connection, "q", "4", priority=2)
    put(connection, "q", "low")
    assert state(connection)["2"] == (True, None, 1, True)
    assert state(connection)["1"] == (False, one.id, 1, False)
    found = other.claim("q")
    assert payloads(found) == ["2", "4", "low"]
    assert [(d.deliveries, d.redelivered) for d in found] == [(2, True), (1, False), (1, False)]


def test_locked_messages_are_requeued_later(opened: Sessions, connection: Connection) -> None:
    """A claim that looks at a row as it was before holds its lock for a moment."""
    put(connection, "q", "held", "free")
    consumer, holder = opened.consumer(), opened.open()
    held, free = (d.id for d in consumer.claim("q"))
    holder.execute(text("BEGIN"))
    holder.execute(text("SELECT FROM kombu_message WHERE payload = 'held' FOR UPDATE"))

    def requeue(*ids: int) -> list[int]:
        return consumer.requeue(ids)

    assert requeue(held, free) == [held]
    assert depths(connection) == {"q": 1}
    assert requeue(held, free) == [held]
    holder.execute(text("ROLLBACK"))
    assert requeue(held, free) == []
    assert depths(connection) == {"q": 2}
    assert requeue(held, free) == []


def test_an_unstarted_delivery_does_not_count(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "m")
    consumer = opened.consumer()
    for _ in range(3):
        (found,) = consumer.claim("q")
        assert found.deliveries == 1
        consumer.requeue([found.id], limit=1, counts=False)
    assert state(connection) == {"m": (True, None, 0, True)}


def test_a_limit_of_deliveries_ends_among_the_dead_letters(
    opened: Sessions, connection: Connection
) -> None:
    queues.declare(connection, TABLES, "own", arguments={"x-delivery-limit": 2})
    put(connection, "own", "poison")
    put(connection, "q", "also", priority=4)
    consumer = opened.consumer()
    before = rows(connection, "SELECT payload, enqueued_at FROM {message}")
    for round in (1, 2, 3):
        found = consumer.claim("own", "q")
        ids = [d.id for d in found]
        consumer.requeue(ids, limit=3)
        assert set(state(connection)) == {1: {"poison", "also"}, 2: {"also"}, 3: set()}[round]
    assert reasons(connection) == {
        "poison": ("own", "delivered 2 times, the last time rejected", 2),
        "also": ("q", "delivered 3 times, the last time rejected", 3),
    }
    kept = rows(connection, "SELECT payload, enqueued_at FROM {dead}")
    assert sorted(kept) == sorted(before)
    assert rows(connection, "SELECT priority FROM {dead} WHERE payload = 'also'") == [(4,)]


def test_without_a_limit_it_comes_back_for_ever(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "m")
    connection.execute(text("UPDATE kombu_message SET deliveries = 32766"))
    consumer = opened.consumer()
    for _ in range(3):
        (found,) = consumer.claim("q")
        consumer.requeue([found.id])
    assert depths(connection) == {"q": 1}


def test_rejected_messages_are_dead_letters(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "mine", "other's", "waiting")
    one, other = opened.consumer(), opened.consumer()
    (mine,) = one.claim("q", at_most=1)
    (theirs,) = other.claim("q", at_most=1)
    (waiting,) = rows(connection, "SELECT id FROM {message} WHERE payload = 'waiting'")[0]
    one.reject([mine.id, theirs.id, waiting])
    assert reasons(connection) == {"mine": ("q", "rejected", 1)}
    assert set(state(connection)) == {"other's", "waiting"}


# -- released -------------------------------------------------------------------------------------


def test_claims_of_dead_consumers_are_released(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", *"abcd")
    one, other = opened.consumer(), opened.consumer()
    one.claim("q", at_most=2)
    other.claim("q", at_most=1)
    one.die(connection)
    assert consumers.release_dead(connection, TABLES, dead(connection), limit=20) == 2
    assert state(connection) == {
        "a": (True, None, 1, True), "b": (True, None, 1, True),
        "c": (False, other.id, 1, False), "d": (True, None, 0, False),
    }  # fmt: skip
    assert consumers.release_dead(connection, TABLES, [one.id], limit=20) == 0


@pytest.mark.parametrize("way", ["die", "requeue"])
def test_messages_of_ended_jobs_are_not_requeued(
    opened: Sessions, connection: Connection, sql: Sql, way: str
) -> None:
    """A failed job's message may have been requeued by hand, so it does come back."""
    one = opened.consumer()
    put(connection, "q", "none")
    for name in ("pending", "running", "failed", "completed", "cancelled", "skipped"):
        put(connection, "q", name, job_id=make_job(sql, name))
    put(connection, "q", "retried", job_id=make_job(sql, "failed", retried_by=str(uuid4())))
    claimed = one.claim("q")
    if way == "die":
        one.die(connection)
        assert consumers.release_dead(connection, TABLES, [one.id], limit=1) == 8
    else:
        ids = [message.id for message in claimed]
        consumers.requeue(connection, TABLES, one.id, ids, limit=20)
    back = set(reasons(connection) if way == "die" else payloads(opened.consumer().claim("q")))
    assert back == {"none", "pending", "running", "failed"}


def test_a_message_that_kills_dies_itself(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "poison")
    for _ in range(3):
        victim = opened.consumer()
        assert payloads(victim.claim("q")) == ["poison"]
        victim.die(connection)
        consumers.release_dead(connection, TABLES, dead(connection), limit=3)
    assert state(connection) == {}
    assert reasons(connection) == {
        "poison": ("q", "delivered 3 times, the last time to a consumer that died", 3)
    }


def test_a_consumer_that_leaves_requeues_its_claims(
    opened: Sessions, connection: Connection
) -> None:
    put(connection, "q", "m")
    consumer = opened.consumer()
    consumer.claim("q")
    consumer.leave()
    assert state(connection) == {"m": (True, None, 0, True)}
    assert registered(connection) == set()


def test_nothing_is_forgotten_that_was_locked_at_the_release(
    opened: Sessions, connection: Connection
) -> None:
    """Another session has locked a row: its consumer is released again later."""
    put(connection, "q", "held", "free")
    consumer, holder = opened.consumer(), opened.open()
    consumer.claim("q")
    consumer.die(connection)
    holder.execute(text("BEGIN"))
    holder.execute(text("SELECT FROM kombu_message WHERE payload = 'held' FOR UPDATE"))
    assert consumers.release_dead(connection, TABLES, dead(connection), limit=None) == 1
    holder.execute(text("ROLLBACK"))
    assert consumers.release_dead(connection, TABLES, dead(connection), limit=None) == 1
    assert depths(connection) == {"q": 2}
    assert registered(connection) == set()


def test_several_release_the_same_dead(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", *map(str, range(300)))
    victims = [opened.consumer() for _ in range(3)]
    for victim in victims:
        victim.claim("q", at_most=100)
    for victim in victims:
        victim.die(connection)
    ids = [victim.id for victim in victims]
    survivors = [opened.open() for _ in range(3)]
    together([partial(consumers.release_dead, own, TABLES, ids, limit=None) for own in survivors])
    consumers.release_dead(connection, TABLES, dead(connection), limit=None)
    assert depths(connection) == {"q": 300}
    assert {deliveries for _, _, deliveries, _ in state(connection).values()} == {1}
    assert registered(connection) == set()


def test_other_tables_have_their_own_dead(opened: Sessions, connection: Connection) -> None:
    """Consumers of other tables in this database don't release these claims."""
    tables = BrokerTables("other_queue", "other_message")
    tables.adopt(connection)
    put(connection, "q", "m")
    consumer = opened.consumer()
    consumer.claim("q")
    consumer.die(connection)
    theirs = consumers.due_maintenance(connection, tables)
    if theirs.dead:
        consumers.release_dead(connection, tables, theirs.dead, limit=None)
    ours = consumers.due_maintenance(connection, TABLES)
    assert ours.dead == [consumer.id]
    assert consumers.release_dead(connection, TABLES, ours.dead, limit=None) == 1


# -- maintained -----------------------------------------------------------------------------------


def test_no_maintenance_is_due_without_messages(connection: Connection) -> None:
    assert consumers.due_maintenance(connection, TABLES) == ([], None, False, 0)


def test_delayed_messages_are_promoted_when_due(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "later", available_at=later(connection, "1 hour"))
    due = consumers.due_maintenance(connection, TABLES).next_due
    assert due is not None
    assert due == pytest.approx(3600, abs=30)
    assert consumers.promote(connection, TABLES) == 0
    for name, ago in (("third", "1 second"), ("first", "3 seconds"), ("second", "2 seconds")):
        put(connection, "q", name, available_at=later(connection, "1 hour"), ttl=60_000)
        connection.execute(
            text(
                "UPDATE kombu_message SET available_at = now() - CAST(:ago AS interval) "
                "WHERE payload = :name"
            ),
            {"ago": ago, "name": name},
        )
    put(connection, "q", "waits already")
    due = consumers.due_maintenance(connection, TABLES).next_due
    assert due is not None
    assert due <= -3
    assert consumers.promote(connection, TABLES, limit=2) == 2
    assert consumers.promote(connection, TABLES, limit=2) == 1
    assert consumers.promote(connection, TABLES, limit=2) == 0
    # They queue up, the longest due first.
    found = opened.consumer().claim("q")
    assert payloads(found) == ["waits already", "first", "second", "third"]
    assert rows(
        connection, "SELECT payload FROM {message} WHERE available_at IS NOT NULL OR visible"
    ) == [("later",)]


def test_due_messages_of_ended_jobs_are_dropped(
    opened: Sessions, connection: Connection, sql: Sql
) -> None:
    """A task asked for Celery's retry when its job was cancelled, or before its process died."""
    for name in ("scheduled", "running", "failed", "completed", "cancelled", "skipped"):
        job_id = make_job(sql, name)
        put(connection, "q", name, available_at=later(connection, "1 hour"), job_id=job_id)
    job_id = make_job(sql, "failed", retried_by=str(uuid4()))
    put(connection, "q", "retried", available_at=later(connection, "1 hour"), job_id=job_id)
    sql("UPDATE kombu_message SET available_at = now()")
    assert consumers.promote(connection, TABLES) == 7
    assert set(state(connection)) == {"scheduled", "running", "failed"}


def test_no_message_is_promoted_twice(opened: Sessions, connection: Connection) -> None:
    count = 400
    soon = later(connection, "1 hour")
    TABLES.put(connection, [Message("q", str(n), available_at=soon) for n in range(count)])
    connection.execute(text("UPDATE kombu_message SET available_at = now() - interval '1 second'"))

    def promote_all(mine: Connection) -> int:
        return sum(iter(partial(consumers.promote, mine, TABLES, limit=9), 0))

    promoted = sum(together([partial(promote_all, opened.open()) for _ in range(3)]))
    assert promoted + consumers.promote(connection, TABLES) == count
    assert depths(connection) == {"q": count}


def test_expired_messages_are_deleted(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "claimed", "waiting", ttl=60_000)
    put(connection, "q", "lives", ttl=3_600_000)
    put(connection, "q", "for ever")
    put(connection, "q", "delayed", ttl=60_000, available_at=later(connection, "1 hour"))
    consumer = opened.consumer()
    (claimed,) = consumer.claim("q", at_most=1)
    assert not consumers.due_maintenance(connection, TABLES).has_expired
    connection.execute(
        text("UPDATE kombu_message SET expires_at = expires_at - interval '2 minutes'")
    )
    assert consumers.due_maintenance(connection, TABLES).has_expired
    discards.expire(connection, TABLES)
    assert set(state(connection)) == {"claimed", "lives", "for ever", "delayed"}
    assert not consumers.due_maintenance(connection, TABLES).has_expired
    assert consumer.ack(claimed.id) == 1


# -- notified -------------------------------------------------------------------------------------


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
    TABLES.declare(connection, ["q", "r"])
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
    TABLES.put(connection, [Message("q", "5"), Message("q", "6")])
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


def test_a_consumer_can_not_wait_during_a_publish(
    opened: Sessions, waiter: Claimant, connection: Connection
) -> None:
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
    consumers.release_dead(connection, TABLES, dead(connection), limit=None)
    assert notified(waiter, connection) == ["again"]
    assert payloads(waiter.claim("q")) == ["1", "2"]


def test_due_messages_are_announced(waiter: Claimant, connection: Connection) -> None:
    waiter.waits("q")
    put(connection, "q", "much later", available_at=later(connection, "1 hour"))
    assert notified(waiter, connection) == []
    put(connection, "q", "soon", available_at=later(connection, "2 seconds"))
    assert notified(waiter, connection) == ["delayed"]
    connection.execute(text("UPDATE kombu_message SET available_at = now() WHERE payload = 'soon'"))
    assert consumers.promote(connection, TABLES) == 1
    assert notified(waiter, connection) == [""]
    assert payloads(waiter.claim("q")) == ["soon"]


def test_requeued_dead_letters_are_announced(waiter: Claimant, connection: Connection) -> None:
    put(connection, "q", "m")
    (found,) = waiter.claim("q")
    waiter.reject([found.id])
    waiter.waits("q")
    assert dead_letters.requeue(connection, TABLES) == 1
    assert notified(waiter, connection) == [""]


def test_unchanged_bindings_are_not_announced(opened: Sessions, connection: Connection) -> None:
    listener, consumer = opened.consumer(), opened.consumer()
    listener.listen()
    put(connection, "q", "m", ttl=0)
    consumer.leave()
    discards.expire(connection, TABLES)
    queues.delete(connection, TABLES, "q")
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

    TABLES.declare(connection, [f"q{pair}" for pair in range(pairs)])
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


# -- plans ----------------------------------------------------------------------------------------


def test_statements_use_their_indexes(opened: Sessions, connection: Connection) -> None:
    """However the server came to know the table, and for whatever parameters it plans."""
    wanted = {
        "due_maintenance": {"kombu_message_delayed", "kombu_message_expiring"},
        "promote": {"kombu_message_delayed"},
        "expire": {"kombu_message_expiring"},
        "requeue": {"kombu_message_pkey"},
        "reject": {"kombu_message_pkey"},
        "release_dead": {"kombu_message_claimed"},
    }
    calls: dict[str, Callable[[], object]]
    for known in filled(connection):
        calls = {
            "due_maintenance": lambda: consumers.due_maintenance(connection, TABLES),
            "promote": lambda: consumers.promote(connection, TABLES),
            "expire": lambda: discards.expire(connection, TABLES),
            "requeue": lambda: consumers.requeue(connection, TABLES, 9, [5, 6], limit=20),
            "reject": lambda: consumers.reject(connection, TABLES, 9, [5, 6]),
            "release_dead": lambda: consumers.release_dead(connection, TABLES, [9, 10], limit=20),
        }
        for name, call in calls.items():
            # A queue that is deleted is not looked for by an index.
            with plans(connection, but="DELETE FROM kombu_queue q") as seen:
                call()
            assert "kombu_message" not in seen.scanned(), (known, name, seen.nodes)
            assert wanted[name] & seen.indexes(), (known, name, seen.nodes)
