"""Queues: declared, exclusive, bound, matched by topic, paused, purged, deleted, expired."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from math import inf
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from pgbeat.broker import discards, exchanges, queues
from pgbeat.broker.transport.consuming import consumers
from pgbeat.database import connections
from pgbeat.errors import NotFound, QueueLocked
from pgbeat.jobs.running import workers
from pgbeat.jobs.running.workers import WorkerReport
from pgbeat.monitoring.metrics import gauges
from tests.support.broker_sessions import (
    Claimant,
    Sessions,
    bindings,
    depths,
    fill,
    later,
    payloads,
    plans,
    put,
    queue_id,
    rows,
)
from tests.support.command_line import Sql
from tests.support.explained_plans import pages
from tests.support.processes import until
from tests.support.threads import together


def names(connection: Connection) -> list[str]:
    """The queues that a test has made."""
    return sorted(depths(connection))


def subscribe(consumer: Claimant, queue: str) -> int:
    found = queues.declare(consumer.connection, queue)
    consumers.subscribe(consumer.connection, consumer.id, [found.id])
    return found.id


# -- declared -------------------------------------------------------------------------------------


def test_a_queue_is_declared_once(opened: Sessions, connection: Connection) -> None:
    made = queues.declare(connection, "q")
    assert (made.messages, made.consumers) == (0, 0)
    put(connection, "q", "1", "2")
    put(connection, "q", "later", available_at=later(connection, "1 hour"))
    subscribe(opened.consumer(), "q")
    assert queues.declare(connection, "q") == (made.id, 2, 1)
    assert queues.find(connection, "q") == (made.id, 2, 1)
    assert queues.find(connection, "none") is None


def test_what_a_declaration_leaves_out_stays(connection: Connection) -> None:
    all_four = {
        "x-max-priority": 5,
        "x-message-ttl": "1000",
        "x-expires": 60_000.0,
        "x-delivery-limit": 3,
    }
    columns = "max_priority, message_ttl, expires, delivery_limit"
    kept = f"SELECT {columns} FROM kombu_queue WHERE name = 'q'"
    queues.declare(connection, "q", arguments=all_four)
    assert rows(connection, kept) == [(5, 1000, 60_000, 3)]
    queues.declare(connection, "q")
    queues.declare(connection, "q", arguments={"x-other": 1, "x-max-priority": None})
    assert rows(connection, kept) == [(5, 1000, 60_000, 3)]
    queues.declare(connection, "q", arguments={"x-max-priority": 9, "x-message-ttl": 0})
    assert rows(connection, kept) == [(9, 0, 60_000, 3)]


def test_wrong_declarations_are_explained(connection: Connection) -> None:
    for name, says in (("", "has 0"), ("x" * 201, "1 to 200 characters.*has 201")):
        with pytest.raises(ValueError, match=says):
            queues.declare(connection, name)
    for key, value in product(queues.ARGUMENTS, ("high", -1, [], inf, queues.HIGHEST + 1)):
        with pytest.raises(ValueError, match=f"{key} must be a whole number"):
            queues.declare(connection, "q", arguments={key: value})
    longest = dict.fromkeys(("x-expires", "x-message-ttl"), queues.HIGHEST)
    queues.declare(connection, "longest", arguments=longest)
    put(connection, "longest", "m")
    queues.delete_expired(connection)
    queues.delete(connection, "longest")
    assert names(connection) == []


# -- exclusive ------------------------------------------------------------------------------------


def test_an_exclusive_queue_is_its_owners_alone(opened: Sessions, connection: Connection) -> None:
    owner, other = opened.consumer(), opened.consumer()
    mine = queues.declare(owner.connection, "q", owner=owner.id, caller=owner.id)
    put(connection, "q", "m")
    assert queues.declare(owner.connection, "q", caller=owner.id) == (mine.id, 1, 0)
    for caller in (other.id, None):
        with pytest.raises(QueueLocked, match="'q' is exclusive to another running process"):
            queues.declare(other.connection, "q", caller=caller)
    owner.die(connection)
    # Its process is dead: the next owner need not wait for the release, and gets an empty queue.
    again = queues.declare(other.connection, "q", owner=other.id, caller=other.id)
    assert (again.id == mine.id, again.messages) == (False, 0)


def test_an_exclusive_queue_goes_with_its_owner(opened: Sessions, connection: Connection) -> None:
    owner, other = opened.consumer(), opened.consumer()
    for name, consumer in (("own", owner), ("other's", other)):
        queues.declare(consumer.connection, name, owner=consumer.id, caller=consumer.id)
    exchanges.declare(connection, "x", "direct")
    exchanges.bind(connection, "own", "x", "", "direct")
    owner.leave()
    assert names(connection) == ["other's"]
    assert bindings(connection) == []


# -- deleted --------------------------------------------------------------------------------------


def test_a_queue_is_deleted_with_all_that_is_its(opened: Sessions, connection: Connection) -> None:
    for name in ("q", "stays"):
        put(connection, name, "1", "2", "3")
        put(connection, name, "later", available_at=later(connection, "1 hour"))
        for exchange, goes in (("shared", True), ("own-" + name, True), ("durable", False)):
            exchanges.declare(connection, exchange, "direct", auto_delete=goes)
            exchanges.bind(connection, name, exchange, "k", "direct")
    opened.consumer().claim("q", "stays", at_most=1)
    consumer = opened.consumer()
    subscribe(consumer, "q")
    assert queues.delete(connection, "q") in (2, 3)  # that waited
    assert queues.delete(connection, "q") == 0
    assert names(connection) == ["stays"]
    assert rows(connection, "SELECT count(*) FROM kombu_message") == [(4,)]
    assert bindings(connection) == [
        ("stays", "durable", "k"),
        ("stays", "own-stays", "k"),
        ("stays", "shared", "k"),
    ]
    # An exchange that deletes itself goes with its last binding.
    found = {exchange for (exchange,) in rows(connection, "SELECT name FROM kombu_queue_exchange")}
    assert found & {"own-q", "own-stays", "shared", "durable"} == {"own-stays", "shared", "durable"}
    assert rows(connection, "SELECT FROM kombu_queue_consumer") == []


def test_a_queue_in_use_may_be_spared(opened: Sessions, connection: Connection) -> None:
    consumer = opened.consumer()
    queue = subscribe(consumer, "q")
    assert queues.delete(connection, "q", if_unused=True) == 0
    assert names(connection) == ["q"]
    consumer.unsubscribe([queue])
    put(connection, "q", "m")
    assert queues.delete(connection, "q", if_unused=True, if_empty=True) == 0
    assert names(connection) == ["q"]
    assert queues.purge(connection, "q") == 1
    queues.delete(connection, "q", if_unused=True, if_empty=True)
    assert names(connection) == []


def test_an_auto_delete_queue_goes_with_its_last_consumer(opened: Sessions) -> None:
    one, two, three = opened.consumer(), opened.consumer(), opened.consumer()
    for name in ("unused", "used", "lasting"):
        queues.declare(one.connection, name, auto_delete=name != "lasting")
    for consumer, name in product((one, two, three), ("used", "lasting")):
        subscribe(consumer, name)
    queue = subscribe(one, "used")
    for _ in range(2):
        one.unsubscribe([queue])
    assert names(one.connection) == ["lasting", "unused", "used"]
    two.leave()
    assert names(one.connection) == ["lasting", "unused", "used"]
    three.die(one.connection)
    consumers.release_dead(one.connection, [three.id], limit=None)
    assert names(one.connection) == ["lasting", "unused"]


@pytest.mark.parametrize(
    "delete",
    [
        lambda other, queue: queues.delete_abandoned(other, [queue]),
        lambda other, queue: queues.delete(other, "q", if_unused=True),
        lambda other, queue: queues.delete_expired(other),
    ],
)
def test_a_queue_that_somebody_begins_to_consume_is_not_deleted(
    opened: Sessions, connection: Connection, delete: Callable[[Connection, int], object]
) -> None:
    """Whoever finds it unused waits for that."""
    queue = queues.declare(connection, "q", auto_delete=True, arguments={"x-expires": 1000}).id
    connection.execute(text("UPDATE kombu_queue SET used_at = used_at - interval '2 minutes'"))
    consumer, other = opened.consumer(), opened.open()

    def run() -> None:
        with connections.transaction(other):
            delete(other, queue)

    blocked = text("SELECT count(*) FROM pg_stat_activity WHERE pg_blocking_pids(pid) <> '{}'")
    with ThreadPoolExecutor(1) as pool:
        with connections.transaction(consumer.connection):
            consumers.subscribe(consumer.connection, consumer.id, [queue])
            deleted = pool.submit(run)
            until(lambda: connection.scalar(blocked))
        deleted.result()
    assert queues.declare(connection, "q") == (queue, 0, 1)


def test_a_deleted_queue_cannot_be_consumed(opened: Sessions, connection: Connection) -> None:
    consumer = opened.consumer()
    ids = [queues.declare(connection, name).id for name in ("q", "stays")]
    queues.delete(connection, "q")
    with pytest.raises(psycopg.OperationalError, match="was deleted"):
        consumers.subscribe(consumer.connection, consumer.id, ids)


def test_the_consumers_of_a_deleted_queue_are_told(
    opened: Sessions, connection: Connection
) -> None:
    consumer, idle = opened.consumer(), opened.consumer()
    for name in ("q", "unused"):
        queues.declare(connection, name)
        consumer.listen(name)
        idle.listen(name)
    subscribe(consumer, "q")
    for name in ("q", "unused"):
        queues.delete(connection, name)
    assert until(consumer.heard) == until(idle.heard) == ["gone q"]


def test_an_unused_queue_expires(opened: Sessions, connection: Connection) -> None:
    consumer = opened.consumer()
    for name in ("unused", "declared", "consumed"):
        queues.declare(connection, name, arguments={"x-expires": 60_000})
    queues.declare(connection, "for ever")
    queue = subscribe(consumer, "consumed")

    def two_minutes_later() -> list[str]:
        connection.execute(text("UPDATE kombu_queue SET used_at = used_at - interval '2 minutes'"))
        queues.declare(connection, "declared")
        assert consumers.due_maintenance(connection).has_expired is (
            "unused" in names(connection) or queue_is_free
        )
        discards.expire(connection)
        return names(connection)

    queue_is_free = False
    assert not consumers.due_maintenance(connection).has_expired
    assert two_minutes_later() == ["consumed", "declared", "for ever"]
    assert two_minutes_later() == ["consumed", "declared", "for ever"]
    consumer.unsubscribe([queue])
    discards.expire(connection)  # its time begins now
    assert names(connection) == ["consumed", "declared", "for ever"]
    queue_is_free = True
    assert two_minutes_later() == ["declared", "for ever"]


def test_declaring_and_deleting_at_once(opened: Sessions) -> None:
    """No session gets an error, whatever the others do to the same queues."""

    def work(mine: Connection, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311
        for _ in range(40):
            name = chance.choice("ab")
            with connections.transaction(mine):
                queues.declare(mine, name)
            with connections.transaction(mine):
                exchanges.declare(mine, "x", "topic", auto_delete=True)
                exchanges.bind(mine, name, "x", "#", "topic")
                put(mine, name, "m")
            with connections.transaction(mine):
                chance.choice([queues.delete, queues.purge])(mine, name)

    together([partial(work, opened.open(), seed) for seed in range(4)])


# -- purged and paused ----------------------------------------------------------------------------


def test_purge_spares_claimed_messages(opened: Sessions, connection: Connection) -> None:
    put(connection, "q", "claimed", "1", "2")
    put(connection, "q", "later", available_at=later(connection, "1 hour"))
    put(connection, "other", "m")
    # A row that kombu's transport has delivered: invisible and unclaimed.
    put(connection, "q", "stock")
    connection.execute(text("UPDATE kombu_message SET visible = false WHERE payload = 'stock'"))
    assert payloads(opened.consumer().claim("q", at_most=1)) == ["claimed"]
    assert queues.purge(connection, "q") == 3
    assert queues.purge(connection, "q") == 0
    assert queues.purge(connection, "none") == 0
    left = {payload for (payload,) in rows(connection, "SELECT payload FROM kombu_message")}
    assert left - {"stock"} == {"claimed", "m"}


def test_a_queue_is_looked_at_without_the_others(connection: Connection) -> None:
    """Pausing shows it before and after; purging deletes what it has: neither reads the table."""
    fill(connection)
    put(connection, "q30", *map(str, range(10)))
    put(connection, "q30", "later", available_at=later(connection, "1 hour"))
    connection.execute(text("ANALYZE kombu_message, kombu_queue"))
    scans = text("SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'kombu_message'")
    with connections.transaction(connection):
        before = connection.scalar(scans)
        found = queues.get(connection, "q30")
        assert (found.waiting, found.delayed, found.claimed, found.dead) == (10, 1, 0, 0)
        queues.set_paused(connection, "q30", True)
        assert queues.purge(connection, "q30") == 11
        assert connection.scalar(scans) == before


def test_a_queue_is_paused_and_resumed(opened: Sessions, connection: Connection) -> None:
    consumer = opened.consumer()
    put(connection, "q", "m")
    assert queues.set_paused(connection, "q", True)
    assert not queues.set_paused(connection, "q", True)
    assert consumer.claim("q") == []
    put(connection, "q", "more")  # is welcome
    with connections.transaction(connection):
        queues.declare(connection, "q")  # changes nothing
    assert consumer.claim("q") == []
    assert queues.set_paused(connection, "q", False)
    assert not queues.set_paused(connection, "q", False)
    assert payloads(consumer.claim("q")) == ["m", "more"]
    for paused in (True, False):
        with pytest.raises(NotFound, match="no queue 'nowhere'"):
            queues.set_paused(connection, "nowhere", paused)


def test_a_resumed_queue_is_announced(opened: Sessions, connection: Connection) -> None:
    consumer = opened.consumer()
    subscribe(consumer, "q")
    consumer.listen("q")
    queues.set_paused(connection, "q", True)
    queues.set_paused(connection, "q", False)
    assert until(consumer.heard) == ["again"]


# -- exchanges and bindings -----------------------------------------------------------------------


def test_an_exchange_goes_with_its_bindings(connection: Connection) -> None:
    queues.declare(connection, "q")
    for exchange in ("x", "y"):
        exchanges.declare(connection, exchange, "direct")
        exchanges.bind(connection, "q", exchange, "k", "direct")
    exchanges.delete(connection, "x", if_unused=True)
    assert exchanges.is_bound(connection, "x")
    exchanges.delete(connection, "x")
    assert not exchanges.is_bound(connection, "x")
    assert bindings(connection) == [("q", "y", "k")]


def test_bindings_are_made_once_and_announced(opened: Sessions, connection: Connection) -> None:
    listener = opened.consumer()
    listener.listen()
    queues.declare(connection, "q")
    for key in ("a", "b", "a"):
        exchanges.bind(connection, "q", "x", key, "direct")
    exchanges.bind(connection, "missing", "x", "a", "direct")
    assert bindings(connection) == [("q", "x", "a"), ("q", "x", "b")]
    exchanges.unbind(connection, "q", "x", "a")
    exchanges.unbind(connection, "q", "x", "a")
    assert bindings(connection) == [("q", "x", "b")]
    assert set(until(listener.heard)) == {"bindings"}


# -- topics ---------------------------------------------------------------------------------------


def matches(binding: list[str], key: list[str]) -> bool:
    """AMQP 0-9-1, 3.1.3.3: `*` is one word, `#` any number of them."""
    if not binding:
        return not key
    if binding[0] == "#":
        return matches(binding[1:], key) or (bool(key) and matches(binding, key[1:]))
    return bool(key) and binding[0] in ("*", key[0]) and matches(binding[1:], key[1:])


def words(key: str) -> list[str]:
    return key.split(".") if key else []


def matched(connection: Connection, bindings: list[str], keys: list[str]) -> set[tuple[str, str]]:
    """Which binding keys match which routing keys, says Postgres."""
    statement = text(
        "SELECT b.binding, k.key FROM unnest(CAST(:bindings AS text[]), CAST(:patterns AS text[])) "
        "AS b (binding, pattern), unnest(CAST(:keys AS text[])) AS k (key) WHERE k.key ~ b.pattern"
    )
    values = {
        "bindings": bindings,
        "patterns": [exchanges.topic_pattern(binding) for binding in bindings],
        "keys": keys,
    }
    return {(str(b), str(k)) for b, k in connection.execute(statement, values)}


def test_topics_match_as_amqp_says(connection: Connection) -> None:
    """All binding keys of up to four of `a b * #`, on all keys of up to four words."""
    bindings = [".".join(w) for n in range(5) for w in product(["a", "b", "*", "#"], repeat=n)]
    keys = [".".join(w) for n in range(5) for w in product(["a", "b"], repeat=n)]
    wanted = {(b, k) for b in bindings for k in keys if matches(words(b), words(k))}
    found = matched(connection, bindings, keys)
    assert found - wanted == set()
    assert wanted - found == set()


def test_a_topics_words_are_taken_literally(connection: Connection) -> None:
    """Whatever Postgres' regular expressions make of their characters."""
    chance = random.Random(7)  # noqa: S311
    odd = [
        "a", "A", "ab", "a-b", "a_b", "a b", "a+", "a*", "(a)", "[a]", "a|b", "^a", "a$", "\\",
        "\\d", "{1}", "a?", "ü", "漢", "🐘", "***:", "(?i)a", "\n", "\t", "%", "'", '"', "1", "@x",
    ]  # fmt: skip
    keys = [".".join(chance.choices(odd, k=chance.randint(1, 4))) for _ in range(150)] + odd
    bindings = [
        ".".join(w if chance.random() < 0.6 else chance.choice("*#") for w in words(key))
        for key in keys
    ] + odd
    wanted = {(b, k) for b in bindings for k in keys if matches(words(b), words(k))}
    assert len(wanted) > 500
    found = matched(connection, bindings, keys)
    assert found - wanted == set()
    assert wanted - found == set()


