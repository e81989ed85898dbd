"""Rates that change while jobs wait, that hold for a time, and that count resources."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

import pgbeat
from pgbeat.database import connections
from pgbeat.errors import InvalidJob, NotFound
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.running import executions
from pgbeat.jobs.running.executions import ExecutionRecord
from pgbeat.jobs.states import due
from pgbeat.jobs.verbs import lane_control
from pgbeat.jobs.verbs.lane_control import rate_changes
from tests.support.lanes import Lanes
from tests.support.problems import raises

MINUTE: dict[str, Any] = {"rate_limit": 10, "rate_period": timedelta(minutes=1)}
TOKENS = MINUTE | {"rate_unit": "tokens"}


def set_rate(lane_jobs: Lanes, rate: str | None, for_: Any = None) -> None:
    """Changes the rate of the lane, without dispatching it."""
    lane_jobs.do(lane_control.save, "l", rate_changes(rate, for_))


def pass_time(lane_jobs: Lanes, seconds: float) -> None:
    """Moves what has happened, and what will, by so much into the past."""
    lane_jobs.sql(
        "UPDATE pgbeat.jobs SET dispatched_at = dispatched_at - %s * interval '1 second'", seconds
    )
    lane_jobs.sql(
        "UPDATE pgbeat.lanes SET temporary_until = temporary_until - %s * interval '1 second'",
        seconds,
    )


def test_a_new_rate_holds_at_once_for_those_that_wait(lane_jobs: Lanes, app: Celery) -> None:
    lane_jobs.lane(rate_limit=1, rate_period=timedelta(hours=1))
    lane_jobs.add(5)
    assert len(lane_jobs.dispatch()) == 1
    assert pgbeat.lanes.set_rate("l", "3/hour", app=app).rate == "3/hour"
    assert len(lane_jobs.seated()) == 3  # it has dispatched the lane itself
    pgbeat.lanes.set_rate("l", None, app=app)
    assert len(lane_jobs.seated()) == 5
    rows = lane_jobs.sql("SELECT verb, subject, origin FROM pgbeat.audit ORDER BY id")
    assert rows == [("update", "l", "program")] * 2


def test_a_temporary_rate_ends_by_itself(lane_jobs: Lanes) -> None:
    lane_jobs.lane(**MINUTE)
    lane_jobs.add(30)
    set_rate(lane_jobs, "1/m", "10 minutes")
    assert len(lane_jobs.dispatch()) == 1
    assert lane_jobs.retry_in() == pytest.approx(60, abs=5)
    pass_time(lane_jobs, 570)
    assert len(lane_jobs.dispatch()) == 1
    assert lane_jobs.retry_in() == pytest.approx(30, abs=5)  # sooner than the rate would admit one
    pass_time(lane_jobs, 31)
    assert len(lane_jobs.dispatch()) == 9


def test_a_lane_without_a_rate_can_have_one_for_a_time(lane_jobs: Lanes) -> None:
    lane_jobs.lane(max_running=1)
    first, second = lane_jobs.add(2)
    set_rate(lane_jobs, "1/hour", 600)
    assert lane_jobs.dispatch() == [first]
    lane_jobs.end(first)
    assert lane_jobs.sql("SELECT * FROM pgbeat.take_next('default', 'l', 5)")[0][0] is None
    assert lane_jobs.dispatch() == []
    pass_time(lane_jobs, 601)
    assert lane_jobs.dispatch() == [second]


def test_a_new_rate_replaces_a_temporary_one(lane_jobs: Lanes) -> None:
    lane_jobs.lane(**MINUTE)
    set_rate(lane_jobs, "1/m", "10 minutes")
    set_rate(lane_jobs, "5/m")
    lane = lanes.get(lane_jobs.connection, "l", namespace="default")
    assert (lane.rate, lane.temporary_rate) == ("5/minute", None)


def test_a_job_takes_as_much_of_the_rate_as_it_needs(lane_jobs: Lanes) -> None:
    lane_jobs.lane(**TOKENS)
    heavy = lane_jobs.add(2, resources={"tokens": 4.5})
    small = lane_jobs.add(2)  # 1 each
    [late] = lane_jobs.add(1, resources={"tokens": 3})
    assert lane_jobs.dispatch() == [*heavy, small[0]]
    assert lane_jobs.retry_in() == pytest.approx(60, abs=5)
    assert late not in lane_jobs.seated()


def test_a_cheap_job_does_not_pass_one_that_must_wait(lane_jobs: Lanes) -> None:
    lane_jobs.lane(**TOKENS)
    [first] = lane_jobs.add(1, resources={"tokens": 8})
    lane_jobs.add(1, resources={"tokens": 5})
    lane_jobs.add(1, resources={"tokens": 1})
    assert lane_jobs.dispatch() == [first]


def test_a_job_that_costs_more_than_the_rate_goes_alone(lane_jobs: Lanes) -> None:
    lane_jobs.lane(**TOKENS)
    [small] = lane_jobs.add(1, resources={"tokens": 2})
    [giant] = lane_jobs.add(1, resources={"tokens": 50})
    assert lane_jobs.dispatch() == [small]
    assert lane_jobs.retry_in() == pytest.approx(60, abs=5)
    pass_time(lane_jobs, 61)
    assert lane_jobs.dispatch() == [giant]


def test_it_waits_until_enough_has_left_the_period(lane_jobs: Lanes) -> None:
    lane_jobs.lane(**TOKENS)
    for age, cost in ((50, 4), (30, 3), (10, 3)):
        lane_jobs.add(1, resources={"tokens": cost})
        lane_jobs.dispatch()
        lane_jobs.sql(
            "UPDATE pgbeat.jobs SET dispatched_at = now() - %s * interval '1 second' "
            "WHERE resources = jsonb_build_object('tokens', %s::int) "
            "AND dispatched_at > now() - interval '5 seconds'",
            age,
            cost,
        )
    lane_jobs.add(1, resources={"tokens": 6})
    assert lane_jobs.retry_in() == pytest.approx(30, abs=3)  # 4 + 3 of 10 must leave


@pytest.mark.parametrize("amount", [None, "1200 t", True, [2], {}, -5])
def test_what_is_no_amount_counts_as_1(lane_jobs: Lanes, amount: Any) -> None:
    """By the rate, when slots are given and when they are counted, and by the policy."""
    lane_jobs.lane(**TOKENS)
    ids = lane_jobs.add(12, resources={"tokens": amount})
    assert lane_jobs.dispatch() == ids[:10]
    assert lane_jobs.retry_in() == pytest.approx(60, abs=5)
    lane_jobs.lane("other", policy="resources", options='{"tokens": 2}')
    others = lane_jobs.add(3, "other", resources={"tokens": amount})
    assert lane_jobs.dispatch("other") == others[:2]
    assert lane_jobs.dispatch("other") == []


@pytest.mark.parametrize(
    "columns", [MINUTE, TOKENS, MINUTE | {"rate_key": "task"}], ids=["jobs", "tokens", "keys"]
)
def test_a_dispatch_that_is_infinitely_far(lane_jobs: Lanes, columns: dict[str, Any]) -> None:
    lane_jobs.lane(**columns | {"rate_limit": 1})
    lane_jobs.add(2)
    assert len(lane_jobs.dispatch()) == 1
    lane_jobs.sql(
        "UPDATE pgbeat.jobs SET dispatched_at = 'infinity' WHERE dispatched_at IS NOT NULL"
    )
    assert lane_jobs.retry_in() == 86_400


def test_each_key_has_its_own_part(lane_jobs: Lanes) -> None:
    lane_jobs.lane(**TOKENS, rate_key="created_by")
    mine = lane_jobs.add(2, resources={"tokens": 6}, created_by="user:a")
    other = lane_jobs.add(1, resources={"tokens": 6}, created_by="user:b")
    assert lane_jobs.dispatch() == [mine[0], *other]


def test_what_is_wrong_is_refused(lane_jobs: Lanes, app: Celery) -> None:
    lane_jobs.lane()
    for rate, for_, problem in (
        ("often", None, ("rate", "malformed")),
        (None, "1 minute", ("rate_for", "conflict")),
        ("1/m", "soon", ("rate_for", "malformed")),
        ("1/m", -1, ("rate_for", "out_of_range")),
    ):
        with raises(InvalidJob, problem):
            pgbeat.lanes.set_rate("l", rate, for_=for_, app=app)
    with raises(InvalidJob, ("rate_unit", "conflict")):
        lane_jobs.do(lane_control.save, "l", {"rate_unit": "tokens"})
    with pytest.raises(NotFound):
        pgbeat.lanes.set_rate("none", "1/m", app=app)


def snooze(lane_jobs: Lanes, job_id: str, began: float = 0.0) -> None:
    """Has a job that has a slot run for a moment, and snooze until now."""
    lane_jobs.sql("DELETE FROM kombu_message WHERE job_id = %s", job_id)
    run = ExecutionRecord(
        str(uuid4()),
        job_id,
        True,
        worker="w",
        began=began,
        ended=began,
        state="snoozed",
        job_state="scheduled",
        runs_in=0.0,
    )
    with connections.transaction(lane_jobs.connection):
        executions.record(lane_jobs.connection, [run])
        due.take(lane_jobs.connection, "default")


@pytest.mark.parametrize("rate", [MINUTE, MINUTE | {"rate_key": "task"}, TOKENS])
def test_a_job_that_snoozes_counts_each_time(lane_jobs: Lanes, rate: dict[str, Any]) -> None:
    """It has had a slot each time, and called what the rate protects."""
    lane_jobs.lane(**(rate | {"rate_limit": 3}))
    lane_jobs.add(2)
    started = 0
    for _ in range(4):
        for job_id in lane_jobs.dispatch():
            started += 1
            snooze(lane_jobs, job_id, began=0.5)
    assert started == 3
    assert lane_jobs.retry_in() == pytest.approx(60, abs=5)
    lane_jobs.sql("UPDATE pgbeat.executions SET started_at = started_at - interval '1 minute'")
    assert len(lane_jobs.dispatch()) == 2
