"""Messages: put, routed and withdrawn, on the indexes made for them."""

import uuid
from collections import Counter
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from pgbeat.broker import dead_letters, exchanges, message_ends, messages, own_tables, queues
from pgbeat.broker.messages import Message
from pgbeat.broker.transport.consuming import claim_sql
from pgbeat.database import connections
from pgbeat.database.prepared import Statement
from tests.support.broker_sessions import (
    Plans,
    Sessions,
    depths,
    filled,
    later,
    payloads,
    planned,
    plans,
    put,
    queue_id,
    rows,
)


def test_messages_are_put_in_the_order_given(connection: Connection) -> None:
    names = [str(n) for n in range(500)]
    messages.put(connection, [Message(f"q{int(n) % 3}", n) for n in names])
    found = rows(connection, "SELECT payload FROM kombu_message ORDER BY id")
    assert [payload for (payload,) in found] == names


def test_any_text_arrives_as_it_was(opened: Sessions, connection: Connection) -> None:
    name = "a \"queue\", 'quoted'; {0} %s :x \\ ü 漢"
    texts = ["", "\\", '"\\u0000"', "{}:%s ü 漢 🐘", "line\nline\ttab", "x" * 300_000]
    put(connection, name, *texts)
    assert payloads(opened.consumer().claim(name)) == texts


def test_a_delayed_message_is_invisible(connection: Connection) -> None:
    put(connection, "q", "later", available_at=later(connection, "1 hour"))
    put(connection, "q", "now", available_at=later(connection, "-1 hour"))
    assert rows(
        connection,
        "SELECT payload, visible, available_at > now() + interval '59 minutes' FROM kombu_message "
        "ORDER BY payload",
    ) == [("later", False, True), ("now", True, None)]


def test_a_message_lives_as_long_as_it_or_its_queue_says(connection: Connection) -> None:
    queues.declare(connection, "short", arguments={"x-message-ttl": 2000})
    hour, ago = later(connection, "1 hour"), later(connection, "-1 hour")
    given: list[tuple[Message, Any]] = [
        (Message("short", "queue's"), 2),
        (Message("short", "own", ttl=1000), 1),
        (Message("short", "longer", ttl=9000), 2),
        (Message("q", "alone", ttl=3000), 3),
        (Message("q", "for ever"), None),
        (Message("q", "was due", ttl=3000, available_at=ago), 3),
        (Message("q", "from then", ttl=3000, available_at=hour), pytest.approx(3603, abs=2)),
    ]
    messages.put(connection, [message for message, _ in given])
    seconds = "extract(epoch FROM expires_at - enqueued_at)::float8"
    found = rows(connection, f"SELECT {seconds} FROM kombu_message ORDER BY id")
    assert [lives for (lives,) in found] == [lives for _, lives in given]


def test_a_priority_is_at_most_the_queues(connection: Connection) -> None:
    queues.declare(connection, "three", arguments={"x-max-priority": 3})
    queues.declare(connection, "all", arguments={"x-max-priority": 1000})
    for queue in ("three", "all", "plain"):
        messages.put(connection, [Message(queue, str(p), priority=p) for p in (1, 5, 255)])
    found = rows(
        connection,
        "SELECT q.name, array_agg(m.priority ORDER BY m.id) FROM kombu_message m "
        "JOIN kombu_queue q ON q.id = m.queue_id GROUP BY 1",
    )
    assert dict(found) == {"three": [1, 3, 3], "all": [1, 5, 255], "plain": [1, 5, 9]}


def test_one_is_put_as_a_batch_is(opened: Sessions, connection: Connection) -> None:
    """The statement of a single publish makes the row that a batch of one makes."""
    prepared, hour = opened.consumer().prepared, later(connection, "1 hour")
    queues.declare(connection, "q", arguments={"x-max-priority": 4, "x-message-ttl": 5000})
    many = [Message("q", "m"), Message("q", "m", 9, hour, 70, job_id=str(uuid.uuid4()))]
    messages.put(connection, many)
    for m in many:
        eta = m.available_at.encode() if m.available_at else None
        ttl = b"%d" % m.ttl if m.ttl else None
        job = m.job_id.encode() if m.job_id else None
        parameters = (b"q", b"m", b"%d" % m.priority, eta, ttl, None, job)
        assert prepared.run(messages.PUT_ONE, *parameters).command_tuples == 1
    batch1, batch2, one1, one2 = rows(
        connection,
        "SELECT visible, payload, version, priority, available_at, deliveries, redelivered, "
        "expires_at - coalesce(available_at, enqueued_at), queue_id, job_id FROM kombu_message "
        "ORDER BY id",
    )
    assert (batch1, batch2) == (one1, one2)
    assert str(one2[-1]) == many[1].job_id


