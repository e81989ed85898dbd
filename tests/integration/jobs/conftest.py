"""Fixtures of the tests of jobs."""

from collections.abc import Callable, Iterator

import pytest
from celery import Celery

from tests.support.jobs import Desk, desks


@pytest.fixture
def make_desk(database: str, app: Celery) -> Iterator[Callable[[], Desk]]:
    """Makes desks that control jobs of the app, each with its own session."""
    with desks(database, app) as make:
        yield make
