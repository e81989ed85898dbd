"""Fixtures of the console's tests: browsers without scripts."""

from typing import Any

import pytest

from tests.support.web import Web


@pytest.fixture
def page(web: Web) -> Any:
    """Browses as an administrator."""
    return web.browser(web.token("root", "admin"))


@pytest.fixture
def user(web: Web) -> Any:
    """Browses as alice, a user."""
    return web.browser(web.token("alice"))
