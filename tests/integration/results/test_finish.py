"""`pgbeat.finish` where no worker delivers the task: outside of one, called directly, eagerly."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import pgbeat
from pgbeat.config import postgres_url
from pgbeat.errors import CannotFinish
from tests.support.rows import Sql

INSERT = text("INSERT INTO written (n) VALUES (1)")


@pytest.fixture
def engine(database: str, sql: Sql) -> Iterator[Engine]:
    """Connects to the test's database, which has a table `written`."""
    sql("CREATE TABLE written (n integer NOT NULL)")
    made = create_engine(postgres_url(database))
    yield made
    made.dispose()


@pytest.mark.parametrize(
    "opened",
    [
        lambda engine: Session(engine),
        lambda engine: engine.connect(),
        lambda engine: scoped_session(sessionmaker(engine)),
    ],
    ids=["session", "connection", "scoped_session"],
)
def test_without_a_message_the_block_commits(
    engine: Engine, sql: Sql, opened: Callable[[Engine], Any]
) -> None:
    with pgbeat.finish(opened(engine)) as session:
        session.execute(INSERT)
        assert sql("SELECT n FROM written") == []
    assert sql("SELECT n FROM written") == [(1,)]
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_an_error_rolls_back(engine: Engine, sql: Sql) -> None:
    with pytest.raises(ValueError, match="no"), pgbeat.finish(Session(engine)) as session:
        session.execute(INSERT)
        raise ValueError("no")
    assert sql("SELECT n FROM written") == []


def test_the_block_must_not_commit(engine: Engine) -> None:
    with pytest.raises(CannotFinish) as error, pgbeat.finish(Session(engine)) as session:
        session.execute(INSERT)
        session.commit()
    assert error.value.code == "cannot_finish"


def test_a_task_that_is_called_eagerly(app: Celery, engine: Engine, sql: Sql) -> None:
    @app.task(shared=False)
    def book() -> None:
        with pgbeat.finish(Session(engine)) as session:
            session.execute(INSERT)

    book()
    assert book.apply().successful()
    assert sql("SELECT n FROM written") == [(1,), (1,)]


def test_other_drivers_are_refused() -> None:
    with pytest.raises(CannotFinish), pgbeat.finish(Session(create_engine("sqlite://"))):
        raise AssertionError("the block ran")


@pytest.fixture
def run_async(database: str, engine: Engine) -> Callable[[Callable[[AsyncSession], Any]], None]:
    """Runs a coroutine with a session for asyncio, in an event loop of its own."""

    def call(work: Callable[[AsyncSession], Any]) -> None:
        async def main() -> None:
            made = create_async_engine(postgres_url(database))
            try:
                async with pgbeat.finish(AsyncSession(made)) as session:
                    await work(session)
            finally:
                assert made.pool.checkedout() == 0  # type: ignore[attr-defined]
                await made.dispose()

        asyncio.run(main())

    return call


def test_an_asyncio_session_commits_or_rolls_back(run_async: Any, sql: Sql) -> None:
    async def insert(session: AsyncSession) -> None:
        await session.execute(INSERT)
        assert sql("SELECT n FROM written") == []

    async def fail(session: AsyncSession) -> None:
        await session.execute(INSERT)
        raise ValueError("no")

    run_async(insert)
    with pytest.raises(ValueError, match="no"):
        run_async(fail)
    assert sql("SELECT n FROM written") == [(1,)]


def test_the_block_of_an_asyncio_session_must_not_commit(run_async: Any) -> None:
    async def commit(session: AsyncSession) -> None:
        await session.execute(INSERT)
        await session.commit()

    with pytest.raises(CannotFinish):
        run_async(commit)


@pytest.mark.anyio
async def test_other_asyncio_drivers_are_refused(database: str) -> None:
    url = postgres_url(database).set(drivername="postgresql+asyncpg")
    made = create_async_engine(url)
    with pytest.raises(CannotFinish, match="asyncpg"):
        async with pgbeat.finish(made.connect()):
            raise AssertionError("the block ran")
    await made.dispose()
