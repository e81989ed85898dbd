"""Tasks with policies, real workers: lanes, canvas, retries, and processes that are killed."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError
from sqlalchemy import NullPool, create_engine

import pgbeat
from pgbeat.config import postgres_url
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.verbs import changes, control
from tests.support.command_line import run_with
from tests.support.jobs import JobControl, job_controls
from tests.support.policy_workers import NARROW, PolicyWorkers
from tests.support.processes import until
from tests.support.rows import Sql
from tests.support.transport_workers import transport_url

POLICIES: dict[str, dict[str, Any]] = {
    "policies.add": NARROW,
    "policies.total": NARROW,
    "policies.held": NARROW,
    "policies.replaced": NARROW,
    "policies.late_replaced": NARROW,
    "policies.flaky": {"max_attempts": 3, "retry_base": 0.1},
    "policies.waits": {"max_attempts": 3, "retry_base": 3600},
    "policies.fails": {},
    "policies.skips": {},
    "policies.late_skips": {},
    "policies.late_flaky": {"max_attempts": 2, "retry_base": 0.1},
    "policies.late_tries": {"max_attempts": 2, "retry_base": 0.1},
    "policies.unique": {"unique": True},
}


class Site(PolicyWorkers):
    """Workers, and their client."""

    policies = POLICIES


@pytest.fixture
def site(database: str, sql: Sql, tmp_path: Path) -> Iterator[Site]:
    """A site with a lane of one slot."""
    with Site.at_work(database, tmp_path, sql) as site:
        yield site


def never_two(journal: list[str]) -> bool:
    """Whether each task in the lane ended before the next one began."""
    lines = [line.split()[0] for line in journal]
    return lines == ["begin", "end"] * (len(lines) // 2)


@pytest.mark.slow
def test_a_lane_holds_for_every_way_to_send(site: Site) -> None:
    """Calls, chains, groups and chords, their bodies, and what tasks send: one at a time."""
    site.start("-P", "prefork", "-c", "4")
    calls = [site.task("add", n).delay() for n in range(3)]
    linked = chain(site.task("add", 10), site.task("add"), site.task("add")).delay()
    members = group(site.task("add", n) for n in range(20, 24)).delay()
    summed = chord([site.task("add", n) for n in range(30, 34)], site.task("total")).delay()
    sent = site.task("parent", 3).delay()
    assert [call.get(timeout=60) for call in calls] == [1, 2, 3]
    assert linked.get(timeout=60) == 13
    assert members.get(timeout=60) == [21, 22, 23, 24]
    assert summed.get(timeout=60) == 31 + 32 + 33 + 34
    for task_id in sent.get(timeout=60):
        site.client.AsyncResult(task_id).get(timeout=60)
    assert never_two(site.journal())
    assert len(site.journal()) == 2 * (3 + 3 + 4 + 4 + 3)


def test_attempts_are_one_task(site: Site, sql: Sql) -> None:
    """Its id stays, so a chord that it is a member of gets its value; each is an execution."""
    site.start("-P", "prefork", "-c", "2")
    body = site.client.signature("policies.total")
    found = chord([site.task("flaky", 3, "a"), site.task("flaky", 1, "b")], body).delay()
    assert found.get(timeout=60) == 3 + 1
    ids = {line.split()[1] for line in site.journal() if line.startswith("a")}
    assert len(ids) == 1

    def rows() -> list[tuple[Any, ...]]:
        return sql("SELECT state, executions, attempt FROM pgbeat.jobs WHERE id = %s::uuid", *ids)

    until(lambda: rows() == [("completed", 3, 3)], 30, "the job has ended")


@pytest.mark.parametrize(
    "task", ["replaced", pytest.param("late_replaced", marks=pytest.mark.slow)]
)
def test_a_task_that_another_one_replaces(site: Site, sql: Sql, task: str) -> None:
    """It goes on as the same job; where more than one replaces it, its job ends."""
    site.start("-P", "prefork", "-c", "2")
    alone = site.task(task, "one").delay()
    assert alone.get(timeout=30) == 6
    linked = chain(site.task(task, "one"), site.task("add", 1)).delay()
    assert linked.get(timeout=30) == 7
    assert site.task(task, "chain").delay().get(timeout=30) == 7
    assert site.task(task, "chord").delay().get(timeout=30) == 5

    def unfinished() -> list[tuple[Any, ...]]:
        return sql("SELECT id, state, task FROM pgbeat.unfinished_jobs")

    until(lambda: unfinished() == [], 30, "all jobs have ended")
    of_one = "SELECT state, executions FROM pgbeat.jobs WHERE id = %s::uuid"
    assert sql(of_one, alone.id) == [("completed", 2)]
    assert sql("SELECT DISTINCT state FROM pgbeat.jobs") == [("completed",)]


def test_a_unique_body_waits_for_no_open_transaction(site: Site) -> None:
    """The chord's last member sends it, while an application that has its key goes on."""
    site.start("-P", "prefork", "-c", "1")
    engine = create_engine(postgres_url(site.database), poolclass=NullPool)
    with engine.connect() as connection, connection.begin():
        with pgbeat.in_transaction(connection, site.client):
            site.task("unique", 1).delay()
        body = site.task("unique", 1).set(immutable=True)
        assert chord([site.task("joined", [])], body).delay().get(timeout=30) == 1


