"""Which errors of the server pass."""

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from pgbeat.database.connections import sqlstate
from pgbeat.database.server_errors import Outage, code_of, is_of_rows, is_passing, is_read_only
from pgbeat.errors import BrokerUnavailable, ConfigError


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


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("22P02", "invalid"),
        ("23505", "invalid"),
        ("55P03", "busy"),
        ("40P01", "busy"),
        ("42501", "forbidden"),
        ("57014", "timeout"),
        ("57P01", "database_unavailable"),
        ("25006", "database_unavailable"),
        ("42P01", "wrong_schema"),
        ("P0001", ""),
    ],
)
def test_the_code_of_an_error(state: str, code: str) -> None:
    assert code_of(error(state)) == code_of(psycopg.errors.lookup(state)()) == code


def test_the_code_of_an_error_without_sqlstate() -> None:
    assert code_of(psycopg.DataError("a text can't contain NUL")) == "invalid"
    assert code_of(psycopg.OperationalError("no route")) == "database_unavailable"
    assert code_of(OSError("no such file")) == ""


def test_other_errors_do_not() -> None:
    assert not is_passing(ValueError("XX000"))
    assert is_passing(psycopg.OperationalError("the connection was never made"))


@pytest.mark.parametrize("code", ["21000", "22P02", "23514", "54001"])
def test_errors_of_rows_come_again(code: str) -> None:
    assert is_of_rows(error(code))
    assert is_of_rows(psycopg.errors.lookup(code)())


def test_errors_of_what_computes_with_rows_come_again() -> None:
    assert is_of_rows(psycopg.DataError("timestamp too large (after year 10K)"))
    assert is_of_rows(TypeError("float() argument must be a string or a real number"))


@pytest.mark.parametrize("code", ["08006", "25006", "42P01", "42501", "53100", "55P03", "57014"])
def test_others_do_not(code: str) -> None:
    assert not is_of_rows(error(code))


def test_what_the_broker_and_the_settings_say_is_not_of_rows() -> None:
    for other in (BrokerUnavailable("no route"), ConfigError("no broker"), SystemExit()):
        assert not is_of_rows(other)
    assert not is_of_rows(psycopg.OperationalError("no route"))


def test_a_server_that_only_reads() -> None:
    assert is_read_only(error("25006"))
    assert not is_read_only(error("57P03"))


def test_an_outage_has_each_reason_once() -> None:
    """Those of its first seconds may be a restart's."""
    outage = Outage()
    assert outage.is_news("ended") and outage.began is not None
    assert not outage.is_news("it starts")
    assert outage.is_news("a copy", at_once=True)
    outage.began -= 60
    said = [outage.is_news(why) for why in ("ended", "a copy", "refused", "refused")]
    assert said == [False, False, True, False]
    outage.end()
    assert outage.is_news("refused")
