"""Fixtures of the console's tests: browsers without scripts, and rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.command_line import Sql
from tests.support.rows import make_job, make_schedule
from tests.support.web import Web


@pytest.fixture
def page(web: Web) -> Any:
    """Browses as an administrator."""
    return web.browser(web.token("root", "admin"))


@pytest.fixture
def viewer(web: Web) -> Any:
    """Browses as vera, a viewer."""
    return web.browser(web.token("vera", "viewer"))


@pytest.fixture
def user(web: Web) -> Any:
    """Browses as alice, a user."""
    return web.browser(web.token("alice"))


@pytest.fixture
def schedule(sql: Sql) -> Callable[..., int]:
    """Adds a schedule of every six hours, unless told otherwise."""
    return partial(make_schedule, sql, cron="0 */6 * * *")


@pytest.fixture
def job(sql: Sql) -> Callable[..., str]:
    """Makes a job that is completed, unless told otherwise."""
    return partial(
        make_job,
        sql,
        state="completed",
        task="tests.add",
        created_by="user:root",
        job_source="user_api",
        started_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T00:00:01Z",
    )
