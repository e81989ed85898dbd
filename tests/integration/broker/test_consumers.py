"""Consumers live, die and are released; claimed messages are requeued and rejected."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from pgbeat.broker import dead_letters, discards, messages, queues
from pgbeat.broker.transport.consuming import consumers
from pgbeat.database import connections
from tests.support.broker_sessions import (
    Sessions,
    dead,
    depths,
    filled,
    payloads,
    plans,
    put,
    rows,
    state,
)
from tests.support.command_line import Sql
from tests.support.processes import until
from tests.support.rows import make_job
from tests.support.threads import repeating, together


def reasons(connection: Connection) -> dict[str, tuple[str, str, int]]:
    """The dead letters: queue, reason, deliveries."""
    found = dead_letters.find(connection)
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
    due = consumers.due_maintenance(connection)
    assert (due.dead, due.consumers) == ([one.id], 2)
    consumers.release_dead(connection, [one.id], limit=None)
    assert registered(connection) == {other.id}
    assert consumers.due_maintenance(connection).dead == []


def test_a_registering_consumer_is_not_dead(opened: Sessions, connection: Connection) -> None:
    watcher = opened.open()
    seen: list[list[int]] = []
    with repeating(lambda: seen.append(dead(watcher))):
        for _ in range(100):
            consumers.register(connection, "tests")
        until(lambda: len(seen) > 20)
    assert [found for found in seen if found] == []


def test_a_lease_is_a_life_without_a_session(opened: Sessions, connection: Connection) -> None:
    passing = opened.open()
    leased = consumers.register(passing, "tests", lease=60)
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
    consumers.release_dead(connection, dead(connection), limit=None)
    assert not consumers.renew(connection, leased, 60)
    assert registered(connection) == set()


def test_a_consumer_never_releases_itself(opened: Sessions, connection: Connection) -> None:
    one = opened.consumer(lease=60)
    connection.execute(
        text("UPDATE pgbeat.consumers SET lease_until = now() - interval '1 second'")
    )
    assert consumers.due_maintenance(one.connection, one.id).dead == []
    assert consumers.due_maintenance(connection).dead == [one.id]


def test_a_consumer_that_is_alive_again_is_not_released(
    opened: Sessions, connection: Connection
) -> None:
    """Between finding it dead and releasing it, or while its row is locked."""
    put(connection, "q", "1", "2")
    session, leased = opened.consumer(), opened.consumer(lease=60)
    session.claim("q", at_most=1)
    leased.claim("q")
    assert consumers.release_dead(connection, [session.id, leased.id], limit=None) == 0
    assert registered(connection) == {session.id, leased.id}
    assert depths(connection) == {"q": 0}


def test_claims_of_unknown_consumers_are_released(opened: Sessions, connection: Connection) -> None:
    """As a consumer left them that claimed after it was deleted, or a table that was restored."""
    put(connection, "q", "1", "2", "3")
    lost, other = opened.consumer(), opened.consumer()
    lost.claim("q", at_most=1)
    other.claim("q", at_most=1)
    assert consumers.unknown(connection) == []
    connection.execute(text("DELETE FROM pgbeat.consumers WHERE id = :id"), {"id": lost.id})
    assert consumers.unknown(connection) == [lost.id]
    assert consumers.release_dead(connection, [lost.id], limit=20) == 1
    assert state(connection)["1"] == (True, None, 1, True)
    assert state(connection)["2"] == (False, other.id, 1, False)
    assert consumers.unknown(connection) == []


def test_subscribed_consumers_are_counted(opened: Sessions, connection: Connection) -> None:
    one, other = opened.consumer(), opened.consumer()
    queue = queues.declare(connection, "q").id
    for consumer in (one, one, other):
        consumers.subscribe(consumer.connection, consumer.id, [queue])
    assert queues.declare(connection, "q").consumers == 2
    one.unsubscribe([queue])
    one.unsubscribe([queue])
    assert queues.declare(connection, "q").consumers == 1
    other.die(connection)
    consumers.release_dead(connection, [other.id], limit=None)
    assert queues.declare(connection, "q").consumers == 0


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
    queues.declare(connection, "own", arguments={"x-delivery-limit": 2})
    put(connection, "own", "poison")
    put(connection, "q", "also", priority=4)
    consumer = opened.consumer()
    before = rows(connection, "SELECT payload, enqueued_at FROM kombu_message")
    for round in (1, 2, 3):
        found = consumer.claim("own", "q")
        ids = [d.id for d in found]
        consumer.requeue(ids, limit=3)
        assert set(state(connection)) == {1: {"poison", "also"}, 2: {"also"}, 3: set()}[round]
    assert reasons(connection) == {
        "poison": ("own", "delivered 2 times, the last time rejected", 2),
        "also": ("q", "delivered 3 times, the last time rejected", 3),
    }
    kept = rows(connection, "SELECT payload, enqueued_at FROM kombu_message_dead")
    assert sorted(kept) == sorted(before)
    assert rows(connection, "SELECT priority FROM kombu_message_dead WHERE payload = 'also'") == [
        (4,)
    ]


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
    (waiting,) = rows(connection, "SELECT id FROM kombu_message WHERE payload = 'waiting'")[0]
    one.reject([mine.id, theirs.id, waiting])
    assert reasons(connection) == {"mine": ("q", "rejected", 1)}
    assert set(state(connection)) == {"other's", "waiting"}


def test_a_message_is_put_back_for_later(opened: Sessions, connection: Connection) -> None:
    """As if it had not been delivered."""
    put(connection, "q", "mine", "other's")
    one, other = opened.consumer(), opened.consumer()
    (mine,), (theirs,) = one.claim("q", at_most=1), other.claim("q", at_most=1)
    assert consumers.put_back(connection, one.id, [mine.id, theirs.id], 0.3) == []
    assert state(connection)["other's"][1] == other.id
    assert other.claim("q") == []
    until(lambda: consumers.promote(connection, 10))
    [again] = other.claim("q")
    assert (again.payload, again.deliveries, again.redelivered) == (b"mine", 1, False)


# -- released -------------------------------------------------------------------------------------


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
    failing = make_job(sql, "running")
    put(connection, "q", "failed as it was claimed", job_id=failing)
    claimed = one.claim("q")
    sql("UPDATE pgbeat.jobs SET state = 'failed', finished_at = now() WHERE id = %s", failing)
    if way == "die":
        one.die(connection)
        assert consumers.release_dead(connection, [one.id], limit=1) == 9
    else:
        ids = [message.id for message in claimed]
        consumers.requeue(connection, one.id, ids, limit=20)
    back = set(reasons(connection) if way == "die" else payloads(opened.consumer().claim("q")))
    assert back == {"none", "pending", "running", "failed"}


def test_a_message_is_not_released_while_its_job_fails(
    opened: Sessions, connection: Connection, sql: Sql
) -> None:
    """Released at that moment, it would start a failed job again."""
    job = make_job(sql, "running")
    put(connection, "q", "failing", job_id=job)
    consumer, holder = opened.consumer(), opened.open()
    consumer.claim("q")
    holder.execute(text("BEGIN"))
    assert messages.passed_on(holder, {job: consumer.id}) == set()
    consumer.die(connection)
    assert consumers.release_dead(connection, dead(connection), limit=None) == 0
    failed = "UPDATE pgbeat.jobs SET state = 'failed', finished_at = now() WHERE id = :id"
    holder.execute(text(failed), {"id": job})
    holder.execute(text("COMMIT"))
    assert consumers.release_dead(connection, dead(connection), limit=None) == 1
    assert depths(connection) == {"q": 0}


def test_a_message_that_kills_dies_itself(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "poison")
    for _ in range(3):
        victim = opened.consumer()
        assert payloads(victim.claim("q")) == ["poison"]
        victim.die(connection)
        consumers.release_dead(connection, dead(connection), limit=3)
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
    assert consumers.release_dead(connection, dead(connection), limit=None) == 1
    holder.execute(text("ROLLBACK"))
    assert consumers.release_dead(connection, dead(connection), limit=None) == 1
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
    together([partial(consumers.release_dead, own, ids, limit=None) for own in survivors])
    consumers.release_dead(connection, dead(connection), limit=None)
    assert depths(connection) == {"q": 300}
    assert {deliveries for _, _, deliveries, _ in state(connection).values()} == {1}
    assert registered(connection) == set()


# -- plans ----------------------------------------------------------------------------------------


def test_statements_use_their_indexes(connection: Connection) -> None:
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
            "due_maintenance": lambda: consumers.due_maintenance(connection),
            "promote": lambda: consumers.promote(connection),
            "expire": lambda: discards.expire(connection),
            "requeue": lambda: consumers.requeue(connection, 9, [5, 6], limit=20),
            "reject": lambda: consumers.reject(connection, 9, [5, 6]),
            "release_dead": lambda: consumers.release_dead(connection, [9, 10], limit=20),
        }
        for name, call in calls.items():
            # A queue that is deleted is not looked for by an index.
            with plans(connection, but="DELETE FROM kombu_queue ") as seen:
                call()
            assert "kombu_message" not in seen.scanned(), (known, name, seen.nodes)
            assert wanted[name] & seen.indexes(), (known, name, seen.nodes)


def test_queues_are_locked_in_one_order(opened: Sessions, connection: Connection) -> None:
    """By a worker that connects again, and by whoever releases what it had before."""
    one = opened.consumer()
    for name in ("b", "a"):
        queues.declare(connection, name, owner=one.id, arguments={"x-expires": 60000})
    one.die(connection)
    holder, again, other = opened.open(), opened.open(), opened.open()
    again.exec_driver_sql("SET enable_seqscan = off")  # it finds them by name: a, then b
    again.exec_driver_sql("SET enable_bitmapscan = off")

    def waiting(number: int) -> None:
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE pg_blocking_pids(pid) <> '{}'"
        until(lambda: connection.scalar(text(blocked)) == number)

    def release() -> None:
        with connections.transaction(other):
            consumers.release_dead(other, [one.id], limit=None)

    with ThreadPoolExecutor(2) as pool:
        with connections.transaction(holder):
            holder.exec_driver_sql("SELECT FROM kombu_queue WHERE name = 'a' FOR UPDATE")
            used = pool.submit(queues.use, again, ["a", "b"])
            waiting(1)
            released = pool.submit(release)
            waiting(2)
        assert set(used.result()) == {"a", "b"}
        released.result()
    assert depths(connection).keys() & {"a", "b"} == set()
