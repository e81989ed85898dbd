"""Leases: one session leads, the others wait inside the server, which hands the lock over."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.database.locks import advisory_locks, lock_waits
from tests.support.processes import until

KEY = 1050

Session = Callable[..., Connection]


@pytest.fixture
def session(empty_database: str) -> Iterator[Session]:
    """Opens sessions in autocommit mode, on the test's database unless told another."""
    with ExitStack() as stack:

        def open_session(name: str = "tests", dsn: str = empty_database) -> Connection:
            connection = connections.engine(postgres_url(dsn), name).connect()
            stack.callback(connection.invalidate)
            return connection.execution_options(isolation_level="AUTOCOMMIT")

        yield open_session


@pytest.fixture
def watcher(session: Session) -> Connection:
    """A session that only looks."""
    return session("watcher")


def pid(connection: Connection) -> int:
    return connections.driver(connection).info.backend_pid


def seen(watcher: Connection, key: int = KEY) -> list[tuple[int, bool]]:
    """Who holds the lock or waits for it, as process ids, and whether it leads."""
    return [(holder.pid, holder.leads) for holder in advisory_locks.holders(watcher, key)]


def terminate(watcher: Connection, connection: Connection) -> None:
    watcher.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid(connection)})


def test_a_free_lock_is_had_at_once(session: Session, watcher: Connection) -> None:
    leader = session()
    assert advisory_locks.acquire(leader, KEY, 10)
    assert seen(watcher) == [(pid(leader), True)]
    assert leader.scalar(text("SELECT 1")) == 1  # the connection is for everything again


def test_a_held_lock_is_not_had_in_time(session: Session, watcher: Connection) -> None:
    leader, standby = session(), session()
    assert advisory_locks.acquire(leader, KEY, 10)
    for _ in range(3):
        assert not advisory_locks.acquire(standby, KEY, 0.02)
    until(lambda: seen(watcher) == [(pid(leader), True), (pid(standby), False)])


def test_the_server_hands_the_lock_over_when_the_leaders_session_ends(
    session: Session, watcher: Connection
) -> None:
    """The standby's process does nothing for it: it may be anywhere in its loop."""
    leader, standby = session(), session()
    assert advisory_locks.acquire(leader, KEY, 10)
    assert not advisory_locks.acquire(standby, KEY, 0.0)
    terminate(watcher, leader)
    until(lambda: seen(watcher) == [(pid(standby), True)])
    assert advisory_locks.acquire(standby, KEY, 10)
    assert standby.scalar(text("SELECT 1")) == 1


def test_a_standby_that_waits_is_woken(session: Session, watcher: Connection) -> None:
    leader, standby = session(), session()
    assert advisory_locks.acquire(leader, KEY, 10)
    leader.execute(text("SET idle_session_timeout = 50"))  # it ends while the standby waits
    assert advisory_locks.acquire(standby, KEY, 60)
    assert seen(watcher) == [(pid(standby), True)]


def test_standbys_lead_in_the_order_in_which_they_came(
    session: Session, watcher: Connection
) -> None:
    sessions = [session() for _ in range(4)]
    assert advisory_locks.acquire(sessions[0], KEY, 10)
    for number, standby in enumerate(sessions[1:], 2):
        assert not advisory_locks.acquire(standby, KEY, 0.0)
        until(lambda n=number: len(seen(watcher)) == n)  # type: ignore[misc]
    for leader, standby in pairwise(sessions):
        terminate(watcher, leader)
        assert advisory_locks.acquire(standby, KEY, 10)


def test_a_standby_that_is_lost_says_so(session: Session, watcher: Connection) -> None:
    leader, standby = session(), session()
    assert advisory_locks.acquire(leader, KEY, 10)
    assert not advisory_locks.acquire(standby, KEY, 0.0)
    terminate(watcher, standby)
    with pytest.raises(psycopg.OperationalError) as raised:
        advisory_locks.acquire(standby, KEY, 60)
    assert connections.is_lost(raised.value)
    assert seen(watcher) == [(pid(leader), True)]


def test_a_standby_whose_wait_is_cancelled_may_wait_again(
    session: Session, watcher: Connection
) -> None:
    leader, standby = session(), session()
    assert advisory_locks.acquire(leader, KEY, 10)
    assert not advisory_locks.acquire(standby, KEY, 0.0)
    until(lambda: len(seen(watcher)) == 2)
    watcher.execute(text("SELECT pg_cancel_backend(:pid)"), {"pid": pid(standby)})
    with pytest.raises(psycopg.errors.QueryCanceled) as raised:
        advisory_locks.acquire(standby, KEY, 60)
    assert not connections.is_lost(raised.value)
    assert not advisory_locks.acquire(standby, KEY, 0.0)
    terminate(watcher, leader)
    assert advisory_locks.acquire(standby, KEY, 10)


