"""A server that hangs is given up; one that takes its time is not."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import kombu
import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat.broker.messages import Message
from pgbeat.config import postgres_url
from pgbeat.config.urls import servers
from pgbeat.database import connections, fence
from pgbeat.database.locks import advisory_locks
from pgbeat.testing.databases import TemporaryServer
from tests.support.failing_servers import frozen
from tests.support.kombu_connections import Connect, Inbox, Loop, publish
from tests.support.processes import shell, until
from tests.support.tcp_proxy import Proxy
from tests.support.threads import together

#: The server is asked after 0.4 s of silence. An attempt to connect takes two seconds at least.
HASTY = {"tcp_user_timeout": "1000"}
#: Seconds after which it is given up; a machine under load takes its time.
BY_THEN = 10

Open = Callable[[str], Connection]


def hasty(dsn: str) -> str:
    """The DSN with little patience."""
    url = postgres_url(dsn).set(drivername="postgresql").update_query_dict(HASTY)
    return url.render_as_string(hide_password=False)


@pytest.fixture
def session() -> Iterator[Open]:
    """Opens sessions with little patience, in autocommit mode."""
    with ExitStack() as stack:

        def connect(dsn: str) -> Connection:
            connection = connections.engine(postgres_url(hasty(dsn)), "tests").connect()
            stack.callback(connections.close, connection)
            return connection.execution_options(isolation_level="AUTOCOMMIT")

        yield connect


def test_a_statement_may_take_its_time(session: Open, database: str) -> None:
    assert session(database).scalar(text("SELECT 'done' FROM pg_sleep(1)")) == "done"


def test_a_server_that_hangs_is_given_up(session: Open, proxy: Proxy) -> None:
    connection = session(proxy.dsn)
    proxy.cut()
    began = time.monotonic()
    with pytest.raises(DBAPIError, match="accepts no new connection") as failure:
        connection.execute(text("SELECT 1"))
    assert time.monotonic() - began < BY_THEN
    assert connections.is_lost(failure.value)


def test_a_look_at_a_server_that_hangs_ends(proxy: Proxy) -> None:
    """One that hangs, or whose pooler answers for it, once the look has connected."""
    over = threading.Event()

    def hang() -> None:
        proxy.hold()
        over.wait(60)

    proxy.lose_answer(b"pg_control_system", hang)
    look = threading.Thread(
        target=fence.look_around, args=(postgres_url(hasty(proxy.dsn)),), daemon=True
    )
    look.start()
    look.join(BY_THEN)
    over.set()
    assert not look.is_alive()


def test_an_address_that_another_server_took_over_is_given_up(session: Open, proxy: Proxy) -> None:
    connection = session(proxy.dsn)
    proxy.cut()
    proxy.replace()
    with pytest.raises(DBAPIError, match="has ended the session"):
        connection.execute(text("SELECT 1"))


def test_a_session_assumes_a_role_after_it_was_opened(session: Open, database: str) -> None:
    """As Django's `assume_role`; a pooler refuses a startup parameter."""
    connection = session(f"{hasty(database)}&assume_role=pg_monitor")
    connection.rollback()
    assert connection.execute(text("SELECT current_user, session_user <> current_user")).one() == (
        "pg_monitor",
        True,
    )


def test_a_dead_server_is_passed_over_and_tried_last(proxy: Proxy, database: str) -> None:
    good, (_, dead) = servers(postgres_url(database))[0], servers(postgres_url(proxy.dsn))[0]
    several = {"host": f"127.0.0.1,{good[0]}", "port": f"{dead},{good[1]}", "connect_timeout": "2"}
    url = postgres_url(database).set(host=None, port=None).update_query_dict(several)
    proxy.cut()
    took = []
    for _ in range(2):
        began = time.monotonic()
        with connections.engine(url, "tests").connect() as connection:
            assert connection.scalar(text("SHOW transaction_read_only")) == "off"
        took.append(time.monotonic() - began)
    assert 2 <= took[0] < 5
    assert took[1] < 2


