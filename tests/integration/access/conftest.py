"""Fixtures of the tests of who may do what."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from pgbeat.access.roles import Profile
from tests.support import roles
from tests.support.databases import Role


@pytest.fixture
def with_profile(database: str) -> Iterator[Callable[[Profile], Role]]:
    with ExitStack() as stack:
        yield lambda profile: stack.enter_context(roles.with_profile(database, profile))
