"""Tasks with steps, in real workers: what ran once, sleeps, waits, retries, and kills."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chord

import pgbeat
from pgbeat.errors import CannotStep
from tests.support.command_line import run_with
from tests.support.jobs import any_arguments
from tests.support.policy_workers import NARROW, PolicyWorkers, history
from tests.support.processes import until
from tests.support.rows import Sql

POLICIES: dict[str, dict[str, Any]] = {
    "durable.order": NARROW,
    "durable.failing": {"max_attempts": 3, "retry_base": 0.1},
    **{
        f"durable.{name}": {}
        for name in (
            "emptying",
            "swallowing",
            "wrapping",
            "overtaken",
            "progressing",
            "early",
            "nested",
        )
    },
    "policies.total": NARROW,
}


class Site(PolicyWorkers):
    """A beat, workers, and a client that knows the policies of their tasks by the setting."""

    app = "tests.support.apps.durable"
    policies = POLICIES

    def __init__(self, database: str, folder: Path) -> None:
        super().__init__(database, folder)
        self.client.task(any_arguments, name="durable.failing", shared=False)
        self.client.finalize()

    def effects(self) -> list[str]:
        """Returns what tasks have written into the database, in order."""
        return [name for (name,) in self.sql("SELECT name FROM effects ORDER BY name")]

    def waits(self, number: int = 1, seconds: float = 60) -> None:
        """Waits until so many jobs wait for an event, and hold nothing."""
        until(
            lambda: (
                self.sql(
                    "SELECT count(*) FROM pgbeat.unfinished_jobs WHERE state = 'scheduled' "
                    "AND dispatched_at IS NULL AND message #>> '{waits_for,key}' IS NOT NULL"
                )
                == [(number,)]
            ),
            seconds,
            "the job waits",
        )

    def emit(self, key: str, value: Any) -> bool:
        """Emits an event, as a program does."""
        return pgbeat.emit(key, value, app=self.client)


@pytest.fixture
def site(database: str, sql: Sql, tmp_path: Path) -> Iterator[Site]:
    """A site with a lane of one slot."""
    sql("CREATE TABLE effects (name text)")
    with Site.at_work(database, tmp_path, sql) as site:
        yield site


def test_a_chord_of_jobs_that_wait(site: Site, sql: Sql) -> None:
    """One lane's slot is enough for both; steps are not run again; an event may come first."""
    site.start("-P", "prefork", "-c", "2")
    site.beat(app=site.app).says("This beat leads", 60)
    assert site.emit("paid/a", 1)
    body = site.client.signature("policies.total")
    total = chord([site.task("order", name) for name in ("a", "b")], body).delay()
    site.waits()
    assert site.emit("paid/b", 2)
    assert not site.emit("paid/b", 3)
    assert total.get(timeout=60) == 3
    until(lambda: not sql("SELECT FROM pgbeat.unfinished_jobs"), 30, "all have ended")
    assert site.effects() == sorted(
        f"{name} {what}"
        for name, amount in (("a", 1), ("b", 2))
        for what in ("booked", "counted", f"mailed {amount}")
    )
    assert sorted(site.journal()) == sorted(
        ["a begins"] * 2 + ["b begins"] * 3 + ["a paid", "b paid"]
    )
    jobs = sql("SELECT id, args ->> 0, attempt FROM pgbeat.jobs WHERE task = 'durable.order'")
    for job, name, attempt in jobs:
        assert attempt == 1
        assert history(sql, job) == ["snoozed"] * (1 if name == "a" else 2) + ["completed"]
        shown = run_with(site.client, "jobs", "show", str(job), "--json").stdout
        kinds = [phase["kind"] for phase in json.loads(shown)["trace"]["phases"]]
        waits = [kind for kind in kinds if kind in ("wait", "sleep", "snoozed")]
        assert waits == ["wait", "sleep"]
    assert sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [(0,)]


def test_a_retry_has_the_steps_of_the_attempts_before(site: Site, sql: Sql) -> None:
    """By Celery under the same id, as the policy says, or as a job of its own."""
    site.start("-P", "threads", "-c", "2")
    site.beat(app=site.app).says("This beat leads", 60)
    assert site.task("failing", "policy").delay().get(timeout=60) == 2
    assert pgbeat.submit("durable.failing", "job", app=site.client, max_attempts=3)
    until(lambda: len(site.journal()) == 4, 60, "both have tried again")
    until(lambda: not sql("SELECT FROM pgbeat.unfinished_jobs"), 60, "all have ended")
    assert sorted(site.journal()) == ["job first", "job second", "policy first", "policy second"]
    assert sql("SELECT count(*) FROM pgbeat.jobs WHERE state = 'failed'") == [(2,)]


def test_each_attempt_begins_with_the_arguments_that_were_sent(site: Site, sql: Sql) -> None:
    """Also after a sleep, before which the task has changed them."""
    site.start("-P", "prefork", "-c", "1")
    site.beat(app=site.app).says("This beat leads", 60)
    job = site.task("emptying", [-1, -2], {"attempts": 0}).delay()
    assert job.get(timeout=60) == [{"attempts": 1}, [2, 1]]
    until(lambda: history(sql, job.id) == ["snoozed", "completed"], 30, "it slept once")


def test_a_sleep_that_the_task_catches_is_a_sleep(site: Site, sql: Sql) -> None:
    """What comes after it ends likewise, until the task returns."""
    site.start("-P", "solo")
    site.beat(app=site.app).says("This beat leads", 60)
    job = site.task("swallowing", "s").delay()
    assert job.get(timeout=60) == "s"
    caught = ["s begins", "s caught Suspended", "s caught Suspended"]
    assert site.journal() == [*caught, "s begins", "s after"]
    until(lambda: history(sql, job.id) == ["snoozed", "completed"], 30, "it is recorded")


