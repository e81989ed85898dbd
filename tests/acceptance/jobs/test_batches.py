"""Calls that run in batches, in real workers: how these fill, how members end, and kills."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import Reject, TaskRevokedError

import pgbeat
from tests.support.apps import batches
from tests.support.command_line import run_with
from tests.support.policy_workers import PolicyWorkers
from tests.support.processes import until
from tests.support.rows import Sql
from tests.support.transport_workers import POOLS


class Site(PolicyWorkers):
    """A beat, workers, and a client with the same tasks."""

    app = batches.__name__

    def delay(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a task, and returns its result."""
        return self.client.tasks[f"batches.{name}"].delay(*args, **kwargs)

    def batches(self) -> list[list[str]]:
        """Returns the ids of the members of each batch that ran, in order."""
        return [line.split()[1:] for line in self.journal() if line.startswith("batch ")]


@pytest.fixture
def site(database: str, sql: Sql, tmp_path: Path) -> Iterator[Site]:
    """A site whose beat leads."""
    with Site.at_work(database, tmp_path, sql) as site:
        for name, task in batches.app.tasks.items():
            if name.startswith("batches."):
                policy = getattr(task, "pgbeat", None)
                site.client.task(name=name, shared=False, pgbeat=policy)(task.run)
        site.beat(app=site.app).says("This beat leads", 60)
        yield site


def ids(results: list[Any]) -> set[str]:
    """Returns the ids of results."""
    return {result.id for result in results}


def shown_job(site: Site, job: str) -> dict[str, Any]:
    """Returns a job as the command line shows it."""
    shown: dict[str, Any] = json.loads(run_with(site.client, "jobs", "show", job, "--json").stdout)
    return shown


def all_ended(sql: Sql) -> bool:
    """Returns whether no job is unfinished."""
    return not sql("SELECT FROM pgbeat.unfinished_jobs LIMIT 1")


def ends(sql: Sql) -> list[tuple[Any, ...]]:
    """Waits for the ends of all jobs; returns their argument, state, executions and attempt."""
    until(lambda: all_ended(sql), 30, "all have ended")
    return sql("SELECT args ->> 0, state, executions, attempt FROM pgbeat.jobs ORDER BY 1")


def test_a_full_batch_starts_at_once(site: Site, sql: Sql) -> None:
    """As one call, whose members are four jobs; the fifth waits for others."""
    site.start("-P", "prefork", "-c", "2")
    calls = [site.delay("many", number) for number in range(5)]
    until(lambda: len(site.batches()) == 1, 30, "the batch runs")
    [batch] = site.batches()
    assert len(batch) == 4 and set(batch) < ids(calls)
    ended = [call for call in calls if call.id in batch]
    assert [call.get(timeout=30) for call in ended] == [None] * 4
    states = "SELECT state, count(*) FROM pgbeat.jobs GROUP BY 1 ORDER BY 1"
    until(lambda: sql(states) == [("completed", 4), ("pending", 1)], 30, "four have ended")
    facts = sql("SELECT DISTINCT metadata #>> '{batch,members}' FROM pgbeat.executions")
    assert facts == [("4",)]
    assert sql("SELECT count(DISTINCT metadata #>> '{batch,id}') FROM pgbeat.executions") == [(1,)]
    assert shown_job(site, batch[0])["executions"][0]["metadata"]["batch"]["members"] == 4
    [waiting] = ids(calls).difference(batch)
    assert shown_job(site, waiting)["where"]["cause"] == "batch"
    assert sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [(0,)]


def test_a_batch_starts_once_its_oldest_member_has_waited(site: Site, sql: Sql) -> None:
    """With those that wait by then, each with its own result; other keys have other batches."""
    site.start("-P", "threads", "-c", "2")
    here = [site.delay("add", number, shop="here") for number in range(2)]
    there = site.delay("add", 10, shop="there")
    assert [call.get(timeout=30) for call in here] == [1, 2]
    assert there.get(timeout=30) == 11
    assert sorted(map(set, site.batches()), key=len) == [{there.id}, ids(here)]
    until(lambda: all_ended(sql), 30, "all have ended")
    waited = "SELECT min(started_at - created_at) >= interval '0.9 s' FROM pgbeat.jobs"
    assert sql(waited) == [(True,)]


