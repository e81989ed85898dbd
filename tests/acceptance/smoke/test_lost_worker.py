"""A task survives the end of its worker."""

import pytest
from pytest_celery import RESULT_TIMEOUT, CeleryTestSetup, CeleryTestWorker, CeleryWorkerCluster

from tests.acceptance.smoke.tasks import hold
from tests.support.processes import until


@pytest.fixture
def celery_worker_cluster(
    celery_worker: CeleryTestWorker, celery_other_worker: CeleryTestWorker
) -> CeleryWorkerCluster:
    return CeleryWorkerCluster(celery_worker, celery_other_worker)


@pytest.mark.slow
def test_a_killed_workers_task_is_run_by_another(celery_setup: CeleryTestSetup) -> None:
    held = hold.s().delay()
    until(lambda: held.state == "HELD", what="the task runs")
    workers = {worker.hostname(): worker for worker in celery_setup.worker_cluster}
    first = held.info["by"]
    workers.pop(first).kill()
    [other] = workers
    assert held.get(timeout=RESULT_TIMEOUT) == [first, other]