def test_a_hash_alone_matches_every_key(connection: Connection) -> None:
    """Also keys that are not well formed: `#` is how one asks for everything."""
    keys = ["", ".", "a..b", ".a", "a.", "...", "a.b"]
    assert matched(connection, ["#"], keys) == {("#", key) for key in keys}


# -- listed ---------------------------------------------------------------------------------------


def test_queues_are_listed_with_their_numbers(opened: Sessions, connection: Connection) -> None:
    put(connection, "busy", *"123456")
    put(connection, "busy", "later", available_at=later(connection, "1 hour"))
    queues.declare(connection, "idle")
    queues.set_paused(connection, "idle", True)
    one, two = opened.consumer(), opened.consumer()
    for consumer in (one, two):
        subscribe(consumer, "busy")
    claimed = one.claim("busy", at_most=3)
    one.reject([claimed[0].id])
    two.die(connection)
    busy, idle = (q for q in queues.all_queues(connection) if q.name != "celery")
    assert busy[:6] == ("busy", 3, 1, 2, 1, 1)
    assert busy.paused_at is None
    assert idle[:7] == ("idle", 0, 0, 0, 0, 0, None)
    assert idle.paused_at is not None
    alone = queues.get(connection, "busy")
    assert alone._replace(age=None) == busy._replace(age=None)
    for age in (alone.age, busy.age):
        assert age is not None and 0 <= age.total_seconds() < 60


