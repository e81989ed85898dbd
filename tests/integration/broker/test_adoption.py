"""Adoption: the stock transport's tables become pgbeat's, in place, while they are in use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from pgbeat.errors import SchemaError
from tests.support.child_process import Child
from tests.support.command_line import Sql
from tests.support.databases import broker_url, statements
from tests.support.kombu_connections import Inbox, connections, publish
from tests.support.processes import Processes, until
from tests.support.threads import together


@pytest.fixture
def stock(empty_database: str) -> Iterator[str]:
    """Fills a database by kombu's transport alone: 20 messages wait, 3 were delivered and stay."""
    with Child.lent() as child:
        child.do(
            "connection = kombu.Connection(url)\n"
            "publish(connection, 'celery', *range(23))\n"
            "queue = kombu.Queue('celery')(connection.channel())\n"
            "for _ in range(3): queue.get().ack()\n"
            "publish(connection, 'other', 'x')\n",
            url=broker_url(empty_database),
        )
    yield empty_database


@pytest.fixture
def ask(empty_database: str) -> Iterator[Sql]:
    with statements(empty_database) as run:
        yield run


def test_the_stock_transport_delivers_at_most_once(empty_database: str, ask: Sql) -> None:
    """What a process has read comes back only if that process closes its connection."""
    with Child.lent() as child:
        child.do(
            "first, other = kombu.Connection(url), kombu.Connection(url)\n"
            "publish(first, 'celery', 'm')\n"
            "queue = kombu.Queue('celery')\n"
            "assert queue(first.channel()).get().payload == 'm'\n"
            "assert queue(other.channel()).get() is None\n",
            url=broker_url(empty_database),
        )
    assert ask("SELECT visible FROM kombu_message") == [(False,)]


def is_adopted(ask: Sql) -> bool:
    """Ids are bigint, and what the stock transport had delivered is gone."""
    types: dict[str, str] = dict(
        ask(
            "SELECT attrelid::regclass || '.' || attname, format_type(atttypid, NULL) "
            "FROM pg_attribute WHERE attrelid IN ('kombu_queue'::regclass, "
            "'kombu_message'::regclass) AND attname IN ('id', 'queue_id', 'claimed_by')"
        )
    )
    assert types == {
        "kombu_queue.id": "bigint",
        "kombu_message.id": "bigint",
        "kombu_message.queue_id": "bigint",
        "kombu_message.claimed_by": "integer",
    }
    return True


def schema(ask: Sql) -> list[tuple[Any, ...]]:
    """Columns with types and defaults, indexes and triggers of the broker's tables."""
    return ask(
        "SELECT attrelid::regclass::text, attname::text, format_type(atttypid, atttypmod), "
        "  attnotnull, pg_get_expr(adbin, adrelid) FROM pg_attribute "
        "  LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum "
        "  WHERE attrelid::regclass::text LIKE 'kombu%' AND attnum > 0 AND NOT attisdropped "
        "  AND (SELECT relkind FROM pg_class WHERE oid = attrelid) = 'r' "
        "UNION ALL SELECT tablename, indexname, indexdef, true, NULL FROM pg_indexes "
        "  WHERE tablename LIKE 'kombu%' "
        "UNION ALL SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), true, NULL "
        "  FROM pg_trigger WHERE tgrelid::regclass::text LIKE 'kombu%' AND NOT tgisinternal "
        "ORDER BY 1, 2, 3"
    )


def test_first_use_adopts_nothing(stock: str, ask: Sql) -> None:
    """Only `pgbeat migrate` does: the stock transport's tables stay as they are until then."""
    before = schema(ask)
    with connections(stock) as connect, pytest.raises(SchemaError, match="run `pgbeat migrate`"):
        connect().connect()
    assert schema(ask) == before
    assert ask("SELECT to_regnamespace('pgbeat')") == [(None,)]


