"""Fixtures of the tests of beat: schedulers on a clock that the test sets."""

from datetime import datetime

import pytest
from celery import Celery

from pgbeat.testing import Scheduler
from pgbeat.testing.fixtures import MakeScheduler
from tests.support.schedulers import START, At


@pytest.fixture
def at(app: Celery, pgbeat_scheduler: MakeScheduler) -> At:
    """Makes schedulers at a time; `START` unless told otherwise."""

    def make(now: datetime = START) -> Scheduler:
        return pgbeat_scheduler(app, now)

    return make
