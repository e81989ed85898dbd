"""Publishing in the caller's own transaction: there if it commits, never there if it doesn't."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, group
from celery.signals import before_task_publish
from kombu import Queue
from kombu.exceptions import EncodeError
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import pgbeat
from pgbeat.broker import queues
from pgbeat.config import postgres_url
from tests.support.command_line import Sql
from tests.support.databases import broker_url, sqlalchemy_url
from tests.support.jobs import plain_app
from tests.support.kombu_connections import Connect, Inbox
from tests.support.processes import until
from tests.support.transport_workers import transport_url


def make_app(broker: str, **conf: Any) -> Celery:
    app = plain_app(broker)
    app.conf.update(conf)
    return app


@pytest.fixture(params=["pgbeat", "stock"])
def app(request: pytest.FixtureRequest, database: str) -> Iterator[Celery]:
    """An app whose broker is the test's database, on either transport."""
    url = transport_url(database) if request.param == "pgbeat" else broker_url(database)
    with make_app(url) as app:
        yield app


@pytest.fixture
def ours(database: str) -> Iterator[Celery]:
    """An app on pgbeat's transport."""
    with make_app(transport_url(database)) as app:
        yield app


def add(app: Celery) -> Any:
    return app.tasks["tests.add"]


def waiting(sql: Sql) -> int:
    """Messages that everybody sees."""
    return int(sql("SELECT count(*) FROM kombu_message")[0][0])


def delivered(connect: Connect, *queues: str) -> list[tuple[str, str, list[Any], dict[str, Any]]]:
    """Name, id, args and kwargs of the tasks that a consumer gets now."""
    inbox = Inbox(connect(), *(queues or ["celery"]), no_ack=True)
    inbox.drain(10**6, 0)
    found = []
    for message in inbox.messages:
        args, kwargs, _ = message.payload
        found.append((message.headers["task"], message.headers["id"], args, kwargs))
    inbox.cancel()
    return found


def ways(app: Celery, connection: Any) -> list[str]:
    """Publishes in every way that there is; the ids."""
    task = add(app)
    chained = chain(task.s(1, 1), task.s(5)).apply_async(connection=connection)
    grouped = group(task.s(2, 2), task.s(3, 3)).apply_async(connection=connection)
    return [
        task.apply_async((4, 4), connection=connection).id,
        app.send_task("tests.unknown", (5,), {"a": 1}, connection=connection).id,
        task.s(6, y=6).apply_async(connection=connection).id,
        task.signature((7,), countdown=0).apply_async(connection=connection).id,
        chained.parent.id,
        *[result.id for result in grouped.results],
        *connection.send_many(task, [(8,), {"x": 9}]),
    ]


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_there_with_the_commit_and_not_before(
    app: Celery, engine: Engine, connect: Connect, sql: Sql, kind: str
) -> None:
    with Session(engine) if kind == "session" else engine.connect() as mine:
        ids = ways(app, pgbeat.in_transaction(mine, app))
        mine.execute(text("CREATE TABLE orders (id int)"))
        assert waiting(sql) == 0
        mine.commit()
        assert waiting(sql) == len(ids) == 9
    found = delivered(connect)
    assert sorted(id for _, id, _, _ in found) == sorted(ids)
    assert ("tests.unknown", ids[1], [5], {"a": 1}) in found
    assert [(args, kwargs) for _, id, args, kwargs in found if id in ids[-2:]] == [
        ([8], {}),
        ([], {"x": 9}),
    ]


def test_a_driver_that_cannot_read_the_sessions_times(
    app: Celery, database: str, connect: Connect
) -> None:
    """psycopg reads them in the style ISO alone."""
    style = {"options": "-c DateStyle=SQL"}
    engine = create_engine(sqlalchemy_url(database), connect_args=style, poolclass=NullPool)
    with engine.connect() as mine:
        ids = ways(app, pgbeat.in_transaction(mine, app))
        mine.commit()
    assert sorted(id for _, id, _, _ in delivered(connect)) == sorted(ids)


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_never_there_after_a_rollback(app: Celery, engine: Engine, sql: Sql, kind: str) -> None:
    for _ in range(2):
        with Session(engine) if kind == "session" else engine.connect() as mine:
            ways(app, pgbeat.in_transaction(mine, app))
            mine.rollback()
    with pytest.raises(ZeroDivisionError), Session(engine) as session, session.begin():
        ways(app, pgbeat.in_transaction(session, app))
        raise ZeroDivisionError
    assert waiting(sql) == 0


