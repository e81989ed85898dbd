"""Messages that COPY writes are those that a statement would have written."""

import uuid

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from pgbeat.broker import message_copies, messages
from pgbeat.broker.messages import Message
from pgbeat.database import connections
from tests.support.broker_sessions import depths, later, put, rows

TEXTS = ["", "\\", "\\N", "\\.", "tab\tline\nreturn\r\n", '"quoted" {0} %s :x ü 漢 🐘', "x" * 9000]
COLUMNS = (
    "payload, visible, priority, available_at, expires_at, queue_id, job_id, version, claimed_by, "
    "deliveries, redelivered, timestamp, enqueued_at = now() AS just_now"
)


@pytest.fixture
def queue(connection: Connection) -> str:
    put(connection, "q", "first")
    rows(connection, "DELETE FROM kombu_message RETURNING id")
    return "q"


def test_the_same_rows_in_the_order_given(connection: Connection, queue: str) -> None:
    put(connection, "capped", "first")
    rows(connection, "UPDATE kombu_queue SET max_priority = 5 WHERE name = 'capped' RETURNING id")
    rows(connection, "DELETE FROM kombu_message RETURNING id")
    batch = [
        Message("capped" if n % 2 else queue, TEXTS[n % len(TEXTS)], n % 12, job_id=job_id)
        for n in range(140)
        for job_id in (None, str(uuid.UUID(int=n)))
    ]
    with connections.transaction(connection):
        assert message_copies.copy(connection, batch)
        copied = rows(connection, f"SELECT {COLUMNS} FROM kombu_message ORDER BY id")
        rows(connection, "DELETE FROM kombu_message RETURNING id")
        for start in range(0, len(batch), 50):
            messages.put(connection, batch[start : start + 50])
        assert rows(connection, f"SELECT {COLUMNS} FROM kombu_message ORDER BY id") == copied
    assert len(copied) == 280


@pytest.mark.parametrize("why", ["few", "ttl", "delayed", "missing queue", "queue's ttl"])
def test_what_a_statement_must_write(connection: Connection, queue: str, why: str) -> None:
    batch = [Message(queue, "text")] * (10 if why == "few" else 200)
    if why == "ttl":
        batch[-1] = batch[-1]._replace(ttl=1000)
    if why == "delayed":
        batch[-1] = batch[-1]._replace(available_at=later(connection, "1 hour"))
    if why == "missing queue":
        batch[-1] = batch[-1]._replace(queue="missing")
    if why == "queue's ttl":
        rows(connection, "UPDATE kombu_queue SET message_ttl = 1000 RETURNING id")
    assert not message_copies.copy(connection, batch)
    assert rows(connection, "SELECT count(*) FROM kombu_message") == [(0,)]
    messages.put(connection, batch)
    assert sum(depths(connection).values()) == len(batch) - (why == "delayed")


def test_errors_are_those_of_statements(connection: Connection, queue: str) -> None:
    connection.execute(text("ALTER TABLE kombu_message ADD CHECK (payload <> 'refused')"))
    batch = [*[Message(queue, "text")] * 200, Message(queue, "refused")]
    with pytest.raises(IntegrityError, match="check"):
        messages.put(connection, batch)
    assert rows(connection, "SELECT count(*) FROM kombu_message") == [(0,)]
    messages.put(connection, batch[:-1])
    assert depths(connection) == {queue: 200}
