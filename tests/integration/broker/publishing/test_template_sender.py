"""`delay` and `apply_async` write the bytes that Celery writes, or leave the message to Celery."""

import json
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import celery
import psycopg
import pytest
from celery import Celery, Task, _state, chain, signals
from celery.result import AsyncResult
from kombu import Connection, Exchange, Queue
from kombu.exceptions import EncodeError, OperationalError
from kombu.messaging import Producer
from sqlalchemy import Engine

import pgbeat
from pgbeat.broker.publishing.first_send import FirstSend
from pgbeat.broker.publishing.template_sender import TemplateSender
from tests.support.command_line import Sql
from tests.support.kombu_connections import others, terminate_others
from tests.support.processes import until
from tests.support.transport_workers import transport_url

IDS = [str(uuid.UUID(int=number)) for number in range(1, 6)]
ROW = "visible, priority, available_at, expires_at, queue_id, job_id, payload"


@contextmanager
def an_app(database: str, **conf: Any) -> Iterator[Celery]:
    app = Celery("sends", broker=transport_url(database), set_as_current=False)
    app.conf.update(task_ignore_result=True, **conf)

    @app.task(name="tests.add", shared=False)
    def add(*args: Any, **kwargs: Any) -> None:
        """Takes anything."""

    @app.task(name="tests.two", shared=False)
    def two(x: int, y: int = 2) -> None:
        """Takes one or two."""

    yield app
    app.close()


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    with an_app(database) as app:
        yield app


def rows(sql: Sql) -> list[tuple[Any, ...]]:
    """The messages in the order of their ids."""
    return sql(f"SELECT {ROW} FROM kombu_message ORDER BY id")


def is_quick(row: tuple[Any, ...]) -> bool:
    """Whether a template made the message: its tag is not random."""
    payload = json.loads(row[-1])
    return bool(payload["properties"]["delivery_tag"] == payload["headers"]["id"])


