"""Tasks that snooze, in real workers: jobs, canvas, and processes that are killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chord

import pgbeat
from pgbeat.database import connections
from pgbeat.jobs.explaining import explain
from pgbeat.jobs.rows import model as jobs
from tests.support.command_line import run_with
from tests.support.databases import connected
from tests.support.policy_workers import NARROW, PolicyWorkers, history
from tests.support.processes import until
from tests.support.rows import Sql

POLICIES: dict[str, dict[str, Any]] = {
    f"snoozing.{name}": NARROW for name in ("early", "late", "before", "after")
} | {"snoozing.finishing": {}, "policies.add": NARROW, "policies.total": NARROW}


def _late(name: str) -> None:
    """Stands for the workers' task, for `submit`."""


class Site(PolicyWorkers):
    """A beat, workers, and a client that knows the policies of their tasks by the setting."""

    app = "tests.support.apps.snoozing"
    policies = POLICIES

    def __init__(self, database: str, folder: Path) -> None:
        super().__init__(database, folder)
        self.client.task(_late, name="snoozing.late", shared=False)
        self.client.finalize()

    def times(self, name: str) -> list[float]:
        """Returns when the task with that name began or ended, in order."""
        lines = map(str.split, self.journal())
        return [float(at) for task, at, *_ in lines if task == name]


@pytest.fixture
def site(database: str, sql: Sql, tmp_path: Path) -> Iterator[Site]:
    """A site with a lane of one slot."""
    sql("CREATE TABLE effects (name text)")
    with Site.at_work(database, tmp_path, sql) as site:
        yield site


@pytest.mark.parametrize(
    "pool",
    [
        "prefork",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("threads", "solo", "gevent")),
    ],
)
def test_a_snoozed_job_runs_again_under_its_id(site: Site, sql: Sql, pool: str) -> None:
    """Whether its message is acknowledged early or late, and if it is no job at all."""
    site.env["PGBEAT_TRACK"] = "all"
    site.start("-P", pool, "-c", "2")
    site.beat(app=site.app).says("This beat leads", 60)
    early = site.task("early", "early", 2).delay()
    late = site.task("late", "late").delay()
    finishing = site.task("finishing", "finishing").delay()
    plain = site.task("plain", "plain").delay()
    submitted = pgbeat.submit("snoozing.late", "submitted", app=site.client, max_attempts=1)
    summed = chord(
        [site.task("early", "a"), site.task("late", "b")], site.client.signature("policies.total")
    ).delay()
    assert early.get(timeout=60) == 3
    assert (late.get(timeout=60), finishing.get(timeout=60)) == (2, 2)
    assert plain.get(timeout=60) == 3
    assert summed.get(timeout=60) == 4
    snoozed = (early.id, late.id, finishing.id, plain.id, str(submitted.id))
    # A result may be there before its execution is recorded.
    until(lambda: all(history(sql, job)[-1:] == ["completed"] for job in snoozed), 30, "all ended")
    assert history(sql, early.id) == ["snoozed", "snoozed", "completed"]
    for job in (late.id, finishing.id, str(submitted.id)):
        assert history(sql, job) == ["snoozed", "completed"]
    assert history(sql, plain.id) == ["snoozed", "snoozed", "completed"]
    assert sql("SELECT name FROM effects") == [("finishing",)]
    of_others = "SELECT count(*) FROM pgbeat.jobs WHERE state <> 'completed'"
    until(lambda: sql(of_others) == [(0,)], 30, "the chord's body, too")
    assert sql("SELECT count(*) FROM pgbeat.jobs WHERE attempt > 1 OR retry_of IS NOT NULL") == [
        (0,)
    ]
    assert sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [(0,)]
    first, second = site.times("submitted")
    assert second - first >= 0.3


def test_a_task_that_its_class_awaits(site: Site, sql: Sql) -> None:
    """It snoozes, and is tried again, like others."""
    site.client.conf.pgbeat_task_policies = {
        "snoozing.awaited": {"max_attempts": 2, "retry_base": 0.1}
    }
    site.start("-P", "threads", "-c", "1")
    site.beat(app=site.app).says("This beat leads", 60)
    awaited = site.task("awaited", "awaited").delay()
    assert awaited.get(timeout=60) == 3
    ends = ["snoozed", "failed", "completed"]
    until(lambda: history(sql, awaited.id) == ends, 30, "its job says the same")