@pytest.mark.slow
def test_the_last_attempt_fails(site: Site, sql: Sql) -> None:
    """With the task's own error, after as many attempts as the policy allows."""
    site.start("-P", "threads", "-c", "2")
    failed = site.task("flaky", 9).delay()
    with pytest.raises(ValueError, match="attempt 3"):
        failed.get(timeout=60)
    until(lambda: sql("SELECT state FROM pgbeat.jobs") == [("failed",)], 30, "the job has failed")
    assert [line.split()[0] for line in site.journal()] == ["1", "2", "3"]


@pytest.mark.slow
def test_a_retry_of_a_task_that_is_acknowledged_late(site: Site, sql: Sql) -> None:
    """It ends in one transaction, and its retry is published there."""
    site.start("-P", "prefork", "-c", "1")
    assert site.task("late_flaky", "once").delay().get(timeout=60) == "done"
    until(lambda: sql("SELECT state FROM pgbeat.jobs") == [("completed",)], 30, "it has ended")


@pytest.mark.parametrize("how", ["by policy", pytest.param("itself", marks=pytest.mark.slow)])
def test_a_retry_that_cannot_be_sent(site: Site, sql: Sql, how: str) -> None:
    """The task's message goes back, so that its job, its result and what it did agree."""
    worker = site.start("-P", "prefork", "-c", "1")
    found = site.task("late_tries", how).delay()
    until(lambda: (site.folder / f"first-{how}").exists(), 30, "it runs")
    # Its process has published nothing yet, and new sessions can't write.
    ((database,),) = sql("SELECT current_database()")
    sql(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    (site.folder / f"gate-retry-{how}").touch()
    worker.says("Reject", 60)
    sql(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    assert found.get(timeout=60) == "done"
    of_one = "SELECT state, attempt, executions FROM pgbeat.jobs"
    until(lambda: sql(of_one) == [("completed", 1, 2)], 30, "its job says the same")


@pytest.mark.parametrize("pool", ["threads", pytest.param("solo", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["by policy", pytest.param("itself", marks=pytest.mark.slow)])
def test_one_that_is_cancelled_before_it_asks_for_a_retry(
    site: Site, sql: Sql, how: str, pool: str
) -> None:
    """Nothing is sent that would run again, and the rest of its chain ends."""
    site.start("-P", pool, "-c", "1")
    last = chain(site.task("late_tries", how), site.task("joined"), site.task("joined")).delay()
    second = last.parent
    first = second.parent
    until(lambda: (site.folder / f"first-{how}").exists(), 30, "it runs")
    sql("UPDATE kombu_queue SET paused_at = now() WHERE name = 'celery'")
    assert run_with(site.client, "jobs", "cancel", first.id, "--reason", "no").exit_code == 0
    (site.folder / f"gate-retry-{how}").touch()
    with pytest.raises(TaskRevokedError, match=r"cancelled by .*: no"):
        last.get(timeout=30)
    until(
        lambda: sql("SELECT state FROM pgbeat.jobs WHERE id = %s", first.id) == [("cancelled",)],
        30,
        "its job says the same",
    )
    assert [each.state for each in (first, second, last)] == ["REVOKED"] * 3
    sent = "SELECT FROM kombu_message WHERE job_id IS NOT NULL"
    until(lambda: not sql(sent), 10, "its message is acknowledged, and nothing is sent")


@pytest.mark.slow
def test_one_that_is_terminated_as_it_stores_its_result(
    site: Site, sql: Sql, database: str
) -> None:
    """Its job agrees with its result, and with what its chord learns."""
    pytest.importorskip("gevent")
    site.start("-P", "gevent", "-c", "2")
    members = [site.task("held", "k"), site.task("waits", "fails")]
    chord(members, site.task("joined")).delay()
    until(lambda: site.journal(), 60, "it runs")
    [(job_id,)] = sql("SELECT id FROM pgbeat.jobs WHERE task = 'policies.held'")
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM pgbeat.chords FOR UPDATE")
        (site.folder / "gate-k").touch()
        blocked = "SELECT pid FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
        until(lambda: sql(blocked), 30, "it returns its part")
        assert run_with(site.client, "jobs", "cancel", str(job_id)).exit_code == 0
        ended = "SELECT state FROM pgbeat.jobs WHERE id = %s AND finished_at IS NOT NULL"
        until(lambda: sql(ended, job_id), 30, "it has ended")
    with pytest.raises(TaskRevokedError):
        site.client.AsyncResult(str(job_id)).get(timeout=30)
    assert sql(ended, job_id) == [("cancelled",)]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [pytest.param("child", marks=pytest.mark.slow), "worker"])
def test_a_killed_task_runs_again_and_keeps_the_line(site: Site, victim: str) -> None:
    """The message of one acknowledged late goes back; the next in the lane has to wait for it."""
    first = site.start("-P", "prefork", "-c", "1")
    site.beat(app=site.app).says("This beat leads", 60)
    held = site.task("held", "k").delay()
    waits = site.task("add", 1).delay()
    until(lambda: [line for line in site.journal() if line.startswith("held")], 60, "it runs")
    if victim == "child":
        os.kill(int(site.journal()[0].split()[1]), signal.SIGKILL)
    else:
        first.kill_group()
        site.start("-P", "prefork", "-c", "1")
    if victim == "child":  # Celery gives up a task whose process died, unless told otherwise
        assert waits.get(timeout=60) == 2
        return
    until(lambda: len(site.journal()) == 2, 60, "it runs again")
    assert not waits.ready()
    (site.folder / "gate-k").touch()
    assert held.get(timeout=60) == "k"
    assert waits.get(timeout=60) == 2


def test_workers_refuse_wrong_policies(site: Site) -> None:
    """With a line for each."""
    site.env["PGBEAT_TASK_POLICIES"] = '{"policies.parent": {"lanes": "x", "priority": -1}}'
    worker = site.worker(app=site.app)
    assert worker.wait(60) != 0
    assert "'lanes' is not a key of it" in worker.output
    assert "priority" in worker.output


def test_a_chord_learns_that_a_waiting_member_is_cancelled(site: Site, sql: Sql) -> None:
    """Without any worker: whoever cancels it ends the chord."""
    sql("UPDATE pgbeat.lanes SET paused_at = now()")
    body = site.client.signature("policies.total")
    found = chord([site.task("flaky", 1), site.task("add", 5)], body).delay()
    ((waiting,),) = sql("SELECT id::text FROM pgbeat.jobs WHERE lane IS NOT NULL")
    assert run_with(site.client, "jobs", "cancel", waiting, "--reason", "no").exit_code == 0
    with pytest.raises(TaskRevokedError, match=r"cancelled by .*: no"):
        site.client.AsyncResult(waiting).get(timeout=5)
    site.start("-P", "threads", "-c", "2")
    with pytest.raises(ChordError, match="cancelled by"):
        site.client.AsyncResult(found.id).get(timeout=60)
    assert not [line for line in site.journal() if line.startswith("begin")]
    assert sql("SELECT state FROM pgbeat.jobs WHERE id = %s::uuid", waiting) == [("cancelled",)]


def send_all(site: Site, how: str, **options: Any) -> list[Any]:
    """Sends the task in every shape; returns the results that tell how each went on."""
    waits, joined = site.task("waits", how, **options), site.client.signature("policies.joined")
    handled = site.client.signature("policies.handled")
    linked = joined.clone().set(task_id=str(uuid4()))
    waits.clone().apply_async(link=linked, link_error=handled)
    return [
        waits.clone().apply_async(headers={"mine": "h"}, expires=7200),
        chain(waits.clone(), joined.clone()).apply_async(),
        chord([waits.clone(), site.task("waits", "at once")], joined.clone()).apply_async(),
        group(waits.clone()).apply_async().children[0],
        site.client.AsyncResult(linked.id),
    ]


def pause_and_resume(job_control: JobControl, job: Job) -> None:
    job_control.do(control.pause, job)
    job_control.do(control.resume, job_control.job(job))


@pytest.mark.parametrize(
    "how",
    ["in the queue", *(pytest.param(h, marks=pytest.mark.slow) for h in ("fails", "snoozes"))],
)
def test_what_waits_is_paused_resumed_and_hastened(site: Site, sql: Sql, how: str) -> None:
    """In the queue, for its retry, after a snooze: its canvas, headers and attempts stay."""
    site.start("-P", "threads", "-c", "4")
    found = send_all(site, how, **({"countdown": 3600} if how == "in the queue" else {}))

    def waiting() -> list[str]:
        return [
            str(row[0])
            for row in sql("SELECT id FROM pgbeat.unfinished_jobs WHERE state = 'scheduled'")
        ]

    until(lambda: len(waiting()) == 5, 60, "all wait")
    with job_controls(site.database, site.client) as make:
        job_control = make()
        for job_id in waiting():
            job = jobs.get(job_control.connection, job_id)
            pause_and_resume(job_control, job)
            assert job_control.job(job).run_at == job.run_at
            job_control.do(changes.update, job, values={"priority": 5})
            assert job_control.job(job).state == "scheduled"
            job_control.do(changes.update, job, values={"run_at": None})
    attempt = 2 if how == "fails" else 1
    plain = f"{how} None {attempt}"
    assert found[0].get(timeout=60) == f"{how} h {attempt}"
    assert site.client.AsyncResult(found[1].id).get(timeout=60) == plain
    assert site.client.AsyncResult(found[2].id).get(timeout=60) == [plain, "at once None 1"]
    assert [found[3].get(timeout=60), found[4].get(timeout=60)] == [plain] * 2
    query = "SELECT DISTINCT state, attempt FROM pgbeat.jobs WHERE task = 'policies.waits'"
    ends = {("completed", attempt), ("completed", 1)}
    until(lambda: set(sql(query)) == ends, 30, "all have ended")


@pytest.mark.slow
def test_an_errback_of_one_that_was_paused(site: Site) -> None:
    """It is called with the task that failed."""
    handled = site.client.signature("policies.handled")
    failed = site.task("fails").apply_async(link_error=handled)
    with job_controls(site.database, site.client) as make:
        job_control = make()
        pause_and_resume(job_control, jobs.get(job_control.connection, failed.id))
    site.start("-P", "threads", "-c", "1")
    until(lambda: site.journal() == [f"handled {failed.id}"], 60, "the errback was called")


@pytest.mark.slow
def test_a_task_that_skips_is_no_riddle(site: Site, sql: Sql) -> None:
    """Whoever waits for it, or for its chord, is told so."""
    site.start("-P", "threads", "-c", "2")
    for task in ("skips", "late_skips"):
        found = chord([site.task(task)], site.client.signature("policies.joined")).delay()
        with pytest.raises(TaskRevokedError, match="nothing to do"):
            found.parent.children[0].get(timeout=60)
        with pytest.raises(ChordError, match="nothing to do"):
            site.client.AsyncResult(found.id).get(timeout=60)
    ended = "SELECT state, error FROM pgbeat.ended_jobs"
    until(lambda: sql(ended) == [("skipped", "nothing to do")] * 2, 30, "both are recorded")
    assert sql("SELECT state, error FROM pgbeat.executions") == [("skipped", "nothing to do")] * 2


_FIRST = """
from celery import Celery
app = Celery("script", broker={url!r})

@app.task(name="script.task", pgbeat={{"unique": True, "tags": ["script"]}})
def task(n): pass

print({send}.id)
"""


@pytest.mark.slow
def test_the_first_message_of_a_process(site: Site, sql: Sql) -> None:
    """It makes a job too, or returns the unfinished one, though no code imports pgbeat."""
    ids = []
    for send in ("task.delay(1)", "app.send_task('script.task', (1,))", "task.s(1).delay()"):
        script = site.folder / "script.py"
        script.write_text(_FIRST.format(url=transport_url(site.database), send=send))
        process = site.run(sys.executable, str(script))
        assert process.wait(60) == 0, process.output
        ids.append(process.output.strip())
    assert sql("SELECT id::text, tags FROM pgbeat.jobs") == [(ids[0], ["script"])]
    assert ids == [ids[0]] * 3


_KILLED = """
import os, signal
import pgbeat
from celery import Celery
from sqlalchemy import create_engine
app = Celery("script", broker={url!r})

@app.task(name="script.task", pgbeat={{"tags": ["script"]}})
def task(n): pass

with create_engine({database!r}).connect() as connection:
    with connection.begin(), pgbeat.in_transaction(connection, app):
        task.delay("committed")
    connection.begin()
    with pgbeat.in_transaction(connection, app):
        task.delay("open")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_before_its_commit_leaves_neither(site: Site, sql: Sql) -> None:
    """A job and its message exist together: what was committed does, what was open does not."""
    script = site.folder / "script.py"
    url = postgres_url(site.database).render_as_string(hide_password=False)
    script.write_text(_KILLED.format(url=transport_url(site.database), database=url))
    assert site.run(sys.executable, str(script)).wait(60) == -signal.SIGKILL
    assert sql("SELECT args FROM pgbeat.jobs") == [(["committed"],)]
    assert sql("SELECT job_id IS NOT NULL FROM kombu_message") == [(True,)]