@pytest.mark.parametrize(
    "pool",
    [
        "prefork",
        *(pytest.param(name, marks=pytest.mark.slow) for name in POOLS if name != "prefork"),
    ],
)
def test_each_member_that_failed_is_retried_by_itself(site: Site, sql: Sql, pool: str) -> None:
    """In a later batch; the others have completed. One that fails again has failed."""
    site.start("-P", pool, "-c", "1")
    always, once, fine = (site.delay("flaky", how) for how in ("always", "once", "never"))
    assert (fine.get(timeout=30), once.get(timeout=30)) == (1, 2)
    with pytest.raises(ValueError, match="always"):
        always.get(timeout=30)
    first, *later = site.batches()
    assert set(first) == ids([fine, once, always])
    assert sorted(member for batch in later for member in batch) == sorted(ids([once, always]))
    assert ends(sql) == [
        ("always", "failed", 2, 2),
        ("never", "completed", 1, 1),
        ("once", "completed", 2, 2),
    ]
    assert sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [(0,)]


@pytest.mark.parametrize("first", ["snooze", "skip", "fine", "fail", "reject"])
def test_members_end_as_jobs_do(site: Site, sql: Sql, first: str) -> None:
    """One is skipped, one snoozes, two fail, whichever of them was sent."""
    site.start("-P", "prefork", "-c", "1")
    hows = sorted(("fine", "skip", "snooze", "fail", "reject"), key=lambda how: how != first)
    calls = {how: site.delay("ends", how) for how in hows}
    assert [calls[how].get(timeout=30) for how in ("fine", "snooze")] == [None] * 2
    for how, error in (("fail", ValueError), ("skip", TaskRevokedError), ("reject", Reject)):
        with pytest.raises(error, match="no"):
            calls[how].get(timeout=30)
    assert ends(sql) == [
        ("fail", "failed", 1, 1),
        ("fine", "completed", 1, 1),
        ("reject", "failed", 1, 1),
        ("skip", "skipped", 1, 1),
        ("snooze", "completed", 2, 1),
    ]


@pytest.mark.parametrize("other", ["fine", "fails"])
def test_what_a_batch_writes_is_kept_if_a_member_completes(
    site: Site, sql: Sql, other: str
) -> None:
    """Though the one fails that was sent. If all fail, it is rolled back."""
    sql("CREATE TABLE effects (name text)")
    site.start("-P", "prefork", "-c", "1")
    calls = [site.delay("books", how) for how in ("fails", other)]
    until(lambda: all_ended(sql), 30, "all have ended")
    with pytest.raises(ValueError, match="no"):
        calls[0].get(timeout=30)
    written = {name for (name,) in sql("SELECT name FROM effects")}
    assert written == (ids(calls) if other == "fine" else set())


#: Ends the session that stores the first result.
CUT = """
    CREATE SEQUENCE cuts;
    CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
        IF nextval('cuts') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
        RETURN NEW; END$$;
    GRANT USAGE ON SEQUENCE cuts TO PUBLIC;
    CREATE TRIGGER cut BEFORE INSERT ON pgbeat.results FOR EACH ROW EXECUTE FUNCTION cut();
"""


def test_members_run_again_if_their_end_is_not_committed(site: Site, sql: Sql) -> None:
    """Nor is what the task wrote: in the end, each has written once."""
    sql("CREATE TABLE effects (name text)")
    sql(CUT)
    site.start("-P", "prefork", "-c", "1")
    calls = [site.delay("books", "fine") for _ in range(2)]
    done = "SELECT id::text FROM pgbeat.ended_jobs WHERE state = 'completed'"
    until(lambda: len(sql(done)) == 1, 30, "the one that was sent has run again")
    calls.append(site.delay("books", "fine"))
    assert [call.get(timeout=60) for call in calls] == [None] * 3
    until(lambda: all_ended(sql), 30, "all have ended")
    assert sorted(name for (name,) in sql("SELECT name FROM effects")) == sorted(ids(calls))
    runs = sql("SELECT executions FROM pgbeat.jobs ORDER BY created_at")
    assert runs == [(2,), (2,), (1,)]


