"""`pgbeat groups`: show groups, make one from a file, cancel one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from pgbeat.jobs.submitting.submit_group import SubmittedGroup, submit_group
from tests.support.command_line import Sql, cells, read, refused, run, run_with
from tests.support.rows import make_group

ADD = {"task": "tests.add", "max_attempts": 1}


@pytest.fixture
def submit(app: Celery) -> Callable[..., SubmittedGroup]:
    return lambda members, **options: submit_group(members, app=app, **options)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], str]:
    """Returns what writes a file, and returns its path."""

    def to_file(content: Any) -> str:
        path = tmp_path / "group.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return to_file


Submit = Callable[..., SubmittedGroup]
Write = Callable[[Any], str]


def test_groups_are_listed(database: str, submit: Submit, sql: Sql) -> None:
    own = submit([ADD, ADD, ADD], name="nightly", mode="sequential").group
    other = submit([ADD], created_by="user:alice").group
    sql(
        "UPDATE pgbeat.jobs SET state = 'completed', finished_at = now() "
        "WHERE group_id = %s AND group_position = 0",
        own.id,
    )
    shown = run(database, "groups", "list").stdout.splitlines()
    assert cells(shown[0]) == ["group", "state", "name", "mode", "done", "age"]
    row = cells(shown[2])
    assert row[:5] == [str(own.id), "running", "nightly", "sequential", "1/3"]
    assert row[-1] == "1 completed, 2 pending"
    assert len(shown) == 3
    alices = read(database, "groups", "list", "--created-by", "user:alice")
    assert [group["id"] for group in alices] == [str(other.id)]
    assert alices[0]["progress"] == {
        "total": 1,
        "done": 0,
        "counts": {"pending": 1},
        "percent": 0.0,
    }
    assert read(database, "groups", "list", "--state", "completed") == []


def test_all_about_a_group(database: str, submit: Submit, sql: Sql) -> None:
    made = submit([ADD, ADD], name="nightly", mode="sequential", on_failure="skip_remaining")
    sql(
        "UPDATE pgbeat.jobs SET state = 'failed', error = 'oops', finished_at = now() "
        "WHERE group_position = 0"
    )
    shown = run(database, "groups", "show", str(made.group.id)[:8]).stdout.splitlines()
    assert shown[0] == str(made.group.id)
    facts = {cells(row)[0]: cells(row)[1] for row in shown[1:] if row.startswith("  ")}
    assert facts["name"] == "nightly"
    assert facts["done"] == "1/2 (50 %): 1 failed, 1 pending"
    assert (facts["mode"], facts["on failure"]) == ("sequential", "skip remaining")
    members = [cells(row) for row in shown[-2:]]
    assert members == [
        ["0", str(made.jobs[0].id), "failed", "tests.add", "oops"],
        ["1", str(made.jobs[1].id), "pending", "tests.add", "after the jobs before it"],
    ]
    found = read(database, "groups", "show", str(made.group.id))
    assert found["progress"]["percent"] == 50
    assert [job["state"] for job in found["jobs"]] == ["failed", "pending"]


def test_a_group_that_is_not_there_or_not_ones_own(database: str, submit: Submit) -> None:
    missing = "00000000-0000-0000-0000-000000000000"
    assert missing in refused(run(database, "groups", "show", missing), 1)
    assert "4 characters or more" in refused(run(database, "groups", "show", "abc"), 1)
    other = str(submit([ADD], created_by="user:alice").group.id)
    assert other in run(database, "groups", "show", other).stdout
    assert f"group {other}" in refused(run(database, "groups", "cancel", other), 1)


def test_one_of_several_beginnings(database: str, sql: Sql) -> None:
    for digit in "12":
        make_group(sql, id=f"abcd000{digit}-0000-0000-0000-000000000000")
    message = refused(run(database, "groups", "show", "abcd", "--admin"), 1)
    assert "abcd0001-" in message and "abcd0002-" in message
    shown = run(database, "groups", "show", "abcd0002", "--admin")
    assert shown.stdout.startswith("abcd0002-")


def test_a_graph_is_made_from_a_file_and_a_job_that_follows(
    app: Celery, write: Write, sql: Sql
) -> None:
    jobs = [{"task": "tests.add", "key": "a"}, {"task": "tests.add", "depends_on": ["a"]}]
    path = write({"jobs": jobs, "callback": {"task": "tests.add"}, "callback_outcome": "completed"})
    dry = run_with(app, "groups", "run", path, "--dry-run").stdout
    assert dry == "Would make a parallel group of 2 jobs and its callback.\n"
    dry = run_with(app, "groups", "run", path, "--dry-run", "--json").stdout
    assert json.loads(dry) == {"dry_run": True, "mode": "parallel", "jobs": 2}
    assert sql("SELECT 1 FROM pgbeat.groups") == []
    found = json.loads(run_with(app, "groups", "run", path, "--json").stdout)
    last = found["jobs"][1]["id"]
    follow = ("jobs", "run", "tests.add", "--depends-on", last[:8], "--json")
    made = json.loads(run_with(app, *follow).stdout)
    assert (made["is_blocked"], made["unfinished_parents"]) == (True, 1)
    assert last in run_with(app, "jobs", "show", made["id"]).stdout
    assert run_with(app, "jobs", "run", "tests.add", "--depends-on", "abcd").exit_code == 1
    # A mode of the file gives way to an option.
    said = run_with(app, "groups", "run", write(["tests.add"]), "--mode", "sequential").stdout
    assert said.startswith("Made a sequential group of 1 job: ")


def test_what_a_file_has_wrong(app: Celery, write: Write, sql: Sql) -> None:
    for content, message in (
        ("[", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("7", "is not a group; write a list of jobs, or an object"),
        ('{"job": []}', "is not a group"),
        ('{"jobs": ["tests.add"], "node": "x"}', "a group has no 'node'; its keys are name, mode"),
        ('["tests.ad"]', "member 0: "),
    ):
        result = run_with(app, "groups", "run", write(content))
        assert result.exit_code in (1, 2)
        assert message in result.stderr
    assert sql("SELECT count(*) FROM pgbeat.groups") == [(0,)]


def test_a_unique_key_that_is_taken(app: Celery, write: Write) -> None:
    path = write([{"task": "tests.add", "unique_key": "k"}])
    assert run_with(app, "groups", "run", path, "--dry-run").exit_code == 0
    assert run_with(app, "groups", "run", path).exit_code == 0
    for how in ((), ("--dry-run",)):
        assert "has the same unique key" in refused(run_with(app, "groups", "run", path, *how), 1)


def test_a_group_is_cancelled(app: Celery, submit: Submit, sql: Sql) -> None:
    made = submit([ADD, ADD, ADD])
    sql("UPDATE pgbeat.jobs SET state = 'running', started_at = now() WHERE group_position = 0")
    group_id = str(made.group.id)
    assert run_with(app, "groups", "cancel", group_id, "--dry-run").stdout == (
        f"Would cancel group {group_id}: 2 jobs that wait, 1 that run.\n"
    )
    assert run_with(app, "groups", "cancel", group_id[:8]).stdout == (
        f"Cancelled group {group_id}: 2 jobs ended.\nRequested the end of 1 running job.\n"
    )
    assert "running (cancelling)" in run_with(app, "groups", "list").stdout
    sql("UPDATE pgbeat.jobs SET state = 'completed', finished_at = now() WHERE state = 'running'")
    sql("UPDATE pgbeat.groups SET state = 'cancelled', finished_at = now()")
    for how in ((), ("--dry-run",)):
        said = refused(run_with(app, "groups", "cancel", group_id, *how), 1)
        assert said.endswith("; it has ended")


def test_a_cancel_needs_the_app(database: str, submit: Submit) -> None:
    made = submit([ADD])
    message = refused(run(database, "groups", "cancel", str(made.group.id)))
    assert message == "the jobs' messages are in the app's broker; give it with -A APP"
