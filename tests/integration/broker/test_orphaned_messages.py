"""Messages of no use: deleted in small parts, found without reading the others."""

import json

from sqlalchemy import Connection, text

from pgbeat.broker.transport.consuming import orphaned_messages
from tests.support.broker_sessions import Sessions, depths, filled, later, plans, put, rows
from tests.support.command_line import Sql
from tests.support.rows import make_job


def delivered_by_stock(connection: Connection, *payloads: str) -> None:
    """As the stock transport leaves what it has delivered."""
    put(connection, "q", *payloads)
    statement = text("UPDATE kombu_message SET visible = false WHERE payload = ANY (:payloads)")
    connection.execute(statement, {"payloads": list(payloads)})


def left(connection: Connection) -> set[str]:
    """Returns the messages in the table."""
    return {payload for (payload,) in rows(connection, "SELECT payload FROM kombu_message")}


def test_what_the_stock_transport_delivered(opened: Sessions, connection: Connection) -> None:
    delivered_by_stock(connection, "done 1", "done 2", "done 3")
    put(connection, "q", "claimed", priority=5)
    opened.consumer().claim("q", at_most=1)
    put(connection, "q", "waiting")
    put(connection, "q", "delayed", available_at=later(connection, "1 hour"))
    assert orphaned_messages.delete(connection, limit=2) == 2
    assert orphaned_messages.delete(connection, limit=2) == 1
    assert orphaned_messages.delete(connection, limit=2) == 0
    assert left(connection) == {"claimed", "waiting", "delayed"}


def test_messages_of_queues_that_are_gone(connection: Connection, sql: Sql) -> None:
    """Put while the queue was deleted; a job of theirs is known to have lost its message."""
    job_id = make_job(sql, "pending")
    for queue in ("gone", "kept", "also gone"):
        put(connection, queue, f"{queue} 1", f"{queue} 2")
    put(connection, "gone", "a job's", job_id=job_id)
    connection.execute(text("DELETE FROM kombu_queue WHERE name LIKE '%gone'"))
    assert orphaned_messages.delete(connection, limit=3) == 3
    assert orphaned_messages.delete(connection, limit=3) == 2
    assert orphaned_messages.delete(connection, limit=3) == 0
    assert depths(connection) == {"kept": 2}
    assert sql("SELECT job_id::text, how FROM pgbeat.message_ends") == [(job_id, "deleted")]


def test_only_indexes_are_read(connection: Connection) -> None:
    """However the server came to know the table."""
    for known in filled(connection):
        with plans(connection) as seen:
            orphaned_messages.delete(connection)
        assert "kombu_message" not in seen.scanned(), (known, json.dumps(seen.nodes, indent=1))
        assert {"kombu_message_useless", "kombu_message_ready"} <= seen.indexes()
