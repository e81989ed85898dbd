"""Fixtures for pytest: a scheduler on a clock that the test sets, on a database for each test.

Put `pytest_plugins = ["pgbeat.testing.fixtures"]` into the root `conftest.py`. The server is the
one of `PGBEAT_TEST_URL` (a role that may make databases), or an embedded one (`pip install
'pgbeat[embedded]'`).
"""

import os
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Protocol

import pytest
from celery import Celery

from pgbeat.testing import apps
from pgbeat.testing.databases import Databases, TemporaryServer
from pgbeat.testing.scheduler import Scheduler


class MakeScheduler(Protocol):
    """Makes schedulers, which end with the test."""

    def __call__(self, app: Celery, now: datetime | None = None, **kwargs: Any) -> Scheduler:
        """Makes a scheduler for the app, whose clock says `now` (aware)."""


@pytest.fixture(scope="session")
def pgbeat_server() -> Iterator[str]:
    """Yields the DSN of a Postgres server for the run."""
    url = os.environ.get("PGBEAT_TEST_URL")
    if url:
        yield url
        return
    server = TemporaryServer()
    yield server.dsn
    server.remove()


@pytest.fixture(scope="session")
def pgbeat_databases(pgbeat_server: str) -> Iterator[Databases]:
    """Yields the pool that lends databases."""
    databases = Databases(pgbeat_server)
    yield databases
    databases.close()


@pytest.fixture
def pgbeat_database(pgbeat_databases: Databases) -> Iterator[str]:
    """Yields the DSN of a database for one test: pgbeat's schema, the broker's tables, no rows."""
    with pgbeat_databases.lent() as dsn:
        yield dsn


@pytest.fixture
def pgbeat_scheduler(
    pgbeat_database: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeScheduler]:
    """Yields a factory of schedulers on the test's database, which becomes the app's broker.

    It also keeps the app's results, if its `result_backend` is pgbeat's.
    """
    schedulers: list[Scheduler] = []
    url = f"pgbeat+{pgbeat_database}"

    def make(app: Celery, now: datetime | None = None, **kwargs: Any) -> Scheduler:
        monkeypatch.setenv("PGBEAT_URL", pgbeat_database)
        for name in ("broker_url", "broker_write_url"):
            monkeypatch.setitem(app.conf, name, url)
        if str(app.conf.result_backend).startswith("pgbeat+"):
            monkeypatch.setitem(app.conf, "result_backend", url)
            apps.forget_backend(app)
        schedulers.append(Scheduler(app, now, **kwargs))
        return schedulers[-1]

    yield make
    for scheduler in schedulers:
        scheduler.close()
        apps.disconnect(scheduler.app)
        apps.forget_backend(scheduler.app)
