"""`pgbeat jobs`: show, make, change and follow jobs."""

import getpass
import json
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from celery import Celery

from pgbeat.access.actors import Actor
from pgbeat.jobs.searching import search
from pgbeat.jobs.verbs import control
from tests.support.command_line import Sql, read, refused, run, run_on_terminal, run_with
from tests.support.jobs import BOB, JobControl, messages
from tests.support.processes import PGBEAT, Processes, until
from tests.support.rows import insert, make_execution, make_job, make_lane, make_stack

ME = Actor(f"user:{getpass.getuser()}")
Did = Callable[..., str]


@pytest.fixture(autouse=True)
def no_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsets the variable that makes the user an administrator."""
    monkeypatch.delenv("PGBEAT_ADMIN", raising=False)


@pytest.fixture
def did(printed_with: Did) -> Did:
    """Returns what runs `pgbeat jobs …` successfully, and returns what it prints."""
    return partial(printed_with, "jobs")


def ids(listed: str) -> list[str]:
    """Returns the ids in a list, in its order."""
    return [line.split()[0] for line in listed.splitlines()[1:]]


def test_whose_jobs_are_listed(did: Did, job_control: JobControl) -> None:
    assert did("list") == (
        "There are no jobs yet; `pgbeat jobs run TASK` makes one, `pgbeat add` a schedule.\n"
    )
    other = job_control.make(actor=BOB)
    assert did("list", "--state", "failed") == "There are no jobs like that.\n"
    mine = job_control.make(actor=ME)
    assert ids(did("list")) == [str(mine.id), str(other.id)]
    assert ids(did("list", "--created-by", BOB.name)) == [str(other.id)]


def test_a_list_that_was_cut_continues_before_the_time_that_it_says(
    database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_WINDOW", 3)
    times = [f"2026-01-01T00:00:00.{tenth}Z" for tenth in (9, 7, 7, 5, 3, 1)]
    made = {make_job(sql, created_at=at) for at in times}
    found, before = set[str](), [""]
    while before:
        listed = run(database, "jobs", "list", "add", *before, "--json")
        found |= {row["id"] for row in json.loads(listed.stdout)}
        before = re.findall("'(before:.*)'", listed.stderr)
    assert found == made


def test_the_list_at_80_columns(database: str, sql: Sql) -> None:
    task = "warehouse.tasks.reconciliation.reconcile_inventory"
    error = "ConnectionError: " + "no answer " * 10
    job = make_job(sql, "failed", task=task, schedule="warehouse-inventory", error=error)
    listed = run_on_terminal(database, 80, "jobs", "list")
    assert listed[0].split() == ["job", "state", "task", "age"]
    assert listed[1].split()[:3] == [job[:8], "failed", task]
    assert "(warehouse-inventory)" in listed[2]
    assert " ".join(" ".join(listed[3:]).split()) == error.strip()
    assert max(map(len, listed)) <= 80
    assert job in run(database, "jobs", "list").stdout, "whole in a pipe"


def test_masked_arguments_are_shown_to_administrators(
    app: Celery, did: Did, job_control: JobControl, sql: Sql
) -> None:
    app.conf.pgbeat_redact = {"jobs.*": "*"}
    job = str(job_control.make(4711471147).id)
    sql("UPDATE pgbeat.jobs SET state = 'failed', error = 'Oops: 4711471147', finished_at = now()")
    for command in (
        ("list",),
        ("show", job),
        ("list", "--json"),
        ("show", job, "--json"),
        ("tree", job),
        ("tree", job, "--json"),
    ):
        assert "4711471147" not in did(*command), command
        assert "4711471147" in did(*command, "--admin"), command


def test_of_a_group_the_beginning_of_its_id_is_enough(did: Did, sql: Sql) -> None:
    group = insert(sql, "groups", {"job_source": "user_cli", "created_by": ME.name}, "id")
    make_job(sql, created_by=ME.name)
    job = make_job(sql, group_id=group, created_by=ME.name)
    assert ids(did("list", "--group", str(group)[:8])) == [job]
    assert ids(did("list", "--limit", "1")) == [job]


def test_show(did: Did, job_control: JobControl, sql: Sql) -> None:
    make_lane(sql)
    told_of: dict[str, Any] = {"lane": "l", "tags": ["night"], "resources": {"gpu": 1}}
    job = job_control.make(5, actor=ME, kwargs={"y": 6}, max_attempts=3, unique_key="k", **told_of)
    second = job_control.make(actor=ME, lane="l")
    assert "waits in lane 'l' at place 1" in did("show", str(second.id)[:8])
    job_id = str(job.id)
    progress: dict[str, Any] = {"progress_done": 3, "progress_total": 12}
    progress |= {"progress_message": "pages", "metadata": {"items_crawled": 7}}
    run_id = job_control.begins(job_id, worker="w1@host", checkpoint={"page": 3}, **progress)
    shown = did("show", job_id)
    for said in ("running", "on w1@host", "[5]", '{"y": 6}', "night", '{"gpu": 1}', "1 of 3"):
        assert said in shown, said
    for said in ("3 of 12 (25%) pages", '{"page": 3}', '"items_crawled": 7'):
        assert said in shown, said
    said_last = {"error": "ValueError: \x1b[31mno", "traceback": "Traceback …\n  File \x1b[0m"}
    used: Any = {"duration_ms": 1500, "memory_peak_mb": 51.5} | said_last
    job_control.tells(run_id, job_id, "failed", **used)
    shown = did("show", job_id)
    assert f"{job_control.job(job).retried_by} 2/3" in shown, "the chain"
    assert "1.5 s" in shown or "1 s" in shown
    assert "52 MB" in shown and "ValueError: " in shown and "\x1b" not in shown
    assert "failed (retried)" in did("list", "--state", "failed")


def test_stats(did: Did, job_control: JobControl) -> None:
    for ms, state in ((100, "completed"), (300, "completed"), (5, "failed")):
        job = job_control.make(actor=ME, max_attempts=1)
        job_control.tells(job_control.begins(job.id), job.id, state, duration_ms=ms)
    shown = did("stats")
    for said in ("completed  2", "failed     1", "67% (skips aside)", "200 ms"):
        assert said in shown, shown
    assert "0%" in did("stats", str(job.id))


def test_what_it_logged(did: Did, sql: Sql) -> None:
    job = make_job(sql)
    assert did("logs", job) == "It has logged nothing that was kept.\n"
    lines = [[1, "INFO", "shop", "one"], [2, "ERROR", "shop", "two\n  three\x1b[1m"]]
    for number, log in (
        (1, {"omitted": 0, "lines": lines[:1]}),
        (2, {"omitted": 7, "lines": lines}),
    ):
        given = {"number": number, "started_at": "2026-01-01T00:00:00Z", "log": log}
        make_execution(sql, job, "completed", **given)
    assert did("logs", job[:8]).splitlines() == [
        "Execution 1, completed",
        "2026-01-01 00:00:01 INFO shop: one",
        "Execution 2, completed",
        "… 7 lines before these",
        "2026-01-01 00:00:01 INFO shop: one",
        "2026-01-01 00:00:02 ERROR shop: two",
        "    three\N{REPLACEMENT CHARACTER}[1m",
    ]
    [found] = json.loads(did("logs", job, "--execution", "2", "--json"))
    assert (found["number"], found["omitted"], len(found["lines"])) == (2, 7, 2)


def test_run(did: Did, sql: Sql, app: Celery, database: str) -> None:
    make_lane(sql, limit=0)
    add = ("run", "jobs.add", "--args", "[1]")
    assert did(*add, "--dry-run") == "Would make a job of task 'jobs.add'.\n"
    would = json.loads(did(*add, "--dry-run", "--json"))
    assert (would["task"], would["args"], would["is_new"]) == ("jobs.add", [1], True)
    assert would["created_at"] < "2999"
    said = did(*add, "--kwargs", '{"y": 3}', "--priority", "4")
    [(job, created_by)] = sql("SELECT id, created_by FROM pgbeat.jobs")
    assert created_by == ME.name
    assert said == (
        f"Made job {job} of task 'jobs.add': it is pending in queue 'celery'; "
        f"`pgbeat jobs tail {str(job)[:8]}` follows it\n"
    )
    again = json.loads(did("run", "--like", str(job)[:6], "--args", "[2]", "--json"))
    assert (again["args"], again["kwargs"], again["priority"]) == ([2], {"y": 3}, 4)
    assert messages(sql) == [str(job), again["id"]]
    keyed = (*add, "--unique-key", "k", "--lane", "l")
    made, same = (json.loads(did(*keyed, "--json")) for _ in range(2))
    assert (made["is_new"], same["is_new"], made["id"] == same["id"]) == (True, False, True)
    for how in ((), ("--dry-run",)):
        assert "has the same unique key and is pending; no job is made" in did(*keyed, *how)
    assert "it comes at 2099-01-02 03:04:00 UTC" in did(*add, "--at", "2099-01-02T03:04Z")
    assert "it waits for approval" in did(*add, "--requires-approval")
    assert refused(run(database, "jobs", "run", "jobs.add")).endswith("give it with -A APP")
    said = refused(run_with(app, "jobs", *add, "--tag", os.fsdecode(b"\xff")))
    assert "tags" in said
    several = refused(run_with(app, "jobs", *add, "--in", "soon", "--priority", "300"))
    assert len(several.splitlines()) == 3, several


def test_run_without_the_broker(app: Celery, sql: Sql) -> None:
    app.conf.broker_url = "redis://localhost:1/0"
    said = refused(run_with(app, "jobs", "run", "jobs.add", "--args", "[1]"), 1)
    assert said.startswith("the broker can't be reached, or refused: ")
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]


def test_several_at_once(app: Celery, job_control: JobControl, sql: Sql) -> None:
    """An error for one job doesn't stop the others; but all are deleted, or none."""
    a, b, c = (job_control.make(actor=ME) for _ in range(3))
    job_control.do(control.cancel, b)
    shown = run_with(app, "jobs", "cancel", str(a.id), str(b.id), str(c.id))
    assert shown.exit_code == 1
    assert shown.stdout.splitlines() == [
        f"Cancelled job {a.id}, which was pending.",
        f"Cancelled job {c.id}, which was pending.",
    ]
    assert shown.stderr.startswith(f"Error: job {b.id} is cancelled")
    fresh = job_control.make(actor=ME)
    said = refused(run_with(app, "jobs", "delete", "--yes", str(a.id), str(fresh.id)), 1)
    assert str(fresh.id) in said
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(4,)]
    gone = run_with(app, "jobs", "delete", "--yes", str(a.id), str(b.id))
    assert gone.stdout == "Deleted 2 jobs.\n"


