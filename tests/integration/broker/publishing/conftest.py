"""Fixtures of the tests of publishing: a caller's engine."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from tests.support.databases import sqlalchemy_url


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """Opens a caller's connections to the test's database."""
    engine = create_engine(sqlalchemy_url(database), poolclass=NullPool)
    yield engine
    engine.dispose()
