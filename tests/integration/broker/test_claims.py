"""Claims: messages in order, each for one consumer."""

from collections import Counter
from functools import partial

import pytest
from sqlalchemy import Connection, text

from pgbeat.broker import messages, queues
from pgbeat.broker.messages import Message
from tests.support.broker_sessions import (
    Claimant,
    Sessions,
    depths,
    later,
    payloads,
    put,
    queue_id,
    rows,
)
from tests.support.threads import together


def test_claims_come_by_priority_then_age(opened: Sessions, connection: Connection) -> None:
    for name in ("a1", "c5", "b9", "d1", "e9", "f0"):
        put(connection, "q", name, priority=int(name[1]))
    consumer = opened.consumer()
    assert payloads(consumer.claim("q", at_most=1)) == ["b9"]
    assert payloads(consumer.claim("q", at_most=3)) == ["e9", "c5", "a1"]
    assert payloads(consumer.claim("q")) == ["d1", "f0"]
    assert consumer.claim("q") == []


def test_a_claim_is_over_all_queues_and_counts_deliveries(
    opened: Sessions, connection: Connection
) -> None:
    put(connection, "a", "a1", "a2")
    put(connection, "b", "b1", "b2")
    put(connection, "c", "c1")
    consumer = opened.consumer()
    found = consumer.claim("b", "a", at_most=3)
    assert payloads(found) == ["a1", "b1", "b2"]  # of b, which was named first, all
    assert {d.queue for d in found} == {queue_id(connection, "a"), queue_id(connection, "b")}
    assert {(d.deliveries, d.redelivered) for d in found} == {(1, False)}
    assert rows(
        connection,
        "SELECT payload, visible, claimed_by, deliveries FROM kombu_message ORDER BY payload",
    ) == [
        ("a1", False, consumer.id, 1),
        ("a2", True, None, 0),
        ("b1", False, consumer.id, 1),
        ("b2", False, consumer.id, 1),
        ("c1", True, None, 0),
    ]


def test_a_claim_skips_delayed_expired_and_paused_messages(
    opened: Sessions, connection: Connection
) -> None:
    put(connection, "q", "delayed", available_at=later(connection, "1 hour"))
    put(connection, "q", "expired", ttl=0)
    put(connection, "q", "due", ttl=3_600_000)
    put(connection, "paused", "held")
    queues.set_paused(connection, "paused", True)
    consumer = opened.consumer()
    assert payloads(consumer.claim("q", "paused")) == ["due"]
    assert consumer.take("q", "paused") == []
    queues.set_paused(connection, "paused", False)
    assert payloads(consumer.take("q", "paused")) == ["held"]


def test_acknowledgements_travel_with_claims(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "1", "2", "3", "4")
    one, other = opened.consumer(), opened.consumer()
    first = one.claim("q", at_most=2)
    assert payloads(one.claim("q", at_most=1, acked=[d.id for d in first])) == ["3"]
    assert payloads(one.take("q", acked=[])) == ["4"]
    left = rows(connection, "SELECT id, payload FROM kombu_message")
    assert [payload for _, payload in left] == ["3"]
    # What one claimed only one may acknowledge.
    assert other.ack(left[0][0]) == 0
    assert other.claim("q", acked=[left[0][0]]) == []
    assert rows(connection, "SELECT payload FROM kombu_message") == [("3",)]
    assert one.ack(left[0][0]) == 1
    assert one.ack(left[0][0]) == 0


def test_taken_messages_are_deleted(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "low", "low too")
    put(connection, "q", "high", priority=3)
    found = opened.consumer().take("q", at_most=2)
    assert payloads(found) == ["high", "low"]
    assert {(d.deliveries, d.redelivered) for d in found} == {(1, False)}
    assert rows(connection, "SELECT payload FROM kombu_message") == [("low too",)]


def test_claims_go_on_from_marks(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "p0 first")
    put(connection, "q", "p5 first", priority=5)
    put(connection, "q", "p0 second")
    put(connection, "q", "p5 second", priority=5)
    put(connection, "r", "another")
    ids = {payload: id for id, payload in rows(connection, "SELECT id, payload FROM kombu_message")}
    consumer = opened.consumer()
    marks = [("q", 5, ids["p5 first"] + 1), ("q", 0, ids["p0 second"])]
    assert payloads(consumer.claim_on(*marks, at_most=1)) == ["p5 second"]
    assert payloads(consumer.claim_on(*marks, ("r", 0, 0))) == ["p0 second", "another"]
    assert payloads(consumer.claim("q")) == ["p5 first", "p0 first"]


def test_a_claim_never_waits_for_another(opened: Sessions, connection: Connection) -> None:
    """Another session is claiming the first two, so the third is next."""
    put(connection, "q", "1", "2", "3")
    other = opened.open()
    other.execute(text("BEGIN"))
    other.execute(text("SELECT FROM kombu_message ORDER BY id LIMIT 2 FOR UPDATE"))
    consumer = opened.consumer()
    consumer.connection.execute(text("SET lock_timeout = '5s'"))
    assert payloads(consumer.claim("q")) == ["3"]
    other.execute(text("ROLLBACK"))
    assert payloads(consumer.claim("q")) == ["1", "2"]


@pytest.mark.parametrize("way", ["claim", "take", "claim_on"])
def test_no_two_sessions_get_the_same_message(
    opened: Sessions, connection: Connection, way: str
) -> None:
    count = 700
    messages.put(connection, [Message("q", str(n), priority=n % 3) for n in range(count)])

    def work(consumer: Claimant) -> list[str]:
        acked: list[int] = []
        got: list[str] = []
        while True:
            if way == "claim_on":
                found = consumer.claim_on(("q", 2, 0), ("q", 1, 0), ("q", 0, 0), at_most=7)
                consumer.ack(*acked)
            else:
                found = getattr(consumer, way)("q", at_most=7, acked=acked)
            if not found:
                return got
            got += payloads(found)
            acked = [delivery.id for delivery in found]

    got = together([partial(work, opened.consumer()) for _ in range(4)])
    times = Counter(payload for found in got for payload in found)
    # A claim gets nothing if others have locked all that is left, so there may be a rest.
    times.update(payloads(opened.consumer().claim("q")))
    assert times == {str(n): 1 for n in range(count)}


def test_concurrent_declarations_make_one_queue(opened: Sessions, connection: Connection) -> None:
    def work(own: Connection) -> None:
        for n in range(20):
            put(own, f"q{n}", "m")

    together([partial(work, opened.open()) for _ in range(6)])
    assert depths(connection) == {f"q{n}": 6 for n in range(20)}