def test_an_error_is_that_of_all_members(site: Site, sql: Sql) -> None:
    """The callers learn of it."""
    site.start("-P", "prefork", "-c", "1")
    for call in [site.delay("all_fail") for _ in range(4)]:
        with pytest.raises(ValueError, match="all of them"):
            call.get(timeout=30)
    until(lambda: all_ended(sql), 30, "all have ended")
    assert sql("SELECT state, count(*) FROM pgbeat.jobs GROUP BY 1") == [("failed", 4)]
    # One of those that were taken along, and that of the first: it doesn't grow with each.
    assert sql("SELECT count(DISTINCT traceback) <= 2 FROM pgbeat.executions") == [(True,)]


def test_an_errback_waits_for_the_batch(site: Site, sql: Sql) -> None:
    """If Celery calls it in the process: it undoes nothing of what the others did."""
    site.start("-P", "prefork", "-c", "1")
    ends_as = site.client.tasks["batches.ends"]
    [failed, *_] = [
        ends_as.apply_async((how,), link_error=site.task("told"))
        for how in ("fail", "fine", "fine", "fail")
    ]
    assert ends(sql) == [("fail", "failed", 1, 1)] * 2 + [("fine", "completed", 1, 1)] * 2
    told = [line for line in site.journal() if line.startswith("told")]
    assert len(told) == 2 and f"told {failed.id}" in told


def test_members_are_retried_by_celery(site: Site, sql: Sql) -> None:
    """Each so often as the task says; then it has failed with the error."""
    site.start("-P", "prefork", "-c", "1")
    for call in [site.delay("again") for _ in range(2)]:
        with pytest.raises(ValueError, match="no"):
            call.get(timeout=30)
    assert ends(sql) == [(None, "failed", 2, 1)] * 2
    assert sql("SELECT count(*) FROM kombu_message WHERE job_id IS NOT NULL") == [(0,)]


def test_a_retry_that_is_not_raised_is_for_all_that_have_not_failed(site: Site, sql: Sql) -> None:
    site.start("-P", "prefork", "-c", "1")
    calls = [site.delay("later") for _ in range(2)]
    ends = sorted(repr(call.get(timeout=30, propagate=False)) for call in calls)
    assert ends == ["2", "ValueError('no')"]


def test_what_a_worker_cannot_read_fails_alone(site: Site, sql: Sql) -> None:
    """The others of its batch don't."""
    site.start("-P", "prefork", "-c", "1")
    calls = [site.delay("many", number) for number in range(3)]
    unread = site.client.tasks["batches.many"].apply_async((object,), serializer="pickle")
    assert [call.get(timeout=30) for call in calls] == [None] * 3
    with pytest.raises(Exception, match="pickle"):
        unread.get(timeout=30)
    assert list(map(set, site.batches())) == [ids(calls)]


def cancel_the_first(site: Site, sql: Sql, calls: Sequence[Any]) -> list[Any]:
    """Cancels the member whose message was sent; the other calls."""
    [(first,)] = sql("SELECT job_id::text FROM kombu_message WHERE job_id IS NOT NULL")
    assert run_with(site.client, "jobs", "cancel", first).exit_code == 0
    return [call for call in calls if call.id != first]


def test_only_the_first_member_learns_that_it_is_cancelled(site: Site, sql: Sql) -> None:
    """If its pool can't terminate it, and it reports progress: the others wait again."""
    site.start("-P", "threads", "-c", "1")
    calls = [site.delay("polls") for _ in range(3)]
    until(lambda: len(site.batches()) == 1, 30, "the batch runs")
    others = cancel_the_first(site, sql, calls)
    assert [call.get(timeout=60) for call in others] == [None] * 2
    until(lambda: all_ended(sql), 30, "all have ended")
    states = sql("SELECT state, executions, count(*) FROM pgbeat.jobs GROUP BY 1, 2 ORDER BY 1")
    assert states == [("cancelled", 1, 1), ("completed", 2, 2)]