def test_one_that_is_locked_stops_no_others(
    app: Celery, job_control: JobControl, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgbeat.cli.terminal.target._LIMITS", {"lock_timeout": "50ms"})
    a, b, c = (job_control.make(actor=ME) for _ in range(3))
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM pgbeat.jobs WHERE id = %s FOR UPDATE", [b.id])
        shown = run_with(app, "jobs", "cancel", str(a.id), str(b.id), str(c.id), "--json")
    assert [job["id"] for job in json.loads(shown.stdout)] == [str(a.id), str(c.id)]
    assert (shown.exit_code, shown.stderr) == (
        1,
        "Error: another session is changing that; try again\n",
    )


def test_what_is_for_administrators(
    app: Celery, did: Did, job_control: JobControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_control.make(actor=ME, requires_approval=True)
    assert "(--admin)" in refused(run_with(app, "jobs", "approve", str(job.id)), 1)
    assert did("approve", str(job.id), "--admin").startswith(f"Approved job {job.id}: it is pend")
    other = job_control.make(actor=BOB)
    for verb in ("retry", "cancel", "approve", "delete"):
        said = refused(run_with(app, "jobs", verb, str(other.id)), 1)
        assert f"{verb} job {other.id}" in said
    monkeypatch.setenv("PGBEAT_ADMIN", "1")
    did("cancel", str(other.id))


def test_move(app: Celery, did: Did, job_control: JobControl, sql: Sql) -> None:
    make_lane(sql, limit=0)
    a, b = (str(job_control.make(actor=ME, lane="l").id) for _ in range(2))
    assert did("move", b, "front") == f"Moved job {b}: place 1 in lane 'l'.\n"
    assert did("move", b, "after", a).endswith("place 2 in lane 'l'.\n")
    assert did("move", b, "before", a).endswith("place 1 in lane 'l'.\n")
    assert "before which job?" in refused(run_with(app, "jobs", "move", a, "before"))
    assert "takes no other" in refused(run_with(app, "jobs", "move", a, "back", b))


def test_the_app_is_needed_for_messages(database: str, job_control: JobControl) -> None:
    job = job_control.make(actor=ME)
    assert "-A APP" in refused(run(database, "jobs", "cancel", str(job.id)))


def test_tail_of_a_job_until_its_end(app: Celery, job_control: JobControl) -> None:
    for state, status in (("completed", 0), ("failed", 1), ("skipped", 3)):
        job = job_control.make(actor=ME, max_attempts=1)
        job_control.tells(job_control.begins(job.id), job.id, state, error="because")
        shown = run_with(app, "jobs", "tail", str(job.id))
        assert (shown.exit_code, shown.stderr) == (status, "")
        assert re.fullmatch(
            rf"\d\d:\d\d:\d\d {str(job.id)[:8]} jobs.add: {state}: because\n", shown.stdout
        )


def test_tail_as_it_goes(processes: Processes, job_control: JobControl, database: str) -> None:
    def tail(*arguments: str) -> Any:
        return processes.run(*PGBEAT, "--url", database, "jobs", "tail", *arguments)

    job = job_control.make(actor=ME, max_attempts=2, retry_base=0)
    every = tail("--json")
    one = tail(str(job.id))
    one.says("jobs.add: pending")
    every.says('"pending"')
    first = job_control.begins(job.id, worker="w1")
    one.says("running: on w1")
    job_control.tells(first, job.id, "running", progress_done=1, progress_total=4)
    one.says("running: on w1; 1 of 4 (25%)")
    job_control.tells(first, job.id, "failed", error="oops")
    one.says("jobs.add: failed (retried): oops")
    one.says("attempt 2: scheduled")
    fresh = job_control.make(actor=ME)
    other = job_control.make(actor=BOB)
    every.says(str(fresh.id))
    every.says(str(other.id))
    again = str(job_control.job(job).retried_by)
    job_control.tells(job_control.begins(again), again)
    assert one.wait(30) == 0
    one.says("attempt 2: completed")
    until(lambda: f'"id": "{again}"' in every.output and '"completed"' in every.output, 30)
    every.send_signal(signal.SIGINT)
    assert every.wait(30) == 130
    rows = [json.loads(row) for row in every.output.splitlines()]
    states = [row["state"] for row in rows if row["id"] == str(job.id)]
    assert states[0] == "pending" and states[-1] == "failed"
    assert {"done": 1, "total": 4, "percent": 25, "message": None} in [r["progress"] for r in rows]
    assert {row["id"] for row in rows} == {str(job.id), again, str(fresh.id), str(other.id)}


def test_a_dry_run_sends_nothing_to_a_broker_elsewhere(
    app: Celery, sql: Sql, tmp_path: Path
) -> None:
    app.conf.broker_url, app.conf.task_default_queue = "memory://", uuid4().hex
    (tmp_path / "lines").write_text('"tests.add"')
    (tmp_path / "group").write_text('["tests.add"]')
    with app.connection_for_read() as broker:
        queue = broker.SimpleQueue(app.conf.task_default_queue)
        for command in (
            ("jobs", "run", "tests.add"),
            ("jobs", "run-many", str(tmp_path / "lines")),
            ("groups", "run", str(tmp_path / "group")),
        ):
            dry = run_with(app, *command, "--dry-run")
            assert (dry.exit_code, queue.qsize()) == (0, 0), dry.output
            assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]
        assert run_with(app, *command).exit_code == 0
        assert queue.qsize() == 1


def test_the_lines_of_a_file_are_jobs(app: Celery, sql: Sql, tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    one, other = '{"task": "jobs.add", "args": [1]}', '{"task": "jobs.add", "args": [2, 3]}'
    path.write_text(f"{one}\n\n{other}\n")
    said = run_with(app, "jobs", "run-many", str(path), "--dry-run").stdout
    assert said == "Would make 2 jobs.\n"
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]
    assert run_with(app, "jobs", "run-many", str(path)).stdout == "Made 2 jobs.\n"
    told = json.loads(run_with(app, "jobs", "run-many", str(path), "--json").stdout)
    found = sql("SELECT id::text, created_by FROM pgbeat.jobs WHERE id = ANY (%s)", told["jobs"])
    assert len(found) == 2
    assert (
        sql("SELECT args, job_source FROM pgbeat.jobs ORDER BY created_at, args")
        == [([1], "user_cli"), ([2, 3], "user_cli")] * 2
    )


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ('"jobs.add"\n{"task":', ":2 is not JSON"),
        ('"\xe9"', "the file is not valid UTF-8"),
        ('"jobs.add"\n{"task": "jobs.add", "max_attempts": 0}', "job 1: "),
    ],
)
def test_a_line_that_is_wrong(
    app: Celery, sql: Sql, tmp_path: Path, lines: str, where: str
) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(lines.encode("latin1"))
    assert where in refused(run_with(app, "jobs", "run-many", str(path)))
    assert sql("SELECT count(*) FROM pgbeat.jobs") == [(0,)]


