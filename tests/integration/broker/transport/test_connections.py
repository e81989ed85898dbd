"""Connections: opened, named, refused, lost and found again."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import kombu
import psycopg
import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from kombu.mixins import ConsumerMixin
from psycopg.conninfo import conninfo_to_dict

from pgbeat.broker.transport import ignored_options
from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.errors import SchemaError
from pgbeat.testing.databases import in_database
from tests.support.child_process import Child
from tests.support.command_line import Sql
from tests.support.databases import broker_url
from tests.support.kombu_connections import (
    OPTIONS,
    Connect,
    Inbox,
    connections,
    others,
    publish,
    terminate_others,
)
from tests.support.processes import until
from tests.support.tcp_proxy import Proxy
from tests.support.transport_workers import transport_url

#: A port without a server.
NOWHERE = "pgbeat+postgresql://me:secret@127.0.0.1:1/nowhere"


def socket_url(dsn: str) -> str:
    """The DSN without a query, the socket's folder where the host is."""
    parts = conninfo_to_dict(dsn)
    host = quote(str(parts["host"]), safe="")
    port = f":{parts['port']}" if "port" in parts else ""
    return f"pgbeat+postgresql://{parts['user']}@{host}{port}/{parts['dbname']}"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_urls(connect: Connect, database: str, scheme: str) -> None:
    url = database.replace("postgresql://", f"pgbeat+{scheme}://", 1)
    publish(connect(url), "q", "m")
    assert Inbox(connect(), "q").bodies() == ["m"]


def test_each_of_several_servers_is_looked_at_with_connect_args(
    connect: Connect, proxy: Proxy
) -> None:
    """Here the ports of the URL are wrong."""
    url = postgres_url(proxy.dsn).set(drivername="postgresql", host=None, port=None, query={})
    several = url.set(query={"host": ("127.0.0.1:1", "localhost:1")})
    port = postgres_url(proxy.dsn).port
    arguments = {"port": f"{port},{port}", "sslmode": "disable"}
    connect(transport_url(several.render_as_string(False)), connect_args=arguments).connect()
    assert proxy.accepted == 1 + 2


def test_the_transport_by_name(database: str) -> None:
    options = {"transport": "pgbeat.broker.transport:Transport", "transport_options": OPTIONS}
    with kombu.Connection(database, **options) as connection:
        publish(connection, "q", "m")
        assert Inbox(connection, "q").bodies() == ["m"]


def test_opening_connects_really(sql: Sql, connect: Connect) -> None:
    connection = connect()
    assert others(sql) == []
    connection.connect()
    assert connection.connected
    assert len(others(sql)) == 1
    connection.release()
    until(lambda: others(sql) == [])
    connection.connect()
    publish(connection, "q", "m")
    assert len(others(sql)) == 1


def test_both_drivers_errors_mean_a_lost_connection(connection: Any) -> None:
    import sqlalchemy.exc

    for module in (psycopg, sqlalchemy.exc):
        for name in ("OperationalError", "InterfaceError"):
            assert issubclass(getattr(module, name), connection.connection_errors)


def test_a_schema_that_it_cannot_use_says_what_to_do(empty_database: str) -> None:
    with psycopg.connect(empty_database) as admin:
        admin.execute("CREATE SCHEMA pgbeat")
        admin.execute("CREATE TABLE pgbeat.migrations (version_num text)")
        admin.execute("INSERT INTO pgbeat.migrations VALUES ('0003')")
    with (
        kombu.Connection(transport_url(empty_database)) as connection,
        pytest.raises(SchemaError, match=r"\(0003\) .* run `pgbeat migrate`"),
    ):
        connection.connect()


def test_publishing_makes_no_schema(empty_database: str) -> None:
    """Only `pgbeat migrate` does; a lone `delay()` says so instead."""
    app = Celery("lone", broker=transport_url(empty_database), set_as_current=False)
    with app, pytest.raises(OperationalError, match="no pgbeat schema; run `pgbeat migrate`"):
        app.send_task("tests.add", retry_policy={"max_retries": 1, "interval_start": 0})
    with psycopg.connect(empty_database) as connection:
        made = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname = 'pgbeat' UNION ALL "
            "SELECT relname FROM pg_class WHERE relname LIKE 'kombu%'"
        )
        assert made.fetchall() == []


def test_a_name_in_pg_stat_activity(connection: Any, sql: Sql) -> None:
    Inbox(connection, "q")
    names = others(sql)
    assert len(names) == 2
    assert all(name.startswith("pgbeat") and str(os.getpid()) in name for name in names)


