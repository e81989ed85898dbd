"""Engines: what their connections tell libpq."""

import signal
import traceback
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from psycopg import generators
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import Settings, postgres_url
from pgbeat.database import connections, guests
from tests.support.rows import Sql

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
        (
            {"keepalives_idle": "60", "tcp_user_timeout": "0"},
            {},
            {"keepalives_idle": "60", "tcp_user_timeout": "0"},
        ),
        ({}, {"keepalives_count": 9}, {"keepalives_count": "9"}),
    ],
)
def test_a_server_that_vanished_is_noticed_as_the_dsn_has_it(
    database: str, query: dict[str, str], arguments: dict[str, int], changed: dict[str, str]
) -> None:
    url = postgres_url(database).update_query_dict(query)
    with connections.engine(url, "tests", arguments).connect() as connection:
        found = connections.driver(connection).info.get_parameters()
    assert {key: found.get(key) for key in KEEPALIVES} == KEEPALIVES | changed


def test_a_default_isolation_level_changes_nothing(database: str, sql: Sql) -> None:
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


@pytest.mark.parametrize(
    "setting",
    [
        "DateStyle = 'SQL, DMY'",
        "IntervalStyle = iso_8601",
        "client_encoding = LATIN1",
        "client_encoding = SQL_ASCII",
        "standard_conforming_strings = off",
        "array_nulls = off",
    ],
)
def test_how_the_database_writes_values_changes_nothing(
    database: str, sql: Sql, setting: str
) -> None:
    [(name,)] = sql("SELECT current_database()")
    sql(f'ALTER DATABASE "{name}" SET {setting}')
    day, values = date(2026, 2, 1), (datetime(2026, 2, 1, tzinfo=UTC), timedelta(days=1, hours=2))
    with connections.engine(postgres_url(database), "tests").connect() as connection:
        row = connection.exec_driver_sql(
            r"SELECT %s::timestamptz, %s::interval, %s, '\d…', '03/02/2026'::date - %s::date, "
            "%s::text[]",
            (*values, "€", day, [None]),
        ).one()
        order = connection.scalar(text("SHOW DateStyle"))
    assert tuple(row) == (*values, "€", r"\d…", 2 if "DMY" in order else 29, [None])


def test_times_are_reckoned_with_in_utc(database: str, sql: Sql) -> None:
    """The clock of the database's zone shows both of these as 02:30."""
    [(name,)] = sql("SELECT current_database()")
    sql(f"ALTER DATABASE \"{name}\" SET TimeZone = 'Europe/Berlin'")
    with connections.engine(postgres_url(database), "tests").connect() as connection:
        one, other = connection.exec_driver_sql(
            "SELECT timestamptz '2026-10-25 00:30Z', timestamptz '2026-10-25 01:30Z'"
        ).one()
        assert connections.now(connection).utcoffset() == timedelta(0)
    assert other - one == timedelta(hours=1)
    assert one + timedelta(hours=1) == other


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


def test_a_session_of_its_own_compiles_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers with LLVM compile what they take for expensive: for seconds, at every call."""
    engine = connections.engine(postgres_url(database), "tests")
    with engine.connect() as connection:
        assert connection.scalar(text("SHOW jit")) == "off"
    trips: list[Any] = []
    execute = generators.execute

    def count(raw: Any) -> Any:
        trips.append(raw)
        return execute(raw)

    monkeypatch.setattr(generators, "execute", count)
    with engine.connect():
        assert len(trips) == 1  # which also tells whether the session is its own
    with psycopg.connect(database) as host:
        guest = guests.connection(host)
        assert guest.scalar(text("SHOW jit")) == "on"  # the session is the application's


def test_what_may_take_its_time_has_no_limit(database: str, sql: Sql) -> None:
    [(name, version)] = sql("SELECT current_database(), current_setting('server_version_num')::int")
    limits = ["statement_timeout", "transaction_timeout"][: 2 if version >= 170000 else 1]
    for limit in limits:
        sql(f'ALTER DATABASE "{name}" SET {limit} = 60000')
    engine = connections.engine(postgres_url(database), "tests", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connections.prepare_session(connection)
        shown = [connection.scalar(text(f"SHOW {limit}")) for limit in limits]
    assert set(shown) == {"0"}


def test_an_interrupted_transaction_raises_what_interrupted_it(database: str) -> None:
    """Such as Celery's soft time limit, a signal; the server rolls back."""

    def interrupt(*_: object) -> None:
        raise SoftTimeLimitExceeded

    engine = connections.engine(postgres_url(database), "tests")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            with pytest.raises(SoftTimeLimitExceeded), connections.transaction(connection):
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                connection.execute(text("SELECT pg_sleep(60)"))
            connection.rollback()
            assert connection.scalar(text("SELECT 1")) == 1
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_follows_a_commit_may_lose_its_connection(database: str, sql: Sql) -> None:
    """The change is made; the unit's next use gets a new connection."""
    engine = connections.engine(postgres_url(database), "tests")
    settings = Settings.load({"pgbeat_url": database})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        unit = UnitOfWork(connection, settings, Actor("me"))
        seen: list[int] = []
        with unit.transaction():
            connection.execute(text("CREATE TABLE changed ()"))
            cut = text("SELECT pg_terminate_backend(pg_backend_pid())")
            unit.after_commit(lambda: connection.execute(cut))
            unit.after_commit(lambda: seen.append(connection.scalar(text("SELECT 1"))))
        assert seen == [1]
        with unit.transaction():
            connection.execute(text("DROP TABLE changed"))
    assert sql("SELECT to_regclass('changed')") == [(None,)]


def test_what_follows_a_commit_may_raise(
    database: str, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """Who got the error would make the change again."""
    engine = connections.engine(postgres_url(database), "tests")
    settings = Settings.load({"pgbeat_url": database})
    seen: list[int] = []
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        unit = UnitOfWork(connection, settings, Actor("me"))
        with unit.transaction():
            unit.after_commit(lambda: int("1200 t"))
            unit.after_commit(lambda: seen.append(1))
    assert seen == [1]
    assert "failed after the commit: invalid literal" in caplog.text
