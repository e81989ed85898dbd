"""Opens sessions on the broker's tables: puts messages, claims them, explains statements."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from psycopg import sql
from sqlalchemy import Connection, event, text

from pgbeat.broker import exchanges, message_ends, messages, queues
from pgbeat.broker.messages import Message
from pgbeat.broker.transport.consuming import claim_sql, consumers
from pgbeat.broker.transport.consuming.claims import ClaimedMessage, deliveries
from pgbeat.config import postgres_url
from pgbeat.database import channels, connections
from pgbeat.database.prepared import PreparedConnection, Statement, array
from tests.support.processes import until


class Sessions:
    """Opens sessions in a database, in autocommit mode."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        self._engine, self._stack = connections.engine(postgres_url(dsn), "tests"), stack

    def open(self) -> Connection:
        """Opens a session, until the test ends."""
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._stack.callback(connections.close, connection)
        return connection

    def consumer(self, lease: float | None = None) -> "Claimant":
        return Claimant(self.open(), lease)


@contextmanager
def sessions(dsn: str) -> Iterator[Sessions]:
    """Sessions that are closed with the block."""
    with ExitStack() as stack:
        yield Sessions(dsn, stack)


class Claimant:
    """A consumer: it claims, takes and acknowledges as the transport does."""

    def __init__(self, connection: Connection, lease: float | None = None) -> None:
        self.connection = connection
        self.prepared = PreparedConnection(connections.driver(connection))
        self.id = consumers.register(connection, "tests", lease)
        self._claim = claim_sql.CLAIM if lease is None else claim_sql.CLAIM_LEASED
        self._claim_on = claim_sql.CLAIM_ON if lease is None else claim_sql.CLAIM_LEASED_ON

    def claim(
        self, *queues: str, at_most: int = 1000, acked: Sequence[int] = ()
    ) -> list[ClaimedMessage]:
        """Claims from the queues, and acknowledges."""
        return self._run(self._claim, queues, at_most, acked)

    def begin_claim(self, queue: str) -> None:
        """Sends a claim, whose answer `end_claim` waits for."""
        ids = array([queue_id(self.connection, queue)])
        self.prepared.send(self._claim, ids, b"1", b"%d" % self.id, b"{}")
        self.prepared.flush()

    def end_claim(self) -> list[ClaimedMessage]:
        return deliveries(self.prepared.finish())

    def take(
        self, *queues: str, at_most: int = 1000, acked: Sequence[int] = ()
    ) -> list[ClaimedMessage]:
        """Takes from the queues for good, and acknowledges."""
        return self._run(claim_sql.TAKE, queues, at_most, acked)

    def claim_on(self, *marks: tuple[str, int, int], at_most: int = 1000) -> list[ClaimedMessage]:
        """Claims from marks on: queue, priority, lowest id."""
        ids = array([queue_id(self.connection, queue) for queue, *_ in marks])
        priorities, lowest = array([m[1] for m in marks]), array([m[2] for m in marks])
        number, mine = b"%d" % at_most, b"%d" % self.id
        return deliveries(
            self.prepared.run(self._claim_on, ids, number, mine, b"{}", priorities, lowest)
        )

    def ack(self, *messages: int) -> int:
        """Acknowledges messages, and returns how many that deleted."""
        result = self.prepared.run(message_ends.ACK, array(messages), b"%d" % self.id)
        return result.command_tuples or 0

    def requeue(
        self, messages: Sequence[int], *, limit: int | None = None, counts: bool = True
    ) -> list[int]:
        """Requeues what it has claimed; returns what was locked."""
        return consumers.requeue(self.connection, self.id, messages, limit=limit, counts=counts)

    def reject(self, messages: Sequence[int]) -> list[int]:
        """Rejects what it has claimed; returns what was locked."""
        return consumers.reject(self.connection, self.id, messages)

    def unsubscribe(self, queues: Sequence[int]) -> None:
        """Consumes from queues (ids) no more."""
        consumers.unsubscribe(self.connection, self.id, queues)

    def leave(self) -> None:
        """Ends in order."""
        consumers.leave(self.connection, self.id)

    def _run(
        self, statement: Statement, queues: Sequence[str], most: int, acked: Sequence[int]
    ) -> list[ClaimedMessage]:
        ids = array([queue_id(self.connection, queue) for queue in queues])
        mine = b"%d" % self.id
        return deliveries(self.prepared.run(statement, ids, b"%d" % most, mine, array(acked)))

    def listen(self, *queues: str) -> None:
        """Listens to what is told of queues, or of everything."""
        names = [channels.of_queue(queue_id(self.connection, q)) for q in queues]
        for name in names or [channels.BROKER]:
            self.connection.execute(text(f"LISTEN {name}"))

    def heard(self) -> list[str]:
        """Returns the notifications since the last call."""
        self.connection.execute(text("SELECT 1"))
        return [payload for _, payload in self.prepared.notifications()]

    def waits(self, *queues: str) -> set[str]:
        """Waits for messages in the queues; those of which it will be told."""
        ids = {queue_id(self.connection, queue): queue for queue in queues}
        statement = text("SELECT pgbeat.await_queues(CAST(:ids AS bigint[]))")
        return {ids[id] for id in self.connection.scalars(statement, {"ids": list(ids)})}

    def leaves(self, *queues: str) -> None:
        """Waits no more."""
        ids = [queue_id(self.connection, queue) for queue in queues]
        statement = text("SELECT pgbeat.leave_queues(CAST(:ids AS bigint[]))")
        self.connection.execute(statement, {"ids": ids})

    def die(self, watcher: Connection) -> None:
        """Ends as a killed process does, and waits until the server has seen it."""
        connections.close(self.connection)
        until(lambda: self.id in dead(watcher))