def test_a_query_finds_jobs(database: str, sql: Sql) -> None:
    for error in ("HTTPError: 503", "KeyError"):
        make_job(sql, "failed", task="shop.prices", error=error, kwargs='{"site": "x"}')
    make_job(sql, "completed", task="shop.prices")
    found = read(database, "jobs", "list", "task:shop.*", "error:503", "arg.site=x")
    assert [(each["state"], each["error"]) for each in found] == [("failed", "HTTPError: 503")]
    for option in ("--state failed", "--schedule b"):
        both = run(database, "jobs", "list", "state:completed", "schedule:a", *option.split())
        assert "give one of them" in refused(both) or "is there twice" in refused(both)
    wrong = run(database, "jobs", "list", "stat:failed", "lanes:x", "--json")
    problems = json.loads(wrong.stdout)["error"]["problems"]
    assert [(each["field"], each["code"]) for each in problems] == [("q", "unknown")] * 2


def test_what_is_no_json_and_no_amount_is_refused(database: str, sql: Sql) -> None:
    for option, text, said in (
        ("--args", "[", "is not JSON"),
        ("--args", "{}", "is not an array"),
        ("--kwargs", '{"x": NaN}', "NaN is not a JSON number"),
        ("--kwargs", '{"x": 1e999}', "1e999 is not a JSON number"),
        ("--args", "[" * 100_000, "is not JSON"),
        ("--resource", "gpu=many", "is not an amount of a resource"),
    ):
        assert said in refused(run(database, "jobs", "run", "tests.add", option, text)), text
    assert sql("SELECT 1 FROM pgbeat.jobs") == []


