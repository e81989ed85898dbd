"""Fixtures of the tests on a real Postgres: a connection, and lanes."""

from collections.abc import Iterator

import pytest
from celery import Celery
from sqlalchemy import Connection

from tests.support.databases import connected
from tests.support.lanes import Lanes
from tests.support.rows import Sql


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """Opens a connection in autocommit mode."""
    with connected(database) as connection:
        yield connection


@pytest.fixture
def lane_jobs(database: str, app: Celery, sql: Sql, connection: Connection) -> Lanes:
    """Makes lanes of the test's database."""
    return Lanes(database, app, sql, connection)
