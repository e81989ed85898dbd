"""Several jobs from one decision: all or none of them, each with a run key, found by their tick."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid5

import psycopg
import pytest
from celery import Celery

from pgbeat import JobRequest
from pgbeat.jobs.states import endings, retries
from pgbeat.schedules import launchers, ticks
from tests.chaos import promises
from tests.support.command_line import run_with
from tests.support.launchers import register
from tests.support.processes import until
from tests.support.rows import Sql, make_lane, make_schedule
from tests.support.schedulers import START, At
from tests.support.threads import waiting
from tests.support.web import Web

_OF_TICKS = (
    "a launched tick without its job",
    "a schedule's job without its tick",
    "one job of two ticks",
    "jobs of one tick without a run key of their own",
)
#: What the launcher asks for next.
asked: list[Any] = []


@pytest.fixture(autouse=True)
def several() -> Iterator[None]:
    """Registers the launcher that asks for what `asked` has."""

    register("Several", lambda ctx: True, lambda ctx: list(asked))
    asked[:] = keyed("a", "b", "c")
    yield
    del launchers._registry["Several"]
    asked.clear()


def keyed(*keys: Any) -> list[JobRequest]:
    return [JobRequest(kwargs={"x": key}, run_key=key) for key in keys]


def add(sql: Sql, name: str = "s", **values: Any) -> None:
    if "after" not in values:
        values = {"every": "1 hour", "next_run": START, **values}
    make_schedule(sql, name, **{"starts_at": START - timedelta(days=1)} | values)


def end(sql: Sql, key: str, state: str = "completed") -> None:
    sql("UPDATE pgbeat.jobs SET state = %s, finished_at = now() WHERE run_key = %s", state, key)


def test_all_are_launched_with_one_tick(sql: Sql, at: At) -> None:
    add(sql, launcher="Several")
    [tick] = at().run_until(START)
    assert tick.outcome == "launched"
    [(uid,)] = sql("SELECT uid FROM pgbeat.schedules")
    ids = [str(uuid5(uid, f"{START.isoformat()} {key}")) for key in "abc"]
    assert tick.job_ids == ids
    rows = sql("SELECT id::text, run_key, kwargs, due_at, trigger FROM pgbeat.jobs ORDER BY 2")
    assert rows == [
        (job_id, key, {"x": key}, START, "timetable")
        for job_id, key in zip(ids, "abc", strict=True)
    ]
    heads = [
        json.loads(row[0])["headers"]["id"] for row in sql("SELECT payload FROM kombu_message")
    ]
    assert sorted(heads) == sorted(ids)
    assert sql("SELECT job_id::text, more_job_ids::text[] FROM pgbeat.ticks") == [(ids[0], ids[1:])]
    assert sql("SELECT run_count FROM pgbeat.schedules") == [(1,)]


def test_a_key_says_nothing_about_the_next_decision(sql: Sql, at: At) -> None:
    add(sql, launcher="Several")
    assert len(at().run_until(START + timedelta(hours=1))) == 2
    assert sql("SELECT count(*), count(DISTINCT id) FROM pgbeat.jobs WHERE run_key = 'a'") == [
        (2, 2)
    ]


def test_one_that_is_wrong_fails_that_tick_alone(sql: Sql, at: At) -> None:
    wrong = {
        "two jobs": keyed("a", "a"),
        "no run key": [*keyed("a"), {"x": 1}],
        "run key ''": keyed("a", ""),
        "run key 'b\\x00'": keyed("a", "b\0"),
        "run key 2": keyed("a", 2),
        "101 jobs": keyed(*map(str, range(101))),
        "returned int": [*keyed("a"), 5],
        "task 'none'": [*keyed("a"), JobRequest(run_key="b", task="none")],
        "object": [*keyed("a"), JobRequest(run_key="b", kwargs={"x": object()})],
    }

    register("Wrong", lambda ctx: True, lambda ctx: wrong[ctx.schedule.name])
    for error in wrong:
        add(sql, error, launcher="Wrong")
    add(sql, "other")
    found = {tick.schedule: tick for tick in at().run_until(START)}
    del launchers._registry["Wrong"]
    assert found.pop("other").outcome == "launched"
    assert found.keys() == wrong.keys()
    for error, tick in found.items():
        assert tick.outcome == "failed" and error in str(tick.error)
    assert sql("SELECT schedule FROM pgbeat.jobs") == [("other",)]
    assert sql("SELECT count(*) FROM kombu_message") == [(1,)]


def test_an_empty_list_is_a_skip(sql: Sql, at: At) -> None:
    asked.clear()
    add(sql, launcher="Several")
    [tick] = at().run_until(START)
    assert (tick.outcome, tick.reason) == ("skipped", "Several: no jobs to launch")


def test_a_list_of_one_needs_no_key(sql: Sql, at: At) -> None:
    asked[:] = [{"x": 1}]
    add(sql, launcher="Several")
    [tick] = at().run_until(START)
    assert (tick.outcome, tick.more_job_ids) == ("launched", None)
    assert sql("SELECT run_key, kwargs FROM pgbeat.jobs") == [(None, {"x": 1})]


def test_the_bound_itself_is_allowed(sql: Sql, at: At) -> None:
    asked[:] = keyed(*map(str, range(100)))
    add(sql, launcher="Several")
    [tick] = at().run_until(START)
    assert len(set(tick.job_ids)) == 100
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(100,)]


def test_jobs_that_need_a_key_of_their_own_fail(sql: Sql, at: At) -> None:
    add(sql, launcher="Several", job_policy=json.dumps({"unique_key": "k"}))
    [tick] = at().run_until(START)
    assert tick.outcome == "failed"
    assert str(tick.error).startswith("the launcher asks for 3 jobs, and at least two have ")


def test_a_key_that_one_of_them_shares_skips_all(sql: Sql, at: At) -> None:
    add(sql, launcher="Several", job_policy=json.dumps({"unique": True}))
    scheduler = at()
    assert [tick.outcome for tick in scheduler.run_until(START)] == ["launched"]
    end(sql, "a")
    end(sql, "c")
    [tick] = scheduler.run_until(START + timedelta(hours=1))
    assert tick.outcome == "skipped"
    [(still,)] = sql("SELECT id FROM pgbeat.jobs WHERE run_key = 'b'")
    assert tick.reason == f"job {still}, which has the same unique key, is pending"
    end(sql, "b")
    [tick] = scheduler.run_until(START + timedelta(hours=2))
    assert len(tick.job_ids) == 3


def test_all_wait_in_the_lane(sql: Sql, app: Celery) -> None:
    make_lane(sql, "one")
    add(sql, launcher="Several", job_policy=json.dumps({"lane": "one"}))
    assert run_with(app, "trigger", "s").exit_code == 0
    assert sql("SELECT lane, count(*), count(dispatched_at) FROM pgbeat.jobs GROUP BY 1") == [
        ("one", 3, 1)
    ]


def test_overlap_skip_skips_while_any_has_not_ended(sql: Sql, at: At) -> None:
    add(sql, launcher="Several", overlap="skip")
    scheduler = at()
    scheduler.run_until(START)
    end(sql, "a")
    [tick] = scheduler.run_until(START + timedelta(hours=1))
    assert tick.outcome == "skipped"
    assert str(tick.reason).startswith("2 jobs before it have not ended; the last, ")
    end(sql, "b")
    [tick] = scheduler.run_until(START + timedelta(hours=2))
    assert str(tick.reason).startswith("the job before it, ")
    end(sql, "c")
    [tick] = scheduler.run_until(START + timedelta(hours=3))
    assert tick.outcome == "launched"


def test_overlap_cancel_previous_cancels_all(sql: Sql, at: At) -> None:
    add(sql, launcher="Several", overlap="cancel_previous")
    scheduler = at()
    [first] = scheduler.run_until(START)
    [second] = scheduler.run_until(START + timedelta(hours=1))
    rows: dict[str, str] = dict(sql("SELECT id::text, state FROM pgbeat.jobs"))
    assert [rows[job_id] for job_id in first.job_ids] == ["cancelled"] * 3
    assert [rows[job_id] for job_id in second.job_ids] == ["pending"] * 3


@pytest.mark.parametrize("overlap", ["queue_one", "buffer_all"])
def test_what_waits_waits_for_the_last(sql: Sql, at: At, overlap: str) -> None:
    add(sql, launcher="Several", overlap=overlap)
    scheduler = at()
    scheduler.run_until(START)
    assert not scheduler.run_until(START + timedelta(hours=1))
    for key in "cb":
        end(sql, key)
        scheduler.run_due()
        assert len(scheduler.ticks) == 1
    end(sql, "a")
    until(lambda: scheduler.run_due() or len(scheduler.ticks) == 2)
    assert [tick.outcome for tick in scheduler.ticks] == ["launched", "launched"]


def test_after_is_due_once_when_the_last_has_ended(sql: Sql, at: At) -> None:
    failed = ("failed", "completed", "completed")
    cases = {
        "a": (("completed",) * 3, "completed", "launched"),
        "b": (failed, "completed", "skipped"),
        "c": (failed, "failed", "launched"),
        "d": (failed, "finished", "launched"),
        "e": (("completed", "cancelled", "completed"), "completed", "skipped"),
        "f": (("skipped", "completed", "skipped"), "completed", "launched"),
    }
    for name, (_, outcome, _) in cases.items():
        add(sql, f"first {name}", launcher="Several")
        add(sql, name, after=f"first {name}", after_outcome=outcome)
    scheduler = at()
    scheduler.run_until(START)
    ticks = "SELECT schedule, outcome, missed FROM pgbeat.ticks WHERE schedule NOT LIKE 'first%%'"
    ended = "SELECT DISTINCT upstream_ended FROM pgbeat.schedules WHERE after IS NOT NULL"
    for number, key in enumerate("abc"):
        assert (sql(ticks), sql(ended)) == ([], [(0,)])
        for name, (states, _, _) in cases.items():
            sql(
                "UPDATE pgbeat.jobs SET state = %s, finished_at = now() "
                "WHERE run_key = %s AND schedule = %s",
                states[number],
                key,
                f"first {name}",
            )
    scheduler.run_due()
    assert sorted(sql(ticks)) == [(name, case[2], 0) for name, case in cases.items()]


@pytest.mark.parametrize("at_once", ["in one statement", "in two transactions"])
def test_after_is_due_once_when_all_end_at_the_same_time(
    sql: Sql, at: At, database: str, at_once: str
) -> None:
    asked[:] = keyed("a", "b")
    add(sql, launcher="Several")
    add(sql, "next", after="s")
    at().run_until(START)
    every = "UPDATE pgbeat.jobs SET state = 'completed', finished_at = now()"
    one = f"{every} WHERE run_key = %s"
    with psycopg.connect(database) as first, psycopg.connect(database) as second:
        if at_once == "in one statement":
            first.execute(every)
        else:
            first.execute(one, ["a"])
            with waiting(sql, lambda: second.execute(one, ["b"])):
                first.commit()
    assert sql("SELECT upstream_ended FROM pgbeat.schedules WHERE name = 'next'") == [(1,)]


def test_a_retry_keeps_its_key_and_counts(sql: Sql, at: At) -> None:
    add(sql, launcher="Several", job_policy=json.dumps({"max_attempts": 2}))
    add(sql, "next", after="s")
    scheduler = at()
    scheduler.run_until(START)
    end(sql, "b")
    end(sql, "c")
    connection = scheduler._leader.connect()
    [(job_id,)] = sql("SELECT id FROM pgbeat.jobs WHERE run_key = 'a'")
    endings.end(connection, [job_id], "failed", "boom")
    [again] = retries.insert_automatic(connection, [job_id])
    assert (again.run_key, again.state) == ("a", "scheduled")
    assert sql("SELECT upstream_ended FROM pgbeat.schedules WHERE name = 'next'") == [(0,)]
    sql("UPDATE pgbeat.jobs SET state = 'completed', finished_at = now() WHERE id = %s", again.id)
    assert sql("SELECT upstream_ended FROM pgbeat.schedules WHERE name = 'next'") == [(1,)]


@pytest.mark.parametrize("is_broken", [False, True])
def test_chaos_finds_each_job_by_its_tick(sql: Sql, at: At, is_broken: bool) -> None:
    add(sql, launcher="Several")
    add(sql, "single")
    at().run_until(START)
    if is_broken:
        sql("DELETE FROM pgbeat.jobs WHERE run_key = 'b'")
        sql("UPDATE pgbeat.ticks SET more_job_ids = more_job_ids[1:1] WHERE schedule = 's'")
    found = {name for name in _OF_TICKS if sql(promises._NEVER[name])}
    expected = {"a launched tick without its job", "a schedule's job without its tick"}
    assert found == (expected if is_broken else set())


def test_history_has_all_of_them(sql: Sql, at: At) -> None:
    add(sql, launcher="Several")
    scheduler = at()
    [tick] = scheduler.run_until(START)
    end(sql, "b", "failed")
    connection = scheduler._leader.connect()
    [entry] = ticks.history(connection, tick.schedule_id)
    states = [(str(job.id), job.run_key, job.state) for job in entry.jobs]
    assert states == [*zip(tick.job_ids, "abc", ("pending", "failed", "pending"), strict=True)]
    assert ticks.summary(entry.jobs) == "3 jobs: 2 pending, 1 failed"
    assert UUID(tick.job_ids[0]) == entry.job_id


def test_the_command_line_shows_all(sql: Sql, at: At, app: Celery) -> None:
    add(sql, launcher="Several", starts_at=None)
    at().run_until(START)
    end(sql, "b", "failed")
    for command in ("history", "explain", "status"):
        said = run_with(app, command, "s").stdout
        assert "b failed" in said or "3 jobs: 2 pending, 1 failed" in said, said
    [tick] = json.loads(run_with(app, "history", "s", "--json").stdout)["ticks"]
    assert [job["run_key"] for job in tick["jobs"]] == ["a", "b", "c"]
    checked = run_with(app, "check", "s").stdout
    assert checked.startswith("would be launched: 3 jobs\n"), checked
    requests = json.loads(run_with(app, "check", "s", "--json").stdout)["requests"]
    assert [request["kwargs"] for request in requests] == [{"x": key} for key in "abc"]
    triggered = json.loads(run_with(app, "trigger", "s", "--json").stdout)
    assert len(triggered["job_ids"]) == 3
    told = sql("SELECT after -> 'job_ids' FROM pgbeat.audit WHERE verb = 'trigger'")
    assert told == [(triggered["job_ids"],)]
    shown = run_with(app, "jobs", "show", triggered["job_ids"][1]).stdout
    assert "run key" in shown, shown


def test_the_api_and_the_console_show_all(sql: Sql, at: At, web: Web) -> None:
    add(sql, launcher="Several")
    [tick] = at().run_until(START)
    end(sql, "b", "failed")
    admin = web.admin
    [entry] = admin.get("/admin/scheduled-jobs/s/history").json()["ticks"]
    assert [job["id"] for job in entry["jobs"]] == tick.job_ids
    assert admin.post("/admin/scheduled-jobs/s/check").json()["jobs"] == 3
    made = admin.post("/admin/scheduled-jobs/s/trigger").json()
    assert len(made["job_ids"]) == 3
    job = admin.get(f"/jobs/{made['job_ids'][1]}").json()
    assert job["run_key"] == "b"
    page = web.browser(web.token("root", "admin")).get("/console/schedules/s").text
    assert page.count("<summary>3 jobs</summary>") == 2
    assert all(job_id in page for job_id in (*tick.job_ids, *made["job_ids"]))