@pytest.mark.slow
def test_a_standby_gives_up_a_server_that_hangs(session: Open, proxy: Proxy, database: str) -> None:
    holder, waiting = session(database), session(proxy.dsn)
    assert advisory_locks.acquire(holder, 7, 1)
    assert not advisory_locks.acquire(waiting, 7, 2)  # the server was asked meanwhile
    proxy.cut()
    with pytest.raises(psycopg.OperationalError, match="has not answered"):
        advisory_locks.acquire(waiting, 7, BY_THEN)


@pytest.mark.slow
def test_a_commit_that_can_t_end_is_given_up(own_server: TemporaryServer, session: Open) -> None:
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute("SELECT pg_reload_conf()")
        connection = session(own_server.dsn)
        until(lambda: connection.scalar(text("SHOW synchronous_standby_names")) == "nobody")
        with pytest.raises(DBAPIError, match="it can't write"):
            connection.execute(text("CREATE TABLE held ()"))
        admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
        admin.execute("SELECT pg_reload_conf()")


@pytest.mark.slow
@pytest.mark.parametrize("waits", ["for a message", "for an answer"])
def test_an_event_loop_gives_up_a_server_that_hangs(
    connect: Connect, proxy: Proxy, waits: str
) -> None:
    publisher, connection = connect(), connect(f"pgbeat+{hasty(proxy.dsn)}")
    Inbox(connection, "q")
    loop = Loop(connection)
    session = connection.transport.broker.session()
    while session.step():  # what it sends later is prepared by now
        continue
    proxy.cut()
    if waits == "for an answer":
        with session.lock:
            session._maintenance.next_at = time.monotonic() + 60
            session._start_over()
            session.send_step()
    with pytest.raises(connection.connection_errors, match="has not answered"):
        loop.until(lambda: False, BY_THEN)
    loop.close()
    proxy.mend()
    publish(publisher, "q", "m")
    connection.close()
    connection.connect()
    assert Inbox(connection, "q").bodies() == ["m"]


@pytest.mark.slow
def test_sessions_of_a_frozen_server(own_server: TemporaryServer, session: Open) -> None:
    """One is in a statement, one is idle; after the thaw a new one is good."""
    dsn = own_server.dsn
    busy, idle = session(dsn), session(dsn)
    with ThreadPoolExecutor(1) as pool:
        slept = pool.submit(busy.execute, text("SELECT pg_sleep(60)"))
        with psycopg.connect(dsn, autocommit=True) as admin:
            asleep = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            until(lambda: admin.execute(asleep).fetchone() is not None)
        with frozen(own_server):
            with pytest.raises(DBAPIError, match="has not answered"):
                idle.execute(text("SELECT 1"))
            lost = slept.exception(BY_THEN)
            assert isinstance(lost, DBAPIError) and connections.is_lost(lost)
            with pytest.raises(DBAPIError, match="timeout"):
                session(f"{dsn}&connect_timeout=2")
    assert session(dsn).scalar(text("SELECT 1")) == 1


def test_who_waits_for_a_connection_does_not_try_again_one_after_the_other() -> None:
    """Threads share one; and an event is not worth another attempt."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"pgbeat+postgresql://u@127.0.0.1:{server.getsockname()[1]}/d?connect_timeout=2"
        broker = kombu.Connection(url).transport.broker

        def connect() -> None:
            with pytest.raises((DBAPIError, psycopg.OperationalError)):
                broker.open()

        together([connect] * 5)
        with pytest.raises(psycopg.OperationalError):
            broker.publish(Message("q", "an event"), transient=True)
        server.setblocking(False)
        attempts = 0
        with suppress(BlockingIOError):
            while True:
                server.accept()[0].close()
                attempts += 1
        assert attempts == 1


LOOKING = """
import eventlet; eventlet.monkey_patch()
import os
from pgbeat.database.watched import readable
end, other = os.pipe()
waits = eventlet.spawn(readable, [end], 30)
eventlet.sleep(0)
assert readable([end], 0) == []
os.write(other, b"x")
assert readable([end], 0) == waits.wait() == [end]
"""


def test_a_greenlet_looks_at_a_file_for_which_another_waits() -> None:
    """With eventlet, whose hub refuses a second one that waits."""
    looked = shell(sys.executable, "-W", "ignore", "-c", LOOKING)
    assert looked.returncode == 0, looked.stderr
