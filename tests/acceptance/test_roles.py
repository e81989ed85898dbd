"""Beats and workers do what they do when their roles have just the rights of their profile.

These are tests of other modules, run once more. With `PGBEAT_TEST_ROLES=1` all tests run so.
"""

import pytest

from tests.acceptance.beat.test_beat import test_celerys_own_entries
from tests.acceptance.broker.test_workers import test_inspect_and_control
from tests.acceptance.jobs.test_snoozes import (
    site,
    test_it_gives_its_slot_back_and_can_be_cancelled,
)
from tests.acceptance.results.conftest import client, finishers, workers
from tests.acceptance.results.test_chords import test_what_celery_composes
from tests.acceptance.results.test_finish import test_a_job_ends_with_its_execution
from tests.acceptance.worker.test_executions import (
    test_progress_and_what_the_task_reports,
    test_revoked_expired_and_unknown_jobs_end,
)
from tests.acceptance.worker.test_worker_control import test_a_worker_reports_and_obeys
from tests.support import roles

__all__ = [
    "client",
    "finishers",
    "site",
    "test_a_job_ends_with_its_execution",
    "test_a_worker_reports_and_obeys",
    "test_celerys_own_entries",
    "test_inspect_and_control",
    "test_it_gives_its_slot_back_and_can_be_cancelled",
    "test_progress_and_what_the_task_reports",
    "test_revoked_expired_and_unknown_jobs_end",
    "test_what_celery_composes",
    "workers",
]


@pytest.fixture(autouse=True)
def as_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has workers and beats connect as roles of their own."""
    monkeypatch.setattr(roles, "ARE_USED", True)