def test_what_waits_stays(stock: str, ask: Sql) -> None:
    """In its order, and it is delivered once; what had been delivered is not."""
    before = ask("SELECT id, payload FROM kombu_message WHERE visible ORDER BY id")
    assert len(before) == 21
    assert ask("SELECT count(*) FROM kombu_message") == [(24,)]
    with connections(stock) as connect:
        migrate.upgrade(postgres_url(stock))
        assert is_adopted(ask)
        assert ask("SELECT id, payload FROM kombu_message ORDER BY id") == before
        publish(connect(), "celery", "new")
        inbox = Inbox(connect(), "celery", "other", prefetch=100)
        assert sorted(inbox.bodies(22), key=str) == sorted([*range(3, 23), "new", "x"], key=str)
        assert inbox.all_there_is() == []


def test_adopted_tables_are_like_new_ones(stock: str, ask: Sql, sql: Sql) -> None:
    """Such as a database gets that never saw the stock transport."""
    migrate.upgrade(postgres_url(stock))

    assert schema(ask) == schema(sql)


OTHERS = {"Their queues": "kombu_queue", "their_messages": "kombu_message"}


@pytest.mark.parametrize("is_installed", [False, True])
def test_tables_of_other_names_are_renamed(
    stock: str, ask: Sql, sql: Sql, is_installed: bool
) -> None:
    """Once, however often the migration runs."""
    url = postgres_url(stock)
    for theirs, name in OTHERS.items():
        ask(f'ALTER TABLE {name} RENAME TO "{theirs}"')
    if is_installed:
        migrate.upgrade(url)
    assert dict(migrate.upgrade(url, rename=OTHERS).renamed) == OTHERS
    assert not migrate.upgrade(url, rename=OTHERS).renamed
    assert is_adopted(ask)
    assert ask("SELECT count(*) FROM kombu_message WHERE visible") == [(21,)]
    assert {line[:3] for line in schema(ask)} == {line[:3] for line in schema(sql)}


def test_no_table_is_replaced_by_a_renamed_one(stock: str, ask: Sql) -> None:
    url = postgres_url(stock)
    with pytest.raises(SchemaError, match="there is no table 'gone' to rename"):
        migrate.upgrade(url, rename={"gone": "nor_this"})
    ask("CREATE TABLE theirs (id integer)")
    with pytest.raises(SchemaError, match="there is a table of that name"):
        migrate.upgrade(url, rename={"theirs": "kombu_queue"})
    migrate.upgrade(url)
    with pytest.raises(SchemaError, match="a build of pgbeat before the first release"):
        migrate.upgrade(url, rename={"kombu_message": "another"})


def test_ten_migrations_at_once(stock: str, ask: Sql) -> None:
    together([lambda: migrate.upgrade(postgres_url(stock))] * 10)
    assert is_adopted(ask)
    assert ask("SELECT count(*) FROM kombu_message WHERE visible") == [(21,)]


def test_both_transports_on_one_table(stock: str) -> None:
    """What the one publishes the other consumes, queue by queue."""
    migrate.upgrade(postgres_url(stock))
    with Child.lent() as child, connections(stock) as connect:
        child.do("connection = kombu.Connection(url)", url=broker_url(stock))
        child.do("publish(connection, 'to pgbeat', *range(20))")
        inbox = Inbox(connect(), "to pgbeat", prefetch=5)
        assert [inbox.bodies()[0] for _ in range(20)] == list(range(20))
        # Its consumer is woken by a message of the stock transport's, too.
        child.start("publish(connection, 'to pgbeat', 'wake up')")
        assert inbox.bodies() == ["wake up"]
        child.finish()
        publish(connect(), "to stock", *range(20), priority=3)
        child.do("inbox = Inbox(connection, 'to stock')")
        assert child.do("inbox.bodies(20)") == list(range(20))
        assert inbox.all_there_is() == []


