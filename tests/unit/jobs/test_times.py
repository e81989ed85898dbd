"""When a submitted job may run."""

from datetime import UTC, datetime, timedelta

from pgbeat.errors import InvalidJob
from pgbeat.jobs.preparing.times import run_at_of
from pgbeat.storable import LATEST
from tests.support.problems import raises

NOW = datetime(2030, 1, 7, 12, tzinfo=UTC)


def test_a_job_waits_until_the_year_9999_at_most() -> None:
    assert run_at_of(LATEST, None, NOW) == run_at_of(None, LATEST - NOW, NOW) == LATEST
    for run_at in (LATEST + timedelta(seconds=1), datetime.max.replace(tzinfo=UTC)):
        with raises(InvalidJob, ("run_at", "out_of_range")):
            run_at_of(run_at, None, NOW)
    for countdown in (LATEST - NOW + timedelta(seconds=1), timedelta.max):
        with raises(InvalidJob, ("countdown", "out_of_range")):
            run_at_of(None, countdown, NOW)
