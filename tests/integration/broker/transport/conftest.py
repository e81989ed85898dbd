"""Fixtures of the transport's tests: a connection of kombu's."""

from typing import Any

import pytest

from tests.support.kombu_connections import Connect


@pytest.fixture
def connection(connect: Connect) -> Any:
    """Connects by pgbeat's transport."""
    return connect()