def test_both_consume_one_queue(stock: str) -> None:
    """Side by side: each message is delivered to one of them."""
    migrate.upgrade(postgres_url(stock))
    with Child.lent() as child, connections(stock) as connect:
        child.do("connection = kombu.Connection(url)", url=broker_url(stock))
        publish(connect(), "q", *range(60))
        inbox = Inbox(connect(), "q", prefetch=1)
        mine = inbox.bodies()
        child.start(
            "got = []\n"
            "queue = kombu.Queue('q')(connection.channel())\n"
            "for message in iter(queue.get, None):\n"
            "    got.append(message.payload)\n"
            "    message.ack()\n"
        )
        inbox.drain(1, 1)
        while inbox.messages:
            mine += inbox.bodies()
            inbox.drain(1, 1)
        child.finish()
        theirs = child.do("got")
        mine += inbox.all_there_is()
        assert sorted(mine + theirs) == list(range(60))


PRODUCER = """
from celery import Celery
app = Celery(broker=url, set_as_current=False)
stop, sent = threading.Event(), []
def produce():
    while not stop.wait(0.03):
        sent.append(app.send_task("tests.note", kwargs={"n": len(sent)}).id)
thread = threading.Thread(target=produce)
thread.start()
"""


@pytest.mark.slow
def test_while_stock_processes_run(empty_database: str, ask: Sql, tmp_path: Path) -> None:
    """A busy producer and a worker lose no message, run none twice, and need no restart."""
    running = Processes(empty_database, tmp_path)
    try:
        with Child.lent() as child:
            child.do(PRODUCER, url=broker_url(empty_database))
            worker = running.worker("--without-mingle")
            worker.says("ready.")
            # Its statements are prepared by then, those that the new types will break.
            until(lambda: noted(ask) >= 10)
            migration = running.celery("pgbeat", "migrate")
            before = child.do("len(sent)")
            assert migration.wait(60) == 0, migration.output
            assert is_adopted(ask)
            until(lambda: child.do("len(sent)") >= before + 20)
            child.do("stop.set() or thread.join()")
            sent = child.do("sent")
            with connections(empty_database) as connect:
                publish_note(connect(), "from pgbeat")
                until(lambda: noted(ask) >= len(sent) + 1, 60, "all executed")
            ids = [id for (id,) in ask("SELECT id FROM notes")]
            assert sorted(ids) == sorted([*sent, "from pgbeat"])
            assert worker.poll() is None
            # And what it leaves, pgbeat's consumers take over.
            worker.kill_group()
            child.do("last = app.send_task('tests.note').id")
            with connections(empty_database) as connect:
                (message,) = Inbox(connect(), "celery").get()
                assert message.headers["id"] == child.do("last")
    finally:
        running.stop_all()


def noted(ask: Sql) -> int:
    """How many tasks were executed."""
    if ask("SELECT to_regclass('notes')") == [(None,)]:
        return 0
    return int(ask("SELECT count(*) FROM notes")[0][0])


def publish_note(connection: Any, id: str) -> None:
    """Publishes a task as Celery does."""
    body = [[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    producer = kombu.Producer(connection, serializer="json")
    producer.publish(
        body,
        routing_key="celery",
        correlation_id=id,
        headers={"task": "tests.note", "id": id, "lang": "py", "root_id": id, "parent_id": None},
    )


def test_an_idle_stock_producer_fails_once_at_most(stock: str) -> None:
    """The new types break its prepared statements: it reports that once, and goes on."""
    with Child.lent() as child:
        child.do("connection = kombu.Connection(url)", url=broker_url(stock))
        child.do("publish(connection, 'q', *range(10))")
        migrate.upgrade(postgres_url(stock))
        put = list(range(10))
        for n in range(10, 20):
            try:
                child.do("publish(connection, 'q', n)", n=n)
                put.append(n)
            except AssertionError as error:
                assert "cached plan must not change result type" in str(error)
        assert len(put) >= 19
    with connections(stock) as connect:
        inbox = Inbox(connect(), "q")
        assert inbox.bodies(len(put)) == put
        assert inbox.all_there_is() == []
