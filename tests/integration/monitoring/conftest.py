"""Fixtures of the tests of monitoring."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection

from pgbeat.config import Settings, postgres_url
from pgbeat.monitoring.metrics import counters
from tests.support.databases import rows_of
from tests.support.rollups import Rollups
from tests.support.rows import Sql
from tests.support.scrapes import Scrape, scraped


@pytest.fixture
def settings(database: str) -> Settings:
    """Settings of the test's database."""
    return Settings(url=postgres_url(database))


@pytest.fixture
def rollups(connection: Connection, settings: Settings, sql: Sql) -> Rollups:
    """The rollups of the test's database."""
    return Rollups(connection, settings, sql)


@pytest.fixture
def now(rollups: Rollups) -> datetime:
    """The beginning of this minute."""
    return rollups.minute


@pytest.fixture
def scrape(connection: Connection, settings: Settings) -> Scrape:
    """Scrapes the test's database."""
    return lambda: scraped(connection, settings)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts rows that were written just now."""
    monkeypatch.setattr(counters, "LAG", 0.0)


@pytest.fixture
def sql(database: str) -> Iterator[Sql]:
    """Runs a statement, also with named parameters; its rows."""
    with psycopg.connect(database, autocommit=True) as connection:

        def run(statement: str, *given: Any) -> list[tuple[Any, ...]]:
            named = given[0] if given and isinstance(given[0], dict) else given or None
            cursor = connection.execute(statement.encode(), named)
            return rows_of(cursor)

        yield run