def test_a_step_is_the_progress_of_a_task_that_reports_none(site: Site, sql: Sql) -> None:
    site.start("-P", "solo")
    job = site.task("progressing", "r").delay()
    progress = "SELECT state, progress_done, progress_message FROM pgbeat.executions"

    def shows(*wanted: Any) -> None:
        until(lambda: sql(progress) == [wanted], 30, str(wanted))

    for number, shown in enumerate([(None, "first"), (None, "second"), (1, "half")], 1):
        shows("running", *shown)
        (site.folder / f"gate-r-{number}").touch()
    job.get(timeout=60)
    shows("completed", 1, "half")


def test_a_wait_that_the_task_makes_another_error_of_is_a_wait(site: Site, sql: Sql) -> None:
    """Nor is the task retried or replaced: so do many tasks with whatever they catch."""
    site.start("-P", "solo")
    site.beat(app=site.app).says("This beat leads", 60)
    ways = ("error", "retry", "replace")
    jobs = {how: site.task("wrapping", how, how).delay() for how in ways}
    site.waits(3)
    for how in ways:
        site.emit(how, f"{how} emitted")
    for how, job in jobs.items():
        assert job.get(timeout=60) == f"{how} emitted"
    assert sorted(site.journal()) == sorted(f"{how} begins" for how in (*ways, *ways))
    until(lambda: not sql("SELECT FROM pgbeat.unfinished_jobs"), 30, "all have ended")
    assert sql("SELECT DISTINCT state, attempt, executions FROM pgbeat.jobs") == [
        ("completed", 1, 2)
    ]


@pytest.mark.parametrize(
    ("task", "code"), [("early", "not_late"), ("unknown", "no_job"), ("nested", "nested")]
)
def test_where_there_can_be_no_steps_the_task_fails(site: Site, task: str, code: str) -> None:
    site.start("-P", "solo")
    with pytest.raises(CannotStep):
        site.task(task).delay().get(timeout=60)
    assert site.journal() == []


def test_an_attempt_that_is_overtaken(site: Site, sql: Sql) -> None:
    """Its worker is taken for dead: the other attempt's value counts, and its row alone."""
    slow = site.start("-P", "solo")
    job = site.task("overtaken", "o").delay()
    until(lambda: "o slow" in site.journal(), 60, "it runs")
    sql("UPDATE kombu_message SET claimed_by = NULL, visible = true WHERE job_id IS NOT NULL")
    site.start("-P", "solo")
    until(lambda: "o has quick" in site.journal(), 60, "the other one runs")
    (site.folder / "gate-o").touch()
    until(lambda: site.journal().count("o has quick") == 2, 60, "both have it")
    assert job.get(timeout=60) == "quick"
    assert site.effects() == ["o"]
    assert slow.poll() is None


def dies_everywhere(site: Site, sql: Sql, timeout: str | None) -> tuple[str, list[str]]:
    """Runs an order whose process dies at each statement; its id and what it noted."""
    site.env["TESTS_DIE"] = "yes"
    site.start("-P", "prefork", "-c", "1")
    site.beat(app=site.app).says("This beat leads", 60)
    job = site.task("order", "k", timeout).delay()
    if timeout is None:
        site.waits(seconds=240)  # Celery's pool replaces a process after up to five seconds
        assert site.emit("paid/k", 7)
    assert job.get(timeout=240) == (7 if timeout is None else None)
    until(lambda: not sql("SELECT FROM pgbeat.unfinished_jobs"), 60, "it has ended")
    return job.id, site.journal()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("timeout", [None, "0.3 s"])
def test_a_process_killed_at_each_statement(site: Site, sql: Sql, timeout: str | None) -> None:
    """Before it, after it, and at its commit: what a step wrote in its session is there once.

    A step without one ran again only where it was killed before its record was there.
    """
    job, journal = dies_everywhere(site, sql, timeout)
    amount = 7 if timeout is None else None
    assert site.effects() == ["k booked", "k counted", f"k mailed {amount}"]
    deaths = sorted(path.name for path in site.folder.glob("death-*"))
    assert len(deaths) >= 20
    states = history(sql, job)
    assert states.count("snoozed") >= 1 and states[-1] == "completed"
    assert journal.count("k begins") > len(deaths)
    assert 1 <= journal.count("k paid") <= 4
    assert sql("SELECT kind, name, n FROM pgbeat.steps ORDER BY id") == [
        ("step", "pay", 1),
        ("step", "book", 1),
        ("step", "book", 2),
        ("wait", "paid/k", 1),
        ("sleep", "sleep", 1),
        ("step", "mail", 1),
    ]
    assert sql("SELECT max(attempt) FROM pgbeat.jobs") == [(1,)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_killed_while_its_job_waits(site: Site, sql: Sql) -> None:
    """Nothing of it is there meanwhile: another worker continues, after the event."""
    site.beat(app=site.app).says("This beat leads", 60)
    first = site.start("-P", "prefork", "-c", "1")
    jobs = [site.task("order", name).delay() for name in "abc"]
    site.waits(3)
    first.kill_group()
    for name in "abc":
        assert site.emit(f"paid/{name}", name)
    site.start("-P", "prefork", "-c", "1")
    assert [job.get(timeout=60) for job in jobs] == ["a", "b", "c"]
    assert len(site.effects()) == 9
