"""Lanes with real beats and real workers: never more at once than the limit, in order, all done."""

import os
import signal
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from celery import Celery

from pgbeat import submit
from tests.support.apps.dying import STEPS
from tests.support.jobs import opened_app
from tests.support.processes import Process, until
from tests.support.rows import make_lane
from tests.support.transport_workers import Entry, TransportWorkers


@pytest.fixture
def client(database: str) -> Iterator[Celery]:
    """An app with the tasks' names, that submits jobs."""
    with opened_app(database, dict.fromkeys(("transport.work", "transport.hold"))) as app:
        yield app


def begin(
    transport_workers: TransportWorkers, workers: int, concurrency: int = 4, beats: int = 1
) -> list[Process]:
    """Starts workers, and beats; waits until they are ready. The workers."""
    started = [transport_workers.begin("-c", str(concurrency)) for _ in range(workers)]
    leading = [transport_workers.beat(app="tests.support.apps.journal") for _ in range(beats)]
    transport_workers.await_ready(*started)
    until(lambda: any("This beat leads" in each.output for each in leading), 60, "a beat leads")
    return started


def fill(client: Celery, count: int, seconds: float, **policy: Any) -> list[str]:
    """Submits jobs that take so long; their ids."""
    return [
        str(submit("transport.work", seconds, lane="l", app=client, **policy).id)
        for _ in range(count)
    ]


def peak(transport_workers: TransportWorkers) -> int:
    """The most that ran at once, by what the tasks wrote themselves. One that never said that it
    ended ran until it began again.
    """
    lines: list[Entry] = sorted(
        transport_workers.journal("started") + transport_workers.journal("ended"),
        key=lambda entry: entry.at,
    )
    running: set[str] = set()
    most = 0
    for entry in lines:
        if entry.phase == "started":
            running.add(entry.id)
        else:
            running.discard(entry.id)
        most = max(most, len(running))
    return most


def done(transport_workers: TransportWorkers) -> int:
    return int(
        transport_workers.sql("SELECT count(*) FROM pgbeat.jobs WHERE state = 'completed'")[0][0]
    )


@pytest.mark.slow
def test_two_beats_and_three_workers_never_exceed_the_limit(
    transport_workers: TransportWorkers, client: Celery
) -> None:
    """The issue's: under load, and with workers and the leading beat killed in the middle of it."""
    make_lane(transport_workers.sql, limit=2)
    transport_workers.sql(
        "INSERT INTO pgbeat.schedules (name, task, every, next_run, args, job_policy) "
        "SELECT 's' || n, 'transport.work', '1h', now() + n % 10 * interval '1 second', "
        "'[0.03]', '{\"lane\": \"l\"}' FROM generate_series(1, 200) n"
    )
    workers = begin(transport_workers, 3, beats=2)
    fill(client, 150, 0.03)
    until(lambda: done(transport_workers) >= 100, 90, "a hundred are done")
    os.killpg(workers[0].pid, signal.SIGKILL)
    until(lambda: done(transport_workers) >= 200, 90, "two hundred are done")
    beats = [each for each in transport_workers.started if " beat " in each.command]
    next(each for each in beats if "This beat leads" in each.output).kill_group()
    until(lambda: done(transport_workers) == 350, 120, "all are done")
    assert peak(transport_workers) == 2
    again = [
        key
        for key, group in groupby(sorted(e.id for e in transport_workers.journal()))
        if len(list(group)) > 1
    ]
    assert len(again) <= 2  # what the killed worker had


@pytest.mark.slow
def test_the_slots_of_a_worker_that_is_killed_come_back(
    transport_workers: TransportWorkers, client: Celery
) -> None:
    make_lane(transport_workers.sql, limit=2)
    ids = [
        str(submit("transport.hold", "never", lane="l", app=client, max_attempts=1).id)
        for _ in range(2)
    ]
    [killed] = begin(transport_workers, 1)
    transport_workers.await_started(ids)
    waiting = fill(client, 4, 0.01)
    transport_workers.start("-c", "2")
    os.killpg(killed.pid, signal.SIGKILL)
    until(lambda: done(transport_workers) == 4, 60, "the others have the slots")
    states = dict(transport_workers.sql("SELECT CAST(id AS text), state FROM pgbeat.jobs"))
    assert [states[each] for each in ids] == ["failed", "failed"]
    assert all(states[each] == "completed" for each in waiting)


@pytest.mark.slow
def test_a_lane_of_limit_one_keeps_its_order_with_many_workers(
    transport_workers: TransportWorkers, client: Celery
) -> None:
    make_lane(transport_workers.sql, limit=1)
    begin(transport_workers, 3, concurrency=2)
    ids = fill(client, 100, 0.0)
    until(lambda: done(transport_workers) == 100, 90, "all are done")
    assert [entry.id for entry in transport_workers.journal()] == ids
    assert peak(transport_workers) == 1


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_at_each_step_of_an_end(
    transport_workers: TransportWorkers, client: Celery, step: str
) -> None:
    """In a lane of limit 1, whose next job gets the slot in the transaction that ends one."""
    make_lane(transport_workers.sql, limit=1)
    ids = fill(client, 60, 0.0, max_attempts=1)
    killed = transport_workers.begin("-c", "2", app="tests.support.apps.dying", TESTS_DIE_AT=step)
    assert killed.wait(90) == -signal.SIGKILL
    assert done(transport_workers) < 60
    begin(transport_workers, 1, concurrency=2)
    unfinished = "SELECT count(*) FROM pgbeat.unfinished_jobs"
    until(lambda: transport_workers.sql(unfinished) == [(0,)], 60, "all have ended")
    assert done(transport_workers) >= 59  # the one whose end was not recorded may count as lost
    started = [entry.id for entry in transport_workers.journal("started")]
    assert list(dict.fromkeys(started)) == ids
    assert len(started) <= 61
    assert peak(transport_workers) == 1
