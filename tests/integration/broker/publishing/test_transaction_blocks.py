"""`with in_transaction(…):` publishes as it reads, and only where the broker's database is."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from contextvars import copy_context
from typing import Any

import pytest
from celery import Celery, chain, group
from kombu import Exchange, Queue
from kombu.exceptions import EncodeError
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import pgbeat
from pgbeat.errors import ConfigError
from tests.integration.broker.publishing.test_transaction import add, make_app
from tests.support.command_line import Sql
from tests.support.databases import broker_url, sqlalchemy_url
from tests.support.pgbouncer import needs_pgbouncer, pooler
from tests.support.processes import shell, until
from tests.support.threads import together
from tests.support.transport_workers import transport_url


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    with make_app(transport_url(database)) as app:
        yield app


def tasks(sql: Sql) -> list[str]:
    """Ids of the tasks that everybody sees, oldest first."""
    rows = sql("SELECT payload::json -> 'headers' ->> 'id' FROM kombu_message ORDER BY id")
    return [str(row[0]) for row in rows]


def every_way(app: Celery) -> list[str]:
    """Publishes in every way that there is, without a word of a connection; the ids."""
    task = add(app)
    chained = chain(task.s(1, 1), task.s(5)).delay()
    return [
        task.delay(1).id,
        task.apply_async((2,), countdown=0).id,
        task.s(3).delay().id,
        app.send_task("tests.unknown", (4,)).id,
        chained.parent.id,
        *[result.id for result in group(task.s(2, 2), task.s(3, 3)).delay().results],
    ]


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_what_the_block_publishes_commits_with_it(
    app: Celery, engine: Engine, sql: Sql, kind: str
) -> None:
    add(app).delay()  # the pool's connection knows the queue already
    [before] = tasks(sql)
    with Session(engine) if kind == "session" else engine.connect() as mine:
        with pgbeat.in_transaction(mine, app):
            ids = every_way(app)
        assert tasks(sql) == [before]
        mine.commit()
        assert tasks(sql) == [before, *sorted(ids, key=tasks(sql).index)]
        assert len(ids) == 7
        with pgbeat.in_transaction(mine, app):
            every_way(app)
        mine.rollback()
    assert len(tasks(sql)) == 8
    after = add(app).delay().id
    assert tasks(sql)[-1] == after


@pytest.mark.parametrize("in_block", [True, False])
def test_a_canvas_whose_sending_fails_is_sent_in_part_unless_in_a_block(
    app: Celery, engine: Engine, sql: Sql, in_block: bool
) -> None:
    """Celery publishes a canvas message by message."""
    first, second = add(app).s(1), add(app).s(object())
    with Session(engine) as mine:
        block = pgbeat.in_transaction(mine, app) if in_block else nullcontext()
        with suppress(EncodeError), block:
            group(first, second).delay()
            pytest.fail("it was sent")
    assert len(tasks(sql)) == (0 if in_block else 1)


def test_a_queue_that_was_rolled_back_is_declared_again(
    database: str, engine: Engine, sql: Sql
) -> None:
    """The pool's connection must not believe that it is there."""
    exchange = Exchange("goods", type="topic")
    app = make_app(
        transport_url(database),
        task_queues=[Queue("goods", exchange, routing_key="goods.#")],
        task_default_queue="goods",
        task_default_exchange="goods",
        task_default_routing_key="goods.new",
    )
    with engine.connect() as mine:
        with pgbeat.in_transaction(mine, app):
            add(app).delay()
            add(app).delay()
        mine.rollback()
    kept = add(app).delay().id
    assert tasks(sql) == [kept]
    app.close()


def test_a_queue_that_was_deleted_is_made_beside_the_block(
    app: Celery, engine: Engine, sql: Sql
) -> None:
    """Though this process has used it before."""
    for _ in range(2):
        with engine.connect() as mine:
            with pgbeat.in_transaction(mine, app):
                add(app).apply_async(queue="new")
            assert sql("SELECT count(*) FROM kombu_queue WHERE name = 'new'") == [(1,)]
        sql("DELETE FROM kombu_queue WHERE name = 'new'")


def test_an_error_in_the_transaction_is_raised_at_once(
    app: Celery, engine: Engine, sql: Sql
) -> None:
    """Celery would try again, on another connection, for what kombu takes for a lost one."""
    with engine.connect() as mine, pytest.raises(OperationalError, match="terminating connection"):
        pid = mine.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with pgbeat.in_transaction(mine, app):
            add(app).delay()
            sql("SELECT pg_terminate_backend(%s, 10000)", pid)
            add(app).delay()
    until(lambda: tasks(sql) == [])