def test_one_for_a_missing_queue_is_not_put(opened: Sessions) -> None:
    consumer = opened.consumer()
    result = consumer.prepared.run(messages.PUT_ONE, b"none", b"m", b"0", None, None, None, None)
    assert result.command_tuples == 0
    assert rows(consumer.connection, "SELECT FROM kombu_message") == []


def jobs_messages(connection: Connection, *names: str, queue: str = "q") -> list[str]:
    """Messages of jobs; the jobs."""
    found = [str(uuid.uuid4()) for _ in names]
    batch = [Message(queue, name, job_id=job) for name, job in zip(names, found, strict=True)]
    messages.put(connection, batch)
    return found


def test_what_no_consumer_has_is_withdrawn(opened: Sessions, connection: Connection) -> None:
    claimed, waiting = jobs_messages(connection, "claimed", "waiting")
    consumer = opened.consumer()
    assert payloads(consumer.claim("q", at_most=1)) == ["claimed"]
    (delayed,) = jobs_messages(connection, "delayed")
    (stock,) = jobs_messages(connection, "taken by a stock worker")
    hour = later(connection, "1 hour")
    connections.driver(connection).execute(
        "UPDATE kombu_message SET visible = false, available_at = CASE WHEN job_id = %s THEN "
        "%s::timestamptz END WHERE job_id IN (%s, %s)",
        [delayed, hour, delayed, stock],
    )
    put(connection, "q", "of no job")
    everything = [claimed, waiting, delayed, stock, str(uuid.uuid4())]
    assert messages.carrying(connection, everything) == {claimed, waiting, delayed}
    assert messages.withdraw(connection, everything).keys() == {waiting, delayed}
    assert messages.carrying(connection, everything) == {claimed}
    left = rows(connection, "SELECT payload FROM kombu_message ORDER BY id")
    assert left == [("claimed",), ("taken by a stock worker",), ("of no job",)]
    assert not messages.withdraw(connection, [])
    assert not messages.carrying(connection, [])


def test_a_message_that_is_being_claimed_is_left_to_its_consumer(
    opened: Sessions, connection: Connection
) -> None:
    """The first to lock it has it: a withdrawal never waits."""
    (job,) = jobs_messages(connection, "m")
    other = opened.open()
    with connections.transaction(other):
        other.execute(text("SELECT FROM kombu_message FOR UPDATE"))
        assert not messages.withdraw(connection, [job])
    assert messages.withdraw(connection, [job]).keys() == {job}


def test_a_dead_letter_and_its_requeued_message_are_of_the_same_job(opened: Sessions) -> None:
    consumer = opened.consumer()
    (job,) = jobs_messages(consumer.connection, "m")
    (found,) = consumer.claim("q")
    consumer.reject([found.id])
    query = "SELECT job_id::text FROM kombu_message"
    assert rows(consumer.connection, query + "_dead") == [(job,)]
    assert messages.carrying(consumer.connection, [job]) == set()
    assert dead_letters.requeue(consumer.connection, queue="q") == 1
    assert rows(consumer.connection, query) == [(job,)]


def test_jobs_messages_are_found_by_the_index(connection: Connection) -> None:
    for known in filled(connection):
        (job,) = jobs_messages(connection, "m", queue="q1")
        with plans(connection) as seen:
            messages.withdraw(connection, [job])
            messages.carrying(connection, [job])
        assert "kombu_message" not in seen.scanned(), (known, seen.nodes)
        assert "kombu_message_job" in seen.indexes(), (known, seen.nodes)


#: Exchange, its type, and the queues bound to it, by which keys.
BINDINGS = [
    ("d", "direct", "direct-1", "k"),
    ("d", "direct", "direct-2", "k"),
    ("d", "direct", "direct-2", "other"),
    ("d", "direct", "direct-3", "K"),
    ("t", "topic", "topic-1", "a.#"),
    ("t", "topic", "topic-1", "*.b"),
    ("t", "topic", "topic-2", "b.*"),
    ("f", "fanout", "fanout-1", ""),
    ("f", "fanout", "fanout-2", "ignored"),
    ("f", "fanout", "direct-1", ""),
]