def test_savepoints(app: Celery, engine: Engine, connect: Connect) -> None:
    with Session(engine) as session:
        in_transaction = pgbeat.in_transaction(session, app)
        kept = add(app).apply_async((1,), connection=in_transaction).id
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            add(app).apply_async((2,), connection=in_transaction)
            in_transaction.send_many(add(app), [(3,)])
            raise ZeroDivisionError
        with session.begin_nested():
            kept_too = add(app).apply_async((4,), connection=in_transaction).id
        session.commit()
    assert [id for _, id, _, _ in delivered(connect)] == [kept, kept_too]


def test_one_transaction_after_another(app: Celery, engine: Engine, connect: Connect) -> None:
    with engine.connect() as mine:
        in_transaction = pgbeat.in_transaction(mine, app)
        add(app).apply_async((1,), connection=in_transaction)
        mine.rollback()
        add(app).apply_async((2,), connection=in_transaction)
        mine.commit()
        add(app).apply_async((3,), connection=in_transaction)
        mine.commit()
    assert [args for _, _, args, _ in delivered(connect)] == [[2], [3]]


def test_a_queue_of_a_transaction_that_was_rolled_back(
    app: Celery, engine: Engine, connect: Connect, sql: Sql
) -> None:
    """It exists already and is empty, so that no other publisher must wait for the transaction."""
    with engine.connect() as mine:
        in_transaction = pgbeat.in_transaction(mine, app)
        for _ in range(2):
            add(app).apply_async((1,), queue="new", connection=in_transaction)
            in_transaction.send_many(add(app), [(1,)], queue="newer")
            mine.rollback()
        assert sql("SELECT count(*) FROM kombu_queue WHERE name LIKE 'new%'") == [(2,)]
        assert waiting(sql) == 0
        add(app).apply_async((2,), queue="new", connection=in_transaction)
        in_transaction.send_many(add(app), [(3,)], queue="newer")
        mine.commit()
    assert sorted(args for _, _, args, _ in delivered(connect, "new", "newer")) == [[2], [3]]


def test_a_new_queue_in_an_open_transaction_keeps_no_publisher_waiting(
    app: Celery, engine: Engine, sql: Sql, connection: Connection
) -> None:
    def publish(connection: Connection) -> None:
        in_transaction = pgbeat.in_transaction(connection, app)
        add(app).apply_async((1,), queue="new", connection=in_transaction)
        in_transaction.send_many(add(app), [(1,)], queue="newer")
        pgbeat.submit("tests.add", queue="newest", connection=connection, app=app)

    for _ in range(2):  # the second time it was there before
        with engine.connect() as mine, engine.connect() as other:
            publish(mine)
            other.execute(text("SET LOCAL lock_timeout = '2s'"))
            publish(other)
            other.commit()
            assert waiting(sql) == 3
            mine.rollback()
        assert waiting(sql) == 3
        for name in ("new", "newer", "newest"):
            queues.delete(connection, name)


def test_a_new_queue_is_made_by_the_options_of_the_broker(
    database: str, engine: Engine, sql: Sql
) -> None:
    """Here its URL alone leads nowhere."""
    url = postgres_url(database)
    nowhere = url.set(drivername="postgresql", database="nowhere")
    app = make_app(
        transport_url(nowhere.render_as_string(hide_password=False)),
        broker_transport_options={"connect_args": {"dbname": url.database}},
    )
    with engine.connect() as mine:
        add(app).apply_async(queue="new", connection=pgbeat.in_transaction(mine, app))
        assert sql("SELECT count(*) FROM kombu_queue WHERE name = 'new'") == [(1,)]
    app.close()


