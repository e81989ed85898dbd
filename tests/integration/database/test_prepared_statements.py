"""Prepared statements outlive psycopg's `DEALLOCATE ALL`, which follows its rollbacks."""

from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy import Connection, text

from pgbeat.database import connections
from pgbeat.database.prepared import PreparedConnection, Statement

ONE, OTHER = Statement("one", "SELECT 1 + $1::int"), Statement("other", "SELECT 2 + $1::int")
_ASK = text("SELECT CAST(:x AS text)")


def rolls_back(connection: Connection) -> None:
    with pytest.raises(ZeroDivisionError), connections.transaction(connection):
        raise ZeroDivisionError


def rolls_back_to_a_savepoint(connection: Connection) -> None:
    with connections.transaction(connection):
        connection.execute(text("SAVEPOINT here"))
        connection.execute(text("ROLLBACK TO SAVEPOINT here"))


def drops_a_table(connection: Connection) -> None:
    connection.execute(text("DROP TABLE IF EXISTS none_such"))


FORGETTING = [rolls_back, rolls_back_to_a_savepoint, drops_a_table]


@pytest.fixture
def session(connection: Connection) -> PreparedConnection:
    return PreparedConnection(connections.driver(connection))


def prepare(connection: Connection, session: PreparedConnection) -> None:
    """Prepares both statements, and one of psycopg's, without which it deallocates nothing."""
    for statement in (ONE, OTHER):
        assert session.run(statement, b"1").ntuples == 1
    for _ in range(7):
        connection.execute(_ASK, {"x": "x"})
    assert len(names(connection)) == 3


def names(connection: Connection) -> set[str]:
    return set(connection.scalars(text("SELECT name FROM pg_prepared_statements")))


@pytest.mark.parametrize("forget", FORGETTING)
def test_statements_are_prepared_again(
    connection: Connection, session: PreparedConnection, forget: Callable[[Connection], None]
) -> None:
    prepare(connection, session)
    forget(connection)
    assert not names(connection) & {ONE.name, OTHER.name}
    assert session.run(ONE, b"1").get_value(0, 0) == b"2"
    session.send(OTHER, b"1")
    session.flush()
    assert session.finish().get_value(0, 0) == b"3"
    assert names(connection) >= {ONE.name, OTHER.name}


def test_a_transaction_that_misses_one_can_be_repeated(
    connection: Connection, session: PreparedConnection
) -> None:
    prepare(connection, session)
    rolls_back(connection)
    session.command("BEGIN")
    connection.execute(_ASK, {"x": "x"})  # sends DEALLOCATE ALL
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        session.run(ONE, b"1")
    session.command("ROLLBACK")
    session.command("BEGIN")
    assert session.run(ONE, b"1").get_value(0, 0) == b"2"
    session.command("COMMIT")
    assert ONE.name in names(connection)