def dead(connection: Connection) -> list[int]:
    """Returns the consumers that died and were not released."""
    return list(connection.scalars(text("SELECT pgbeat.dead_consumers()")))


def queue_id(connection: Connection, name: str) -> int:
    statement = text("SELECT id FROM kombu_queue WHERE name = :name")
    return int(connection.execute(statement, {"name": name}).scalar_one())


def put(connection: Connection, queue: str, *payloads: str, **fields: Any) -> None:
    """Puts messages; `fields` are those of `Message`."""
    messages.put(connection, [Message(queue, payload, **fields) for payload in payloads])


def payloads(found: Iterable[ClaimedMessage]) -> list[str]:
    """Returns what the deliveries carry."""
    return [delivery.payload.decode() for delivery in found]


def rows(connection: Connection, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(text(statement), values)]


def state(connection: Connection) -> dict[str, tuple[Any, ...]]:
    """Returns for each message: visible, claimed by, deliveries, redelivered."""
    found = rows(
        connection,
        "SELECT payload, visible, claimed_by, deliveries, redelivered FROM kombu_message",
    )
    return {payload: tuple(rest) for payload, *rest in found}


def depths(connection: Connection) -> dict[str, int]:
    """Messages waiting in each queue that a test has made."""
    found = queues.all_queues(connection)
    return {each.name: each.waiting for each in found if each.name != "celery"}


def bindings(connection: Connection) -> list[tuple[str, str, str]]:
    """Returns the bindings that a test has made: queue, exchange, routing key."""
    return [found for found in exchanges.bindings(connection) if found[0] != "celery"]


def later(connection: Connection, interval: str) -> str:
    """Returns the database's time plus an interval, as a message has it."""
    statement = text("SELECT (now() + CAST(:i AS interval))::text")
    return str(connection.scalar(statement, {"i": interval}))