def test_a_new_queue_in_a_transaction_of_one_snapshot(
    app: Celery, engine: Engine, sql: Sql
) -> None:
    """It would not see a queue that another transaction makes: it makes it itself."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as mine:
        mine.scalar(text("SELECT 1"))
        add(app).apply_async((1,), queue="new", connection=pgbeat.in_transaction(mine, app))
        assert sql("SELECT count(*) FROM kombu_queue WHERE name = 'new'") == [(0,)]
        mine.commit()
    assert waiting(sql) == 1


def test_a_session_that_has_committed(app: Celery, engine: Engine, sql: Sql) -> None:
    """Later messages join its next transaction, if any."""
    with Session(engine) as session:
        in_transaction = pgbeat.in_transaction(session, app)
        add(app).apply_async((1,), connection=in_transaction)
        session.commit()
        with suppress(InvalidRequestError):
            add(app).apply_async((2,), connection=in_transaction)
        add(app).apply_async((3,), connection=pgbeat.in_transaction(session, app))
        session.rollback()
    assert waiting(sql) == 1


def test_routes_priorities_and_signals(
    database: str, engine: Engine, connect: Connect, sql: Sql
) -> None:
    """Signals come before the commit."""
    app = make_app(
        transport_url(database),
        task_queues=[Queue("low", routing_key="low"), Queue("high", routing_key="high")],
        task_routes={"tests.add": {"queue": "high", "priority": 7}},
        task_default_queue="low",
    )
    seen: list[str] = []

    def note(sender: str, headers: Any, **kwargs: Any) -> None:
        seen.append(headers["id"])
        headers["note"] = "noted"
        assert sql("SELECT count(*) FROM kombu_message") == [(0,)]

    before_task_publish.connect(note, weak=False)
    try:
        with Session(engine) as session:
            mine = pgbeat.in_transaction(session, app)
            ids = [add(app).apply_async(connection=mine).id, *mine.send_many("tests.add", [()])]
            ids.append(app.send_task("other", connection=mine).id)
            session.commit()
    finally:
        before_task_publish.disconnect(note)
        app.close()
    assert seen == ids
    messages = Inbox(connect(), "high").get(2)
    assert [(m.properties["priority"], m.headers["note"]) for m in messages] == [(7, "noted")] * 2
    assert [id for _, id, _, _ in delivered(connect, "low")] == ids[2:]


def test_an_eta_is_kept_by_pgbeats_transport_alone(app: Celery, engine: Engine, sql: Sql) -> None:
    """The stock transport's workers keep it in their memory: to them it must be visible."""
    eta = datetime.now(UTC) + timedelta(hours=1)
    with Session(engine) as session:
        mine = pgbeat.in_transaction(session, app)
        add(app).apply_async(countdown=3600, connection=mine)
        add(app).apply_async(eta=eta, connection=mine)
        mine.send_many(add(app), [()], countdown=3600)
        session.commit()
    is_ours = app.conf.broker_url.startswith("pgbeat")
    assert (
        sql("SELECT visible, available_at > now() + interval '59 minutes' FROM kombu_message")
        == [(False, True) if is_ours else (True, None)] * 3
    )


def test_what_cannot_be_serialized(app: Celery, engine: Engine, sql: Sql) -> None:
    """It raises, and the transaction is as good as before."""
    with Session(engine) as session:
        mine = pgbeat.in_transaction(session, app)
        add(app).apply_async((1,), connection=mine)
        with pytest.raises((EncodeError, TypeError)):
            add(app).apply_async((object(),), connection=mine)
        with pytest.raises((EncodeError, TypeError)):
            mine.send_many(add(app), [(2,), (object(),)])
        session.commit()
    assert waiting(sql) == 1


def test_a_connection_that_is_lost(app: Celery, engine: Engine, sql: Sql) -> None:
    """It raises at once: a retry could only write outside of the transaction."""
    with Session(engine) as session:
        mine = pgbeat.in_transaction(session, app)
        add(app).apply_async((1,), connection=mine)
        pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
        sql("SELECT pg_terminate_backend(%s, 10000)", pid)
        with pytest.raises(DBAPIError, match="terminating connection"):
            add(app).apply_async((2,), connection=mine)
    until(lambda: waiting(sql) == 0)


def test_a_statement_that_fails(app: Celery, engine: Engine, sql: Sql) -> None:
    """The server's own words come out, not what the retries of Celery run into afterwards."""
    sql("ALTER TABLE kombu_message ADD CHECK (payload NOT LIKE '%%poison%%')")
    with Session(engine) as session:
        mine = pgbeat.in_transaction(session, app)
        with pytest.raises(DBAPIError, match="kombu_message_payload_check"):
            app.send_task("poison", connection=mine)
        session.rollback()
        with pytest.raises(DBAPIError, match="kombu_message_payload_check"):
            pgbeat.in_transaction(session, app).send_many("poison", [()])
        session.rollback()
    assert waiting(sql) == 0


