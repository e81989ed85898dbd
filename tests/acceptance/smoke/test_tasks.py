"""Tasks with a Postgres broker and results in Postgres."""

import pytest
from celery import chord
from celery.exceptions import TaskRevokedError
from pytest_celery import RESULT_TIMEOUT, CeleryTestSetup

from tests.acceptance.smoke.tasks import add, fail_twice, hold, total
from tests.support.processes import until


def test_task(celery_setup: CeleryTestSetup) -> None:
    assert add.s(2, 3).delay().get(timeout=RESULT_TIMEOUT) == 5


@pytest.mark.slow
def test_retry(celery_setup: CeleryTestSetup) -> None:
    assert fail_twice.s().delay().get(timeout=RESULT_TIMEOUT) == 2


@pytest.mark.slow
def test_chord(celery_setup: CeleryTestSetup) -> None:
    sums = chord([add.s(n, n) for n in range(10)], total.s()).delay()
    assert sums.get(timeout=RESULT_TIMEOUT) == 90


@pytest.mark.slow
def test_a_running_task_is_revoked(celery_setup: CeleryTestSetup) -> None:
    held = hold.s().delay()
    until(lambda: held.state == "HELD", what="the task runs")
    held.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        held.get(timeout=RESULT_TIMEOUT)
    assert add.s(2, 3).delay().get(timeout=RESULT_TIMEOUT) == 5  # by the worker, which lives on