class Plans:
    """The plans of the statements that ran in a block."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []

    def scanned(self) -> set[str]:
        """Returns the tables that are read from end to end."""
        return {node["Relation Name"] for node in self.nodes if node["Node Type"] == "Seq Scan"}

    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes if "Index Name" in node}


#: The ways to plan: for the parameters at hand, and once for all.
PLANNING = ("force_custom_plan", "force_generic_plan")


@contextmanager
def plans(connection: Connection, but: str | None = None) -> Iterator[Plans]:
    """Collects the plans of the statements that SQLAlchemy sends in the block, both ways.

    `but` is in statements that are left out.
    """
    plans = Plans()

    def note(_: Any, __: Any, statement: str, parameters: Any, *rest: Any) -> None:
        plans.statements.append((statement, parameters))

    event.listen(connection.engine, "before_cursor_execute", note)
    try:
        yield plans
    finally:
        event.remove(connection.engine, "before_cursor_execute", note)
    for statement, parameters in plans.statements:
        is_planned = statement.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
        if is_planned and not (but and but in statement):
            plans.nodes += planned(connection, statement, parameters)


def planned(
    connection: Connection,
    statement: str,
    parameters: Mapping[str, Any],
    ways: Iterable[str] = PLANNING,
) -> list[dict[str, Any]]:
    """Returns the nodes of the statement's plans."""
    driver, found = connections.driver(connection), []
    for number, name in enumerate(parameters, 1):
        statement = statement.replace(f"%({name})s", f"${number}")
    driver.execute("PREPARE planned AS " + statement.replace("%%", "%"))
    values = ", ".join(_literal(value) for value in parameters.values())
    for way in ways:
        driver.execute(f"SET plan_cache_mode = {way}")
        execute = f"EXECUTE planned ({values})" if values else "EXECUTE planned"
        found += nodes(driver.execute(f"EXPLAIN (FORMAT JSON) {execute}").fetchone())
    driver.execute("RESET plan_cache_mode")
    driver.execute("DEALLOCATE planned")
    return found


def _literal(value: Any) -> str:
    if isinstance(value, list):
        value = "{" + ",".join(json.dumps(str(v)) for v in value) + "}"
    return "NULL" if value is None else str(sql.Literal(str(value)).as_string())


def fill(connection: Connection, count: int = 100_000) -> None:
    """Puts messages in five of thirty queues; some are delayed or claimed."""
    driver = connections.driver(connection)
    driver.execute("ALTER TABLE kombu_message SET (autovacuum_enabled = off)")
    driver.execute("SET session_replication_role = replica")  # nobody is to be told
    driver.execute("TRUNCATE kombu_queue")
    driver.execute(
        "INSERT INTO kombu_queue (id, name) SELECT n, 'q' || n FROM generate_series(1, 30) n"
    )
    driver.execute(
        "INSERT INTO kombu_message (payload, queue_id, priority, visible, available_at,"
        " claimed_by, expires_at)"
        " SELECT 'payload ' || n, 1 + n %% 5, n %% 3, n %% 20 > 1,"
        " CASE n %% 20 WHEN 0 THEN now() + interval '1 hour' + n * interval '1 second' END,"
        " CASE n %% 20 WHEN 1 THEN n %% 7 END,"
        " CASE n %% 20 WHEN 2 THEN now() + interval '1 hour' + n * interval '1 second' END"
        " FROM generate_series(1, %s) AS n",
        [count],
    )
    driver.execute("SET session_replication_role = origin")


def filled(connection: Connection) -> Iterator[str]:
    """Yields once for each state of the statistics: none, of a full table, of an empty one, and of
    one that kept its pages when it was emptied.

    There are 100 000 messages each time; the last time fewer, with which an index of shorter keys
    has a level less than that of the claims, and seems cheaper.
    """
    driver = connections.driver(connection)
    # The database may be one that an earlier test was lent, and autovacuum looked at.
    driver.execute("DELETE FROM pg_statistic WHERE starelid = 'kombu_message'::regclass")
    fill(connection)
    yield "never"
    driver.execute("ANALYZE kombu_message, kombu_queue")
    yield "full"
    driver.execute("TRUNCATE kombu_message")
    driver.execute("VACUUM ANALYZE kombu_message")
    fill(connection)
    yield "empty"
    driver.execute("DELETE FROM kombu_message WHERE id < (SELECT max(id) FROM kombu_message)")
    driver.execute("VACUUM ANALYZE kombu_message")
    fill(connection, 65_000)
    yield "emptied"


def nodes(explained: Any) -> list[dict[str, Any]]:
    (found,) = explained
    tops = json.loads(found) if isinstance(found, str) else found
    waiting, seen = [top["Plan"] for top in tops], []
    while waiting:
        node = waiting.pop()
        seen.append(node)
        waiting += node.get("Plans", [])
    return seen