ROUTES = [
    ("d", "k", {"direct-1", "direct-2"}),
    ("d", "other", {"direct-2"}),
    ("d", "K", {"direct-3"}),
    ("d", "", set()),
    ("t", "a.b", {"topic-1"}),
    ("t", "b.b", {"topic-1", "topic-2"}),
    ("t", "c", set()),
    ("f", "anything", {"fanout-1", "fanout-2", "direct-1"}),
    ("none", "k", set()),
]


def test_an_exchange_reaches_each_bound_queue_once(opened: Sessions) -> None:
    consumer = opened.consumer()
    for name, type, queue, bound in BINDINGS:
        queues.declare(consumer.connection, queue)
        exchanges.declare(consumer.connection, name, type)
        exchanges.bind(consumer.connection, queue, name, bound, type)
    for exchange, key, reached in ROUTES:
        before = Counter(depths(consumer.connection))
        messages.put(consumer.connection, [Message(None, "m", exchange=exchange, routing_key=key)])
        after = Counter(depths(consumer.connection))
        assert after - before == Counter(reached), (exchange, key)
        one = (exchange.encode(), b"m", b"0", None, None, None, None, key.encode())
        assert consumer.prepared.run(messages.ROUTE_ONE, *one).command_tuples == len(reached)
        assert Counter(depths(consumer.connection)) - after == Counter(reached), (exchange, key)


def test_routed_messages_obey_each_queues_limits(opened: Sessions) -> None:
    consumer = opened.consumer()
    connection = consumer.connection
    exchanges.declare(connection, "x", "fanout")
    for name, ttl, top in (("a", 1000, 2), ("b", 2000, None)):
        given = {"x-message-ttl": ttl, "x-max-priority": top}
        queues.declare(connection, name, arguments=given)
        exchanges.bind(connection, name, "x", "", "fanout")
    messages.put(connection, [Message(None, "m", priority=7, exchange="x")])
    one = (b"x", b"m", b"7", None, None, None, None, b"")
    consumer.prepared.run(messages.ROUTE_ONE, *one)
    found = rows(
        connection,
        "SELECT q.name, m.priority, extract(epoch FROM m.expires_at - m.enqueued_at)::int "
        "FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id ORDER BY 1, m.id",
    )
    assert found == [("a", 2, 1), ("a", 2, 1), ("b", 7, 2), ("b", 7, 2)]


def test_a_role_that_lacks_nothing_can_publish(opened: Sessions, connection: Connection) -> None:
    """What `missing_privileges` lists is what it takes, and no more."""
    role = f"publisher_{uuid.uuid4().hex[:8]}"
    exchanges.declare(connection, "x", "fanout")
    connection.execute(text(f"CREATE ROLE {role}"))
    try:
        consumer = opened.consumer()
        consumer.connection.execute(text(f"SET ROLE {role}"))
        with pytest.raises(ProgrammingError, match="permission denied"):
            put(consumer.connection, "q", "m")
        missing = own_tables.missing_privileges(consumer.connection)
        assert "INSERT on kombu_message" in missing
        for privilege in missing:
            kind = "SEQUENCE " if "sequence" in privilege else ""
            what, name = privilege.split(" on ")
            connection.execute(text(f"GRANT {what} ON {kind}{name} TO {role}"))
        assert own_tables.missing_privileges(consumer.connection) == []
        put(consumer.connection, "q", "m", available_at=later(connection, "1 second"))
        messages.put(consumer.connection, [Message(None, "m", exchange="x")])
        consumer.prepared.run(messages.PUT_ONE, b"q", b"m", b"0", None, None, None, None)
        assert depths(connection) == {"q": 1}
    finally:
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))


PREPARED: dict[Statement, list[Any]] = {
    claim_sql.CLAIM: [[1, 2, 3], 100, 7, [1, 2, 3]],
    claim_sql.TAKE: [[1, 2, 3], 100, 7, []],
    message_ends.ACK: [[1, 2, 3, 4, 5], 7],
    messages.PUT_ONE: ["q1", "m", 0, None, None, None, None],
    messages.ROUTE_ONE: ["x", "m", 0, None, None, None, None, "a.b"],
}


def generic(connection: Connection, statement: Statement, parameters: list[Any]) -> Plans:
    """The plan for all parameters, as the transport's sessions make it."""
    named = {str(number): value for number, value in enumerate(parameters, 1)}
    seen = Plans()
    seen.nodes = planned(connection, statement.sql, named, ways=["force_generic_plan"])
    return seen


