"""Exchanges, and the bindings by which they route messages to queues."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, text

from pgbeat.database import sql


def find_type(connection: Connection, name: str) -> str | None:
    """Returns the exchange's type, or `None` if there is no such exchange."""
    return connection.execute(_TYPE, {"name": name}).scalar_one_or_none()


def declare(
    connection: Connection, name: str, type: str, *, durable: bool = True, auto_delete: bool = False
) -> str:
    """Creates the exchange if it is missing, in a single statement; returns the type it has."""
    values = {"name": name, "type": type, "durable": durable, "auto_delete": auto_delete}
    declared: str | None = connection.execute(_DECLARE, values).scalar_one_or_none()
    # Another transaction may have made it while this statement ran.
    return declared or find_type(connection, name) or type


_TYPE = text("SELECT type FROM kombu_queue_exchange WHERE name = :name")
_DECLARE = text(sql.load("exchanges.sql", "declare"))
_DELETE = text(sql.load("exchanges.sql", "delete"))
_FIND_BOUND = text(sql.load("exchanges.sql", "find_bound"))
_BIND = text(
    "INSERT INTO kombu_queue_binding (exchange, routing_key, queue_id, type, pattern) "
    "SELECT :exchange, :routing_key, id, :type, :pattern FROM kombu_queue WHERE name = :queue "
    "ON CONFLICT (exchange, routing_key, queue_id) DO NOTHING"
)
_UNBIND = text(
    "DELETE FROM kombu_queue_binding WHERE exchange = :exchange AND routing_key = :routing_key "
    "AND queue_id = (SELECT id FROM kombu_queue WHERE name = :queue)"
)
_BINDINGS = text(
    "SELECT q.name, b.exchange, b.routing_key FROM kombu_queue_binding b JOIN kombu_queue q "
    "ON q.id = b.queue_id ORDER BY 2, 3, 1"
)
_IS_BOUND = text("SELECT EXISTS (SELECT FROM kombu_queue_binding WHERE exchange = :exchange)")


def delete(connection: Connection, name: str, *, if_unused: bool = False) -> None:
    """Deletes the exchange and its bindings."""
    connection.execute(_DELETE, {"name": name, "if_unused": if_unused})


def bind(connection: Connection, queue: str, exchange: str, routing_key: str, type: str) -> None:
    """Binds the queue to the exchange."""
    connection.execute(
        _BIND,
        {
            "exchange": exchange,
            "routing_key": routing_key,
            "queue": queue,
            "type": type,
            "pattern": topic_pattern(routing_key) if type == "topic" else None,
        },
    )


def find_bound(connection: Connection, wanted: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns the names of the queues that exist with these columns, and with their bindings.

    Queues that expire, or that are deleted with their users, are left out.
    """
    return set(connection.scalars(_FIND_BOUND, {"wanted": json.dumps(list(wanted))}))


def unbind(connection: Connection, queue: str, exchange: str, routing_key: str) -> None:
    """Removes one binding."""
    values = {"exchange": exchange, "routing_key": routing_key, "queue": queue}
    connection.execute(_UNBIND, values)


def bindings(connection: Connection) -> list[tuple[str, str, str]]:
    """Returns all bindings: queue, exchange, routing key."""
    return [(str(q), str(e), str(k)) for q, e, k in connection.execute(_BINDINGS)]


def is_bound(connection: Connection, exchange: str) -> bool:
    """Returns whether any queue is bound to the exchange."""
    return bool(connection.scalar(_IS_BOUND, {"exchange": exchange}))


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
