"""Jobs that expire before a real worker takes them."""

import pytest

from tests.support.processes import until
from tests.support.recorded_workers import TrackedWorkers


@pytest.mark.slow
def test_a_worker_drops_a_job_that_has_expired(tracked_workers: TrackedWorkers) -> None:
    """By its task's `expires`, of which the job's options know nothing."""

    @tracked_workers.app.task(name="tests.soon", shared=False, expires=1)
    def soon() -> None: ...

    def wait_until_expired(job_id: str) -> None:
        old = "SELECT 1 FROM pgbeat.jobs WHERE created_at < now() - interval '1.5 s' AND id = %s"
        until(lambda: tracked_workers.sql(old, job_id))

    expired = tracked_workers.one("soon", max_attempts=3)
    wait_until_expired(expired)
    tracked_workers.start("-c", "1")
    [seen] = tracked_workers.ended(expired, seconds=50)
    assert (seen.job.state, seen.runs, seen.job.retried_by) == ("cancelled", [], None)
    assert str(seen.job.error).startswith("expired")