def untagged(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row, its payload byte by byte, without what Celery draws at random."""
    tag = json.loads(row[-1])["properties"]["delivery_tag"]
    before, tagged, after = row[-1].rpartition(f'"delivery_tag": "{tag}"')
    assert tagged
    return (*row[:-1], before + after)


def send(app: Celery, *args: Any, **options: Any) -> Any:
    return app.tasks["tests.add"].apply_async(*args, **options)


def both(app: Celery, sql: Sql, *args: Any, **options: Any) -> tuple[Any, Any]:
    """The rows of two messages with one id: an app's first one is Celery's."""
    for _ in range(3):  # the second one is the template's
        send(app, *args, task_id=IDS[0], **options)
    second = "SELECT id FROM kombu_message ORDER BY 1 OFFSET 1 LIMIT 1"
    sql(f"DELETE FROM kombu_message WHERE id IN ({second})")
    expected, made = rows(sql)
    assert not is_quick(expected)
    return expected, made


@pytest.mark.parametrize(
    "args",
    [
        (),
        ((1, 2),),
        ([1, "two"],),
        ([],),
        (None, {"y": 2}),
        ((1.5, True, None, -0.0, 10**30),),
        (("a", 'it\'s "quoted" \\ and ünïcode \n \x00 \ud800'),),
        (("x" * 3000,), {"y": ["deep", {"er": [1, [2, [3, [4]]]]}]}),
        ((list(range(20)), (1, (2,)), {1: "one", None: 0}),),
        ((datetime(2026, 1, 1, tzinfo=UTC), Decimal("1.50"), uuid.UUID(int=7)),),
        ((float("inf"), b"bytes"),),
    ],
)
def test_the_same_bytes(app: Celery, sql: Sql, args: Any) -> None:
    expected, made = both(app, sql, *args)
    assert is_quick(made)
    assert untagged(made) == untagged(expected)


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "other"},
        {"priority": 7},
        {"time_limit": 10, "soft_time_limit": 5},
        {"ignore_result": False},
        {"delivery_mode": 1},
        {"serializer": "json"},
    ],
)
def test_the_same_bytes_with_options(app: Celery, sql: Sql, options: Any) -> None:
    expected, made = both(app, sql, (1,), **options)
    assert is_quick(made)
    assert untagged(made) == untagged(expected)


def test_options_that_are_equal_but_not_the_same(app: Celery, sql: Sql) -> None:
    for value in (1, 1, True, 1, True):
        send(app, ignore_result=value, task_id=IDS[0])
    _, one, true, quick_one, quick_true = rows(sql)
    assert is_quick(quick_one) and is_quick(quick_true)
    assert untagged(quick_one) == untagged(one) != untagged(true) == untagged(quick_true)


def test_the_same_bytes_for_a_task_known_by_name_alone(app: Celery, sql: Sql) -> None:
    for _ in range(3):
        app.send_task("elsewhere.add", (1,), {"y": 2}, queue="q", task_id=IDS[0])
    expected, _, made = rows(sql)
    assert is_quick(made) and untagged(made) == untagged(expected)


def test_the_same_bytes_by_routes_and_task_options(database: str, sql: Sql) -> None:
    routes = {"tests.add": {"queue": "sums", "priority": 3}}
    with an_app(database, task_routes=routes, task_queue_max_priority=10) as app:
        app.tasks["tests.add"].time_limit = 7
        expected, made = both(app, sql, (1,))
        assert is_quick(made) and untagged(made) == untagged(expected)
        assert json.loads(made[-1])["properties"]["delivery_info"]["routing_key"] == "sums"


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": 60},
        {"eta": "2030-01-01T00:00:00+00:00"},
        {"expires": 60},
        {"headers": {"who": "me"}},
        {"shadow": "named"},
        {"compression": "gzip"},
        {"serializer": "yaml"},
        {"exchange": "other", "routing_key": "key"},
        {"retry": False},
        {"reply_to": "me"},
        {"group_id": "g"},
        {"task_id": 5},
    ],
)
def test_the_rest_is_left_to_celery(app: Celery, sql: Sql, options: Any) -> None:
    app.conf.accept_content = ["json", "yaml"]
    for _ in range(3):
        send(app, (1,), **{"task_id": IDS[0], **options})
    assert not any(map(is_quick, rows(sql)))


def test_signatures_and_links_are_left_to_celery(app: Celery, sql: Sql) -> None:
    add = app.tasks["tests.add"]
    for _ in range(3):
        chain(add.si(1), add.si(2)).apply_async()
        add.apply_async(link=add.si(3))
    assert len(rows(sql)) == 6 and not any(map(is_quick, rows(sql)))
    for _ in range(3):
        add.s(1).delay(2)
    assert is_quick(rows(sql)[-1])


def test_wrong_arguments_raise_as_in_celery(app: Celery, sql: Sql) -> None:
    two = app.tasks["tests.two"]
    for _ in range(3):
        two.delay(1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        two.delay(z=1)
    for args in (object(),), (circular(),):
        with pytest.raises(EncodeError):
            send(app, args)
            send(app, args)
    with pytest.raises(TypeError, match="must be a list or tuple"):
        app.send_task("tests.add", 5)
    assert len(rows(sql)) == 3


def circular() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def test_the_result(app: Celery) -> None:
    for _ in range(3):
        result = send(app, task_id=IDS[0])
        assert isinstance(result, AsyncResult)
        assert (result.id, result.ignored, result.parent) == (IDS[0], True, None)
    assert send(app).id != send(app).id

    class Result(AsyncResult):
        """An app's own."""

    for _ in range(3):
        assert isinstance(app.send_task("tests.more", result_cls=Result), Result)


def test_a_task_that_sends_is_the_parent(app: Celery, sql: Sql) -> None:
    sender = app.tasks["tests.two"]
    sender.push_request(id=IDS[1], root_id=IDS[2], called_directly=False, children=[])
    _state._task_stack.push(sender)
    try:
        expected, made = both(app, sql)
        send(app, add_to_parent=False)
        assert [child.id for child in sender.request.children] == [IDS[0]] * 3
    finally:
        _state._task_stack.pop()
        sender.pop_request()
    send(app, task_id=IDS[0])
    assert is_quick(made) and untagged(made) == untagged(expected)
    headers = json.loads(made[-1])["headers"]
    assert (headers["root_id"], headers["parent_id"]) == (IDS[2], IDS[1])
    headers = json.loads(rows(sql)[-1][-1])["headers"]
    assert (headers["root_id"], headers["parent_id"]) == (IDS[0], None)
    assert is_quick(rows(sql)[-1])


def test_each_thread_has_its_own_address_for_replies(app: Celery, sql: Sql) -> None:
    both(app, sql)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(send, app).result()
    here, there = rows(sql)[-2:]
    assert is_quick(there)
    address = json.loads(there[-1])["properties"]["reply_to"]
    assert address and address != json.loads(here[-1])["properties"]["reply_to"]


def test_a_forked_process_names_itself(app: Celery, sql: Sql) -> None:
    both(app, sql)

    child = os.fork()  # without the hooks of multiprocessing
    if child == 0:
        try:
            for _ in range(2):
                send(app)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    origins = [json.loads(row[-1])["headers"]["origin"] for row in rows(sql)]
    ours = f"gen{os.getpid()}@"
    assert [origin.startswith(ours) for origin in origins] == [True, True] + [False] * 2
    assert is_quick(rows(sql)[-1]) and origins[-1].startswith(f"gen{child}@")


@pytest.mark.parametrize("name", ["before_task_publish", "after_task_publish", "task_sent"])
def test_a_receiver_sees_every_message(app: Celery, sql: Sql, name: str) -> None:
    both(app, sql)
    seen = []

    def receive(**kwargs: Any) -> None:
        seen.append(kwargs)

    signal = getattr(signals, name)
    signal.connect(receive)
    try:
        for _ in range(3):
            send(app)
    finally:
        signal.disconnect(receive)
    assert len(seen) == 3
    send(app)
    assert [is_quick(row) for row in rows(sql)[2:]] == [False] * 3 + [True]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (lambda app: Celery, "send_task"),
        (lambda app: app.amqp, "send_task_message"),
        (lambda app: app.amqp, "create_task_message"),
        (lambda app: app.amqp, "router"),
        (lambda app: Producer, "publish"),
        (lambda app: Producer, "_publish"),
        (lambda app: Task, "apply_async"),
    ],
)
def test_what_is_patched_is_called(
    app: Celery, sql: Sql, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    both(app, sql)
    calls, stock = [], getattr(owner(app), name)

    class Router:
        def route(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return stock.route(*args, **kwargs)

    def patched(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return stock(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner(app), name, Router() if name == "router" else patched)
        for _ in range(3):
            send(app)
    assert len(calls) == 3
    for _ in range(2):
        send(app)
    assert is_quick(rows(sql)[-1]) and len(calls) == 3


@pytest.mark.parametrize(
    ("setting", "value", "quickly"),
    [
        pytest.param(
            "task_repr_maxlevels",
            1,
            True,
            marks=pytest.mark.skipif(celery.VERSION < (5, 7), reason="Celery 5.7's setting"),
        ),
        ("task_send_sent_event", True, False),
        ("task_inherit_parent_priority", True, False),
        ("task_publish_retry", False, False),
    ],
)
def test_a_setting_that_changes_applies(
    app: Celery, sql: Sql, setting: str, value: Any, quickly: bool
) -> None:
    args = ([[[["deep"]]]],)
    both(app, sql, args)
    setattr(app.conf, setting, value)
    for _ in range(2):
        send(app, args, task_id=IDS[0])
    *_, expected, made = rows(sql)
    assert not is_quick(expected) and is_quick(made) is quickly
    assert untagged(made) == untagged(expected)


def test_routes_that_change_apply(app: Celery, sql: Sql) -> None:
    both(app, sql)
    app.conf.task_routes = {"tests.add": {"queue": "new"}}
    app.amqp.flush_routes()
    app.amqp.router = app.amqp.Router()
    for _ in range(2):
        send(app)
    for row in rows(sql)[-2:]:
        assert json.loads(row[-1])["properties"]["delivery_info"]["routing_key"] == "new"


def test_a_router_function_is_asked_every_time(database: str) -> None:
    asked = []

    def router(name: str, args: Any, kwargs: Any, options: Any, **rest: Any) -> dict[str, str]:
        asked.append(name)
        return {"queue": f"q{len(asked)}"}

    with an_app(database, task_routes=(router,)) as app:
        for _ in range(3):
            send(app)
    assert len(asked) == 3


def test_a_queue_that_is_defined_anew(app: Celery, sql: Sql) -> None:
    both(app, sql)
    app.amqp.queues.add(Queue("celery", Exchange("news", type="topic"), routing_key="a.b"))
    with app.producer_or_acquire() as producer:
        producer.connection.declared_entities.clear()
    send(app)
    info = json.loads(rows(sql)[-1][-1])["properties"]["delivery_info"]
    assert info == {"exchange": "news", "routing_key": "a.b"}


def test_blocks_take_the_messages(app: Celery, sql: Sql, engine: Engine) -> None:
    both(app, sql)
    with engine.connect() as connection:
        for commits in (False, True):
            with connection.begin() as transaction, pgbeat.in_transaction(connection, app):
                send(app)
                assert len(rows(sql)) == 2
                if not commits:
                    transaction.rollback()
    assert len(rows(sql)) == 3 and is_quick(rows(sql)[-1])


def test_a_lost_connection_is_opened_again(app: Celery, sql: Sql) -> None:
    both(app, sql)
    terminate_others(sql)
    send(app)
    send(app)
    assert len(rows(sql)) == 4 and is_quick(rows(sql)[-1])


def test_a_server_that_is_away_raises_what_celery_raises(
    app: Celery, sql: Sql, server: str
) -> None:
    policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    app.conf.task_publish_retry_policy = policy
    both(app, sql)
    with psycopg.connect(server, autocommit=True) as admin:
        name = sql("SELECT current_database()")[0][0]
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            terminate_others(sql)
            with pytest.raises(OperationalError):
                send(app)
        finally:
            admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    send(app)
    assert len(rows(sql)) == 3


def test_connections_that_were_closed_are_opened_by_celery(app: Celery, sql: Sql) -> None:
    """Nothing is left open that Celery doesn't know."""
    both(app, sql)
    for _ in range(2):
        with app.producer_or_acquire() as producer:
            Connection.release(producer.connection)  # its own gives it back to the pool
        until(lambda: not any(name.startswith("pgbeat transport") for name in others(sql)))
        send(app)
    assert len(rows(sql)) == 4


def test_apps_of_other_brokers_are_left_alone(app: Celery, sql: Sql) -> None:
    other = Celery("other", broker="memory://", set_as_current=False)
    assert other.conf.broker_url == "memory://"
    unread = Celery("unread", set_as_current=False)
    unread.config_from_object("there.is.no.such.module")
    both(app, sql)
    other.send_task("x", ignore_result=True)
    assert "send_task" not in vars(other)
    assert isinstance(vars(unread)["send_task"], FirstSend)
    assert isinstance(vars(app)["send_task"], TemplateSender)