def test_statements_use_their_indexes(opened: Sessions, connection: Connection) -> None:
    """However the server came to know the table, whose rows come and go."""
    exchanges.declare(connection, "x", "direct")
    for known in filled(connection):
        for statement, parameters in PREPARED.items():
            seen = generic(connection, statement, parameters)
            assert "kombu_message" not in seen.scanned(), (known, statement, seen.nodes)
            if statement.label in ("claim", "take"):
                assert "kombu_message_ready" in seen.indexes(), (known, statement, seen.nodes)
                reads = [n for n in seen.nodes if "kombu_message_ready" in n.get("Index Name", "")]
                assert {n["Node Type"] for n in reads} == {"Index Scan"}  # in its order
        exchanges.bind(connection, "q1", "x", "k", "direct")
        with plans(connection) as batch:
            put(connection, "q1", "m")
            messages.put(connection, [Message(None, "m", exchange="x", routing_key="k")])
        touched = [n for n in batch.nodes if n.get("Relation Name") == "kombu_message"]
        assert {n["Node Type"] for n in touched} == {"ModifyTable"}, known
    # Among so many they still come in order.
    wanted = rows(
        connection,
        "SELECT id FROM kombu_message WHERE queue_id = 3 AND visible "
        "ORDER BY priority DESC, id LIMIT 50",
    )
    found = opened.consumer().claim("q3", at_most=50)
    assert [d.id for d in found] == [id for (id,) in wanted]


def test_claims_from_marks_read_their_queue_alone(connection: Connection) -> None:
    """A short queue's next message, beside 100 000 newer ones of other queues."""
    driver = connections.driver(connection)
    messages.declare(connection, ["short", "long"])
    put(connection, "short", *map(str, range(200)))
    short, long = queue_id(connection, "short"), queue_id(connection, "long")
    (last,) = rows(connection, "SELECT max(id) FROM kombu_message")[0]
    driver.execute("SET session_replication_role = replica")
    driver.execute(
        "INSERT INTO kombu_message (payload, queue_id) "
        f"SELECT 'payload', {long} FROM generate_series(1, 100000)"
    )
    driver.execute("ANALYZE kombu_message")
    seen = generic(connection, claim_sql.CLAIM_ON, [[short], 100, 7, [], [0], [last]])
    assert "kombu_message_ready" in seen.indexes(), seen.nodes


def test_dead_pages_mislead_no_claim(opened: Sessions, connection: Connection) -> None:
    """By estimate a reader in order visits many pages of dead rows, which a held snapshot keeps."""
    driver, claiming = connections.driver(connection), opened.open()
    connections.configure(claiming, claim_sql.PLANS)
    messages.declare(connection, ["q"])
    queue = queue_id(connection, "q")
    driver.execute("ALTER TABLE kombu_message SET (autovacuum_enabled = off, fillfactor = 10)")
    driver.execute("SET session_replication_role = replica")  # nobody is to be told

    def insert(payload: str, number: int) -> None:
        driver.execute(
            "INSERT INTO kombu_message (payload, queue_id) "
            f"SELECT {payload}, {queue} FROM generate_series(1, {number})"
        )

    insert("repeat('x', 900)", 3000)
    driver.execute("DELETE FROM kombu_message")
    insert("'m'", 10)
    driver.execute("ANALYZE kombu_message")
    insert("'m'", 1000)
    for statement, of in ((claim_sql.CLAIM, []), (claim_sql.CLAIM_ON, [[0], [0]])):
        seen = generic(claiming, statement, [[queue], 100, 7, [], *of])
        reads = [n for n in seen.nodes if "kombu_message_ready" in n.get("Index Name", "")]
        assert {n["Node Type"] for n in reads} == {"Index Scan"}, seen.nodes


def test_a_session_may_lose_its_connection_in_a_claim(opened: Sessions, database: str) -> None:
    """The claim is whole or not there at all."""
    put(opened.open(), "q", *map(str, range(100)))
    consumer = opened.consumer()
    queue = queue_id(consumer.connection, "q")
    pid = connections.driver(consumer.connection).info.backend_pid
    with closing(psycopg.connect(database, autocommit=True)) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [pid])
        with pytest.raises(psycopg.OperationalError):
            mine = b"%d" % consumer.id
            consumer.prepared.run(claim_sql.CLAIM, b"{%d}" % queue, b"100", mine, b"{}")
        assert other.execute("SELECT count(*) FROM kombu_message WHERE visible").fetchone() == (
            100,
        )
