"""Which errors of the server pass."""

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from pgbeat.database.connections import sqlstate
from pgbeat.database.server_errors import is_passing, is_read_only


def error(code: str) -> Exception:
    """An error of the server's, as SQLAlchemy raises it."""
    cause = psycopg.errors.lookup(code)("said the server")
    return DBAPIError.instance("SELECT 1", {}, cause, psycopg.Error)


@pytest.mark.parametrize(
    "code", ["08006", "25006", "53100", "53200", "53300", "57014", "57P01", "58030", "XX000"]
)
def test_errors_of_the_server_pass(code: str) -> None:
    assert is_passing(error(code))
    assert is_passing(psycopg.errors.lookup(code)())
    assert sqlstate(error(code)) == code


@pytest.mark.parametrize("code", ["22P02", "23505", "25P02", "40P01", "42P01", "55P03", "P0001"])
def test_errors_of_a_statement_do_not(code: str) -> None:
    assert not is_passing(error(code))
    assert not is_passing(psycopg.errors.lookup(code)())


def test_other_errors_do_not() -> None:
    assert not is_passing(ValueError("XX000"))
    assert is_passing(psycopg.OperationalError("the connection was never made"))


def test_a_server_that_only_reads() -> None:
    assert is_read_only(error("25006"))
    assert not is_read_only(error("57P03"))