def test_options_of_other_transports_are_ignored_with_one_warning(
    connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A team that only changes the URL keeps its settings."""
    monkeypatch.setattr(ignored_options, "_warned", set())
    brought: dict[str, Any] = {
        "visibility_timeout": 3600,
        "fanout_prefix": True,
        "fanout_patterns": True,
        "global_keyprefix": "app:",
        "queue_order_strategy": "priority",
        "sep": ":",
        "priority_steps": [0, 5],
        "confirm_publish": True,
        "health_check_interval": 30,
    }
    for _ in range(2):
        publish(connect(**brought), "q", "m")
    [said] = [r.getMessage() for r in caplog.records if "of other brokers" in r.getMessage()]
    assert [line.split(":")[0].strip() for line in said.splitlines()[1:]] == sorted(brought)
    assert "visibility_timeout: not needed: a message is requeued when" in said
    publish(connect(pool_size=5, **brought), "q", "m")
    assert caplog.text.count("of other brokers") == 2  # of what is new


def test_arguments_of_queues_that_are_ignored(
    connection: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ignored_options, "_warned", set())
    arguments = {"x-dead-letter-exchange": "dead", "x-odd": 1, "x-delivery-limit": 3}
    for _ in range(2):
        queue = kombu.Queue("q", max_length=5, expires=60, queue_arguments=arguments)
        queue(connection.channel()).declare()
    [said] = [r.getMessage() for r in caplog.records if "Arguments of queues" in r.getMessage()]
    names = [line.split(":")[0].strip() for line in said.splitlines()[1:]]
    assert names == ["x-dead-letter-exchange", "x-max-length", "x-odd"]


def test_tls_that_is_not_there_is_said(
    database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ignored_options, "_warned", set())
    with kombu.Connection(transport_url(database), ssl=True) as connection:
        connection.connect()
    assert "broker_use_ssl: use sslmode" in caplog.text


def note_commits(sql: Sql, events: str) -> None:
    """Has the table `commits` note how each change of a message commits."""
    sql("CREATE TABLE commits (value text)")
    sql(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO public.commits VALUES (current_setting('synchronous_commit')); "
        "RETURN NULL; END $$"
    )
    sql(
        f"CREATE CONSTRAINT TRIGGER note AFTER {events} ON kombu_message DEFERRABLE INITIALLY "
        "DEFERRED FOR EACH ROW EXECUTE FUNCTION note()"
    )


@pytest.mark.parametrize(("given", "seen"), [({}, "off"), ({"ack_synchronous_commit": True}, "on")])
def test_how_acknowledgements_commit(
    connect: Connect, sql: Sql, given: dict[str, Any], seen: str
) -> None:
    """They don't wait for the disk, unless the option says so."""
    note_commits(sql, "UPDATE OR DELETE")
    connection = connect(**given)
    publish(connection, "q", "m")
    (message,) = Inbox(connection, "q").get()
    message.ack()
    connection.default_channel.close()
    assert sql("SELECT value FROM commits") == [(seen,)] * 2


def test_how_a_publish_commits(connect: Connect, sql: Sql) -> None:
    """As the option says; transient messages never wait for the disk."""
    note_commits(sql, "INSERT")
    exchange = kombu.Exchange("x", type="fanout")
    kombu.Queue("q", exchange)(connect().channel()).declare()
    for seen in ("on", "off", "local"):
        connection = connect(synchronous_commit=None if seen == "on" else seen)
        for way in ({}, {"exchange": exchange}):
            publish(connection, "q", "m", **way)
            publish(connection, "q", "m", delivery_mode="transient", **way)
            publish(connection, "q", "m", **way)
            assert sql("DELETE FROM commits RETURNING value") == [(seen,), ("off",), (seen,)]


def test_a_publisher_heals(connection: Any, sql: Sql) -> None:
    for n in range(3):
        publish(connection, "q", n)
        terminate_others(sql)
    publish(connection, "q", 3)
    assert Inbox(connection, "q").bodies(4) == [0, 1, 2, 3]


def test_a_connection_lost_before_the_first_of_several_queues(
    connect: Connect, proxy: Proxy
) -> None:
    """kombu connects again for that one, and then finds the channel of the others closed."""
    connection = connect(transport_url(proxy.dsn))
    queues = [kombu.Queue("q"), kombu.Queue("r")]
    revived: list[Any] = []
    policy = {"max_retries": 3, "on_revive": revived.append}
    proxy.lose_answer(b"INSERT INTO kombu_queue")
    producer = connection.Producer(serializer="json")
    producer.publish("m", routing_key="r", declare=queues, retry=True, retry_policy=policy)
    assert proxy.lost == 1 and revived
    assert Inbox(connection, "r").bodies() == ["m"]


def test_an_occasional_consumer_heals(connection: Any, sql: Sql) -> None:
    """Such as a web process that inspects workers, and leaves its session alone in between."""
    for n in range(3):
        publish(connection, "q", n)
        channel = connection.default_channel
        messages: list[Any] = []
        with kombu.Consumer(channel, [kombu.Queue("q")], on_message=messages.append, no_ack=True):
            until(lambda: connection.drain_events(timeout=5) or messages)  # noqa: B023
        assert [message.payload for message in messages] == [n]
        terminate_others(sql)
    publish(connection, "q", "healed")
    connection.release()
    until(lambda: others(sql) == [])


def test_a_consumer_raises_and_its_claims_are_released(connection: Any, sql: Sql) -> None:
    inbox = Inbox(connection, "q", prefetch=5)
    publish(connection, "q", 1, 2)
    inbox.get(2)
    terminate_others(sql)
    with pytest.raises(connection.connection_errors):
        connection.drain_events(timeout=10)
    # Again and again, not silence.
    with pytest.raises((*connection.connection_errors, *connection.channel_errors)):
        connection.drain_events(timeout=10)
    connection.close()
    connection.connect()
    again = Inbox(connection, "q").get(2)
    assert [(m.payload, m.delivery_info["redelivered"]) for m in again] == [(1, True), (2, True)]


def test_a_consumer_whose_end_the_server_has_not_noticed(connect: Connect, proxy: Proxy) -> None:
    """As after a reset by a firewall: the next one has its claims and exclusive queues at once."""
    connection = connect(transport_url(proxy.dsn))
    mine = kombu.Queue("mine", exclusive=True)
    inbox = Inbox(connection, mine, "q")
    publish(connection, "q", "m")
    inbox.get()
    proxy.reset()
    with pytest.raises(connection.connection_errors):
        inbox.get()
    connection.close()
    connection.connect()
    assert Inbox(connection, mine, "q").bodies() == ["m"]


def test_a_thread_that_waits_notices(connection: Any, sql: Sql) -> None:
    Inbox(connection, "q")
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(connection.drain_events)
        until(lambda: len(others(sql)) == 2)
        terminate_others(sql)
        with pytest.raises(connection.connection_errors):
            drained.result(20)


def test_a_consumer_mixin_goes_on(connect: Connect, sql: Sql) -> None:
    """The loop of kombu's consumers connects again by itself, and gets new messages."""
    got: list[Any] = []

    class Worker(ConsumerMixin):
        connect_max_retries = 5

        def __init__(self) -> None:
            self.connection = connect()

        def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
            return [consumer([kombu.Queue("q")], on_message=self.receive, accept=["json"])]

        def receive(self, message: Any) -> None:
            message.ack()
            got.append(message.payload)
            self.should_stop = len(got) >= 4

    thread = threading.Thread(target=Worker().run)
    thread.start()
    for n in range(4):
        publish(connect(), "q", n)
        until(lambda: got[-1:] == [n])  # noqa: B023
        # Its acknowledgement has been written: otherwise it would rightly come again.
        until(lambda: sql("SELECT count(*) FROM kombu_message") == [(0,)])
        if n < 3:
            terminate_others(sql)
    thread.join(20)
    assert got == [0, 1, 2, 3]


def test_failover(database: str, connect: Connect, empty_database: str) -> None:
    """A list of URLs with a dead first one, and a switch back to it."""
    migrate.upgrade(postgres_url(empty_database))
    good, other = socket_url(database), socket_url(empty_database)
    first = NOWHERE.replace("secret", "p%40ss%2Fw%3Ard")
    for urls in (f"{first};{good}", [first, good]):
        connection = kombu.Connection(urls, connect_timeout=1, transport_options=dict(OPTIONS))
        connection.ensure_connection(max_retries=3, interval_start=0, interval_step=0)
        assert connection.connected
        publish(connection, "q", "m")
        assert Inbox(connection, "q").bodies() == ["m"]
        connection.switch(other)
        publish(connection, "ignored_options", "m")
        assert connection.default_channel._size("q") == 0
        connection.switch(first)
        with pytest.raises(connection.connection_errors):
            connection.connect()
        assert "p@ss" not in connection.as_uri()
        assert "p%40ss" not in connection.as_uri()
        connection.release()
    # What was published to each stayed there.
    assert connect().default_channel._size("ignored_options") == 0


USER = "c = kombu.Connection(url); publish(c, 'q', n); c.release()"
#: The stock transport fails where it makes what another user is just making: it is started again.
#: And its session is ended once, if it uses the tables while they are adopted.
STOCK_USER = """
from sqlalchemy.exc import IntegrityError, ProgrammingError
for again in (True, True, True, False):
    try:
        c = kombu.Connection(url)
        publish(c, 'q', n, retry=True)
        c.release()
        break
    except (IntegrityError, ProgrammingError):
        if not again:
            raise
"""


@pytest.mark.slow
def test_first_users_at_once(server: str) -> None:
    """Two users of pgbeat's transport and one of kombu's find no tables, and all publish."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child.lent()) for _ in range(3)]
        for round in range(2):
            name = f"pgbeat_first_{os.getpid()}_{round}"
            dsn = in_database(server, name)
            urls = [transport_url(dsn), transport_url(dsn), broker_url(dsn)]
            with psycopg.connect(server, autocommit=True) as admin:
                admin.execute(f'CREATE DATABASE "{name}"')
                try:
                    migrate.upgrade(postgres_url(dsn))
                    for n, (child, url) in enumerate(zip(children, urls, strict=True)):
                        child.start(STOCK_USER if n == 2 else USER, url=url, n=n)
                    for child in children:
                        child.finish()
                    with connections(dsn) as connect:
                        inbox = Inbox(connect(), "q")
                        assert sorted(inbox.bodies(3)) == [0, 1, 2]
                    for child in children:
                        child.do("forget()")
                finally:
                    admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
