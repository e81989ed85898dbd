"""Fixtures of the tests of jobs, among them their app."""

from collections.abc import Callable, Iterator

import pytest
from celery import Celery

from tests.support.command_line import Sql
from tests.support.jobs import JobControl, JobRunner, job_controls
from tests.support.jobs import app as app


@pytest.fixture
def make_job_control(database: str, app: Celery) -> Iterator[Callable[[], JobControl]]:
    """Makes what controls jobs of the app, each with its own session."""
    with job_controls(database, app) as make:
        yield make


@pytest.fixture
def runner(job_control: JobControl, sql: Sql) -> JobRunner:
    """Runs jobs as workers do, in this process."""
    return JobRunner(job_control, sql)