def test_members_of_chords_and_chains(site: Site, sql: Sql) -> None:
    """A chord gets their results, and a chain goes on with its own, and its own priority."""
    settings = json.dumps({"task_inherit_parent_priority": True})
    site.start("-P", "prefork", "-c", "2", TESTS_SETTINGS=settings)
    total, double = site.task("total"), site.task("double")
    add = site.client.tasks["batches.add"]
    summed = chord([add.s(number, shop="a") for number in range(4)], total).delay()
    linked = [chain(add.s(number, shop="b"), double).delay() for number in (10, 20)]
    assert summed.get(timeout=60) == 1 + 2 + 3 + 4
    assert [each.get(timeout=60) for each in linked] == [22, 42]
    assert max(map(len, site.batches())) > 1
    until(lambda: all_ended(sql), 30, "all have ended")
    for number in (5, 6):
        chain(add.s(1, shop="c").set(priority=number), site.task("many")).delay()
    priorities = "SELECT priority FROM pgbeat.jobs WHERE task = 'batches.many' ORDER BY 1"
    until(lambda: sql(priorities) == [(5,), (6,)], 30, "both have been sent")


def test_bodies_of_chords_and_links_run_in_batches(site: Site, sql: Sql) -> None:
    """Whoever sends them: here, the worker that ends a chord or a task."""
    site.start("-P", "prefork", "-c", "2")
    double, body = site.task("double", 1), site.client.tasks["batches.many"].s()
    ended = [chord([double, double], body).delay() for _ in range(3)]
    double.apply_async(link=body)
    assert [each.get(timeout=60) for each in ended] == [None] * 3
    [batch] = site.batches()
    assert len(batch) == 4 and ids(ended) < set(batch)
    until(lambda: all_ended(sql), 30, "all have ended")


@pytest.mark.parametrize("how", ["cancelled", "revoked", "terminated", "stamped"])
def test_a_member_is_cancelled_while_it_waits(site: Site, sql: Sql, how: str) -> None:
    """Or revoked by Celery. Whoever waits for it learns that; the batch fills with others."""
    site.start("-P", "prefork", "-c", "1")
    other, last = [site.delay("many", number) for number in range(2)]
    first = site.client.tasks["batches.many"].apply_async((2,), stamped_headers=["of"], of="x")
    others = [other, last]
    if how == "stamped":
        site.client.control.revoke_by_stamped_headers({"of": ["w", "x"], "no": "y"})
    elif how != "cancelled":
        first.revoke(terminate=how == "terminated")
    else:
        assert run_with(site.client, "jobs", "cancel", first.id).exit_code == 0
    until(lambda: first.state == "REVOKED", 30, "the caller knows")
    others += [site.delay("many", number) for number in (3, 4)]
    assert [call.get(timeout=30) for call in others] == [None] * 4
    assert list(map(set, site.batches())) == [ids(others)]


def test_a_member_that_has_expired_is_left_out(site: Site, sql: Sql) -> None:
    """It is revoked, like any task."""
    site.start("-P", "prefork", "-c", "1")
    first = site.delay("many", 0)
    task = site.client.tasks["batches.many"]
    expired = task.apply_async((1,), expires=0.5)
    aged = "SELECT now() > created_at + interval '0.7 s' FROM pgbeat.jobs WHERE id = %s"
    until(lambda: sql(aged, expired.id) == [(True,)], 30, "it has expired")
    others = [first, *(site.delay("many", number) for number in (2, 3))]
    assert [call.get(timeout=30) for call in others] == [None] * 3
    with pytest.raises(TaskRevokedError):
        expired.get(timeout=30)
    assert list(map(set, site.batches())) == [ids(others)]
    until(lambda: all_ended(sql), 30, "all have ended")
    state = sql("SELECT state, error FROM pgbeat.jobs WHERE id = %s", expired.id)
    assert state == [("cancelled", "expired")]


def test_what_is_submitted_runs_alone(site: Site, sql: Sql) -> None:
    """At once, as a batch of one."""
    site.start("-P", "prefork", "-c", "1")
    waits = site.delay("many", 1)
    job = pgbeat.submit("batches.many", app=site.client)
    assert site.client.AsyncResult(str(job.id)).get(timeout=30) is None
    assert site.batches() == [[str(job.id)]]
    assert sql("SELECT id::text, state FROM pgbeat.unfinished_jobs") == [(waits.id, "pending")]


