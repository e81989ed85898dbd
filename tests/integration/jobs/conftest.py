"""Fixtures of the tests of jobs, among them their app."""

from collections.abc import Callable, Iterator

import pytest
from celery import Celery

from tests.support.jobs import JobControl, job_controls
from tests.support.jobs import app as app


@pytest.fixture
def make_job_control(database: str, app: Celery) -> Iterator[Callable[[], JobControl]]:
    """Makes what controls jobs of the app, each with its own session."""
    with job_controls(database, app) as make:
        yield make