def test_the_current_app_is_the_default(database: str, engine: Engine, connect: Connect) -> None:
    from celery import _state

    before = _state._tls.current_app
    app = make_app(transport_url(database))
    app.set_current()
    try:
        with Session(engine) as session:
            ids = pgbeat.in_transaction(session).send_many("tests.add", [()])
            session.commit()
    finally:
        _state._set_current_app(before)
        app.close()
    assert [id for _, id, _, _ in delivered(connect)] == ids


def test_other_objects_than_sessions_are_refused(ours: Celery, engine: Engine) -> None:
    for wrong in (None, "postgresql://", engine):
        with pytest.raises(TypeError, match="must be an open SQLAlchemy session or connection"):
            pgbeat.in_transaction(wrong, ours)  # type: ignore[call-overload]


def test_a_database_without_a_broker_says_so(empty_database: str) -> None:
    """The session's database is not the broker's, or was not migrated."""
    engine = create_engine(sqlalchemy_url(empty_database), poolclass=NullPool)
    app = make_app(transport_url(empty_database))
    with Session(engine) as session, pytest.raises(Exception, match="pgbeat migrate"):
        add(app).apply_async(connection=pgbeat.in_transaction(session, app))
    app.close()
    engine.dispose()


def test_thousands(app: Celery, engine: Engine, connect: Connect, sql: Sql) -> None:
    """In order, each with an id of its own, with its own arguments; from a generator."""
    count = 2500
    with Session(engine) as session:
        mine = pgbeat.in_transaction(session, app)
        ids = mine.send_many(
            add(app),
            ((n, str(n)) if n % 2 else {"x": n, "y": [n, {"ü": None}]} for n in range(count)),
            headers={"note": "ü"},
            priority=3,
        )
        assert waiting(sql) == 0
        session.commit()
    assert len(set(ids)) == count
    assert waiting(sql) == count
    found = delivered(connect)
    assert [id for _, id, _, _ in found] == ids
    assert {name for name, _, _, _ in found} == {"tests.add"}
    for n, (_, _, args, kwargs) in enumerate(found):
        wanted = ([n, str(n)], {}) if n % 2 else ([], {"x": n, "y": [n, {"ü": None}]})
        assert (args, kwargs) == wanted


def test_many_are_what_one_is(ours: Celery, engine: Engine, connect: Connect) -> None:
    """The quick way makes the message that `apply_async` makes."""
    options = {
        "queue": "q",
        "priority": 4,
        "headers": {"note": 1},
        "expires": 600,
        "time_limit": 9,
        "countdown": -1,
    }
    with Session(engine) as session:
        mine = pgbeat.in_transaction(session, ours)
        slow = add(ours).apply_async((1, "a"), connection=mine, **options).id
        quick = mine.send_many(add(ours), [(1, "a")] * 3, **options)
        session.commit()
    messages = Inbox(connect(), "q").get(4)
    assert [m.headers["id"] for m in messages] == [slow, *quick]

    def comparable(message: Any) -> Any:
        id = message.headers["id"]
        headers = {k: str(v).replace(id, "ID") for k, v in message.headers.items()}
        properties = {k: str(v).replace(id, "ID") for k, v in message.properties.items()}
        for time in ("eta", "expires"):
            headers[time] = headers[time][:15]
        for own in ("delivery_tag",):
            properties.pop(own)
        return headers, properties, message.body, message.content_type

    first = comparable(messages[0])
    for message in messages[1:]:
        assert comparable(message) == first


def test_many_of_nothing_and_of_nonsense(ours: Celery, engine: Engine, sql: Sql) -> None:
    with Session(engine) as session:
        mine = pgbeat.in_transaction(session, ours)
        assert mine.send_many(add(ours), []) == []
        for nonsense in ("text", 5, None):
            with pytest.raises(TypeError, match="sequence"):
                mine.send_many(add(ours), [nonsense])  # type: ignore[list-item]
        session.commit()
    assert waiting(sql) == 0


def typed(connection: Connection) -> None:  # what a type checker accepts
    pgbeat.in_transaction(connection).send_many("tests.add", [(1,)])
