"""Rows that can't be read, or not be computed with, as only SQL writes them: each fails alone.

Beat launches what else is due, in the same passes.
"""

from uuid import UUID

import pytest
from celery import Celery

from tests.support.rows import Sql, make_job, make_lane, make_schedule
from tests.support.schedulers import Beat


def launches(beat: Beat, app: Celery, sql: Sql) -> bool:
    """Returns whether a schedule that is due is launched by the first of a few ticks."""
    app.conf.pgbeat_loop_interval = 0.1
    make_schedule(sql, "other", due="-1 second", in_turn=True)
    scheduler = beat()
    for _ in range(5):
        scheduler.tick()
    return sql("SELECT outcome FROM pgbeat.ticks WHERE schedule = 'other'") == [("launched",)]


@pytest.mark.parametrize("resources", ['{"tokens": null}', '{"tokens": "1200 t"}'])
def test_an_amount_that_is_none(beat: Beat, app: Celery, sql: Sql, resources: str) -> None:
    make_lane(sql, "llm", None, rate_limit=10, rate_period="1 minute", rate_unit="tokens")
    jobs = [make_job(sql, task="tests.add", lane="llm", resources=resources) for _ in range(2)]
    assert launches(beat, app, sql)
    sent = sql("SELECT id FROM pgbeat.jobs WHERE lane = 'llm' AND dispatched_at IS NOT NULL")
    assert {row[0] for row in sent} == set(map(UUID, jobs))
