"""Fixtures of the tests of monitoring."""

from datetime import datetime

import pytest
from sqlalchemy import Connection

from pgbeat.config import Settings, postgres_url
from pgbeat.monitoring.metrics import counters
from tests.support.rollups import Rollups
from tests.support.rows import Sql
from tests.support.scrapes import Scrape, scraped


@pytest.fixture
def settings(database: str) -> Settings:
    return Settings(url=postgres_url(database))


@pytest.fixture
def rollups(connection: Connection, settings: Settings, sql: Sql) -> Rollups:
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