def test_members_wait_again_if_their_batch_loses_its_message(site: Site, sql: Sql) -> None:
    """Nothing of it is kept; they run in another one."""
    site.start("-P", "prefork", "-c", "2")
    calls = [site.delay("held") for _ in range(3)]
    until(lambda: len(site.journal()) == 1, 30, "the batch runs")
    [(first,)] = sql("DELETE FROM kombu_message WHERE job_id IS NOT NULL RETURNING job_id::text")
    (site.folder / "gate-gate").touch()
    others = [call for call in calls if call.id != first]
    assert [call.get(timeout=60) for call in others] == [call.id for call in others]
    runs = sql("SELECT executions FROM pgbeat.jobs WHERE id = ANY (%s::uuid[])", list(ids(others)))
    assert runs == [(2,)] * 2


def test_members_wait_again_if_the_first_is_cancelled(site: Site, sql: Sql) -> None:
    """Its process is terminated, for it alone."""
    site.start("-P", "prefork", "-c", "1")
    calls = [site.delay("held") for _ in range(3)]
    until(lambda: len(site.journal()) == 1, 30, "the batch runs")
    others = cancel_the_first(site, sql, calls)
    assert [call.get(timeout=60) for call in others] == [call.id for call in others]
    until(lambda: all_ended(sql), 30, "all have ended")
    states = sql("SELECT state, executions, count(*) FROM pgbeat.jobs GROUP BY 1, 2 ORDER BY 1")
    assert states == [("cancelled", 1, 1), ("completed", 2, 2)]


def test_workers_share_no_member(site: Site, sql: Sql) -> None:
    """Two workers, each with two processes: every member runs once."""
    for name in ("one", "two"):
        site.start("-P", "prefork", "-c", "2", "-n", f"{name}@%h")
    calls = [site.delay("add", number, shop=number % 4) for number in range(120)]
    assert [call.get(timeout=60) for call in calls] == list(range(1, 121))
    ran = [member for batch in site.batches() for member in batch]
    assert sorted(ran) == sorted(ids(calls))
    assert max(map(len, site.batches())) == 3
    until(lambda: all_ended(sql), 30, "all have ended")
    assert sql("SELECT state, executions, count(*) FROM pgbeat.jobs GROUP BY 1, 2") == [
        ("completed", 1, 120)
    ]


@pytest.mark.parametrize("killed", ["worker", "process"])
def test_a_killed_worker_returns_all_members(site: Site, sql: Sql, killed: str) -> None:
    """None is lost, none has ended; another worker, or process, runs them."""
    first = site.start("-P", "prefork", "-c", "1", "-n", "first@%h")
    calls = [site.delay("held") for _ in range(3)]
    until(lambda: len(site.journal()) == 1, 30, "the batch runs")
    until(lambda: len(sql("SELECT FROM pgbeat.running_executions")) == 3, 30, "all are written")
    if killed == "worker":
        first.kill_group()
        site.start("-P", "prefork", "-c", "1", "-n", "second@%h")
    else:
        os.kill(int(site.journal()[0].split()[1]), signal.SIGKILL)
    assert [call.get(timeout=60) for call in calls] == [call.id for call in calls]
    until(lambda: all_ended(sql), 30, "all have ended")
    assert sql("SELECT state, executions, count(*) FROM pgbeat.jobs GROUP BY 1, 2") == [
        ("completed", 2, 3)
    ]
    lost = "SELECT lost, state, count(*) FROM pgbeat.executions GROUP BY 1, 2 ORDER BY 1"
    assert sql(lost) == [(False, "completed", 3), (True, "failed", 3)]


def test_a_member_that_kills_its_process_fails_alone(site: Site, sql: Sql) -> None:
    """The others run in halves until they are apart from it; it becomes a dead letter."""
    settings = {"broker_transport_options": {"delivery_limit": 3}}
    site.start("-P", "prefork", "-c", "1", TESTS_SETTINGS=json.dumps(settings))
    calls = [site.delay("poison", number == 5) for number in range(8)]
    until(lambda: all_ended(sql), 120, "all have ended")
    states = sql("SELECT args ->> 0, state, count(*) FROM pgbeat.jobs GROUP BY 1, 2 ORDER BY 1")
    assert states == [("false", "completed", 7), ("true", "failed", 1)]
    killed = [batch for batch in site.batches() if calls[5].id in batch]
    assert [len(batch) for batch in killed][-2:] == [1] * 2
    assert len(killed) <= 6
