"""How executions came out: of a job with its chain, of a schedule, of all."""

from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from pgbeat.errors import NotFound
from pgbeat.monitoring import statistics
from tests.support.rows import Sql, ago, make_execution, make_job, make_schedule

schedule = partial(make_schedule, task="t")


def job(sql: Sql, state: str = "completed", *, minutes: float = 60, **values: Any) -> str:
    """Makes a job, so many minutes ago; returns its id."""
    at = ago(sql, f"{minutes} minutes")
    times = {"created_at": at, "started_at": "now", "finished_at": "now"}
    made = make_job(sql, state, task="t", **times, **values)
    if "retry_of" in values:
        sql("UPDATE pgbeat.jobs SET retried_by = %s WHERE id = %s", made, values["retry_of"])
    return made


def execution(
    sql: Sql, job_id: str, state: str = "completed", *, minutes: float = 50, **values: Any
) -> None:
    """Makes an execution that began so many minutes ago."""
    at = ago(sql, f"{minutes} minutes")
    [(key, number)] = sql(
        "SELECT schedule_id, 1 + (SELECT count(*) FROM pgbeat.executions WHERE job_id = j.id) "
        "FROM pgbeat.jobs j WHERE id = %s",
        job_id,
    )
    end = None if state == "running" else at
    times = {"started_at": at, "finished_at": end}
    make_execution(sql, job_id, state, number=number, schedule_id=key, **times, **values)


def test_of_a_schedule(connection: Connection, sql: Sql) -> None:
    ((due,),) = sql("SELECT now() + interval '1 hour'")
    key, other = schedule(sql, next_run=due), schedule(sql, "other")
    for ms in range(1, 101):
        execution(sql, job(sql, schedule_id=key), duration_ms=ms, minutes=100 - ms / 2)
    for state in ("failed", "failed", "cancelled", "skipped", "running"):
        execution(sql, job(sql, schedule_id=key), state, duration_ms=1e6, minutes=200)
    execution(sql, job(sql, schedule_id=key), "failed", lost=True, minutes=1)
    execution(sql, job(sql, schedule_id=other), "failed")
    found = statistics.of_schedule(connection, key)
    ((last,),) = sql("SELECT max(started_at) FROM pgbeat.executions WHERE schedule_id = %s", key)
    assert found == statistics.ExecutionStatistics(
        total=106,
        running=1,
        completed=100,
        failed=3,
        cancelled=1,
        skipped=1,
        lost=1,
        average_ms=50.5,
        p95_ms=95.05,
        last_at=last,
        last_state="failed",
        next_at=due,
        is_whole=True,
    )
    # Skips, and what was cancelled, are aside.
    assert found.success_rate == pytest.approx(100 / 103)


def test_of_a_schedule_that_has_none_and_is_paused(connection: Connection, sql: Sql) -> None:
    ((now,),) = sql("SELECT now()")
    found = statistics.of_schedule(connection, schedule(sql, next_run=now, paused_at=now))
    assert found.success_rate is None
    assert found == (0, 0, 0, 0, 0, 0, 0, None, None, None, None, None, True)


def test_only_the_newest_are_looked_at(
    connection: Connection, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "NEWEST", 3)
    key = schedule(sql)
    for minutes, state in ((50, "failed"), (40, "failed"), (3, "completed"), (2, "completed")):
        made = job(sql, schedule_id=key, minutes=minutes)
        execution(sql, made, state, duration_ms=minutes, minutes=minutes)
    for found in (
        statistics.of_schedule(connection, key),
        statistics.of_all(connection, "default").runs,
    ):
        assert (found.total, found.completed, found.failed) == (3, 2, 1)
        assert not found.is_whole
        assert found.average_ms == 2.5


def test_of_a_job_whichever_of_its_chain_was_asked_for(connection: Connection, sql: Sql) -> None:
    ((due,),) = sql("SELECT now() + interval '5 minutes'")
    first = job(sql, "failed")
    second = job(sql, "failed", retry_of=first)
    third = job(sql, "scheduled", retry_of=second, run_at=due)
    job(sql)
    execution(sql, first, "failed", minutes=30)
    execution(sql, second, "failed", minutes=20)
    execution(sql, second, "failed", minutes=10, lost=True)
    for asked in (first, second, third):
        found = statistics.of_job(connection, asked)
        assert (found.total, found.failed, found.lost) == (3, 3, 1)
        assert found.next_at == due
        assert found.success_rate == 0
        assert found.average_ms is None


def test_a_duration_that_nobody_told_is_from_its_times(connection: Connection, sql: Sql) -> None:
    made = job(sql)
    execution(sql, made)
    sql("UPDATE pgbeat.executions SET finished_at = started_at + interval '2 s'")
    assert statistics.of_job(connection, made).average_ms == 2000


def test_a_job_that_is_not_there(connection: Connection, sql: Sql) -> None:
    with pytest.raises(NotFound):
        statistics.of_job(connection, str(uuid4()))
    elsewhere = job(sql, namespace="other")
    with pytest.raises(NotFound):
        statistics.of_job(connection, elsewhere, namespace="default")


def test_of_all(connection: Connection, sql: Sql) -> None:
    ((soon, later),) = sql("SELECT now() + interval '1 min', now() + interval '1 hour'")
    schedule(sql, next_run=later)
    schedule(sql, "b", next_run=soon)
    schedule(sql, "c", next_run=soon, namespace="other")
    for state in ("pending", "pending", "scheduled", "paused"):
        job(sql, state)
    for state in ("completed", "completed", "failed", "running"):
        execution(sql, job(sql, state), state, duration_ms=100)
    execution(sql, job(sql, namespace="other"), duration_ms=9999)
    sql("INSERT INTO pgbeat.counters VALUES ('', 'stale_claims_released', '', '', 7)")
    found = statistics.of_all(connection, "default")
    assert found.jobs == {
        "pending": 2,
        "scheduled": 1,
        "running": 1,
        "paused": 1,
        "completed": 2,
        "failed": 1,
        "cancelled": 0,
        "skipped": 0,
    }
    assert (found.runs.total, found.runs.running, found.runs.completed) == (4, 1, 2)
    assert found.runs.success_rate == pytest.approx(2 / 3)
    assert found.runs.p95_ms == 100
    assert found.runs.next_at == soon
    assert found.counters == {"stale_claims_released": 7}


def test_jobs_are_counted_no_further_than_it_takes(
    connection: Connection, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MOST", 2)
    for _ in range(3):
        job(sql)
    assert statistics.of_all(connection, "default").jobs["completed"] == 2