def test_a_lock_timeout_leaves_the_block_as_what_it_is(app: Celery, engine: Engine) -> None:
    """Programs that try a transaction again look for this class."""
    add(app).delay()
    with engine.connect() as blocker, engine.connect() as mine:
        blocker.execute(text("LOCK TABLE kombu_message IN ACCESS EXCLUSIVE MODE"))
        mine.execute(text("SET LOCAL lock_timeout = 50"))
        with (
            pytest.raises(OperationalError, match="lock timeout") as raised,
            pgbeat.in_transaction(mine, app),
        ):
            add(app).delay()
        assert raised.value.orig.sqlstate == "55P03"  # type: ignore[union-attr]


def test_blocks_nest(app: Celery, engine: Engine, sql: Sql) -> None:
    with engine.connect() as outer, engine.connect() as inner:
        with pgbeat.in_transaction(outer, app) as both:
            first = add(app).delay().id
            with pgbeat.in_transaction(inner, app), both:
                second = add(app).delay().id  # the outer one again, by the same object
            with pgbeat.in_transaction(inner, app):
                third = add(app).delay().id
            fourth = add(app).delay().id
        fifth = add(app).delay().id
        assert tasks(sql) == [fifth]
        inner.commit()
        assert set(tasks(sql)) == {third, fifth}
        outer.commit()
    assert set(tasks(sql)) == {first, second, third, fourth, fifth}


def test_what_the_transaction_declared_itself_is_not_waited_for(
    app: Celery, engine: Engine, sql: Sql
) -> None:
    """`send_many` declares in the transaction, for whose end no one could wait."""
    with engine.connect() as mine:
        for end in (mine.rollback, mine.commit):
            with pgbeat.in_transaction(mine, app) as many:
                ids = many.send_many(add(app), [(1,)], queue="new")
                ids.append(add(app).apply_async((2,), queue="new").id)
            end()
    assert tasks(sql) == ids
    assert add(app).apply_async(queue="new").id in tasks(sql)


def test_a_block_is_its_threads_own(app: Celery, engine: Engine, sql: Sql) -> None:
    """Another thread publishes at once, also with a copy of the block's context."""
    ids: list[str] = []

    def publish() -> None:
        ids.append(add(app).delay().id)

    with engine.connect() as mine:
        with pgbeat.in_transaction(mine, app):
            context = copy_context()
            for target in (publish, lambda: context.run(publish)):
                together([target])
            assert tasks(sql) == ids
        context.run(publish)  # the block is over
        assert tasks(sql) == ids
        assert len(ids) == 3


@pytest.mark.anyio
async def test_a_block_is_its_asyncio_tasks_own(app: Celery, engine: Engine, sql: Sql) -> None:
    async def publish() -> str:
        return str(add(app).delay().id)

    with engine.connect() as mine:
        with pgbeat.in_transaction(mine, app):
            apart = asyncio.create_task(publish())
            threaded = asyncio.to_thread(lambda: str(add(app).delay().id))
            both, inside = {await apart, await threaded}, await publish()
        assert set(tasks(sql)) == both
        mine.commit()
        assert set(tasks(sql)) == {*both, inside}


def test_a_broker_is_the_same_by_another_name_of_its_database(
    app: Celery, engine: Engine, database: str, sql: Sql
) -> None:
    url = transport_url(database)
    alias = make_app(f"{url}{'&' if '?' in url else '?'}application_name=alias")
    with engine.connect() as mine:
        with pgbeat.in_transaction(mine, app):
            add(alias).delay()
        assert tasks(sql) == []
        mine.commit()
    assert len(tasks(sql)) == 1
    alias.close()


def test_remote_control_goes_out_at_once(app: Celery, engine: Engine) -> None:
    """Its answers are waited for."""
    with engine.connect() as mine, pgbeat.in_transaction(mine, app):
        assert app.control.inspect(timeout=0.1).ping() is None
        app.control.revoke("some-id")
        count = mine.execute(text("SELECT count(*) FROM kombu_queue WHERE name LIKE '%pidbox'"))
        assert count.scalar_one() >= 0


def test_a_tasks_retry_goes_out_at_once(app: Celery, engine: Engine, sql: Sql) -> None:
    """It raises, and that rolls the transaction back: the retry would be lost."""

    @app.task(bind=True, name="tests.again", shared=False)
    def again(self: Any) -> None:
        with engine.begin() as mine, pgbeat.in_transaction(mine, app):
            add(app).delay()
            raise self.retry(countdown=60)

    again.push_request(id="the-task", called_directly=False, delivery_info={})
    from celery import _state

    _state._task_stack.push(again)
    try:
        with pytest.raises(Exception, match="Retry"):
            again.run()
    finally:
        _state._task_stack.pop()
        again.pop_request()
    assert tasks(sql) == ["the-task"]