@pytest.mark.parametrize("other", [1051, 0, -1050, 2**63 - 1, -(2**63), KEY << 32])
def test_another_key_is_another_lock(session: Session, watcher: Connection, other: int) -> None:
    one, two = session(), session()
    assert advisory_locks.acquire(one, KEY, 10)
    assert advisory_locks.acquire(two, other, 10)
    assert seen(watcher) == [(pid(one), True)]
    assert seen(watcher, other) == [(pid(two), True)]


def test_another_database_is_another_lock(
    session: Session, watcher: Connection, database: str
) -> None:
    one, two = session(), session(dsn=database)
    assert advisory_locks.acquire(one, KEY, 10)
    assert advisory_locks.acquire(two, KEY, 10)
    assert seen(watcher) == [(pid(one), True)]
    assert seen(session(dsn=database)) == [(pid(two), True)]


def test_a_lock_of_two_keys_is_another_lock(session: Session, watcher: Connection) -> None:
    one, two = session(), session()
    two.execute(text("SELECT pg_advisory_lock(0, :key)"), {"key": KEY})
    assert advisory_locks.acquire(one, KEY, 10)
    assert seen(watcher) == [(pid(one), True)]


def test_holders_tell_who_they_are(session: Session, watcher: Connection) -> None:
    leader, standby = session("pgbeat beat one:1"), session("pgbeat beat two:2")
    assert advisory_locks.holders(watcher, KEY) == []
    assert advisory_locks.acquire(leader, KEY, 10)
    assert not advisory_locks.acquire(standby, KEY, 0.0)
    until(lambda: len(seen(watcher)) == 2)
    holders = advisory_locks.holders(watcher, KEY)
    assert [(holder.application_name, holder.leads) for holder in holders] == [
        ("pgbeat beat one:1", True),
        ("pgbeat beat two:2", False),
    ]
    now = connections.now(watcher)
    for holder in holders:
        assert holder.since and now - timedelta(minutes=5) < holder.since < now


def setting(connection: Connection, name: str) -> str:
    return str(connection.scalar(text("SELECT current_setting(:name)"), {"name": name}))


def test_a_prepared_session_is_watched_by_the_server(session: Session) -> None:
    connection = session()
    # As a careful administrator may have set for everybody.
    connection.execute(text("SET statement_timeout = 1000"))
    connection.execute(text("SET lock_timeout = 1000"))
    connections.prepare_session(connection, 90)
    names = [
        "client_connection_check_interval",
        "idle_session_timeout",
        "idle_in_transaction_session_timeout",
        "statement_timeout",
        "lock_timeout",
    ]
    assert [setting(connection, name) for name in names] == ["500ms", "90s", "90s", "0", "0"]
    is_socket = connections.driver(connection).info.host.startswith("/")
    names = ["tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"]
    expected = ["0", "0", "0"] if is_socket else ["2", "1", "3"]
    assert [setting(connection, name) for name in names] == expected


def test_a_transaction_is_given_a_minute(session: Session) -> None:
    connection = session()
    connections.prepare_session(connection, 15)
    assert setting(connection, "idle_session_timeout") == "15s"
    assert setting(connection, "idle_in_transaction_session_timeout") == "1min"


def test_a_leader_that_falls_silent_loses_the_lock(session: Session, watcher: Connection) -> None:
    leader, standby = session(), session()
    connections.prepare_session(leader, 0.1)
    assert advisory_locks.acquire(leader, KEY, 10)
    assert advisory_locks.acquire(standby, KEY, 60)
    with pytest.raises(DBAPIError) as raised:
        leader.execute(text("SELECT 1"))
    assert connections.is_lost(raised.value)


def test_a_standby_whose_client_is_gone_stops_waiting(
    session: Session, watcher: Connection
) -> None:
    leader, standby = session(), session()
    connections.prepare_session(standby, 60)
    assert advisory_locks.acquire(leader, KEY, 10)
    assert not advisory_locks.acquire(standby, KEY, 0.0)
    until(lambda: len(seen(watcher)) == 2)
    connections.driver(standby).close()
    until(lambda: seen(watcher) == [(pid(leader), True)], 10)


def test_waiting_for_a_lock_in_a_transaction_is_limited(session: Session) -> None:
    one, two = session(), session()
    one.execute(text("CREATE TABLE work (n int)"))
    with connections.transaction(one), connections.transaction(two):
        one.execute(text("LOCK work"))
        lock_waits.limit_waiting(two, 0.02)
        with pytest.raises(DBAPIError) as raised:
            two.execute(text("SELECT * FROM work"))
        assert lock_waits.is_lock_timeout(raised.value)
        two.execute(text("ROLLBACK"))
        two.execute(text("BEGIN"))
        assert setting(two, "lock_timeout") == "0"


def test_another_error_is_no_lock_timeout(session: Session) -> None:
    with pytest.raises(DBAPIError) as raised:
        session().execute(text("SELECT 1/0"))
    assert not lock_waits.is_lock_timeout(raised.value)