def test_the_load_of_queues_is_what_runs_and_can_start(
    opened: Sessions, connection: Connection
) -> None:
    def loads() -> list[tuple[Any, ...]]:
        names = "SELECT * FROM pgbeat.queue_load WHERE queue IN ('busy', 'held') ORDER BY queue"
        return [tuple(row) for row in connection.execute(text(names))]

    put(connection, "busy", *"123456")
    put(connection, "busy", "later", available_at=later(connection, "1 hour"))
    put(connection, "held", *"12")
    queues.set_paused(connection, "held", True)
    consumer = opened.consumer()
    subscribe(consumer, "busy")
    consumer.claim("busy", at_most=3)
    assert loads() == [("busy", 3, 3, 0, None), ("held", 0, 0, 0, None)]

    session = opened.open()
    for number, queue in (1, "busy"), (2, "busy"), (3, "held"):
        workers.register(session, number, f"w{number}", 1, "threads", 2, namespace="default")
        versions: dict[str, str] = {}
        workers.report(session, number, WorkerReport("host", versions, [queue], 2, None, None))
    assert loads() == [("busy", 3, 3, 4, 1.5), ("held", 0, 0, 2, 0.0)]
    connections.close(session)
    until(lambda: loads() == [("busy", 3, 3, 0, None), ("held", 0, 0, 0, None)])


