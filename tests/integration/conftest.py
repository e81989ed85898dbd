"""Fixtures of the tests on a real Postgres: a connection, a caller's engine, and lanes."""

from collections.abc import Iterator

import pytest
from celery import Celery
from sqlalchemy import Connection, Engine, NullPool, create_engine

from tests.support.databases import connected, sqlalchemy_url
from tests.support.lanes import Lanes
from tests.support.rows import Sql
from tests.support.tcp_proxy import Proxy


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """Opens a connection in autocommit mode."""
    with connected(database) as connection:
        yield connection


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """Opens a caller's connections to the test's database."""
    engine = create_engine(sqlalchemy_url(database), poolclass=NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    proxy = Proxy(database)
    yield proxy
    proxy.close()


@pytest.fixture
def lane_jobs(database: str, app: Celery, sql: Sql, connection: Connection) -> Lanes:
    return Lanes(database, app, sql, connection)
