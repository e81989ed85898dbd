"""Behind PgBouncer in transaction mode: noticed, named, and served."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection

from tests.support.pgbouncer import needs_pgbouncer, pooler
from tests.support.processes import until
from tests.support.rows import Sql

pytestmark = needs_pgbouncer


@pytest.fixture
def pooled(database: str, tmp_path: Path) -> Iterator[str]:
    """The test's database, through a pooler that gives each transaction another session."""
    with pooler(database, tmp_path) as found:
        yield found.url


def exchange(one: Connection, other: Connection) -> list[int]:
    """Three messages from the one to the other, each taken before the next is put."""
    received = []
    with one.SimpleQueue("pooled") as put, other.SimpleQueue("pooled") as get:
        for number in range(3):
            put.put(number)
            message = get.get(timeout=10)
            received.append(message.payload)
            message.ack()
    return received


def test_it_is_named_and_served_by_leases(
    pooled: str, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"pgbeat+{pooled}"
    with Connection(url) as one, Connection(url) as other:
        assert exchange(one, other) == [0, 1, 2]
        [(lease,)] = sql("SELECT lease_until - now() < interval '31 s' FROM pgbeat.consumers")
        assert lease
    assert "transaction-mode pooler in front of" in caplog.text
    assert "direct_url" in caplog.text
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]
    assert sql("SELECT count(*) FROM pgbeat.consumers") == [(0,)]


@pytest.mark.slow
def test_the_lease_is_renewed_while_the_consumer_does_something_else(pooled: str, sql: Sql) -> None:
    options = {"lease": 3}
    with Connection(f"pgbeat+{pooled}", transport_options=options) as connection:
        queue = connection.SimpleQueue("pooled")
        queue.put("work")
        message = queue.get(timeout=10)
        [(first,)] = sql("SELECT lease_until FROM pgbeat.consumers")
        # Twice its lease; no thread drains.
        until(lambda: sql("SELECT now() > %s::timestamptz + interval '3 s'", first)[0][0])
        assert sql("SELECT * FROM pgbeat.dead_consumers()") == []
        message.ack()
        queue.close()


def test_with_a_direct_url_nothing_is_polled(
    pooled: str, database: str, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"direct_url": database}
    url = f"pgbeat+{pooled}"
    with (
        Connection(url, transport_options=options) as one,
        Connection(url, transport_options=options) as other,
    ):
        assert exchange(one, other) == [0, 1, 2]
        assert sql("SELECT lease_until FROM pgbeat.consumers") == [(None,)]
    assert "pooler" not in caplog.text