@pytest.mark.parametrize("where", ["before_start", "call"])
def test_what_its_class_raises_counts_like_what_the_task_raises(
    site: Site, sql: Sql, where: str
) -> None:
    """From `before_start`, and after its run from `__call__`."""
    site.client.conf.pgbeat_task_policies = {
        "snoozing.outside": {},
        "snoozing.failing": {"max_attempts": 2, "retry_base": 0.1},
    }
    site.start("-P", "threads", "-c", "1")
    site.beat(app=site.app).says("This beat leads", 60)
    runs = 1 + (where == "call")
    snoozed, failed, plain = (
        site.task(name, name, where).delay() for name in ("outside", "failing", "around")
    )
    assert [each.get(timeout=20) for each in (snoozed, failed, plain)] == [runs] * 3
    until(lambda: history(sql, snoozed.id) == ["snoozed", "completed"], 10, "it is recorded")
    until(lambda: history(sql, failed.id) == ["failed", "completed"], 10, "it is recorded")
    skipped = site.task("outside", "skipped", where).delay()
    until(lambda: skipped.state == "REVOKED", 10, "the caller knows")
    until(lambda: history(sql, skipped.id) == ["skipped"], 10, "it is recorded")


@pytest.mark.slow
def test_it_gives_its_slot_back_and_can_be_cancelled(site: Site, sql: Sql, database: str) -> None:
    """The next in the lane runs; who waits for the snoozed one learns that it is cancelled."""
    site.start("-P", "threads", "-c", "2")
    site.beat(app=site.app).says("This beat leads", 60)
    held = site.task("early", "held", 1, 3600).delay()
    other = site.client.signature("policies.add", args=(1,)).delay()
    assert other.get(timeout=60) == 2
    assert held.state in ("PENDING", "RETRY")
    with connected(database) as own, connections.transaction(own):
        job = jobs.get(own, held.id)
        where = explain.of_job(own, job, connections.now(own))
    assert (job.state, job.dispatched_at, job.attempt) == ("scheduled", None, 1)
    assert where.cause == "snoozed" and where.sentence.endswith("it was snoozed once")
    assert run_with(site.client, "jobs", "cancel", held.id).exit_code == 0
    until(lambda: held.state == "REVOKED", 30, "the caller knows")
    assert sql("SELECT state FROM pgbeat.jobs WHERE id = %s", held.id) == [("cancelled",)]


@pytest.mark.slow
def test_greenlets_snooze_at_the_same_time(site: Site, sql: Sql) -> None:
    """While one's snooze is written, the others of the worker go on."""
    site.env["PGBEAT_TRACK"] = "all"
    site.start("-P", "gevent", "-c", "50")
    site.beat(app=site.app).says("This beat leads", 60)
    sql("UPDATE pgbeat.lanes SET max_running = 40")
    early = [site.task("early", f"e{number}", 2).delay() for number in range(40)]
    late = [site.task("late", f"l{number}").delay() for number in range(40)]
    finishing = [site.task("finishing", f"f{number}").delay() for number in range(10)]
    assert [each.get(timeout=60) for each in early] == [3] * 40
    assert [each.get(timeout=60) for each in late + finishing] == [2] * 50
    until(lambda: not sql("SELECT FROM pgbeat.unfinished_jobs LIMIT 1"), 30, "all have ended")
    rows = sql("SELECT state, count(*) FROM pgbeat.executions GROUP BY 1 ORDER BY 1")
    assert rows == [("completed", 90), ("snoozed", 130)]
    assert sql("SELECT count(*) FROM effects") == [(10,)]
    assert sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["solo", "gevent"])
@pytest.mark.parametrize(("moment", "runs"), [("before", 3), ("after", 2)])
def test_a_worker_killed_around_a_snooze(
    site: Site, sql: Sql, moment: str, runs: int, pool: str
) -> None:
    """The job runs again, by a second worker: neither lost nor twice at once."""
    site.beat(app=site.app).says("This beat leads", 60)
    first = site.start("-P", pool)
    job = site.task(moment, "killed").delay()
    first.wait(60)
    site.start("-P", pool)
    assert job.get(timeout=60) == runs
    until(lambda: history(sql, job.id)[-1:] == ["completed"], 30, "it has ended")
    begun, over = site.times("killed"), site.times("killed-over")
    assert len(begun) == len(over) == runs
    assert all(end <= start for end, start in zip(over, begun[1:], strict=False))
    assert history(sql, job.id).count("snoozed") == 1
    assert begun[-1] - over[-2] >= 0.5
