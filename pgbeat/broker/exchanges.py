"""Exchanges, and the bindings by which they route messages to queues."""

from sqlalchemy import Connection

from pgbeat.broker.messages import BrokerTables


def find_type(connection: Connection, tables: BrokerTables, name: str) -> str | None:
    """Returns the exchange's type, or `None` if there is no such exchange."""
    statement = tables.text("SELECT type FROM {exchange} WHERE name = :name")
    return connection.execute(statement, {"name": name}).scalar_one_or_none()


def declare(
    connection: Connection,
    tables: BrokerTables,
    name: str,
    type: str,
    *,
    durable: bool = True,
    auto_delete: bool = False,
) -> str:
    """Creates the exchange if it is missing, in a single statement; returns the type it has."""
    values = {"name": name, "type": type, "durable": durable, "auto_delete": auto_delete}
    found: str | None = connection.execute(tables.text(_DECLARE), values).scalar_one_or_none()
    # Another transaction may have made it while this statement ran.
    return found or find_type(connection, tables, name) or type


_DECLARE = """
    WITH known AS (SELECT type FROM {exchange} WHERE name = :name),
    made AS (
        INSERT INTO {exchange} (name, type, durable, auto_delete)
        SELECT CAST(:name AS text), CAST(:type AS text), CAST(:durable AS boolean),
               CAST(:auto_delete AS boolean)
         WHERE NOT EXISTS (SELECT FROM known)
            ON CONFLICT (name) DO NOTHING RETURNING type)
    SELECT type FROM known UNION ALL SELECT type FROM made
"""


def delete(
    connection: Connection, tables: BrokerTables, name: str, *, if_unused: bool = False
) -> None:
    """Deletes the exchange and its bindings."""
    unused = "NOT EXISTS (SELECT FROM {binding} b WHERE b.exchange = x.name)"
    connection.execute(
        tables.text(
            "WITH gone AS (DELETE FROM {exchange} x WHERE x.name = :name AND {which} "
            "RETURNING name) DELETE FROM {binding} WHERE exchange IN (SELECT name FROM gone)",
            which=unused if if_unused else "true",
        ),
        {"name": name},
    )


def bind(
    connection: Connection,
    tables: BrokerTables,
    queue: str,
    exchange: str,
    routing_key: str,
    type: str,
) -> None:
    """Binds the queue to the exchange."""
    connection.execute(
        tables.text(
            "INSERT INTO {binding} (exchange, routing_key, queue_id, type, pattern) "
            "SELECT :exchange, :routing_key, id, :type, :pattern FROM {queue} WHERE name = :queue "
            "ON CONFLICT (exchange, routing_key, queue_id) DO NOTHING"
        ),
        {
            "exchange": exchange,
            "routing_key": routing_key,
            "queue": queue,
            "type": type,
            "pattern": topic_pattern(routing_key) if type == "topic" else None,
        },
    )


def unbind(
    connection: Connection, tables: BrokerTables, queue: str, exchange: str, routing_key: str
) -> None:
    """Removes one binding."""
    connection.execute(
        tables.text(
            "DELETE FROM {binding} WHERE exchange = :exchange AND routing_key = :routing_key "
            "AND queue_id = (SELECT id FROM {queue} WHERE name = :queue)"
        ),
        {"exchange": exchange, "routing_key": routing_key, "queue": queue},
    )


def bindings(connection: Connection, tables: BrokerTables) -> list[tuple[str, str, str]]:
    """Returns all bindings: queue, exchange, routing key."""
    statement = tables.text(
        "SELECT q.name, b.exchange, b.routing_key FROM {binding} b JOIN {queue} q "
        "ON q.id = b.queue_id ORDER BY 2, 3, 1"
    )
    return [(str(q), str(e), str(k)) for q, e, k in connection.execute(statement)]


def is_bound(connection: Connection, tables: BrokerTables, exchange: str) -> bool:
    """Returns whether any queue is bound to the exchange."""
    statement = tables.text("SELECT EXISTS (SELECT FROM {binding} WHERE exchange = :exchange)")
    return bool(connection.scalar(statement, {"exchange": exchange}))


def topic_pattern(routing_key: str) -> str:
    """Returns a topic's binding key as a regular expression for Postgres.

    `*` matches one word, `#` any number of words including none (AMQP 0-9-1, 3.1.3.3). Words may
    be empty, but an empty key has no words.
    """
    words = routing_key.split(".") if routing_key else []
    if words and all(word == "#" for word in words):
        return "^"
    # A pattern of wildcards only, such as `#.*`, matches every key that has a word.
    pattern = "^(?=.)" if words and all(word in {"#", "*"} for word in words) else "^"
    has_word = False
    for word in words:
        if word == "#":
            pattern += r"(\.[^.]*)*" if has_word else r"([^.]*\.)*"
            continue
        if has_word:
            pattern += r"\."
        pattern += "[^.]*" if word == "*" else _escaped(word)
        has_word = True
    return f"{pattern}$"


def _escaped(word: str) -> str:
    return "".join(c if c.isalnum() or c in "_- " else f"\\{c}" if c.isascii() else c for c in word)