def test_what_is_due_waits_though_nobody_lives(connection: Connection, sql: Sql) -> None:
    """Only a consumer makes a delayed message visible when its time has come."""
    for name in ("late", "held"):
        put(connection, name, "due", "later", available_at=later(connection, "1 hour"))
    sql("UPDATE kombu_message SET available_at = now() - interval '9 min' WHERE payload = 'due'")
    queues.set_paused(connection, "held", True)
    for row in (*queues.all_queues(connection)[1:], queues.get(connection, "late")):
        assert (row.waiting, row.delayed) == (1, 1), row
        assert row.is_unserved is (row.name == "late")  # as alerts do, which leave out paused ones
        assert row.age is not None and 540 <= row.age.total_seconds() < 600
    for counted in gauges.queues(connection)[1:]:
        assert (counted.waiting, counted.delayed) == (1, 1), counted
        assert 540 <= counted.age < 600
    load = "SELECT queue, waiting FROM pgbeat.queue_load WHERE queue <> 'celery' ORDER BY 1"
    assert rows(connection, load) == [("held", 0), ("late", 1)]


def test_messages_are_counted_by_their_index(connection: Connection) -> None:
    """A short queue's beside a long one's, which the planner knows."""
    driver = connections.driver(connection)
    put(connection, "short", "m")
    put(connection, "long", "m")
    long = queue_id(connection, "long")
    driver.execute("ALTER TABLE kombu_message SET (autovacuum_enabled = off)")
    driver.execute("SET session_replication_role = replica")  # nobody is to be told
    driver.execute(
        "INSERT INTO kombu_message (payload, queue_id) "
        f"SELECT 'm', {long} FROM generate_series(1, 60000)"
    )
    driver.execute("ANALYZE kombu_message")
    load = "SELECT waiting FROM pgbeat.queue_load WHERE queue = 'short'"
    read = [pages(connection, load) for _ in range(2)]
    connections.configure(connection, gauges.PLANS)
    with plans(connection) as seen:
        assert len(gauges.queues(connection)) >= 2
    assert "kombu_message" not in seen.scanned()
    assert read[1] <= 1500, read  # in the first are those of planning