def test_the_stock_transport_knows_no_block(database: str, engine: Engine) -> None:
    app = make_app(broker_url(database))
    with (
        engine.connect() as mine,
        pytest.raises(ConfigError, match="connection=in_transaction"),
        pgbeat.in_transaction(mine, app),
    ):
        pass
    app.close()


def test_a_transaction_elsewhere_is_refused(app: Celery, pgbeat_databases: Any) -> None:
    """It has tables of the same names, whose messages would reach no worker."""
    with pgbeat_databases.lent() as dsn:
        elsewhere = make_app(transport_url(dsn))
        add(elsewhere).delay()  # the tables are there
        elsewhere.close()
        engine = create_engine(sqlalchemy_url(dsn), poolclass=NullPool)
        with engine.connect() as mine:
            for _ in range(2):
                with pytest.raises(ConfigError, match="in another database"):
                    pgbeat.in_transaction(mine, app)
            with pytest.raises(ConfigError, match="in another database"):
                pgbeat.submit("tests.add", connection=mine, app=app)


@pytest.mark.parametrize("url", ["memory://", "redis://nowhere.invalid", "amqp://nowhere.invalid"])
def test_a_broker_that_is_no_postgres_is_refused(engine: Engine, url: str) -> None:
    app = make_app(url)
    with engine.connect() as mine, pytest.raises(ConfigError, match=url.partition(":")[0]):
        pgbeat.in_transaction(mine, app)
    app.close()


def test_a_session_of_no_postgres_is_refused(app: Celery) -> None:
    with create_engine("sqlite://").connect() as mine, pytest.raises(ConfigError, match="sqlite"):
        pgbeat.in_transaction(mine, app)


def test_autocommit_is_refused(app: Celery, engine: Engine) -> None:
    with engine.connect() as mine, pytest.raises(ValueError, match="autocommit"):
        pgbeat.in_transaction(mine.execution_options(isolation_level="AUTOCOMMIT"), app)


@needs_pgbouncer
def test_the_same_database_through_a_pooler(database: str, sql: Sql, tmp_path: Any) -> None:
    """The app's own engine goes through it, the broker does not; and the other way round."""
    with pooler(database, tmp_path) as pooled:
        for broker, own in ((database, pooled.url), (pooled.url, database)):
            app = make_app(transport_url(broker))
            engine = create_engine(sqlalchemy_url(own), poolclass=NullPool)
            with engine.begin() as mine, pgbeat.in_transaction(mine, app):
                wanted = add(app).delay().id
                assert wanted not in tasks(sql)
            assert wanted in tasks(sql)
            app.close()


def test_a_message_is_never_put_where_its_queue_cannot_be_seen(
    database: str, engine: Engine, sql: Sql
) -> None:
    """A snapshot from before the queue was bound knows of no queue."""
    queue = Queue("goods", Exchange("goods", type="topic"), routing_key="goods")
    app = make_app(
        transport_url(database),
        task_queues=[queue],
        task_default_queue="goods",
        task_default_exchange="goods",
        task_default_routing_key="goods",
    )
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as mine:
        mine.execute(text("SELECT 1 FROM pg_class LIMIT 1"))
        first = add(app).delay().id  # declares it, in another transaction
        with (
            pytest.raises((ConfigError, DBAPIError), match=r"began before|could not serialize"),
            pgbeat.in_transaction(mine, app),
        ):
            add(app).delay()
        mine.rollback()
    assert tasks(sql) == [first]
    app.close()


_TASKS = "SELECT payload::json -> 'headers' ->> 'task' FROM kombu_message"
_GEVENT = f"""
from gevent import monkey; monkey.patch_all()
import sys
import gevent
from sqlalchemy import create_engine, text
import pgbeat
from celery import Celery
app = Celery("green", broker=sys.argv[1])
app.conf.task_ignore_result = True
engine = create_engine(sys.argv[2])
def publish(name):
    app.send_task(name)
with engine.connect() as mine, pgbeat.in_transaction(mine, app):
    publish("inside")
    gevent.spawn(publish, "spawned").join()
    gevent.get_hub().threadpool.spawn(publish, "pooled").get()
    with engine.connect() as another:
        print(sorted(another.scalars(text("{_TASKS}"))))
    mine.commit()
with engine.connect() as another:
    print(another.execute(text("SELECT count(*) FROM kombu_message")).scalar_one())
"""


def test_greenlets_started_in_a_block_are_not_in_it(database: str) -> None:
    pytest.importorskip("gevent")
    urls = transport_url(database), sqlalchemy_url(database)
    done = shell(sys.executable, "-c", _GEVENT, *urls)
    assert done.stdout.split("\n")[:2] == ["['pooled', 'spawned']", "3"], done.stderr