def test_a_running_jobs_end_is_requested(app: Celery, sql: Sql) -> None:
    job = make_job(sql, "running", worker="w1", created_by=ME.name)
    said = run_with(app, "jobs", "cancel", job).stdout
    assert said == f"Requested the end of job {job}, which runs on w1.\n"
    assert "1" in run_with(app, "jobs", "stats", "--json").stdout


def test_stacks_are_printed_the_oldest_first(database: str, sql: Sql) -> None:
    job_id = make_job(sql, "failed")
    assert run(database, "jobs", "stack", job_id).output == "No stack of it was kept.\n"
    run_id = make_execution(sql, job_id, "failed")
    for reason, minute in (("time_limit", 2), ("soft_time_limit", 1)):
        taken_at = f"2026-01-01T00:0{minute}:00Z"
        stack = f'  File "a.py", line {minute}, in crawl\n'
        make_stack(sql, job_id, run_id, reason=reason, taken_at=taken_at, stack=stack)
    assert run(database, "jobs", "stack", job_id[:8]).output.splitlines() == [
        "Execution 1, just before its soft time limit, 2026-01-01 00:01:00, 12 MB",
        '  File "a.py", line 1, in crawl',
        "Execution 1, just before its time limit, 2026-01-01 00:02:00, 12 MB",
        '  File "a.py", line 2, in crawl',
    ]
