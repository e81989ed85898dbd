"""Engines: what their connections tell libpq."""

import traceback
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from pgbeat.config import postgres_url
from pgbeat.database import connections, guests

KEEPALIVES = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}


@pytest.mark.parametrize(
    ("query", "arguments", "changed"),
    [
        ({}, {}, {}),
        ({"keepalives_idle": "60", "tcp_user_timeout": "0"}, {},
         {"keepalives_idle": "60", "tcp_user_timeout": "0"}),
        ({}, {"keepalives_count": 9}, {"keepalives_count": "9"}),
    ],
)  # fmt: skip
def test_a_server_that_vanished_is_noticed_as_the_dsn_has_it(
    database: str, query: dict[str, str], arguments: dict[str, int], changed: dict[str, str]
) -> None:
    url = postgres_url(database).update_query_dict(query)
    with connections.engine(url, "tests", arguments).connect() as connection:
        found = connections.driver(connection).info.get_parameters()
    assert {key: found.get(key) for key in KEEPALIVES} == KEEPALIVES | changed


def test_a_default_isolation_level_changes_nothing(
    database: str, sql: Callable[..., list[tuple[Any, ...]]]
) -> None:
    """Transactions, however they begin, and statements of sessions that are prepared."""
    [(name,)] = sql("SELECT current_database()")
    sql(f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable')
    level, engine = (
        text("SHOW transaction_isolation"),
        connections.engine(postgres_url(database), "tests"),
    )
    with engine.begin() as connection:
        assert connection.scalar(level) == "read committed"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert connection.scalar(level) == "serializable"
        with connections.transaction(connection):
            assert connection.scalar(level) == "read committed"
        connections.note_own_session(connection)
        connections.prepare_session(connection)
        assert connection.scalar(level) == "read committed"


def test_errors_quote_no_values(database: str) -> None:
    """Neither parameters nor the row that a constraint refuses."""
    insert = text(
        "INSERT INTO pgbeat.tokens (id, actor, scope, hash) VALUES ('a', :actor, 'x', '')"
    )
    secret = uuid4().hex
    with (
        pytest.raises(IntegrityError) as caught,
        connections.engine(postgres_url(database), "tests").begin() as connection,
    ):
        connection.execute(insert, {"actor": secret})
    said = "".join(traceback.format_exception(caught.value))
    assert "violates" in said
    assert secret not in said
    assert caught.value.orig.diag.message_detail  # type: ignore[union-attr]


def test_a_session_of_its_own_compiles_nothing(database: str) -> None:
    """Servers with LLVM compile what they take for expensive: for seconds, at every call."""
    with connections.engine(postgres_url(database), "tests").connect() as connection:
        assert connection.scalar(text("SHOW jit")) == "off"
    with psycopg.connect(database) as host:
        guest = guests.connection(host)
        assert guest.scalar(text("SHOW jit")) == "on"  # the session is the application's
