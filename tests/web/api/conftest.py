"""Fixtures of the API's tests: clients."""

from typing import Any

import pytest

from tests.support.web import Web


@pytest.fixture
def admin(web: Web) -> Any:
    """Asks as an administrator."""
    return web.admin


@pytest.fixture
def alice(web: Web) -> Any:
    """Asks as a user."""
    return web.user
