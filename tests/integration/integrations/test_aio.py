"""asyncio: jobs and tasks in an async session's transaction, and results without blocking."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from inspect import Parameter, signature
from typing import Any

import pytest
from celery import Celery, chain, group
from celery.exceptions import TimeoutError as ResultTimeout
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

import pgbeat
from pgbeat import aio
from pgbeat.config import postgres_url
from pgbeat.errors import ConfigError, InvalidInput, InvalidJob
from pgbeat.integrations.aio import GroupOptions, JobOptions, ManyOptions
from pgbeat.jobs.policy.policies import PolicyOptions
from tests.support.command_line import Sql
from tests.support.kombu_connections import Connect, Inbox
from tests.support.transport_workers import transport_url


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    url = transport_url(database)
    app = Celery("aio", broker=url, backend=url, set_as_current=False)

    @app.task(name="tests.add", shared=False)
    def add(x: int = 1, y: int = 2) -> int:
        return x + y

    yield app
    app.close()


@asynccontextmanager
async def engine(database: str, driver: str = "psycopg") -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(postgres_url(database).set(drivername=f"postgresql+{driver}"))
    try:
        yield made
    finally:
        await made.dispose()


def add(app: Celery) -> Any:
    return app.tasks["tests.add"]


def delivered(connect: Connect) -> list[str]:
    """The ids of the tasks that a consumer gets now."""
    inbox = Inbox(connect(), "celery", no_ack=True)
    inbox.drain(10**6, 0)
    inbox.cancel()
    return [message.headers["id"] for message in inbox.messages]


pytestmark = pytest.mark.anyio
DRIVERS = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


@DRIVERS
@pytest.mark.parametrize("kind", ["session", "connection"])
async def test_a_blocks_messages_come_with_the_commit(
    app: Celery, database: str, sql: Sql, connect: Connect, kind: str, driver: str
) -> None:
    async with engine(database, driver) as own:
        mine = own.connect() if kind == "connection" else AsyncSession(own)
        async with mine:
            await mine.execute(text("CREATE TABLE orders (id int)"))
            async with pgbeat.in_transaction(mine, app):
                ids = [add(app).delay(1, 1).id, add(app).apply_async((2,), countdown=0).id]
                ids.append(app.send_task("tests.unknown", (5,)).id)
                grouped = group(add(app).s(3, 3), add(app).s(4, 4)).apply_async()
                ids += [each.id for each in grouped.results]
                chained = chain(add(app).s(6, 6), add(app).s(7)).apply_async()
                ids.append(chained.parent.id)
            assert sql("SELECT count(*) FROM kombu_message") == [(0,)]
            await mine.commit()
    assert sorted(delivered(connect)) == sorted(ids)


async def test_nothing_is_left_of_a_block_that_raises_or_rolls_back(
    app: Celery, database: str, sql: Sql
) -> None:
    async with engine(database) as own, AsyncSession(own) as session:
        async with pgbeat.in_transaction(session, app):
            add(app).delay()
        await session.rollback()
        with pytest.raises(ZeroDivisionError):
            async with pgbeat.in_transaction(session, app):
                add(app).delay()
                raise ZeroDivisionError
        await session.commit()
    assert sql("SELECT count(*) FROM kombu_message") == [(0,)]


@DRIVERS
async def test_a_queue_that_was_deleted_is_made_beside_the_block(
    app: Celery, database: str, sql: Sql, driver: str
) -> None:
    for _ in range(2):
        async with engine(database, driver) as own, AsyncSession(own) as session:
            async with pgbeat.in_transaction(session, app):
                add(app).apply_async(queue="new")
            assert sql("SELECT count(*) FROM kombu_queue WHERE name = 'new'") == [(1,)]
            await session.rollback()
        sql("DELETE FROM kombu_queue WHERE name = 'new'")


async def test_a_scoped_session(app: Celery, database: str, connect: Connect) -> None:
    async with engine(database) as own:
        scoped = async_scoped_session(async_sessionmaker(own), asyncio.current_task)
        async with pgbeat.in_transaction(scoped, app):
            task_id = str(add(app).delay().id)
        await scoped.commit()
        await scoped.remove()
    assert delivered(connect) == [task_id]


async def test_other_coroutines_do_not_join_a_block(app: Celery, database: str, sql: Sql) -> None:
    opened, sent = asyncio.Event(), asyncio.Event()

    async def other() -> None:
        await opened.wait()
        add(app).delay()
        sent.set()

    async with engine(database) as own, AsyncSession(own) as session:
        beside = asyncio.create_task(other())
        async with pgbeat.in_transaction(session, app):
            add(app).delay()
            opened.set()
            await sent.wait()
        await beside
        await session.rollback()
    assert sql("SELECT count(*) FROM kombu_message") == [(1,)]


@DRIVERS
async def test_the_synchronous_side_of_a_session_is_in_the_block(
    app: Celery, database: str, sql: Sql, driver: str
) -> None:
    """SQLAlchemy calls it, and its listeners, in a greenlet of its own."""

    def publish_one(_: object) -> None:
        add(app).delay()

    def count() -> int:
        [(messages,)] = sql("SELECT count(*) FROM kombu_message")
        return int(messages)

    async with engine(database, driver) as own, AsyncSession(own) as session:
        event.listen(session.sync_session, "do_orm_execute", publish_one)
        for end, kept in ((session.rollback, 0), (session.commit, 2)):
            async with pgbeat.in_transaction(session, app):
                await session.run_sync(publish_one)
                await session.execute(text("SELECT 1"))
                assert count() == 0
            await end()
            assert count() == kept


@DRIVERS
async def test_jobs_in_a_session(app: Celery, database: str, sql: Sql, driver: str) -> None:
    async with engine(database, driver) as own:
        async with AsyncSession(own) as session:
            job = await aio.submit(add(app), 1, 2, unique_key="k", connection=session)
            again = await aio.submit(add(app), unique_key="k", connection=session)
            assert job.id == again.id
            many = [(add(app).s(n, n)) for n in range(300)]
            assert len(await aio.submit_many(many, connection=session)) == 300
            members = [add(app).s(1, 1), add(app).s(2, 2)]
            made = await aio.submit_group(members, connection=session)
            assert len(made.jobs) == 2
            assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]
            await session.commit()
        assert sql("SELECT count(*) FROM pgbeat.jobs") == [(303,)]
        async with AsyncSession(own) as session:
            await aio.submit(add(app), connection=session)
            await session.rollback()
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(303,)]
    assert sql("SELECT count(*) FROM kombu_message") == [(303,)]


async def test_jobs_without_a_session(app: Celery, sql: Sql) -> None:
    jobs = await asyncio.gather(*(aio.submit(add(app), n, n) for n in range(5)))
    assert len({job.id for job in jobs}) == 5
    with pytest.raises(InvalidJob):
        await aio.submit(add(app), priority=1000)
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(5,)]


@DRIVERS
@pytest.mark.parametrize("kind", ["session", "connection"])
async def test_an_event_comes_with_the_commit(
    app: Celery, database: str, sql: Sql, kind: str, driver: str
) -> None:
    async with engine(database, driver) as own:
        for key, ends in (("kept", "commit"), ("lost", "rollback")):
            async with own.connect() if kind == "connection" else AsyncSession(own) as mine:
                assert await aio.emit(key, {"n": 1}, connection=mine, app=app)
                assert not await aio.emit(key, connection=mine, app=app)
                assert sql("SELECT FROM pgbeat.events WHERE key = %s", key) == []
                await getattr(mine, ends)()
        async with own.connect() as strict:
            await strict.execution_options(isolation_level="REPEATABLE READ")
            with pytest.raises(ConfigError):
                await aio.emit("strict", connection=strict, app=app)
    with pytest.raises(InvalidInput):
        await aio.emit("", app=app)
    assert await aio.emit("alone", app=app)
    assert sql("SELECT key, value FROM pgbeat.events ORDER BY id") == [
        ("kept", {"n": 1}),
        ("alone", None),
    ]


async def test_a_session_that_needs_await_is_refused_without(app: Celery, database: str) -> None:
    async with engine(database) as own, AsyncSession(own) as session:
        with pytest.raises(TypeError, match=r"await pgbeat\.aio\.submit"):
            pgbeat.submit(add(app), connection=session)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="async with"), pgbeat.in_transaction(session, app):
            raise AssertionError("it has begun")


@pytest.mark.parametrize(
    ("options", "function"),
    [
        (JobOptions, pgbeat.submit),
        (ManyOptions, pgbeat.submit_many),
        (GroupOptions, pgbeat.submit_group),
    ],
)
def test_options_are_those_of_the_function_that_blocks(
    options: Any, function: Callable[..., Any]
) -> None:
    parameters = signature(function).parameters.values()
    names = {each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
        names |= PolicyOptions.__annotations__.keys()
    assert options.__annotations__.keys() == names - {"app", "connection"}


async def test_results_are_awaited(app: Celery) -> None:
    awaited = [asyncio.create_task(aio.result(f"t{n}", app=app)) for n in range(3)]
    awaited.append(asyncio.create_task(aio.result("t0", app=app)))
    ticks = 0
    store = asyncio.to_thread(_store_soon, app)
    stored = asyncio.create_task(store)
    while not all(each.done() for each in awaited):
        await asyncio.sleep(0.01)
        ticks += 1
    await stored
    assert [each.result() for each in awaited] == [0, 1, 2, 0]
    assert ticks >= 10  # the loop went on meanwhile
    assert await aio.result("t1", app=app, timeout=5) == 1  # it is there already


def _store_soon(app: Celery) -> None:
    time.sleep(0.3)  # longer than a few turns of the loop
    for n in range(3):
        app.backend.mark_as_done(f"t{n}", n)


async def test_an_error_is_raised_or_returned(app: Celery) -> None:
    app.backend.mark_as_failure("bad", LookupError("gone"))

    with pytest.raises(LookupError, match="gone"):
        await aio.result("bad", app=app, timeout=10)
    error = await aio.result(app.AsyncResult("bad"), timeout=10, propagate=False)
    assert isinstance(error, LookupError)
    with pytest.raises(ResultTimeout):
        await aio.result("never", app=app, timeout=0.2)


async def test_a_chain_that_failed_early_and_a_group(app: Celery) -> None:
    chained = app.AsyncResult("last", parent=app.AsyncResult("first"))
    app.backend.mark_as_failure("first", LookupError("gone"))
    grouped = app.GroupResult("g", [app.AsyncResult(f"m{n}") for n in range(3)])
    for n in range(3):
        app.backend.mark_as_done(f"m{n}", n)

    with pytest.raises(LookupError, match="gone"):
        await aio.result(chained, timeout=10)
    assert await aio.result(grouped, timeout=10) == [0, 1, 2]


def test_results_of_several_loops_and_after_cancelling(app: Celery) -> None:
    async def give_up() -> None:
        with pytest.raises(ResultTimeout):
            await aio.result("t0", app=app, timeout=0.1)

    async def wait() -> Any:
        return await aio.result("t0", app=app, timeout=10)

    asyncio.run(give_up())
    app.backend.mark_as_done("t0", 7)
    assert asyncio.run(wait()) == 7


async def test_other_backends_are_refused(database: str) -> None:
    app = Celery("aio", broker=transport_url(database), backend="cache+memory://")

    with pytest.raises(ConfigError, match="needs result_backend"):
        await aio.result("t0", app=app)


def test_it_is_imported_without_greenlet() -> None:
    """SQLAlchemy brings greenlet only with its extra `asyncio`, and imports its asyncio with it."""
    code = "import sys; sys.modules['greenlet'] = None; from pgbeat import aio; aio.submit"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
