"""Workers while Postgres is down, as broker and as result backend."""

import pytest
from pytest_celery import RESULT_TIMEOUT, CeleryTestSetup, CeleryTestWorker

from tests.acceptance.smoke.tasks import add


@pytest.mark.slow
def test_the_broker_is_restarted(celery_setup: CeleryTestSetup) -> None:
    assert add.s(2, 3).delay().get(timeout=RESULT_TIMEOUT) == 5
    celery_setup.broker.restart()
    assert add.s(3, 4).delay().get(timeout=RESULT_TIMEOUT) == 7
    assert_lives_on(celery_setup.worker)


@pytest.mark.slow
def test_a_message_survives_its_broker(celery_setup: CeleryTestSetup) -> None:
    later = add.s(2, 3).apply_async(countdown=1)
    celery_setup.broker.kill()
    assert celery_setup.broker.container.status == "exited"
    celery_setup.broker.restart()
    assert later.get(timeout=RESULT_TIMEOUT) == 5
    assert_lives_on(celery_setup.worker)


@pytest.mark.slow
def test_the_result_backend_is_restarted(celery_setup: CeleryTestSetup) -> None:
    celery_setup.backend.restart()
    assert add.s(2, 3).delay().get(timeout=RESULT_TIMEOUT) == 5
    assert_lives_on(celery_setup.worker)


def assert_lives_on(worker: CeleryTestWorker) -> None:
    """Checks that the worker was started once and runs."""
    assert worker.container.status == "running"
    assert worker.logs().count(worker.container.ready_prompt) == 1
