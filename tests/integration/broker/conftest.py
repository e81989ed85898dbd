"""Fixtures of the broker's tests: a session of its domain."""

import pytest
from sqlalchemy import Connection

from tests.support.broker_sessions import Sessions


@pytest.fixture
def connection(opened: Sessions) -> Connection:
    """Opens a session on the broker's tables."""
    return opened.open()
